"""What the norms share: checked arguments, parameters, precision, choice of implementation, running statistics."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.types import Norm, Site

T = TypeVar("T")


def check_number(key: str, value: Any, allowed: str, accepts: Callable[[float], bool]) -> float:
    """The value as a float, if it is a finite number that `accepts` takes; `allowed` says which those are."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and accepts(value)):
        raise UsageError(f"norm.{key}={value!r} is not {allowed}: change norm.{key}")
    return float(value)


def check_choice(key: str, value: Any, choices: Collection[Any]) -> None:
    """UsageError unless the value is one of the choices, and of its type."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        listed = " or ".join(str(choice).lower() for choice in choices)
        raise UsageError(f"norm.{key}={value!r} is not known: set norm.{key} to {listed}")


def check_place(num_features: Any, channel_dim: Any) -> None:
    """UsageError unless the first arguments of every norm are a width and one of the two layouts."""
    check_number("num_features", num_features, "a whole number >= 1", lambda n: n >= 1 and isinstance(n, int))
    check_choice("channel_dim", channel_dim, (-1, 1))


def check_count(count: int, what: str, cure: str) -> None:
    """UsageError if a statistic would be taken over one value, which then always normalizes to 0."""
    if count < 2:
        raise UsageError(f"{what} here would take its statistics over {count} value, and needs at least 2: {cure}")


def choose(impl: Any, eager: T, fused: tuple[str, T] | None, name: str) -> tuple[T, str]:
    """What runs (a function, or several), and the word for it in `implementation`.

    fused: the name of torch's operator and what uses it, which `auto` takes; None where `name` has no such operator.
    """
    check_choice("impl", impl, ("auto", "torch", "eager"))
    if impl == "torch" and fused is None:
        raise UsageError(f"norm.impl=torch: torch has no operator for {name}, set norm.impl to auto or eager")
    if impl == "eager" or fused is None:
        return eager, "eager"
    operator, function = fused
    return function, operator


def along(parameter: Float[Tensor, " features"], x: Tensor, channel_dim: int) -> Tensor:
    """The parameter in the shape that broadcasts over x with the features along channel_dim."""
    shape = [1] * x.ndim
    shape[channel_dim] = -1
    return parameter.view(shape)


def scale_and_shift(x: Tensor, weight: Tensor | None, bias: Tensor | None, channel_dim: int) -> Tensor:
    """γx + β, each where there is one."""
    if weight is not None:
        x = x * along(weight, x, channel_dim)
    return x if bias is None else x + along(bias, x, channel_dim)


def standardize(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """(x−μ)/√(σ²+ε), with the mean and the biased variance over `dims`."""
    centered = x - x.mean(dims, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(dims, keepdim=True) + eps)


class AffineNorm(Norm):
    """A norm with γ (`weight`) and β (`bias`), whose subclasses write `normalize` and need not think of precision.

    `forward` hands `normalize` everything in float32, or in the input's precision if that is higher, and casts last.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        *,
        channel_dim: int,
        site: Site | None,
        affine: bool,
        bias: bool,
    ) -> None:
        super().__init__()
        check_place(num_features, channel_dim)
        check_choice("affine", affine, (True, False))
        check_choice("bias", bias, (True, False))
        self.num_features = num_features
        self.channel_dim = channel_dim
        self.site = site
        self.affine = affine
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine and bias else None

    def settings(self) -> dict[str, Any]:
        return {"affine": self.affine, "bias": self.bias is not None}

    def forward(self, x: Num[Tensor, "..."]) -> Num[Tensor, "..."]:
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = None if self.weight is None else self.weight.to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        return self.normalize(x.to(dtype), weight, bias).to(x.dtype)

    @abstractmethod
    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """The formula, on arguments of one dtype: float32 or wider."""


class StatisticsNorm(AffineNorm):
    """A norm that divides by a statistic, with ε (`eps`) inside the root."""

    eps: float

    def __init__(
        self,
        num_features: int,
        *,
        channel_dim: int,
        site: Site | None,
        eps: float,
        affine: bool,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, channel_dim=channel_dim, site=site, affine=affine, bias=bias)
        self.eps = check_number("eps", eps, "a finite number >= 0", lambda value: value >= 0)


class RunningNorm(StatisticsNorm):
    """A norm that can keep running statistics in training, for use in evaluation.

    momentum: weight of the newest batch in an exponential moving average; None for the plain average over all batches.
    The buffers are None without `track_running_stats`.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        channel_dim: int,
        site: Site | None,
        eps: float,
        affine: bool,
        momentum: float | None,
        track_running_stats: bool,
    ) -> None:
        super().__init__(num_features, channel_dim=channel_dim, site=site, eps=eps, affine=affine)
        check_choice("track_running_stats", track_running_stats, (True, False))
        if momentum is not None:
            check_number("momentum", momentum, "null or a number in (0, 1]", lambda value: 0 < value <= 1)
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        self.register_buffer("running_mean", torch.zeros(num_features) if track_running_stats else None)
        self.register_buffer("running_var", torch.ones(num_features) if track_running_stats else None)
        self.register_buffer("num_batches_tracked", torch.tensor(0) if track_running_stats else None)

    def settings(self) -> dict[str, Any]:
        own = {"momentum": self.momentum, "track_running_stats": self.track_running_stats}
        return super().settings() | own

    @torch.no_grad()
    def update_running(self, mean: Float[Tensor, " features"], var: Float[Tensor, " features"]) -> None:
        """Take in the mean and the unbiased variance of one batch."""
        self.num_batches_tracked.add_(1)
        for running, batch in ((self.running_mean, mean), (self.running_var, var)):
            step = batch - running
            running.add_(step / self.num_batches_tracked if self.momentum is None else step * self.momentum)


def from_running(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """γ(x−μ)/√(σ²+ε)+β with given statistics; x `(batch, features, ...)`."""
    mean, var = along(mean.to(x.dtype), x, 1), along(var.to(x.dtype), x, 1)
    return scale_and_shift((x - mean) * torch.rsqrt(var + eps), weight, bias, 1)


def fused_from_running(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """`from_running` by torch's operator."""
    return F.batch_norm(x, mean.to(x.dtype), var.to(x.dtype), weight, bias, eps=eps)
