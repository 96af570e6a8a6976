"""What the norms share: settings, parameters, precision, choice of implementation, running statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.types import Norm, NormFacts, Site

Eps = Annotated[float, Setting("added to the variance or mean square, inside the root", low=0, high=1)]
Affine = Annotated[bool, Setting("learned γ (and β)")]
Bias = Annotated[bool, Setting("learned β, where there is a γ")]
Momentum = Annotated[float | None, Setting("share of a batch in running statistics; null: cumulative", above=0, high=1)]
Tracks = Annotated[bool, Setting("evaluate with running statistics of the training batches")]
Impl = Annotated[Literal["auto", "torch", "eager"], Setting("what runs: the faster, torch's operator, or the formula")]
NO_OPERATOR = "norm.impl=torch: torch has no operator for this norm with these settings, set norm.impl to auto or eager"


def scale_and_shift(x: Tensor, weight: Tensor | None, bias: Tensor | None, channel_dim: int) -> Tensor:
    """Return γx + β, with each of them where there is one."""
    y = x.movedim(channel_dim, -1)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.movedim(-1, channel_dim)


def standardize(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """Return (x−μ)/√(σ²+ε), with the mean and the biased variance over `dims`."""
    centered = x - x.mean(dims, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(dims, keepdim=True) + eps)


class AffineNorm(Norm, ABC):
    """A norm with γ (`weight`) and β (`bias`), whose subclasses write `normalize` and need not think of precision.

    `forward` hands `normalize` everything in float32, or in the input's precision if that is higher, and casts last.
    The keywords are what every norm takes beside its own settings, which hands them on as `place`.
    operator: of torch.nn.functional, which computes the same faster; None where there is none, also with some settings.
    fused: whether it is used.
    """

    operator: str | None = None

    def __init__(
        self,
        num_features: int,
        eps: float | None,
        affine: bool,
        bias: bool,
        *,
        channel_dim: int = -1,
        site: Site | None = None,
        impl: Impl = "auto",
    ) -> None:
        super().__init__()
        if impl == "torch" and self.operator is None:
            raise UsageError(NO_OPERATOR)
        self.num_features, self.channel_dim = num_features, channel_dim
        self.eps: Any = eps  # a number wherever the formula has one
        self.fused = self.operator is not None and impl != "eager"
        self.implementation = f"torch.nn.functional.{self.operator}" if self.fused else "eager"
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine and bias else None

    def settings(self) -> dict[str, Any]:
        return {"affine": self.weight is not None, "bias": self.bias is not None} | super().settings()

    def forward(self, x: Num[Tensor, "..."], mask: Tensor | None = None) -> Num[Tensor, "..."]:
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = None if self.weight is None else self.weight.to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        return self.normalize(x.to(dtype), weight, bias, mask).to(x.dtype)

    def check_count(self, count: int, cure: str) -> None:
        """Refuse a statistic over one value, which would always normalize to 0."""
        if count < 2:
            found = f"{type(self).__name__.lower()} here would take its statistics over {count} value"
            raise UsageError(f"{found}, and needs at least 2: {cure}")

    @abstractmethod
    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None) -> Tensor:
        """Compute the formula, on arguments of one dtype: float32 or wider."""


class RunningNorm(AffineNorm):
    """A norm that can keep running statistics in training, for use in evaluation.

    momentum: weight of the newest batch in an exponential moving average; None for the plain average over all batches.
    The buffers are None without `track_running_stats`.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    recorded = ("momentum", "track_running_stats")

    def __init__(
        self,
        num_features: int,
        *,
        eps: Eps = 1e-5,
        affine: Affine = True,
        momentum: Momentum = 0.1,
        track_running_stats: Tracks = True,
        **place: Any,
    ) -> None:
        super().__init__(num_features, eps, affine, bias=True, **place)
        self.momentum, self.track_running_stats = momentum, track_running_stats
        start = (torch.zeros(num_features), torch.ones(num_features), torch.tensor(0))
        for name, buffer in zip(("running_mean", "running_var", "num_batches_tracked"), start, strict=True):
            self.register_buffer(name, buffer if track_running_stats else None)

    @classmethod
    def facts_for(cls, *, track_running_stats: bool | None = None, **_: Any) -> NormFacts:
        if track_running_stats is None:  # the class's default
            return cls.facts
        return replace(cls.facts, sees_future="training" if track_running_stats else "always")

    def from_running(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return γ(x−μ)/√(σ²+ε)+β with the running statistics; x `(batch, features, ...)`."""
        mean, var = self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        if self.fused:
            return F.batch_norm(x, mean, var, weight, bias, eps=self.eps)
        y = (x.movedim(1, -1) - mean) * torch.rsqrt(var + self.eps)
        return scale_and_shift(y, weight, bias, -1).movedim(-1, 1)

    @torch.no_grad()
    def update_running(self, mean: Float[Tensor, " features"], var: Float[Tensor, " features"]) -> None:
        """Take in the mean and the unbiased variance of one batch."""
        self.num_batches_tracked.add_(1)
        for running, batch in ((self.running_mean, mean), (self.running_var, var)):
            step = batch - running
            running.add_(step / self.num_batches_tracked if self.momentum is None else step * self.momentum)
