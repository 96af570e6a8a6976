"""Small trainings on a pretended device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from support import SMALL

from normbench.config.compose import read
from normbench.recording import Silent
from normbench.run.plan import prepare
from normbench.run.session import Session
from normbench.training.loop import Loop
from normbench.types import Batch, Data, Split, Task


class RandomData(Data):
    """A random batch of a task for each step."""

    steps_per_epoch = 10
    fingerprint = "random"

    def __init__(self, task: Task, size: int = 4) -> None:
        self.task, self.kind, self.size = task, task.kind, size
        self.pads = task.may_pad

    def train_batch(self, step: int) -> Batch:
        return self.task.random_batch(self.size, torch.Generator().manual_seed(step))

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        return iter([self.train_batch(-1)])

    def describe(self) -> dict[str, Any]:
        return {"name": "random", "fingerprint": self.fingerprint}


def small(model: str) -> list[str]:
    """Return words for a model of small sizes."""
    return [f"model={model}", *(f"model.{key}={value}".replace(" ", "") for key, value in SMALL[model].items())]


def make_loop(words: list[str], task: Task, device: str = "cuda") -> Loop:
    """Return a loop on random data of a task, that has not begun."""
    config = read(["probes=off", "trainer.steps=20", f"device={device}", "quiet=true", *words])
    session = Session(prepare(config, RandomData(task)))
    session.loop.recorder = Silent()
    session.loop.model.train()
    return session.loop
