"""Labelled images in memory, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from normbench.data.augmentation import Augmentation
from normbench.data.cache import Source
from normbench.data.holdout import check_size, held_out
from normbench.data.order import EpochOrder, spread
from normbench.errors import UsageError
from normbench.types import Batch, Data, ImageClassification, Split


class Labelled(NamedTuple):
    """Images and their classes."""

    images: UInt8[Tensor, "images channels height width"]
    labels: Int64[Tensor, " images"]


class Scaling(NamedTuple):
    """From pixels 0..255 to what a model sees: (x − shift) / divisor, by channel."""

    shift: Float[Tensor, "channels 1 1"]
    divisor: Float[Tensor, "channels 1 1"]


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
        UsageError: a number is out of bounds, an unknown scaling, or a batch larger than the training set.
    """

    kind = "image_classification"
    task: ImageClassification

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        eval_batch_size: int,
        seed: int,
        scaling: str = "standard",
        holdout: float = 0,
        crop: int = 0,
        flip: bool = False,
        cutout: int = 0,
    ) -> None:
        self.batch_size = check_size("data.batch_size", batch_size)
        self.eval_batch_size = check_size("data.eval_batch_size", eval_batch_size)
        self.seed = seed
        self.source = source
        content, self.fingerprint = source.open()
        train, val = labelled(content.arrays, "train"), labelled(content.arrays, "val")
        held = held_out(len(train.labels), holdout, "images")
        used = len(train.labels) - held
        held_part = Labelled(train.images[used:], train.labels[used:])
        self.splits: dict[Split, Labelled] = {
            "train": Labelled(train.images[:used], train.labels[:used]),
            "val": held_part if held else val,
        }
        self.has_test = "test_images" in content.arrays
        if self.has_test:
            self.splits["test"] = labelled(content.arrays, "test")
        self.left_out = int(content.facts.get("left_out", 0))
        self.classes: tuple[str, ...] = tuple(content.facts["classes"])
        channels, height, width = train.images.shape[1:]
        self.task = ImageClassification(num_classes=len(self.classes), image_shape=(channels, height, width))
        self.augmentation = Augmentation(seed, (channels, height, width), crop, flip, cutout)
        self.scaling = scaling
        self._scaling = make_scaling(scaling, content.arrays["train_moments"][:used], height * width)
        self.order = self._images_in_order(used)
        self.steps_per_epoch = self.order.steps_per_epoch

    def _images_in_order(self, images: int) -> EpochOrder:
        if self.batch_size > images:
            raise UsageError(
                f"data.batch_size={self.batch_size:,} is more than the {images:,} training images of "
                f"{self.source.name}: use at most {images:,}"
            )
        return EpochOrder(images, self.batch_size, self.seed)

    def train_batch(self, step: int) -> Batch:
        """The images of this step's place in its epoch's permutation, which depends on (seed, epoch) alone."""
        images, labels = self.splits["train"]
        indices = self.order.batch(step)
        pixels = self.augmentation.moved(images.index_select(0, indices), step)
        return Batch(self.augmentation.cut(self._scaled(pixels), step), labels.index_select(0, indices))

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """The split in order, in batches whose sizes differ by at most one image.

        With `limit`: so many batches of `eval_batch_size` images spread evenly over the split, or all if that is less.
        """
        for indices in spread(len(self.splits[split].labels), self.eval_batch_size, limit):
            images, labels = self.splits[split]
            yield Batch(self._scaled(images.index_select(0, indices)), labels.index_select(0, indices))

    def _scaled(self, pixels: UInt8[Tensor, "batch channels height width"]) -> Tensor:
        return pixels.float().sub_(self._scaling.shift).div_(self._scaling.divisor)

    def pixels(
        self, inputs: Float[Tensor, "batch channels height width"]
    ) -> UInt8[Tensor, "batch channels height width"]:
        """The pixels, from 0 to 255, that a batch's inputs were made of."""
        return (inputs * self._scaling.divisor + self._scaling.shift).round().clamp(0, 255).to(torch.uint8)

    def describe(self) -> dict[str, Any]:
        """What the data are, for the record; mean and deviation are those of pixels from 0 to 1."""
        return self.source.describe() | {
            "kind": self.kind,
            "train_images": len(self.splits["train"].labels),
            "val_images": len(self.splits["val"].labels),
            "test_images": len(self.splits["test"].labels) if self.has_test else 0,
            "left_out": self.left_out,
            "image_shape": list(self.task.image_shape),
            "classes": list(self.classes),
            "scaling": self.scaling,
            "shift": [round(value / 255, 6) for value in self._scaling.shift.flatten().tolist()],
            "divisor": [round(value / 255, 6) for value in self._scaling.divisor.flatten().tolist()],
            "augmentation": self.augmentation.describe(),
            "steps_per_epoch": self.steps_per_epoch,
            "fingerprint": self.fingerprint,
        }


def labelled(arrays: Mapping[str, np.ndarray], split: Split) -> Labelled:
    """A split of what a source decodes to."""
    images, labels = (torch.from_numpy(arrays[f"{split}_{part}"]) for part in ("images", "labels"))
    return Labelled(images, labels)


def make_scaling(scaling: str, moments: Int64[np.ndarray, "images channels 2"], pixels: int) -> Scaling:
    """The scaling of that name, from each image's sum and sum of squares over its `pixels` pixels.

    Raises:
        UsageError: no scaling has that name.
    """
    total, squares = moments.sum(axis=0).T.astype(np.float64) / (len(moments) * pixels)
    deviation = np.sqrt(np.maximum(squares - total**2, 0))
    known = {
        "none": (np.zeros_like(total), np.ones_like(total)),
        "unit": (np.zeros_like(total), np.full_like(total, 255)),
        "standard": (total, np.where(deviation > 0, deviation, 1)),  # a channel without variation stays 0
    }
    if scaling not in known:
        raise UsageError(f"data.scaling={scaling} is unknown: use {', '.join(known)}")
    shift, divisor = (torch.from_numpy(values).float()[:, None, None] for values in known[scaling])
    return Scaling(shift, divisor)
