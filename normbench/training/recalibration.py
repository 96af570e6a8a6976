"""Running statistics taken again over training batches, with the model's weights as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from normbench.stopping import allow_stops
from normbench.training.evaluation import to_device
from normbench.types import Batch, Data, keep_buffers


@torch.no_grad()
def average(model: nn.Module, norms: Iterable[Any], batches: Iterable[Batch]) -> None:
    """Set running statistics of norms to their plain average over batches; nothing else of the model is in training.

    No process waits for another. torch.optim.swa_utils.update_bn does the same with torch's own norms.
    """
    training = model.training
    model.eval()
    plain: dict[str, Any] = {"momentum": None, "freeze_after": None, "sync": False}
    plain |= {"r_max": 1.0, "d_max": 0.0}  # batchrenorm computes with those that are averaged: it corrects nothing now
    kept = list[tuple[Any, dict[str, Any]]]()  # each norm's own settings
    for norm in norms:
        kept.append((norm, {name: getattr(norm, name) for name in plain if hasattr(norm, name)}))
    for norm, settings in kept:
        norm.train()
        for name in settings:
            setattr(norm, name, plain[name])
        norm.running_mean.zero_()
        norm.running_var.fill_(1)
        norm.num_batches_tracked.zero_()
    for batch in batches:
        model(*batch.arguments)
    for norm, settings in kept:
        for name, value in settings.items():
            setattr(norm, name, value)
    model.train(training)


@contextmanager
def recalibrate(
    model: nn.Module,
    data: Data,
    done: int,
    device: torch.device,
    watch: Callable[[Iterable[Batch]], Iterable[Batch]] = iter,
) -> Iterator[None]:
    """While this lasts, norms have statistics over as many batches as they ask for (`recalibrate`); then their own.

    The batches are the last ones of the `done` training batches, whole ones in each process.

    Args:
        model: whose norms may ask for it.
        data: gives the training batches.
        done: how many of them were trained on.
        device: of the model.
        watch: passes batches on until a signal asks for a stop.
    """
    norms: list[Any] = [norm for norm in model.modules() if getattr(norm, "recalibrate", 0)]
    if not norms:
        yield
        return
    first = max(0, done - norms[0].recalibrate)
    batches = (to_device(data.train_batch(number), device) for number in range(first, done))
    with keep_buffers(model):
        with allow_stops():
            average(model, norms, watch(batches))
        yield
