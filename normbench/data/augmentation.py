"""Training images, changed at random without changing what they show; a pure function of (seed, step)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.types import stable_seed

Pixels = UInt8[Tensor, "batch channels height width"]
Inputs = Float[Tensor, "batch channels height width"]


@dataclass(frozen=True)
class Augmentation:
    """Random crops, flips and holes, each image by itself.

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
        """What a kind's random numbers of a step come from."""
        return torch.Generator().manual_seed(stable_seed(self.seed, "data", kind, step))

    def moved(self, pixels: Pixels, step: int) -> Pixels:
        """The images of training step `step`, cropped and flipped."""
        if not (self.crop or self.flip):
            return pixels
        (batch, channels, height, width), p = pixels.shape, self.crop
        padded = F.pad(pixels, (p, p, p, p))
        places = self.rows(batch, step)[:, :, None] * (width + 2 * p) + self.columns(batch, step)[:, None, :]
        taken = places.view(batch, 1, height * width).expand(batch, channels, -1)
        return padded.view(batch, channels, -1).gather(2, taken).view(pixels.shape)

    def rows(self, batch: int, step: int) -> Int64[Tensor, "batch height"]:
        """Which rows of the padded images are taken."""
        return self.offsets(batch, step, "crop rows") + torch.arange(self.shape[1])

    def columns(self, batch: int, step: int) -> Int64[Tensor, "batch width"]:
        """Which columns of the padded images are taken, in which order."""
        order = torch.arange(self.shape[2])
        if self.flip:
            flipped = torch.rand(batch, 1, generator=self.generator(step, "flip")) < 0.5
            order = torch.where(flipped, order.flip(0), order)
        return self.offsets(batch, step, "crop columns") + order

    def offsets(self, batch: int, step: int, kind: str) -> Int64[Tensor, "batch 1"]:
        """Where the windows start in the padded images."""
        if not self.crop:
            return torch.zeros(batch, 1, dtype=torch.int64)
        return torch.randint(2 * self.crop + 1, (batch, 1), generator=self.generator(step, kind))

    def cut(self, inputs: Inputs, step: int) -> Inputs:
        """The scaled images of training step `step` with their holes, in place."""
        if not self.cutout:
            return inputs
        batch, _, height, width = inputs.shape
        rows, columns = self.hole(batch, height, step, "cutout rows"), self.hole(batch, width, step, "cutout columns")
        return inputs.mul_(1 - rows[:, None, :, None] * columns[:, None, None, :])  # a tenth of masked_fill_'s time

    def hole(self, batch: int, size: int, step: int, kind: str) -> Float[Tensor, "batch size"]:
        """1 in the rows, or columns, of the holes, else 0."""
        centres = torch.randint(size, (batch, 1), generator=self.generator(step, kind))
        distance = torch.arange(size) - centres + self.cutout // 2
        return ((distance >= 0) & (distance < self.cutout)).float()

    def describe(self) -> dict[str, int | bool]:
        """For the record."""
        return {"crop": self.crop, "flip": self.flip, "cutout": self.cutout}
