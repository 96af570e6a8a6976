"""Norms of others, `Norm(features, ...)`: fitted to a model's layout, and measured, as they declare nothing."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import ContractError, explain
from normbench.types import Norm, NormFacts, Site, When

# The positions of what a norm is tried on, by channel_dim: no size is likely to be a number of features.
POSITIONS: dict[int, tuple[int, ...]] = {-1: (97,), 1: (11, 13)}


class Unmasked(nn.Module):
    """What a norm of a user's own gets beside its class where that takes no mask."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y: Tensor = super().forward(x)
        return y


def accept_mask(norm: nn.Module) -> nn.Module:
    """Return the same norm, whose `forward` takes a mask from now on, if only to leave it alone."""
    if "mask" not in inspect.signature(norm.forward).parameters:
        norm.__class__ = ignore_mask(type(norm))  # type: ignore[arg-type]  # classes have a hash
    return norm


@cache
def ignore_mask(kind: Any) -> type:
    """Return the class that takes a mask and leaves it alone: one for each, whose counters and the like are its own."""
    return type(kind.__name__, (Unmasked, kind), {"__module__": kind.__module__})


class Fitted(Norm):
    """What a norm of another library gets beside its own class, so that its parameters and buffers keep their names.

    features_axis: where its class has the features, -1 or 1. input_axes: how many axes its class takes; where the
    features are second, the positions follow them along as many axes as they have, or along one.
    """

    eps_place = cast_order = "as its class has it"
    recorded = ("features_axis", "input_axes")

    features_axis: int
    input_axes: int

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        moved = x.movedim(self.channel_dim, self.features_axis)
        shape: tuple[int, ...] = moved.shape
        if self.features_axis == 1 and moved.ndim != self.input_axes:
            shape = (*moved.shape[:2], -1, *[1] * (self.input_axes - 3))
        y: Tensor = super().forward(moved.reshape(shape))
        return y.reshape(moved.shape).movedim(self.features_axis, self.channel_dim)


def takes_place(found: Any) -> bool:
    """Tell whether a class, or a function that makes a norm, is told its place by `channel_dim`, as ours are."""
    return class_takes_place(found) if isinstance(found, type) else names_place(found)


@cache
def class_takes_place(found: type) -> bool:
    """Tell whether a class, or one from which it derives, is told its place."""
    return any(names_place(maker) for maker in found.__mro__)


def names_place(maker: Any) -> bool:
    """Tell whether `channel_dim` is among what a class or a function takes by name."""
    return "channel_dim" in inspect.signature(maker).parameters


def make_fitted(make: Callable[..., Any], num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> Any:
    """Make a norm of another library, whose one argument without a value is the number of features, and fit it.

    Its features are last, if it normalizes each position alone then; or second; or else last.

    Raises:
        ContractError: several arguments have no value, or it cannot be made or takes no such input.
    """
    defaults = {}
    for parameter in inspect.signature(make).parameters.values():
        if "VAR" not in parameter.kind.name:
            defaults[parameter.name] = parameter.default
    without = [name for name, value in defaults.items() if value is inspect.Parameter.empty]
    if len(without) > 1:
        cure = " or ".join(f"norm.{name}=VALUE" for name in without)
        raise ContractError(f"the norm needs {' and '.join(without)}, one for the number of features: set {cure}")
    try:
        norm = make(**dict.fromkeys(without, num_features))
    except (TypeError, ValueError) as error:
        raise ContractError(f"the norm refuses {num_features} features or a setting ({error}): change these") from error
    kind = type(norm)
    norm.__class__ = type(kind.__name__, (Fitted, kind), {"__module__": kind.__module__})
    norm.channel_dim = channel_dim
    norm.eps = getattr(norm, "eps", defaults.get("eps"))
    norm.implementation = f"{kind.__module__}.{kind.__name__}"
    find_layout(norm, num_features)
    return norm


def find_layout(norm: Any, num_features: int) -> None:
    """Find where a norm's class has its features, by trying.

    Raises:
        ContractError: neither last nor second.
    """
    x = torch.randn(2, *POSITIONS[norm.channel_dim], num_features).movedim(-1, norm.channel_dim)
    features_axis = norm.channel_dim % x.ndim
    one_position = tuple(slice(None) if axis == features_axis else slice(1) for axis in range(x.ndim))
    last = (-1, x.ndim)
    second = [(1, axes) for axes in (x.ndim, 3, 4, 5)]
    why = ""
    for number, layout in enumerate([last, *second, last]):
        norm.features_axis, norm.input_axes = layout
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)  # of a size that does not fit
                # the first try must show that each position is normalized alone; for the others to run is enough
                if not depends(norm, x, one_position) or number > 0:
                    return
        except Exception as error:  # of a class that takes another layout
            why = explain(error)
    cure = "give it the form Norm(num_features, *, channel_dim=-1, site=None)"
    raise ContractError(f"{norm.implementation} takes its features neither last nor second ({why}): {cure}")


def answer(norm: nn.Module, x: Tensor, **more: Tensor) -> Tensor:
    """Return what a copy of a norm makes of x on the CPU or, where that fails and there is one, on a GPU."""
    try:
        y: Tensor = copy.deepcopy(norm)(x, **more)
    except Exception:  # of a kernel for GPUs alone, or of another layout, which fails there as well
        if not torch.cuda.is_available():
            raise
        there = {name: tensor.to("cuda") for name, tensor in more.items()}
        y = copy.deepcopy(norm).to("cuda")(x.to("cuda"), **there).cpu()
    return y


@torch.no_grad()
def agree(norm: nn.Module, x: Tensor, other: Tensor, here: Any = ..., **more: Tensor) -> bool:
    """Tell whether the outputs for two inputs are alike somewhere; running statistics stay as they are."""
    first = answer(norm, x, **more)
    second = answer(norm, other, **more)
    return torch.allclose(first[here], second[here], rtol=1e-3, atol=1e-4)


def depends(norm: nn.Module, x: Tensor, here: Any, **more: Tensor) -> bool:
    """Tell whether the output somewhere depends on the input elsewhere; more: arguments of the norm."""
    other = 100 * x.flip(0) + 1
    other[here] = x[here]
    return not agree(norm, x, other, here, **more)


def measure_facts(norm: nn.Module, num_features: int) -> NormFacts:
    """Measure what a norm of sequences depends on."""
    x = torch.randn(2, *POSITIONS[-1], num_features)
    length = x.shape[1]
    first_steps = (slice(None), slice(3))
    sees_future: When = "never"
    if depends(norm.train(), x, first_steps):
        sees_future = "training"
    if depends(norm.eval(), x, first_steps):
        sees_future = "always"
    mask = torch.arange(length) < torch.tensor([[length // 3], [length // 2]])
    norm.train()
    return NormFacts(
        "unknown",
        centers=agree(norm, x, x + 3),
        crosses_samples=depends(norm, x, slice(1)),
        sees_future=sees_future,
        needs_positions=not takes(norm, x[:, 0]),
        counts_padding=depends(norm, x, mask, mask=mask),
    )


def takes(norm: nn.Module, x: Tensor) -> bool:
    """Tell whether a norm can be called with such an input."""
    try:
        agree(norm, x, x)
    except Exception:  # of a norm of another library, which may raise anything
        return False
    return True
