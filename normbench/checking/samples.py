"""What parts are tried on: random tensors of every layout, and tiny tasks of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from normbench.types import Batch, Data, Split, Task

WIDTH = 24  # small, with many divisors for groups
LAYOUTS = {"flat": (6, WIDTH), "sequence": (4, 7, WIDTH), "image": (4, WIDTH, 3, 5)}
AXES = {
    "flat": "(batch, features)",
    "sequence": "(batch, time, features)",
    "image": "(batch, channels, height, width)",
}


def channel_dim(layout: str) -> int:
    """Where the features of a layout are."""
    return 1 if layout == "image" else -1


def random_input(layout: str, seed: int = 0, mean: float = 0.5, std: float = 1.5, width: int = WIDTH) -> Tensor:
    """Normal numbers, in float64."""
    generator, shape = torch.Generator().manual_seed(seed), list(LAYOUTS[layout])
    shape[channel_dim(layout)] = width
    return torch.randn(shape, generator=generator, dtype=torch.float64) * std + mean


SYMBOLS, CLASSES, TIME, BATCH = 17, 5, 16, 4


class Tiny(Data):
    """One random batch of a task, always the same; `side`: of its images, in pixels."""

    kind: str  # type: ignore[misc]  # of the instance here, as its task's
    pads: bool  # type: ignore[misc]  # likewise
    fingerprint = "tiny"
    steps_per_epoch = 1

    def __init__(self, kind: str, side: int = 16) -> None:
        sizes = {"kind": kind, "num_classes": CLASSES, "vocabulary_size": SYMBOLS, "context": TIME}
        self.kind, self.task = kind, Task.from_record({**sizes, "image_shape": (3, side, side)})
        self.pads = self.task.may_pad
        self.batch = self.task.random_batch(BATCH, torch.Generator().manual_seed(0))

    def train_batch(self, step: int) -> Batch:
        return self.batch

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        yield self.batch

    def describe(self) -> dict[str, Any]:
        return {"name": "tiny"}
