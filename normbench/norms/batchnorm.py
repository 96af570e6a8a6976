"""Batch normalization."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.norms.common import Affine, Eps, Impl, Momentum, RunningNorm, Tracks, scale_and_shift, standardize
from normbench.types import NormFacts, Site


class BatchNorm(RunningNorm):
    """Standardizes each feature over the batch, and over time or space where the input has them.

    y = γ(x−μ)/√(σ²+ε)+β. In training μ and σ² (biased) come from the batch; in evaluation they are the running mean and
    the running unbiased variance, kept in training as new = (1−m)·old + m·batch with m = `momentum`, or, with
    `momentum=None`, as the average over all batches. With `track_running_stats=False` they always come from the batch.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where the batch has a single value for each feature.
    Source: Ioffe & Szegedy 2015, algorithms 1 and 2; the moving average is torch.nn.BatchNorm1d's.
    """

    facts: ClassVar[NormFacts] = NormFacts(
        statistics_over="batch and time or space, for each feature",
        centers=True,
        crosses_samples=True,
        sees_future="training",
    )

    def __init__(
        self,
        num_features: int,
        *,
        channel_dim: int = -1,
        site: Site | None = None,
        eps: Eps = 1e-5,
        affine: Affine = True,
        momentum: Momentum = 0.1,
        track_running_stats: Tracks = True,
        impl: Impl = "auto",
    ) -> None:
        operator = "batch_norm" if eps else None  # torch's refuses an eps of 0 in training
        super().__init__(num_features, channel_dim, site, impl, operator, affine=affine)
        self.eps = eps
        self.keep_running_stats(momentum, track_running_stats)

    @classmethod
    def facts_for(cls, **options: Any) -> NormFacts:
        tracks = options.get("track_running_stats", True)
        return cls.facts if tracks else replace(cls.facts, sees_future="always")

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        flat = x.flatten(0, -2) if self.channel_dim == -1 else x
        if self.track_running_stats and not self.training:
            return self.from_running(flat, weight, bias).reshape(x.shape)
        self.check_count(x.numel() // self.num_features, "use larger batches")
        y, mean, var = self.from_batch(flat, weight, bias)
        if self.track_running_stats:
            self.update_running(mean, var)
        return y.reshape(x.shape)

    def from_batch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the formula on x `(batch, features, ...)`; return also the batch's mean and unbiased variance."""
        if self.fused:
            # with a momentum of 1 torch's moving averages are the batch's own statistics
            mean, var = x.new_zeros(self.num_features), x.new_zeros(self.num_features)
            return F.batch_norm(x, mean, var, weight, bias, training=True, momentum=1.0, eps=self.eps), mean, var
        dims = (0, *range(2, x.ndim))
        var, mean = torch.var_mean(x.detach(), dims)
        return scale_and_shift(standardize(x, dims, self.eps), weight, bias, 1), mean, var
