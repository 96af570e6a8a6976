"""Augmentation: each image by itself against a reference, a function of (seed, step), and for training alone."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import IMAGES, LABELS, as_lists, pets, random_images, write_images

from normbench.data import Digits, Images, digits
from normbench.data.augmentation import Augmentation
from normbench.errors import UsageError

SHAPE = (3, 9, 7)
KINDS: list[dict[str, Any]] = [{"crop": 2}, {"flip": True}, {"cutout": 4}, {"crop": 3, "flip": True, "cutout": 3}]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMBENCH_CACHE", str(tmp_path / "cache"))


def random_pixels(count: int, shape: tuple[int, int, int] = SHAPE) -> torch.Tensor:
    """Images in which no pixel is 0, so that what is put around them shows."""
    return torch.randint(1, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def cropped(image: np.ndarray, crop: int, top: int, left: int, flipped: bool) -> np.ndarray:
    """The reference: one image in a black frame, a window of it, mirrored or not."""
    channels, height, width = image.shape
    framed = np.zeros((channels, height + 2 * crop, width + 2 * crop), image.dtype)
    framed[:, crop : crop + height, crop : crop + width] = image
    window = framed[:, top : top + height, left : left + width]
    return window[:, :, ::-1] if flipped else window


def ways(image: np.ndarray, result: np.ndarray, crop: int, flips: tuple[bool, ...]) -> list[tuple[int, int, bool]]:
    """In which ways the reference makes this result of the image."""
    offsets = range(2 * crop + 1)
    return [
        way for way in itertools.product(offsets, offsets, flips) if np.array_equal(cropped(image, crop, *way), result)
    ]


@pytest.mark.parametrize(("crop", "flip"), [(2, False), (0, True), (3, True)])
def test_each_image_is_cropped_and_flipped_in_one_way_and_all_ways_occur(crop: int, flip: bool) -> None:
    pixels = random_pixels(64)
    augmentation = Augmentation(0, SHAPE, crop, flip)
    found: Counter[tuple[int, int, bool]] = Counter()
    for step in range(12):
        moved = augmentation.moved(pixels, step)
        assert moved.dtype == torch.uint8 and moved.shape == pixels.shape
        for image, result in zip(pixels.numpy(), moved.numpy(), strict=True):
            (way,) = ways(image, result, crop, (False, True) if flip else (False,))
            found[way] += 1
    possible = (2 * crop + 1) ** 2 * (1 + flip)
    assert len(found) == possible
    expected = 12 * 64 / possible
    chi_square = sum((count - expected) ** 2 / expected for count in found.values())
    assert chi_square < possible + 5 * (2 * possible) ** 0.5, "all ways are equally likely"


@pytest.mark.parametrize("side", [1, 3, 4])
def test_each_image_has_one_hole_around_some_pixel(side: int) -> None:
    inputs = random_pixels(64).float()
    centres = Counter()
    for step in range(12):
        for image, result in zip(inputs, Augmentation(0, SHAPE, cutout=side).cut(inputs.clone(), step), strict=True):
            matching = [centre for centre in np.ndindex(SHAPE[1:]) if torch.equal(result, holed(image, centre, side))]
            assert len(matching) == 1
            centres[matching[0]] += 1
    assert len(centres) == 9 * 7, "every pixel is a centre some time"


def holed(image: torch.Tensor, centre: tuple[int, ...], side: int) -> torch.Tensor:
    """The reference: DeVries & Taylor's square, clipped at the edges."""
    top, left = (max(place - side // 2, 0) for place in centre)
    bottom, right = (place - side // 2 + side for place in centre)
    result = image.clone()
    result[:, top:bottom, left:right] = 0
    return result


def training_inputs(data: Images, step: int) -> torch.Tensor:
    return data.train_batch(step).inputs


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_it_follows_from_seed_and_step_alone(kinds: dict[str, Any]) -> None:
    first, second, other = digits(**IMAGES, **kinds), digits(**IMAGES, **kinds), digits(**IMAGES | {"seed": 1}, **kinds)
    backwards = {step: training_inputs(second, step) for step in (7, 3, 0)}
    for step, inputs in backwards.items():
        assert torch.equal(training_inputs(first, step), inputs)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert torch.equal(training_inputs(first, 3), backwards[3])
    pixels = random_pixels(64, (1, 8, 8))
    per_step = [augmented(data, pixels, step) for data, step in ((first, 0), (first, 1), (other, 0))]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(per_step, 2))


def augmented(data: Images, pixels: torch.Tensor, step: int) -> torch.Tensor:
    return data.augmentation.cut(data.augmentation.moved(pixels, step).float(), step)


def test_one_more_kind_changes_nothing_about_the_others() -> None:
    """With flips the windows are where they were without, and so are the holes."""
    pixels = random_pixels(32)
    one, all_kinds = Augmentation(0, SHAPE, crop=2), Augmentation(0, SHAPE, crop=2, flip=True, cutout=3)
    for image, before, after in zip(pixels, one.moved(pixels, 5), all_kinds.moved(pixels, 5), strict=True):
        (cut,) = ways(image.numpy(), before.numpy(), 2, (False,))
        (flipped_too,) = ways(image.numpy(), after.numpy(), 2, (False, True))
        assert flipped_too[:2] == cut[:2]
    hole = Augmentation(0, SHAPE, cutout=3).cut(pixels.float(), 5) == 0
    assert torch.equal(hole, all_kinds.cut(pixels.float(), 5) == 0)


def test_augmentation_leaves_the_evaluation_alone(tmp_path: Path) -> None:
    """Neither the validation nor the training images are changed when they are judged by."""
    source = pets(write_images(tmp_path, as_lists(random_images(6, 5)), LABELS))
    plain, changed = Images(source, **IMAGES), Images(source, **IMAGES, crop=2, flip=True, cutout=3)
    for split in ("train", "val"):
        for a, b in zip(plain.eval_batches(split), changed.eval_batches(split), strict=True):
            assert torch.equal(a.inputs, b.inputs)
    assert not torch.equal(training_inputs(plain, 0), training_inputs(changed, 0))
    assert torch.equal(plain.train_batch(0).targets, changed.train_batch(0).targets)


def test_without_augmentation_training_images_are_as_they_were_stored(tmp_path: Path) -> None:
    source = pets(write_images(tmp_path, as_lists(random_images(6, 5)), LABELS))
    data = Images(source, **IMAGES, scaling="none")
    images, _ = data.splits["train"]
    assert torch.equal(training_inputs(data, 0), images[data.order.batch(0)].float())


def test_frames_are_black_and_holes_are_the_mean() -> None:
    """A frame is part of the image, and a hole is not: under the standard scaling 0 is the mean."""
    black = digits(**IMAGES, crop=7).train_batch(0).inputs
    assert black.min() == pytest.approx((0 - float(digits_scaling()[0])) / float(digits_scaling()[1]))
    holes = digits(**IMAGES | {"batch_size": 64}, cutout=3).train_batch(0).inputs
    assert ((holes == 0).flatten(1).sum(1) >= 4).all()


def digits_scaling() -> tuple[float, float]:
    """Mean and standard deviation of the training digits' pixels."""
    pixels = Digits().load().arrays["train_images"].astype(np.float64)
    return pixels.mean(), pixels.std()


def test_the_record_says_how_images_were_changed() -> None:
    assert digits(**IMAGES, crop=1, flip=True).describe()["augmentation"] == {"crop": 1, "flip": True, "cutout": 0}


@pytest.mark.parametrize("kind", ["crop", "cutout"])
def test_what_could_leave_nothing_of_an_image_is_refused(kind: str) -> None:
    Augmentation(0, SHAPE, **{kind: 6})
    with pytest.raises(UsageError, match=rf"^data.{kind}=7 leaves nothing of images of 9 × 7 pixels: use 0 to 6$"):
        Augmentation(0, SHAPE, **{kind: 7})
