"""Trains a model step by step, for studies that look at each step while its gradients are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from normbench import build
from normbench.errors import UsageError
from normbench.studies.frame import Subject
from normbench.training.devices import seed_generators
from normbench.training.evaluation import to_device
from normbench.training.optimizer import make_optimizer, parameter_groups
from normbench.types import Batch, Model, stable_seed


@dataclass(frozen=True)
class Step:
    """A training step whose gradients are in the parameters and whose update is still to come. number: from 0."""

    number: int
    batch: Batch
    loss: float
    rate: float


def check_steps(subject: Subject) -> None:
    """Refuse a way of training that `steps` has not.

    Raises:
        UsageError: with the setting.
    """
    for key, allowed in {"precision": "fp32", "accumulate": 1, "ema": None}.items():
        if (value := subject.tree["trainer"][key]) != allowed:
            raise UsageError(f"trainer.{key}={value} is not for a study that trains by itself: leave it out")


def steps(subject: Subject, model: Model, norms: Mapping[str, nn.Module]) -> Iterator[Step]:
    """Train as `normbench train` does, and yield each step before its update; end where the loss is not finite."""
    tree, data = subject.tree, subject.data
    trainer, total = tree["trainer"], tree["trainer"]["steps"]
    decay = tree["optim"].get("weight_decay", 0.0)
    groups = parameter_groups(model, norms.values(), decay, trainer["decay_norms"])
    optimizer = make_optimizer(build.factory(tree, "optim"), groups, subject.device)
    schedule, base = build.factory(tree, "schedule")(), [group["lr"] for group in optimizer.param_groups]
    model.train()
    for number in range(total):
        for group, rate in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = rate * schedule.factor(number, total)
        batch = to_device(data.train_batch(number), subject.device)
        seed_generators(subject.device, stable_seed(subject.seed, "dropout", number))
        loss = data.task.loss(model(*batch.arguments), batch.targets)
        if not loss.isfinite():
            return
        loss.backward()
        yield Step(number, batch, loss.item(), optimizer.param_groups[0]["lr"])
        if trainer["grad_clip"]:
            nn.utils.clip_grad_norm_(model.parameters(), trainer["grad_clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
