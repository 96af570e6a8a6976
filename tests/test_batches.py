"""Batches follow from (seed, step), cover what they should, leave out what is held out, and are augmented alike."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from data_helpers import IMAGES, LABELS, LONG, SMALL, TEXT, pets, plays, random_images, write_images, write_text

from normbench.data import digits, pydocs
from normbench.data.batches import count_held_out
from normbench.data.cache import Content
from normbench.data.images import Images, crop_and_flip, cut_holes
from normbench.data.text import Text
from normbench.data.vocabulary import Vocabulary
from normbench.errors import UsageError

SHAPE = (3, 9, 7)


# ---- text


def test_an_epoch_of_text_takes_each_token_once_but_at_the_ends() -> None:
    """Of a text whose tokens are their own places."""
    arrays = {"train": np.arange(1000), "val": np.arange(100)}
    vocabulary = Vocabulary(map(chr, range(1000)))
    data = Text(Content("counting", {}, arrays, vocabulary.facts, ""), **TEXT)
    assert data.steps_per_epoch == 123 // 3, "windows of 8 in 1,000 tokens, less one for the cut"
    cuts = []
    for epoch in range(4):
        starts = [window[0] for window in windows_of_an_epoch(data, epoch)]
        assert len(starts) == len(set(starts)) == 123
        assert len({start % 8 for start in starts}) == 1
        assert starts != sorted(starts)
        cuts.append(min(starts))
    assert len(set(cuts)) > 1, "each epoch cuts elsewhere"
    assert max(cuts) < 16


def windows_of_an_epoch(data: Text, epoch: int) -> list[list[int]]:
    """Return the training windows of an epoch, each with its last target."""
    found = []
    first = epoch * data.steps_per_epoch
    for step in range(first, first + data.steps_per_epoch):
        inputs, targets, *_ = data.train_batch(step)
        assert inputs.shape == targets.shape == (3, 8) and inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        found += torch.cat((inputs, targets[:, -1:]), dim=1).tolist()
    return found


@pytest.mark.parametrize("length", [9, 17, 18, 41])
def test_evaluation_takes_every_target_once(tmp_path: Path, length: int) -> None:
    text = "".join(chr(97 + i % 26) for i in range(length))
    data = plays(write_text(tmp_path, train=[LONG], validation=[text[:-1]], test=[text[-1:]]))
    batches = list(data.eval_batches("val"))
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    inputs = torch.cat([batch.inputs.flatten() for batch in batches])
    assert data.decode(targets) == text[1:] and data.decode(inputs) == text[:-1]
    assert all(len(batch.inputs) <= 4 for batch in batches)
    remainder = (length - 1) % 8
    assert tuple(batches[-1].inputs.shape) == (1, remainder) or (not remainder and batches[-1].inputs.shape[1] == 8)


@pytest.mark.parametrize("batch_size", [3, 7])
def test_limited_text_evaluation_spreads_over_the_split(batch_size: int) -> None:
    """The windows are the same whatever the training batch."""
    data = pydocs(**TEXT | {"batch_size": batch_size})
    batches = list(data.eval_batches("val", limit=5))
    assert [tuple(batch.inputs.shape) for batch in batches] == [(4, 8)] * 5
    val = torch.from_numpy(data.examples["val"].astype(np.int64))
    last = len(val) - 9
    starts = [number * last // 19 for number in range(20)]
    expected = torch.stack([val[start : start + 8] for start in starts])
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), expected)
    assert torch.equal(batches[-1].targets[-1], val[-8:])
    every_window = sum(len(batch.inputs) for batch in data.eval_batches("val", limit=10**6))
    assert every_window == (len(val) - 1) // 8


# ---- images


def numbered(data: Images, steps: range) -> list[list[int]]:
    """Return which training images the batches hold, found by their pixels."""
    known = data.examples["train"].flatten(1).float()
    numbers = []
    for step in steps:
        images = data.train_batch(step).inputs.flatten(1)
        numbers.append([int((known == image).all(1).nonzero()) for image in images])
    return numbers


def test_image_epochs_are_permutations_that_follow_from_seed_and_epoch(tmp_path: Path) -> None:
    root = write_images(tmp_path, SMALL, LABELS)
    first, second, other = (pets(root, scaling="none", seed=seed) for seed in (0, 0, 1))
    epochs = [numbered(first, range(3 * epoch, 3 * epoch + 3)) for epoch in range(4)]
    orders = [list(itertools.chain(*batches)) for batches in epochs]
    for order in orders:
        assert len(set(order)) == len(order) == 18  # 20 images, the incomplete batch dropped
    assert len(set(map(tuple, orders))) == 4
    assert numbered(second, range(7, 8)) == [epochs[2][1]]
    assert numbered(second, range(1)) == [epochs[0][0]]
    assert numbered(other, range(1)) != [epochs[0][0]]
    assert first.train_batch(4).targets.tolist() == [LABELS["train"][image] for image in epochs[1][1]]


def test_limited_image_evaluation_spreads_over_the_split() -> None:
    data = digits(**IMAGES | {"eval_batch_size": 10}, scaling="none")
    batches = list(data.eval_batches("val", limit=3))
    rows = [297 * number // 30 for number in range(30)]
    expected = data.examples["val"][rows].float().split(10)
    for batch, part in zip(batches, expected, strict=True):
        assert torch.equal(batch.inputs, part)
    assert sum(len(batch.targets) for batch in data.eval_batches("val", limit=1000)) == 297
    data = digits(**IMAGES | {"eval_batch_size": 296})
    assert [len(batch.targets) for batch in data.eval_batches("val")] == [149, 148], "none is a lone image"


@pytest.mark.parametrize(("holdout", "trained"), [(0, 20), (5, 15), (0.4, 12)])
def test_standard_scaling_is_that_of_the_images_trained_on(tmp_path: Path, holdout: float, trained: int) -> None:
    stored = random_images(6, 5, 3)
    root = write_images(tmp_path, stored, LABELS)
    used = np.stack(stored["train"])[:trained].astype(np.float64)
    mean = used.mean(axis=(0, 1, 2))
    std = used.std(axis=(0, 1, 2))
    expected = torch.from_numpy((used - mean) / std).permute(0, 3, 1, 2)
    data = pets(root, holdout=holdout)
    scaled = torch.cat([batch.inputs for batch in data.eval_batches("train")])
    torch.testing.assert_close(scaled.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(data.pixels(scaled), data.examples["train"])
    assert np.allclose(np.array(data.describe()["shift"]) * 255, mean, atol=1e-3)


def test_unit_scaling_is_from_0_to_1(tmp_path: Path) -> None:
    stored = random_images(6, 5, 3)
    data = pets(write_images(tmp_path, stored, LABELS), scaling="unit")
    scaled = torch.cat([batch.inputs for batch in data.eval_batches("val")])
    pixels = torch.from_numpy(np.stack(stored["test"])).permute(0, 3, 1, 2)
    assert torch.equal(scaled, pixels.float() / 255)


def test_a_channel_without_variation_stays_finite(tmp_path: Path) -> None:
    black = np.zeros((4, 4), np.uint8)
    stored = {split: [black] * len(labels) for split, labels in LABELS.items()}
    data = pets(write_images(tmp_path, stored, LABELS))
    assert torch.equal(data.train_batch(0).inputs, torch.zeros(6, 1, 4, 4))


# ---- holding out


@pytest.mark.parametrize(
    ("holdout", "count"), [(0, 0), (0.29, 17400), (5000.0, 5000), (1, 1), (1.5, None), (6e4, None)]
)
def test_held_out_share_or_number(holdout: float, count: int | None) -> None:
    if count is None:
        with pytest.raises(UsageError, match=r"data.holdout=.*: use a share .* or a whole number below 60,000"):
            count_held_out(60_000, holdout, "images")
    else:
        assert count_held_out(60_000, holdout, "images") == count


def test_holdout_takes_the_last_of_the_training_data() -> None:
    whole = pydocs(**TEXT)
    part = pydocs(**TEXT, holdout=0.1)
    joined = np.concatenate([part.examples["train"], part.examples["val"]])
    assert np.array_equal(joined, whole.examples["train"])
    assert len(part.examples["val"]) == round(0.1 * len(joined))
    images = digits(**IMAGES)
    rest = digits(**IMAGES, holdout=100)
    assert torch.equal(rest.examples["val"], images.examples["train"][1400:])
    assert torch.equal(rest.labels["train"], images.labels["train"][:1400])
    assert rest.fingerprint == images.fingerprint


# ---- augmentation


def random_pixels(count: int) -> torch.Tensor:
    """Return images in which no pixel is 0, so that what is put around them shows."""
    return torch.randint(1, 256, (count, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Way(NamedTuple):
    """How a window is cut from an image in a black frame."""

    top: int
    left: int
    flipped: bool


def way_to(result: np.ndarray, image: np.ndarray, crop: int, flips: tuple[bool, ...]) -> Way:
    """Return the only way that makes this result of an image."""
    framed = np.pad(image, ((0, 0), (crop, crop), (crop, crop)))
    _, height, width = image.shape
    offsets = range(2 * crop + 1)
    found = []
    for top, left, flipped in itertools.product(offsets, offsets, flips):
        window = framed[:, top : top + height, left : left + width]
        if flipped:
            window = window[:, :, ::-1]
        if np.array_equal(window, result):
            found.append(Way(top, left, flipped))
    (way,) = found
    return way


def test_each_image_is_cropped_and_flipped_in_one_way_and_all_ways_occur() -> None:
    """With flips the windows are where they were without."""
    pixels = random_pixels(64)
    found = Counter[Way]()
    for step in range(12):
        cropped = crop_and_flip(pixels, 2, False, 0, step).numpy()
        flipped_too = crop_and_flip(pixels, 2, True, 0, step).numpy()
        for number, image in enumerate(pixels.numpy()):
            plain = way_to(cropped[number], image, 2, (False,))
            way = way_to(flipped_too[number], image, 2, (False, True))
            assert (plain.top, plain.left) == (way.top, way.left)
            found[way] += 1
    expected = 12 * 64 / 50
    assert len(found) == 50
    chi_square = sum((count - expected) ** 2 / expected for count in found.values())
    assert chi_square < 50 + 5 * (2 * 50) ** 0.5, "all ways are equally likely"


@pytest.mark.parametrize("side", [1, 4])
def test_each_image_has_one_hole_around_some_pixel(side: int) -> None:
    """Against DeVries & Taylor's square, clipped at the edges."""
    inputs = random_pixels(64).float()
    _, height, width = SHAPE
    masks = {}
    for row, column in itertools.product(range(height), range(width)):
        top = row - side // 2
        left = column - side // 2
        mask = torch.ones(height, width)
        mask[max(top, 0) : top + side, max(left, 0) : left + side] = 0
        masks[row, column] = mask
    centres = set()
    for step in range(12):
        results = cut_holes(inputs.clone(), side, 0, step)
        for image, result in zip(inputs, results, strict=True):
            (centre,) = [centre for centre, mask in masks.items() if torch.equal(result, image * mask)]
            centres.add(centre)
    assert centres == masks.keys(), "every pixel is a centre some time"


def test_augmentation_leaves_the_evaluation_alone() -> None:
    """Neither the validation nor the training images are changed when they are judged by."""
    plain = digits(**IMAGES)
    changed = digits(**IMAGES, crop=2, flip=True, cutout=3)
    for split in ("train", "val"):
        pairs = zip(plain.eval_batches(split, 5), changed.eval_batches(split, 5), strict=True)
        for batch, other in pairs:
            assert torch.equal(batch.inputs, other.inputs)
    assert not torch.equal(plain.train_batch(0).inputs, changed.train_batch(0).inputs)
    assert torch.equal(plain.train_batch(0).targets, changed.train_batch(0).targets)


# ---- a share of the training data


def test_a_share_of_the_images_is_drawn_by_the_seed() -> None:
    def made(seed: int, share: float) -> Images:
        return digits(name="digits", batch_size=50, eval_batch_size=500, seed=seed, holdout=500, train_share=share)

    whole, tenth, again, other = made(0, 1.0), made(0, 0.1), made(0, 0.1), made(1, 0.1)
    assert (len(tenth.examples["train"]), tenth.steps_per_epoch, tenth.describe()["train_share"]) == (100, 2, 0.1)
    assert "train_share" not in whole.describe()
    assert torch.equal(tenth.examples["train"], again.examples["train"])
    assert not torch.equal(tenth.examples["train"], other.examples["train"])
    places = {(image.numpy().tobytes(), int(label)) for image, label in zip(*rows_of(whole), strict=True)}
    assert {(image.numpy().tobytes(), int(label)) for image, label in zip(*rows_of(tenth), strict=True)} <= places
    assert torch.equal(tenth.examples["val"], whole.examples["val"])
    inputs = torch.cat([tenth.train_batch(step).inputs for step in range(2)])
    assert inputs.mean() == pytest.approx(0, abs=1e-5), "scaled by the images that are used"
    assert inputs.std(correction=0) == pytest.approx(1, abs=1e-5)


def rows_of(data: Images) -> tuple[torch.Tensor, torch.Tensor]:
    return data.examples["train"], data.labels["train"]


def test_a_share_of_a_text_is_one_stretch() -> None:
    arrays = {"train": np.arange(1000), "val": np.arange(100)}
    content = Content("counting", {}, arrays, Vocabulary(map(chr, range(1000))).facts, "")
    firsts = set()
    for seed in range(3):
        data = Text(content, **TEXT | {"seed": seed, "train_share": 0.2})
        tokens = data.examples["train"]
        assert len(tokens) == data.describe()["train_tokens"] == 200
        assert (np.diff(tokens) == 1).all()
        firsts.add(int(tokens[0]))
        assert len(data.examples["val"]) == 100
    assert len(firsts) == 3
    with pytest.raises(UsageError, match="too long for the 5 tokens"):
        Text(content, **TEXT | {"train_share": 0.005})
