"""What parts are tried on: random tensors of every layout, and tiny tasks of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normbench.types import Batch, Data, Split, Task, TaskKind

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

TASKS: dict[TaskKind, Task] = {
    "language_model": Task("language_model", SYMBOLS, vocabulary_size=SYMBOLS, context=TIME),
    "text_classification": Task("text_classification", CLASSES, vocabulary_size=SYMBOLS, context=TIME),
    "image_classification": Task("image_classification", CLASSES, image_shape=(3, 16, 16)),
}


class Tiny(Data):
    """One random batch of a task, always the same; `side`: of its images, in pixels."""

    kind: TaskKind  # type: ignore[misc]  # of the instance here, as its task's
    pads: bool  # type: ignore[misc]  # likewise
    fingerprint = "tiny"
    steps_per_epoch = 1

    def __init__(self, kind: TaskKind, side: int = 16) -> None:
        self.kind, self.task = kind, TASKS[kind]
        self.pads = kind == "text_classification"
        if kind == "image_classification":
            self.task = replace(self.task, image_shape=(3, side, side))
        self.batch = random_batch(self.task)

    def train_batch(self, step: int) -> Batch:
        return self.batch

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        yield self.batch

    def describe(self) -> dict[str, Any]:
        return {"name": "tiny"}


def random_batch(task: Task) -> Batch:
    """Inputs and targets of a task's shape; texts of different lengths come with their mask."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(task.num_classes, (BATCH,), generator=generator)
    if task.kind == "image_classification":
        assert task.image_shape is not None
        return Batch(torch.randn(BATCH, *task.image_shape, generator=generator), labels)
    tokens = torch.randint(SYMBOLS, (BATCH, TIME + 1), generator=generator)
    if task.kind == "language_model":
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    mask = torch.arange(TIME) < torch.arange(TIME, 0, -TIME // BATCH)[:, None]
    return Batch(tokens[:, :-1] * mask, labels, mask)
