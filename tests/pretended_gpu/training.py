"""Small trainings on a GPU, as a rule a pretended one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from support import SMALL
from torch.utils._pytree import tree_leaves

from normbench.config.compose import read
from normbench.record.recorder import Silent
from normbench.runs.plan import prepare
from normbench.runs.session import Session
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


class Poisoned(RandomData):
    """Images of which those of the sixth step are not finite."""

    def train_batch(self, step: int) -> Batch:
        batch = super().train_batch(step)
        return batch._replace(inputs=batch.inputs / (step != 5))


class Growing(RandomData):
    """Batches that are larger from the sixth step on."""

    def train_batch(self, step: int) -> Batch:
        self.size = 4 if step < 5 else 5
        return super().train_batch(step)


def small(model: str) -> list[str]:
    """Return words for a model of small sizes."""
    return [f"model={model}", *(f"model.{key}={value}".replace(" ", "") for key, value in SMALL[model].items())]


def make_loop(words: list[str], task: Task, device: str = "cuda", data: Data | None = None) -> Loop:
    """Return a loop that has not begun, on random data of a task if no other are given."""
    config = read(["probes=off", "trainer.steps=20", f"device={device}", "quiet=true", *words])
    session = Session(prepare(config, data or RandomData(task)))
    session.loop.recorder = Silent()
    session.loop.model.train()
    return session.loop


def rounded(loop: Loop) -> None:
    """Let a loop have its learning rates in float32, as a graph reads them anyway."""
    begin = loop.begin_step

    def begin_step() -> None:
        begin()
        for group in loop.optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"]).item()

    loop.begin_step = begin_step  # type: ignore[method-assign]  # of this one loop


def trained(loop: Loop, steps: int) -> dict[str, Any]:
    """Take steps; return the losses, what probes saw, and the state at the end."""
    losses = []
    for _ in range(steps):
        loop.loss_sum.zero_()
        loop.train_step()
        losses.append(loop.loss_sum.item())
    return {"losses": losses, "seen": loop.latest, "state": loop.state()}


def same(one: Any, other: Any) -> bool:
    """Tell whether two states are the same, to the bit."""
    leaves, others = tree_leaves(one), tree_leaves(other)
    pairs = zip(leaves, others, strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def comparable(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without what differs from one run to the next."""
    return {name: value for name, value in state.items() if name not in ("durations", "compile_seconds")}
