"""Batches follow from (seed, step), cover what they should, leave out what is held out, and are augmented alike."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

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
    data = Text(Content("counting", {}, arrays, Vocabulary(map(chr, range(1000))).facts, ""), **TEXT)
    assert data.steps_per_epoch == 123 // 3, "windows of 8 in 1,000 tokens, less one for the cut"
    cuts = []
    for epoch in range(4):
        starts = [window[0] for window in windows_of_an_epoch(data, epoch)]
        assert len({start % 8 for start in starts}) == 1 and len(set(starts)) == len(starts) == 123
        assert starts != sorted(starts)
        cuts.append(min(starts))
    assert len(set(cuts)) > 1 and max(cuts) < 16, "each epoch cuts elsewhere"


def windows_of_an_epoch(data: Text, epoch: int) -> list[list[int]]:
    """Return the training windows of an epoch, each with its last target."""
    found = []
    for step in range(epoch * data.steps_per_epoch, (epoch + 1) * data.steps_per_epoch):
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
    val = data.examples["val"]
    expected = np.stack([val[start : start + 8] for start in (i * (len(val) - 9) // 19 for i in range(20))])
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), torch.from_numpy(expected.astype(np.int64)))
    assert torch.equal(batches[-1].targets[-1], torch.from_numpy(val[-8:].astype(np.int64)))
    assert sum(len(batch.inputs) for batch in data.eval_batches("val", limit=10**6)) == (len(val) - 1) // 8


# ---- images


def numbered(data: Images, steps: range) -> list[list[int]]:
    """Return which training images the batches hold, found by their pixels."""
    rows = data.examples["train"].flatten(1).float()
    found = [data.train_batch(step).inputs.flatten(1) for step in steps]
    return [[int((rows == row).all(1).nonzero()) for row in batch] for batch in found]


def test_image_epochs_are_permutations_that_follow_from_seed_and_epoch(tmp_path: Path) -> None:
    root = write_images(tmp_path, SMALL, LABELS)
    first, second, other = (pets(root, scaling="none", seed=seed) for seed in (0, 0, 1))
    epochs = [numbered(first, range(3 * epoch, 3 * epoch + 3)) for epoch in range(4)]
    for epoch in epochs:
        assert len({image for batch in epoch for image in batch}) == 18  # 20 images, the incomplete batch dropped
    assert len({tuple(map(tuple, epoch)) for epoch in epochs}) == 4
    assert numbered(second, range(7, 8)) == [epochs[2][1]] and numbered(second, range(1)) == [epochs[0][0]]
    assert numbered(other, range(1)) != [epochs[0][0]]
    assert first.train_batch(4).targets.tolist() == [LABELS["train"][i] for i in epochs[1][1]]


def test_limited_image_evaluation_spreads_over_the_split() -> None:
    data = digits(**IMAGES | {"eval_batch_size": 10}, scaling="none")
    batches = list(data.eval_batches("val", limit=3))
    expected = data.examples["val"][[297 * i // 30 for i in range(30)]].float().split(10)
    assert all(torch.equal(batch.inputs, part) for batch, part in zip(batches, expected, strict=True))
    assert sum(len(batch.targets) for batch in data.eval_batches("val", limit=1000)) == 297
    data = digits(**IMAGES | {"eval_batch_size": 296})
    assert [len(batch.targets) for batch in data.eval_batches("val")] == [149, 148], "none is a lone image"


@pytest.mark.parametrize("holdout", [0, 5, 0.4])
def test_standard_scaling_is_that_of_the_images_trained_on(tmp_path: Path, holdout: float) -> None:
    stored = random_images(6, 5, 3)
    root = write_images(tmp_path, stored, LABELS)
    used = np.stack(stored["train"])[: 20 - (int(holdout) if holdout >= 1 else round(20 * holdout))].astype(np.float64)
    mean, std = used.mean(axis=(0, 1, 2)), used.std(axis=(0, 1, 2))
    data = pets(root, holdout=holdout)
    scaled = torch.cat([batch.inputs for batch in data.eval_batches("train")])
    expected = ((used - mean) / std).transpose(0, 3, 1, 2)
    torch.testing.assert_close(scaled.double(), torch.from_numpy(expected.copy()), rtol=1e-5, atol=1e-6)
    unit = torch.cat([batch.inputs for batch in pets(root, scaling="unit").eval_batches("val")])
    assert torch.equal(unit, torch.from_numpy(np.stack(stored["test"])).permute(0, 3, 1, 2).float() / 255)
    assert np.allclose(np.array(data.describe()["shift"]) * 255, mean, atol=1e-3)
    assert torch.equal(data.pixels(scaled), data.examples["train"])


def test_a_channel_without_variation_stays_finite(tmp_path: Path) -> None:
    black = {split: [np.zeros((4, 4), np.uint8)] * len(labels) for split, labels in LABELS.items()}
    assert torch.equal(pets(write_images(tmp_path, black, LABELS)).train_batch(0).inputs, torch.zeros(6, 1, 4, 4))


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
    whole, part = pydocs(**TEXT), pydocs(**TEXT, holdout=0.1)
    joined = np.concatenate([part.examples["train"], part.examples["val"]])
    assert np.array_equal(joined, whole.examples["train"]) and len(part.examples["val"]) == round(0.1 * len(joined))
    images, rest = digits(**IMAGES), digits(**IMAGES, holdout=100)
    assert torch.equal(rest.examples["val"], images.examples["train"][1400:])
    assert torch.equal(rest.labels["train"], images.labels["train"][:1400])
    assert rest.fingerprint == images.fingerprint


# ---- augmentation


def random_pixels(count: int) -> torch.Tensor:
    """Return images in which no pixel is 0, so that what is put around them shows."""
    return torch.randint(1, 256, (count, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def ways(image: np.ndarray, result: np.ndarray, crop: int, flips: tuple[bool, ...]) -> list[tuple[int, int, bool]]:
    """Return in which ways an image in a black frame is cut, and mirrored or not, to give this result."""
    framed, (height, width) = np.pad(image, ((0, 0), (crop, crop), (crop, crop))), image.shape[1:]
    places = itertools.product(range(2 * crop + 1), range(2 * crop + 1), flips)
    cuts = {(top, left, flip): framed[:, top : top + height, left : left + width] for top, left, flip in places}
    return [way for way, window in cuts.items() if np.array_equal(window[:, :, ::-1] if way[2] else window, result)]


def test_each_image_is_cropped_and_flipped_in_one_way_and_all_ways_occur() -> None:
    """With flips the windows are where they were without."""
    pixels = random_pixels(64)
    found: Counter[tuple[int, int, bool]] = Counter()
    for step in range(12):
        results = [crop_and_flip(pixels, 2, flip, 0, step).numpy() for flip in (False, True)]
        for before, cropped, flipped_too in zip(pixels.numpy(), *results, strict=True):
            (plain,), (way,) = ways(before, cropped, 2, (False,)), ways(before, flipped_too, 2, (False, True))
            assert plain[:2] == way[:2]
            found[way] += 1
    expected = 12 * 64 / 50
    assert len(found) == 50
    chi_square = sum((count - expected) ** 2 / expected for count in found.values())
    assert chi_square < 50 + 5 * (2 * 50) ** 0.5, "all ways are equally likely"


@pytest.mark.parametrize("side", [1, 4])
def test_each_image_has_one_hole_around_some_pixel(side: int) -> None:
    """Against DeVries & Taylor's square, clipped at the edges."""
    inputs = random_pixels(64).float()
    masks = {}
    for top, left in np.ndindex(SHAPE[1:]):
        first, last = (max(place - side // 2, 0) for place in (top, left)), (p - side // 2 + side for p in (top, left))
        masks[top, left] = torch.ones(SHAPE[1:])
        masks[top, left][tuple(slice(*ends) for ends in zip(first, last, strict=True))] = 0
    centres = Counter()
    for step in range(12):
        for image, result in zip(inputs, cut_holes(inputs.clone(), side, 0, step), strict=True):
            (centre,) = [centre for centre, mask in masks.items() if torch.equal(result, image * mask)]
            centres[centre] += 1
    assert len(centres) == 9 * 7, "every pixel is a centre some time"


def test_augmentation_leaves_the_evaluation_alone() -> None:
    """Neither the validation nor the training images are changed when they are judged by."""
    plain, changed = digits(**IMAGES), digits(**IMAGES, crop=2, flip=True, cutout=3)
    for split in ("train", "val"):
        for a, b in zip(plain.eval_batches(split, 5), changed.eval_batches(split, 5), strict=True):
            assert torch.equal(a.inputs, b.inputs)
    assert not torch.equal(plain.train_batch(0).inputs, changed.train_batch(0).inputs)
    assert torch.equal(plain.train_batch(0).targets, changed.train_batch(0).targets)
