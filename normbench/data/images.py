"""Labelled images: from encoded files to pixels, and from pixels to scaled and augmented batches."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from normbench.data.batches import BatchSize, EpochOrder, EvalBatchSize, Holdout, held_out, spread
from normbench.data.cache import Content, Source
from normbench.data.hub import reason
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.types import Batch, Data, ImageClassification, Split, stable_seed

CHUNK = 4096  # images whose pixels are summed at once: enough to be fast, little beside the images

Scaling = Annotated[Literal["none", "unit", "standard"], Setting("of pixels")]
Crop = Annotated[
    int,
    Setting("training images are cut at random from a frame so many pixels wider; 0: off", "pixels", low=0, high=10**4),
]
Flip = Annotated[bool, Setting("mirror training images at random, left to right")]
Cutout = Annotated[
    int, Setting("side of a random square of zeros in training images; 0: off", "pixels", low=0, high=10**4)
]

Pixels = UInt8[np.ndarray, "images channels height width"]
Inputs = Float[Tensor, "batch channels height width"]


class Labelled(NamedTuple):
    """Images and their classes."""

    images: UInt8[Tensor, "images channels height width"]
    labels: Int64[Tensor, " images"]


class Images(Data):
    """A classifier's data: an epoch is a permutation of the training images, its last incomplete batch dropped.

    Training batches are augmented, batches of an evaluation are not, whichever split they are of.

    Args:
        source: where the images come from.
        batch_size: images of a training batch.
        eval_batch_size: images of an evaluation batch.
        seed: of the permutations and the augmentation.
        scaling: `none` (0 to 255), `unit` (0 to 1) or `standard` (mean 0 and deviation 1 over the training images that
            are used, by channel).
        holdout: share (< 1) or number (≥ 1) of the last training images; they become `val`, and training uses the rest.
        crop, flip, cutout: see Augmentation.

    Raises:
        UsageError: a number does not fit the images, such as a batch larger than the training set.
    """

    kind = "image_classification"
    task: ImageClassification

    def __init__(
        self,
        source: Source,
        *,
        batch_size: BatchSize,
        eval_batch_size: EvalBatchSize,
        seed: int,
        scaling: Scaling = "standard",
        holdout: Holdout = 0,
        crop: Crop = 0,
        flip: Flip = False,
        cutout: Cutout = 0,
    ) -> None:
        self.eval_batch_size, self.seed, self.source, self.scaling = eval_batch_size, seed, source, scaling
        content, self.fingerprint = source.open()
        parts: tuple[Split, ...] = ("train", "val", "test")
        self.splits = {
            part: Labelled(*(torch.from_numpy(content.arrays[f"{part}_{field}"]) for field in Labelled._fields))
            for part in parts
            if f"{part}_images" in content.arrays
        }
        self.has_test = "test" in self.splits
        images, labels = self.splits["train"]
        used = len(labels) - held_out(len(labels), holdout, "images")
        self.splits["train"] = Labelled(images[:used], labels[:used])
        if used < len(labels):
            self.splits["val"] = Labelled(images[used:], labels[used:])
        self.left_out = int(content.facts.get("left_out", 0))
        self.classes: tuple[str, ...] = tuple(content.facts["classes"])
        channels, height, width = images.shape[1:]
        self.task = ImageClassification(num_classes=len(self.classes), image_shape=(channels, height, width))
        self.augmentation = Augmentation(seed, (channels, height, width), crop, flip, cutout)
        self._shift, self._divisor = scales(scaling, content.arrays["train_moments"][:used], height * width)
        self.order = EpochOrder(used, batch_size, seed, f"images of {source.name}")
        self.steps_per_epoch = self.order.steps_per_epoch

    def train_batch(self, step: int) -> Batch:
        """Return the images of this step's place in its epoch's permutation, which depends on (seed, epoch) alone."""
        images, labels = self.splits["train"]
        indices = self.order.batch(step)
        pixels = self.augmentation.moved(images.index_select(0, indices), step)
        return Batch(self.augmentation.cut(self._scaled(pixels), step), labels.index_select(0, indices))

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Yield the split in order, in batches whose sizes differ by at most one image.

        With `limit`: so many batches of `eval_batch_size` images spread evenly over the split, or all if that is less.
        """
        images, labels = self.splits[split]
        for indices in spread(len(labels), self.eval_batch_size, limit):
            yield Batch(self._scaled(images.index_select(0, indices)), labels.index_select(0, indices))

    def _scaled(self, pixels: UInt8[Tensor, "batch channels height width"]) -> Inputs:
        return pixels.float().sub_(self._shift).div_(self._divisor)

    def pixels(self, inputs: Inputs) -> UInt8[Tensor, "batch channels height width"]:
        """Return the pixels, from 0 to 255, that a batch's inputs were made of."""
        return (inputs * self._divisor + self._shift).round().clamp(0, 255).to(torch.uint8)

    def describe(self) -> dict[str, Any]:
        """Return what the data are, for the record; mean and deviation are those of pixels from 0 to 1."""
        return self.source.describe() | {
            "kind": self.kind,
            "train_images": len(self.splits["train"].labels),
            "val_images": len(self.splits["val"].labels),
            "test_images": len(self.splits["test"].labels) if self.has_test else 0,
            "left_out": self.left_out,
            "image_shape": list(self.task.image_shape),
            "classes": list(self.classes),
            "scaling": self.scaling,
            "shift": [round(value / 255, 6) for value in self._shift.flatten().tolist()],
            "divisor": [round(value / 255, 6) for value in self._divisor.flatten().tolist()],
            "augmentation": self.augmentation.describe(),
            "steps_per_epoch": self.steps_per_epoch,
            "fingerprint": self.fingerprint,
        }


def scales(scaling: str, moments: Int64[np.ndarray, "images channels 2"], pixels: int) -> list[Tensor]:
    """Return shift and divisor by channel, (channels, 1, 1); a model sees (pixel − shift) / divisor.

    moments: each image's sum and sum of squares over its `pixels` pixels.
    """
    total, squares = moments.sum(axis=0).T.astype(np.float64) / (len(moments) * pixels)
    deviation = np.sqrt(np.maximum(squares - total**2, 0))
    shift = total if scaling == "standard" else np.zeros_like(total)
    divisor = np.where(deviation > 0, deviation, 1)  # a channel without variation stays 0
    if scaling != "standard":
        divisor = np.full_like(total, 255 if scaling == "unit" else 1)
    return [torch.from_numpy(values).float()[:, None, None] for values in (shift, divisor)]


# ---- augmentation


@dataclass(frozen=True)
class Augmentation:
    """Random crops, flips and holes, each image by itself; a pure function of (seed, step).

    Each kind draws random numbers of its own, so that one more kind changes nothing about the others.

    seed: of the random numbers. shape: channels, height, width.
    crop: black pixels put around an image before a random window of its own size is cut out (He et al. 2016a, §4.2).
    flip: mirror every second image, chosen at random, left to right.
    cutout: side of a square of zeros around a random pixel, in scaled images (DeVries & Taylor 2017); it may
    reach over the edge.

    Raises:
        UsageError: a crop or a hole could take all of an image.
    """

    seed: int
    shape: tuple[int, int, int]
    crop: int = 0
    flip: bool = False
    cutout: int = 0

    def __post_init__(self) -> None:
        _, height, width = self.shape
        least = min(height, width)
        for name, value in (("crop", self.crop), ("cutout", self.cutout)):
            if value >= least:
                raise UsageError(
                    f"data.{name}={value} leaves nothing of images of {height} × {width} pixels: use 0 to {least - 1}"
                )

    def generator(self, step: int, kind: str) -> torch.Generator:
        """Return what a kind's random numbers of a step come from."""
        return torch.Generator().manual_seed(stable_seed(self.seed, "data", kind, step))

    def moved(
        self, pixels: UInt8[Tensor, "batch channels height width"], step: int
    ) -> UInt8[Tensor, "batch channels height width"]:
        """Return the images of training step `step`, cropped and flipped."""
        if not (self.crop or self.flip):
            return pixels
        (batch, channels, height, width), p = pixels.shape, self.crop
        top, left = (
            torch.randint(2 * p + 1, (batch, 1), generator=self.generator(step, kind))
            for kind in ("crop rows", "crop columns")
        )
        order = torch.arange(width)
        if self.flip:
            flipped = torch.rand(batch, 1, generator=self.generator(step, "flip")) < 0.5
            order = torch.where(flipped, order.flip(0), order)
        rows, columns = top + torch.arange(height), left + order
        places = rows[:, :, None] * (width + 2 * p) + columns[:, None, :]
        taken = places.view(batch, 1, height * width).expand(batch, channels, -1)
        return F.pad(pixels, (p, p, p, p)).view(batch, channels, -1).gather(2, taken).view(pixels.shape)

    def cut(self, inputs: Inputs, step: int) -> Inputs:
        """Return the scaled images of training step `step` with their holes, in place."""
        if not self.cutout:
            return inputs
        batch, _, height, width = inputs.shape
        rows, columns = self.hole(batch, height, step, "cutout rows"), self.hole(batch, width, step, "cutout columns")
        return inputs.mul_(1 - rows[:, None, :, None] * columns[:, None, None, :])  # a tenth of masked_fill_'s time

    def hole(self, batch: int, size: int, step: int, kind: str) -> Float[Tensor, "batch size"]:
        """Return 1 in the rows, or columns, of the holes, else 0."""
        centres = torch.randint(size, (batch, 1), generator=self.generator(step, kind))
        distance = torch.arange(size) - centres + self.cutout // 2
        return ((distance >= 0) & (distance < self.cutout)).float()

    def describe(self) -> dict[str, int | bool]:
        """Return the settings, for the record."""
        return {"crop": self.crop, "flip": self.flip, "cutout": self.cutout}


# ---- decoding


def image_content(
    parts: Mapping[Split, tuple[Pixels, Int64[np.ndarray, " images"]]], classes: Sequence[str]
) -> Content:
    """Return what an image source decodes to.

    The moments are sum and sum of squares of each training image's pixels, so that the mean and deviation of any part
    of them are exact and immediate.
    """
    arrays: dict[str, np.ndarray] = {}
    for split, (images, labels) in parts.items():
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    train = parts["train"][0]
    moments = arrays["train_moments"] = np.empty((*train.shape[:2], 2), dtype=np.int64)
    for start in range(0, len(train), CHUNK):
        chunk = train[start : start + CHUNK].reshape(-1, train.shape[1], train[0, 0].size).astype(np.int32)
        moments[start : start + CHUNK, :, 0] = chunk.sum(axis=2)
        moments[start : start + CHUNK, :, 1] = (chunk * chunk).sum(axis=2)
    return Content(arrays, {"classes": list(classes)})


def decode(images: Sequence[tuple[str, Any]], where: str, size: int | None = None) -> Pixels:
    """Return the pixels of images: grey where all are grey, else three channels.

    One thread, as Pillow gains nothing from two on small images; Pillow is imported here, as a cache hit needs it not.

    Args:
        images: the name of each image, and its file, its encoded bytes, or as the hub stores them.
        where: what to call all of them in an error.
        size: side in pixels that each is brought to, by its shorter side and a cut around its middle; None: as it is.

    Raises:
        UsageError: images cannot be read, or differ in size.
    """
    from PIL import Image, UnidentifiedImageError

    unreadable = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)
    pixels, first = np.empty((0, 0, 0, 0), dtype=np.uint8), ""
    faults: list[str] = []
    for row, (name, encoded) in enumerate(images):
        try:
            image = decode_one(encoded, size)
        except unreadable as fault:
            unknown = isinstance(fault, UnidentifiedImageError)
            faults.append(f"{name}: {'no image format that Pillow knows' if unknown else reason(fault)}")
            continue
        if not first:
            pixels, first = np.empty((len(images), len(image), *image.shape[1:]), dtype=np.uint8), name
        if image.shape[1:] != pixels.shape[2:]:
            sizes = " and ".join(f"{width} × {height}" for _, height, width in (image.shape, pixels.shape[1:]))
            raise UsageError(
                f"{name} and {first} of {where} have {sizes} pixels: all images must have the same size, so set "
                "data.size=64 or the like for images of your own"
            )
        if len(image) > pixels.shape[1]:
            pixels = np.repeat(pixels, 3, axis=1)
        pixels[row] = image
    if faults:
        shown = ", ".join(f"{fault:.160}" for fault in faults[:3]) + (", ..." if faults[3:] else "")
        raise UsageError(
            f"{len(faults):,} of the {len(images):,} images of {where} cannot be read ({shown}): mend or remove them, "
            "or set data.image_column to the column of the images"
        )
    return pixels


def decode_one(encoded: Any, size: int | None) -> UInt8[np.ndarray, "channels height width"]:
    """Return the pixels of an image, upright: one channel where it is grey, and three where it has colour.

    Raises:
        ValueError: it is no image of 8 bits a channel; Pillow raises others, too.
    """
    from PIL import Image, ImageOps

    if isinstance(encoded, Mapping):
        encoded = encoded.get("bytes") or encoded.get("path")
    if not isinstance(encoded, bytes | Path):
        raise ValueError("no image is there")
    with (
        warnings.catch_warnings(action="ignore"),
        Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image,
    ):  # what is damaged and leaves an image is no fault
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"Pillow's mode {image.mode}, where 8 bits a channel are needed")
        if size:
            image.draft(None, (2 * size, 2 * size))  # JPEG can be decoded to fewer pixels, which is faster
        upright = ImageOps.exif_transpose(image).convert("L" if image.mode in ("1", "L", "LA", "La") else "RGB")
        if size:
            upright = ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(upright)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
