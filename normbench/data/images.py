"""Labelled images: from encoded files to pixels, and from pixels to scaled and augmented batches."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from normbench.data.arranging import Kinds, add_kinds
from normbench.data.batches import ContentData, generator
from normbench.data.cache import Content, Decoded
from normbench.data.hub import reason
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.types import Batch, ImageClassification, Split

Pixels = UInt8[np.ndarray, "images channels height width"]
PixelBatch = UInt8[Tensor, "batch channels height width"]
Inputs = Float[Tensor, "batch channels height width"]


class Images(ContentData):
    """A classifier's images. Training batches are augmented; those of an evaluation are not, whatever the split.

    Args:
        content: of the arrays `train_images`, `train_labels`, the same of `val` and perhaps `test`, `train_moments`,
            and of the fact `classes`.
        scaling: `none` (0 to 255), `unit` (0 to 1) or `standard` (mean 0 and deviation 1 over the training images that
            are used, by channel).
        crop, flip: see `crop_and_flip`.
        cutout: see `cut_holes`.
        options: of ContentData.

    Raises:
        UsageError: a crop or a hole could take all of an image.
    """

    kind = "image_classification"
    unit = "images"
    task: ImageClassification

    def __init__(
        self,
        content: Content,
        *,
        scaling: Annotated[Literal["none", "unit", "standard"], Setting("of pixels")] = "standard",
        crop: Annotated[int, Setting("how far a training image may shift; 0: off", "pixels", low=0, high=10**4)] = 0,
        flip: Annotated[bool, Setting("mirror training images at random, left to right")] = False,
        cutout: Annotated[int, Setting("side of a hole in training images; 0: off", "pixels", low=0, high=10**4)] = 0,
        **options: Any,
    ) -> None:
        super().__init__(content, content.by_split("images"), content.by_split("labels"), **options)
        channels, height, width = self.examples["train"].shape[1:]
        shorter = min(height, width)
        for key, pixels in (("crop", crop), ("cutout", cutout)):
            if pixels >= shorter:
                size = f"{height} × {width} pixels"
                raise UsageError(f"data.{key}={pixels} leaves nothing of images of {size}: use 0 to {shorter - 1}")
        self.scaling = scaling
        self.crop = crop
        self.flip = flip
        self.cutout = cutout
        self.classes = tuple(content.facts["classes"])
        self.task = ImageClassification(num_classes=len(self.classes), image_shape=(channels, height, width))
        self.arrange(len(self.examples["train"]), "images of")
        moments = content.arrays["train_moments"][self.used]
        self._shift, self._divisor = find_scales(scaling, moments, height * width)

    def batch(self, split: Split, indices: Int64[Tensor, " batch"], step: int | None = None) -> Batch:
        """Return images of a split, those of a training step augmented."""
        images = self.examples[split][indices]
        labels = self.labels[split][indices]
        return self.scale(images, labels, step)

    def scale(self, images: PixelBatch, labels: Int64[Tensor, " batch"], step: int | None) -> Batch:
        """Return what the model sees of images, those of a training step augmented."""
        if step is not None and (self.crop or self.flip):
            images = crop_and_flip(images, self.crop, self.flip, self.seed, step)
        inputs = images.float().sub_(self._shift).div_(self._divisor)
        if step is not None and self.cutout:
            inputs = cut_holes(inputs, self.cutout, self.seed, step)
        return Batch(inputs, labels)

    def pixels(self, inputs: Inputs) -> PixelBatch:
        """Return the pixels, from 0 to 255, that a batch's inputs were made of."""
        pixels = inputs * self._divisor + self._shift
        return pixels.round().clamp(0, 255).to(torch.uint8)

    def describe(self) -> dict[str, Any]:
        """Return what the data are; shift and divisor are those of pixels from 0 to 1."""
        return {
            **super().describe(),
            "image_shape": list(self.task.image_shape),
            "classes": list(self.classes),
            "scaling": self.scaling,
            "shift": as_shares(self._shift),
            "divisor": as_shares(self._divisor),
            "augmentation": {"crop": self.crop, "flip": self.flip, "cutout": self.cutout},
        }


def as_shares(values: Tensor) -> list[float]:
    """Return values of pixels as shares of 255, the brightest, for the record."""
    return [round(value / 255, 6) for value in values.flatten().tolist()]


def find_scales(scaling: str, moments: Int64[np.ndarray, "images channels 2"], pixels: int) -> list[Tensor]:
    """Return shift and divisor by channel, (channels, 1, 1); a model sees (pixel − shift) / divisor.

    Args:
        scaling: see `Images`.
        moments: each image's sum and sum of squares over its pixels.
        pixels: how many these are, in each channel.
    """
    totals = moments.sum(axis=0).T.astype(np.float64)
    mean, mean_square = totals / (len(moments) * pixels)
    if scaling == "standard":
        shift = mean
        variance = np.maximum(mean_square - mean**2, 0)
        divisor = np.sqrt(variance)
        divisor[divisor == 0] = 1  # a channel without variation stays 0
    else:
        shift = np.zeros_like(mean)
        divisor = np.full_like(mean, 255 if scaling == "unit" else 1)
    return [by_channel(shift), by_channel(divisor)]


def by_channel(values: np.ndarray) -> Tensor:
    """Return a number for each channel as a tensor (channels, 1, 1)."""
    return torch.from_numpy(values).float()[:, None, None]


# ---- augmentation: each kind draws random numbers of its own, so that one more changes nothing about the others


def crop_and_flip(pixels: PixelBatch, crop: int, flip: bool, seed: int, step: int) -> PixelBatch:
    """Return the images of training step `step`, cropped and flipped, each by itself.

    Args:
        pixels: the images.
        crop: black pixels put around an image before a random window of its own size is cut out (He et al. 2016a,
            §4.2).
        flip: mirror every second image, chosen at random, left to right.
        seed: of the run.
        step: number of the training step.
    """
    batch, channels, height, width = pixels.shape
    offsets = 2 * crop + 1
    top = torch.randint(offsets, (batch, 1), generator=generator(seed, "crop rows", step))
    left = torch.randint(offsets, (batch, 1), generator=generator(seed, "crop columns", step))
    order = torch.arange(width)
    if flip:
        flipped = torch.rand(batch, 1, generator=generator(seed, "flip", step)) < 0.5
        order = torch.where(flipped, order.flip(0), order)
    rows = top + torch.arange(height)
    columns = left + order
    # one gather over the padded images, in which each row has the pixels of its image in a line
    padded_width = width + 2 * crop
    padded = F.pad(pixels, (crop, crop, crop, crop)).view(batch, channels, -1)
    places = rows[:, :, None] * padded_width + columns[:, None, :]
    taken = places.view(batch, 1, height * width).expand(batch, channels, -1)
    return padded.gather(2, taken).view(pixels.shape)


def cut_holes(inputs: Inputs, side: int, seed: int, step: int) -> Inputs:
    """Return the scaled images of training step `step`, each with a hole, in place.

    A hole is a square of zeros of this side around a random pixel (DeVries & Taylor 2017); it may reach over the edge.
    """
    batch, _, height, width = inputs.shape

    def cut(size: int, kind: str) -> Float[Tensor, "batch size"]:
        """Return 1 at the rows or columns of each image that its hole reaches, and 0 at the others."""
        centres = torch.randint(size, (batch, 1), generator=generator(seed, kind, step))
        distance = torch.arange(size) - centres + side // 2
        is_cut = (distance >= 0) & (distance < side)
        return is_cut.float()

    rows = cut(height, "cutout rows")
    columns = cut(width, "cutout columns")
    holes = rows[:, None, :, None] * columns[:, None, None, :]
    return inputs.mul_(1 - holes)  # a tenth of masked_fill_'s time


# ---- decoding


def image_arrays(
    pixels: Pixels, labels: Any, counts: Mapping[str, int], classes: Sequence[str], kinds: Kinds | None = None
) -> Decoded:
    """Return what an image source decodes to.

    The moments are sum and sum of squares of each training image's pixels, so that the mean and deviation of any part
    of them are exact and immediate.

    Args:
        pixels: of all images, split after split.
        labels: of the same images.
        counts: how many images each split has.
        classes: their names.
        kinds: which of all images are equal, where that is looked at.
    """
    arrays: dict[str, np.ndarray] = {}
    first = 0
    for split, count in counts.items():
        arrays[f"{split}_images"] = pixels[first : first + count]
        arrays[f"{split}_labels"] = labels[first : first + count]
        first += count
    train = arrays["train_images"]
    sums = train.sum(axis=(2, 3), dtype=np.int64)
    sums_of_squares = np.einsum("nchw,nchw->nc", train, train, dtype=np.int64)
    arrays["train_moments"] = np.stack([sums, sums_of_squares], axis=2)
    if kinds is not None:
        arrays = add_kinds(arrays, kinds, counts)
    return arrays, {"classes": list(classes)}


def decode(images: Sequence[tuple[str, Any]], where: str, size: int | None = None, every: Any = map) -> Pixels:
    """Return the pixels of images: grey where all are grey, else three channels.

    Pillow is imported late, since a cache hit does not need it.

    Args:
        images: the name of each image, and its file, its encoded bytes, or what the hub stores of it.
        where: what to call all of them in an error.
        size: side in pixels to which each is scaled, by its shorter side, and cut around its middle; None: as it is.
        every: applies a function to each; by default in one thread, as Pillow gains nothing from two on small images.

    Raises:
        UsageError: images cannot be read, or differ in size.
    """
    pixels = np.empty((0, 0, 0, 0), dtype=np.uint8)
    faults: list[str] = []
    with warnings.catch_warnings(action="ignore"):  # damage that leaves an image is not a fault
        decoded = every(partial(try_decode, size), images)
        for row, image in enumerate(decoded):
            name, _ = images[row]
            if isinstance(image, Exception):
                faults.append(f"{name}: {reason(image):.120}")
                continue
            if not pixels.size:
                pixels = np.empty((len(images), *image.shape), dtype=np.uint8)
            if image.shape[1:] != pixels.shape[2:]:
                cure = "all images must have the same size, so set data.size=64 or the like for images of your own"
                raise UsageError(f"{name} of {where} differs in size from images before it: {cure}")
            if len(image) > pixels.shape[1]:
                pixels = np.repeat(pixels, 3, axis=1)
            pixels[row] = image
    if faults:
        first = ", ".join(faults[:3])
        what = f"{len(faults):,} of the {len(images):,} images of {where} cannot be read ({first})"
        raise UsageError(f"{what}: fix or remove them, or set data.image_column to the column of the images")
    return pixels


def try_decode(size: int | None, image: tuple[str, Any]) -> UInt8[np.ndarray, "channels height width"] | Exception:
    """Return the pixels of a named image, or what went wrong."""
    try:
        return decode_one(image[1], size)
    except Exception as fault:  # on damaged files Pillow raises nearly anything
        return fault


def decode_one(encoded: Any, size: int | None) -> UInt8[np.ndarray, "channels height width"]:
    """Return the pixels of an image, upright: one channel where it is grey, and three where it has colour.

    Raises:
        ValueError: it is not an image of 8 bits a channel; Pillow raises others, too.
    """
    from PIL import Image, ImageOps

    if isinstance(encoded, Mapping):
        encoded = encoded["bytes"] or encoded["path"]
    if not isinstance(encoded, bytes | str | Path):
        raise ValueError("there is no image")
    file = BytesIO(encoded) if isinstance(encoded, bytes) else encoded
    with Image.open(file) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"Pillow's mode {image.mode}, where 8 bits a channel are needed")
        if size:
            image.draft(None, (2 * size, 2 * size))  # JPEG can be decoded to fewer pixels, which is faster
        image.load()
        if image.info:  # else it cannot say how it is turned, and each needless call is a fifth of MNIST's time
            ImageOps.exif_transpose(image, in_place=True)
        is_grey = image.mode in ("1", "L", "LA", "La")
        mode = "L" if is_grey else "RGB"
        converted = image if image.mode == mode else image.convert(mode)
        if size:
            converted = ImageOps.fit(converted, (size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(converted)
        return pixels[None] if is_grey else pixels.transpose(2, 0, 1)
