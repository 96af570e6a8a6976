"""Switchable normalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.norms.common import RunningNorm, moments, scale_and_shift
from normbench.types import NormFacts


class SwitchableNorm(RunningNorm):
    """Standardizes by a learned mixture of the statistics of InstanceNorm, LayerNorm and BatchNorm.

    y = γ(x−μ)/√(σ²+ε)+β, with μ = Σₖ wₖμₖ and σ² = Σₖ vₖσ²ₖ over k: one feature of one sample over time or space (in),
    all features of it (ln), and one feature over the batch (bn); w and v are two softmaxes of three learned numbers
    each, which start at 1. σ²_in is unbiased, as in its authors' code, and the others follow from it: with the mean
    over features or samples, μₖ = mean(μ_in) and σ²ₖ = mean(σ²_in+μ²_in)−μ²ₖ. In evaluation bn has running statistics,
    kept as new = (1−m)·old + m·batch with m = `momentum`. The running variance starts at 1, and at 0 in its authors'
    code, so that after n training batches ours is larger by (1−m)ⁿ, with m = 0.1 by 3e-5 after 100.

    Padding counts in no statistic and is 0 in the output; with `masked=False` it counts as if it were text.

    Shapes: `(batch, time, features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where every sample has a single position (with a mask, on the CPU alone).
    Source: Luo, Ren, Peng, Zhang & Li 2019, and their code: `devkit/ops/switchable_norm.py:79`@5472286, SwitchNorm2d.
    """

    facts = NormFacts(
        statistics_over="time or space of a sample, for each feature and for all, and of the batch, for each feature",
        centers=True,
        crosses_samples=True,
        sees_future="always",
        needs_positions=True,
    )
    used_in = "its authors' ResNets of ImageNet, and face recognition"

    def __init__(self, num_features: int, **settings: Any) -> None:
        super().__init__(num_features, **settings)
        if self.freeze_after:
            raise UsageError("norm.freeze_after: switchable mixes in statistics that do not freeze, leave it out")
        self.mean_weight = nn.Parameter(torch.ones(3))
        self.var_weight = nn.Parameter(torch.ones(3))

    @classmethod
    def facts_for(cls, **options: Any) -> NormFacts:
        return replace(super().facts_for(**options), sees_future="always")

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        x = x.movedim(self.channel_dim, 1)
        if real is not None:
            real = real.movedim(self.channel_dim, 1)
        mean_in, var_in, count, _ = moments(x, real, tuple(range(2, x.ndim)))
        self.check_counts(count, "use input with time or space, or another norm")
        var_in = var_in * count / (count - 1).clamp_min(1)
        mean_ln, var_ln = pool(mean_in, var_in, 1)
        known = None if real is None else (count > 0).to(x.dtype)
        mean_bn, var_bn = self.of_batch(mean_in, var_in, known)
        mean_share = self.mean_weight.to(x.dtype).softmax(0)
        var_share = self.var_weight.to(x.dtype).softmax(0)
        mean = mix(mean_share, [self.hold_mean(statistic) for statistic in (mean_in, mean_ln, mean_bn)])
        var = mix(var_share, [self.hold_variance(statistic) for statistic in (var_in, var_ln, var_bn)])
        y = (x - mean) * torch.rsqrt(var + self.eps)
        return scale_and_shift(y, weight, bias, 1).movedim(1, self.channel_dim)

    def of_batch(self, mean_in: Tensor, var_in: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the batch's mean and variance of each feature, or in evaluation the running ones.

        Args:
            mean_in, var_in: of each sample.
            known: 0 for a sample that is all padding, and 1 for others; None: no sample is.
        """
        if self.track_running_stats and not self.training:
            running_mean = self.running_mean.to(mean_in.dtype)
            running_var = self.running_var.to(mean_in.dtype)
            return running_mean.view_as(mean_in[:1]), running_var.view_as(mean_in[:1])
        mean, var = pool(mean_in, var_in, 0, known)
        if self.track_running_stats:
            self.update_running(mean.flatten(), var.flatten())
        return mean, var


def mix(shares: Tensor, statistics: Sequence[Tensor]) -> Tensor:
    """Return the sum of three statistics, each times its share."""
    of_instance, of_layer, of_batch = statistics
    return shares[0] * of_instance + shares[1] * of_layer + shares[2] * of_batch


def pool(mean: Tensor, var: Tensor, dim: int, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return mean and variance of equal parts together, by those of each part along an axis.

    Args:
        mean, var: of each part.
        dim: the axis.
        known: 1 for parts that count, and 0 for others; None: all count.
    """
    if known is None:
        together = mean.mean(dim, keepdim=True)
        return together, (var + (mean - together).square()).mean(dim, keepdim=True)
    n = known.sum(dim, keepdim=True).clamp_min(1)
    together = (mean * known).sum(dim, keepdim=True) / n
    squares = (var + (mean - together).square()) * known
    return together, squares.sum(dim, keepdim=True) / n
