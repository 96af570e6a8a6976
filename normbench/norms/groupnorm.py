"""Group normalization."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.norms.common import Affine, AffineNorm, Eps, Masked, moments, scale_and_shift, standardize
from normbench.settings import Setting
from normbench.types import NormFacts


class GroupNorm(AffineNorm):
    """Standardizes groups of neighbouring channels in each sample.

    y = γ(x−μ_g)/√(σ²_g+ε)+β, with the mean and the biased variance of one group of channels in one sample: over space
    for channels-first input; for features-last input at each position, or over time as well with `across_time=True`.
    `groups="auto"` makes 32 groups of 128 channels or more, and groups of four of fewer channels; where that does not
    divide the channels, the most groups below it that do.
    Over time, padding counts in no statistic and is 0 in the output; with `masked=False` it counts as if it were text.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where a group has a single value.
    Source: Wu & He 2018, section 3.1.
    """

    facts = NormFacts(
        statistics_over="features of a group at one position; in images channels of a group and space, one sample",
        centers=True,
    )
    used_in = "Mask R-CNN trained from scratch, Big Transfer (BiT), the U-Nets of DDPM and Stable Diffusion"
    recorded = ("groups", "across_time", "masked")

    def __init__(
        self,
        num_features: int,
        *,
        eps: Eps = 1e-5,
        affine: Affine = True,
        groups: Annotated[
            int | Literal["auto"],
            Setting(
                "groupnorm's groups of channels; auto: 32 if C ≥ 128, else C / 4, or fewer that divide C",
                low=1,
                high=10**6,
            ),
        ] = "auto",
        across_time: Annotated[bool, Setting("statistics over time too, not at each position")] = False,
        masked: Masked = True,
        channel_dim: int = -1,
        **place: Any,
    ) -> None:
        self.each_position = channel_dim == -1 and not across_time
        if self.each_position and not masked:
            cure = "set norm.across_time=true, or leave it out"
            raise UsageError(f"norm.masked=false is about statistics over time, and groupnorm has none here: {cure}")
        # on 2 CPU cores as fast as torch's group_norm at width 128, and 1.6 to 2.3 times as fast from 256 on
        self.operator = "layer_norm" if self.each_position else "group_norm"
        super().__init__(num_features, eps, affine, bias=True, channel_dim=channel_dim, **place)
        self.across_time = across_time
        self.masked = masked and not self.each_position
        self.groups = count_groups(groups, num_features)
        if self.each_position:
            self.check_count(num_features // self.groups, "lower norm.groups")

    @classmethod
    def facts_for(cls, *, across_time: bool = False, masked: bool = True, **_: Any) -> NormFacts:
        if not across_time:
            return cls.facts
        over = "features of a group and time or space, one sample"
        return replace(cls.facts, statistics_over=over, sees_future="always", counts_padding=not masked)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        self.check_count(math.prod(x.shape[1:]) // self.groups, "lower norm.groups")
        if self.each_position:
            grouped = x.unflatten(-1, (self.groups, -1))
            if self.fused:
                y = F.layer_norm(grouped, grouped.shape[-1:], eps=self.eps)
            else:
                y = standardize(grouped, (-1,), self.eps, self.detach)
            return scale_and_shift(y.flatten(-2), weight, bias, -1)
        if real is not None:
            return self.from_real(x, real, weight, bias)
        x = x.movedim(self.channel_dim, 1)
        if self.fused:
            y = F.group_norm(x, self.groups, weight, bias, self.eps)
        else:
            grouped = x.unflatten(1, (self.groups, -1))
            in_group = tuple(range(2, grouped.ndim))
            y = standardize(grouped, in_group, self.eps, self.detach).flatten(1, 2)
            y = scale_and_shift(y, weight, bias, 1)
        return y.movedim(1, self.channel_dim)

    def from_real(self, x: Tensor, real: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return the same of what is real: from the statistics of each feature, which is faster."""
        x = x.movedim(self.channel_dim, -1)
        real = real.movedim(self.channel_dim, -1)
        mean, var, count, centered = moments(x, real, tuple(range(1, x.ndim - 1)))
        self.check_counts(count * (self.num_features // self.groups), "lower norm.groups")
        mean = mean.unflatten(-1, (self.groups, -1))
        var = var.unflatten(-1, (self.groups, -1))
        shift = mean - self.hold_mean(mean.mean(-1, keepdim=True))
        group_variance = self.hold_variance((var + shift.square()).mean(-1, keepdim=True))
        scale = torch.rsqrt(group_variance + self.eps).expand_as(shift)
        scale = scale_and_shift(scale.flatten(-2), weight, None, -1)
        y = centered * scale + scale_and_shift(shift.flatten(-2) * scale, None, bias, -1)
        return y.movedim(-1, self.channel_dim)


def count_groups(groups: int | Literal["auto"], num_features: int) -> int:
    """Return how many groups a setting makes of so many features.

    Raises:
        UsageError: they do not divide the features.
    """
    if groups == "auto":
        most_groups = 32 if num_features >= 128 else max(num_features // 4, 1)
        return max(count for count in range(1, most_groups + 1) if num_features % count == 0)
    if num_features % groups:
        raise UsageError(f"norm.groups={groups} makes {groups} groups of {num_features} features: choose a divisor")
    return groups
