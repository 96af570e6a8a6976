"""What turns gradients into weights: the optimizer, with decay on matrices only, and an average of the weights."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from normbench.errors import UsageError

# Settings of torch.optim's classes that choose which code runs; of each two at most one may be true.
IMPLEMENTATIONS = {"fused", "foreach", "differentiable"}

# Methods of an optimizer that import torch.compile, which takes a second, only to be marked as not to be compiled: here
# they are marked without it.
UNCOMPILED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def parameter_groups(
    model: nn.Module, norms: Iterable[nn.Module], weight_decay: float, decay_norms: bool
) -> list[dict[str, Any]]:
    """Return two groups: decayed (matrices, and norms' parameters where asked for) and not decayed (all others)."""
    in_norms = {id(parameter) for norm in norms for parameter in norm.parameters()}
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}  # by whether they decay
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups[decay_norms if id(parameter) in in_norms else parameter.ndim >= 2].append(parameter)
    return [{"params": groups[key], "weight_decay": weight_decay if key else 0.0} for key in groups if groups[key]]


def may_fuse(factory: Any) -> bool:
    """Tell whether an optimizer can be fused, and no setting chooses another of its implementations."""
    return "fused" in inspect.signature(factory).parameters and not IMPLEMENTATIONS & factory.keywords.keys()


def make_optimizer(factory: Any, groups: list[dict[str, Any]], device: torch.device) -> torch.optim.Optimizer:
    """Make the optimizer, fused where torch has it and no setting chooses another of its implementations.

    Args:
        factory: a `functools.partial` of a torch.optim class with its settings, from `conf/optim`.

    Raises:
        UsageError: the class does not take one of the settings, or needs another loop than ours.
    """
    name = factory.func.__name__
    for method in map(partial(getattr, torch.optim.Optimizer), UNCOMPILED):
        if own := getattr(method, "__wrapped__", None):
            vars(own).setdefault("__dynamo_disable", own)
    cut = any(hasattr(each, "full_tensor") for group in groups for each in group["params"])  # torch fuses not all then
    if may_fuse(factory) and not cut and device.type in ("cpu", "cuda", "mps"):
        factory = partial(factory, fused=True)
    try:
        optimizer = factory(groups)
    except (TypeError, ValueError, RuntimeError) as error:  # the last one where two settings exclude each other
        cure = "change them, or remove one with '~optim.KEY'"
        raise UsageError(f"optim: {name} refuses its settings ({error}): {cure}") from error
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise UsageError(f"optim: {name} cannot train here, it wants closures or sparse gradients: use another")
    return optimizer


def check_shapes(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> None:
    """Refuse a state that torch's own optimizer takes as it is, and whose step then reads memory of others.

    Raises:
        ValueError: a tensor has neither its parameter's shape nor one value. Adafactor's have other shapes as well.
        LookupError: it is of another parameter.
    """
    factored = isinstance(optimizer, torch.optim.Adafactor)
    if factored or not type(optimizer).__module__.startswith("torch.optim"):
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, known in state.items():
        for name, value in known.items():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape != parameters[index].shape:
                shapes = f"{tuple(value.shape)} and not {tuple(parameters[index].shape)}"
                raise ValueError(f"{name} of parameter {index} has the shape {shapes}")


def plain_step(optimizer: torch.optim.Optimizer) -> None:
    """Take an optimizer's step; of torch.optim's own without their wrapper, which imports torch.compile for nothing."""
    if type(optimizer).__module__.startswith("torch.optim") and not optimizer.defaults.get("differentiable"):
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(optimizer)
    else:
        optimizer.step()


class WeightAverage:
    """A copy of the model whose weights follow the trained ones: average ← d·average + (1−d)·weights, d = `decay`.

    At the start d = (1+n)/(10+n) where that is less, n being the number of updates, so that the first weights are soon
    forgotten (TensorFlow's ExponentialMovingAverage). Running statistics are averaged like weights: those of the newest
    batches belong to the newest weights, and would not fit the average.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        tensors = ([*each.parameters(), *each.buffers()] for each in (self.model, model))  # tied weights once
        pairs = [*zip(*tensors, strict=True)]
        floats = [pair for pair in pairs if pair[0].is_floating_point()]
        self.averages, self.sources = zip(*floats, strict=True)
        self.others = [pair for pair in pairs if not pair[0].is_floating_point()]

    @property
    def rise(self) -> int:
        """Return how many updates it takes until d is `decay`: from n = (10·decay − 1) / (1 − decay) on."""
        return max(0, math.ceil((10 * self.decay - 1) / (1 - self.decay) - 1e-6))  # a product is rounded

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.averages, self.sources, 1 - decay)
        for average, source in self.others:
            average.copy_(source)
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"updates": self.updates, "model": self.model.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state` was taken."""
        self.updates = state["updates"]
        self.model.load_state_dict(state["model"])
