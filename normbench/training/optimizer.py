"""Optimizers with weight decay on matrices only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from normbench.errors import UsageError

# Settings of torch.optim's classes that choose which code runs; of each two at most one may be true.
IMPLEMENTATIONS = {"fused", "foreach", "differentiable"}


def parameter_groups(
    model: nn.Module, norms: Iterable[nn.Module], weight_decay: float, decay_norms: bool
) -> list[dict[str, Any]]:
    """Two groups: decayed (matrices, and norms' parameters where asked for) and not decayed (all others)."""
    in_norms = {id(parameter) for norm in norms for parameter in norm.parameters()}

    def decays(parameter: nn.Parameter) -> bool:
        return decay_norms if id(parameter) in in_norms else parameter.ndim >= 2

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if decays(p)], "weight_decay": weight_decay},
        {"params": [p for p in parameters if not decays(p)], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(
    factory: Callable[..., torch.optim.Optimizer], groups: list[dict[str, Any]], device: torch.device
) -> torch.optim.Optimizer:
    """The optimizer, fused where torch has it and no setting chooses another of its implementations.

    Args:
        factory: a torch.optim class with its settings (a `functools.partial`, from `conf/optim`).

    Raises:
        UsageError: the class does not take one of the settings, or needs another loop than ours.
    """
    name = getattr(factory.func if isinstance(factory, partial) else factory, "__name__", str(factory))
    known = inspect.signature(factory).parameters
    chosen = IMPLEMENTATIONS & getattr(factory, "keywords", {}).keys()
    if "fused" in known and not chosen and device.type in ("cpu", "cuda", "mps"):
        factory = partial(factory, fused=True)
    try:
        optimizer = factory(groups)
    except (TypeError, ValueError, RuntimeError) as error:  # the last one where two settings exclude each other
        raise UsageError(
            f"optim: {name} refuses its settings ({error}): change them, or remove one with '~optim.KEY'"
        ) from error
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if (closure is not None and closure.default is closure.empty) or isinstance(optimizer, torch.optim.SparseAdam):
        raise UsageError(
            f"optim: {name} cannot train here, it wants closures or sparse gradients: use another optimizer"
        )
    if optimizer.defaults.get("differentiable"):
        raise UsageError(
            f"optim.differentiable=true cannot train here, {name} would differentiate its own steps: leave it out"
        )
    return optimizer
