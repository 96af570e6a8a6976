"""EvoNorm, found by a search for norm and activation in one: by batches (B0) and by samples (S0)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.norms.common import Affine, AffineNorm, Eps, RunningNorm, moments, scale_and_shift
from normbench.norms.groupnorm import count_groups
from normbench.settings import Setting
from normbench.types import NormFacts


class EvoNormB0(RunningNorm):
    """Divides each feature by the larger of its deviation over the batch and of one over the sample plus vx.

    y = γ·x/max(√(σ²_B+ε), v·x+√(σ²_i+ε))+β, with the biased variances of one feature over batch, time and space, and
    over time or space of one sample, and one learned v for each feature, which starts at 1. It contains the activation:
    CNNs and MLPs leave out theirs beside it; elsewhere it comes on top. In evaluation σ²_B is the running unbiased
    variance, as BatchNorm keeps it.

    Padding counts in no statistic and is 0 in the output; with `masked=False` it counts as if it were text.

    Shapes: `(batch, time, features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where there are no positions, or the batch has a single value for each feature.
    Source: Liu, Brock, Simonyan & Le 2020; timm's `layers/evo_norm.py`.
    """

    facts = NormFacts(
        statistics_over="batch and time or space, for each feature, and time or space of one sample",
        centers=False,
        crosses_samples=True,
        sees_future="always",
        needs_positions=True,
    )
    used_in = "its authors' ResNet-50, MobileNet v2 and EfficientNet, and Mask R-CNN"
    acts = True

    def __init__(self, num_features: int, *, eps: Eps = 1e-3, **settings: Any) -> None:
        super().__init__(num_features, eps=eps, **settings)
        if self.freeze_after:
            raise UsageError("norm.freeze_after: evonorm_b0 has statistics that do not freeze, leave it out")
        self.v = nn.Parameter(torch.ones(num_features))

    @classmethod
    def facts_for(cls, **options: Any) -> NormFacts:
        return replace(super().facts_for(**options), sees_future="always")

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        if x.ndim < 3:
            raise UsageError(f"evonorm_b0{self.where} has no positions: use input with time or space, or another norm")
        features = self.channel_dim % x.ndim
        positions = tuple(dim for dim in range(1, x.ndim) if dim != features)
        var_in = self.hold_variance(moments(x, real, positions)[1])
        if self.track_running_stats and not self.training:
            var = self.running_like(x)[1]
        else:
            mean, var, count, _ = moments(x, real, (0, *positions), detach=self.detach)
            self.check_counts(count, "use a larger data.batch_size")
            if self.track_running_stats:
                self.take_in(mean, var, count)
        of_sample = scale_and_shift(x, self.v.to(x.dtype), None, self.channel_dim) + torch.sqrt(var_in + self.eps)
        y = x / torch.maximum(torch.sqrt(var + self.eps), of_sample)
        return scale_and_shift(y, weight, bias, self.channel_dim)


class EvoNormS0(AffineNorm):
    """Divides groups of neighbouring channels in each sample by their deviation, and contains an activation.

    y = γ·x·sigmoid(v·x)/√(σ²_g+ε)+β, with the biased variance of one group of channels in one sample, over space for
    channels-first input and at each position for features-last input, and one learned v for each feature, which starts
    at 1. CNNs and MLPs leave out the activation beside it; elsewhere it comes on top. `groups="auto"` makes 32 groups,
    as in the paper, of 128 channels or more, and groups of four of fewer channels.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where a group has a single value.
    Source: Liu, Brock, Simonyan & Le 2020; timm's `layers/evo_norm.py`.
    """

    facts = NormFacts(
        statistics_over="features of a group at one position; in images channels of a group and space, one sample",
        centers=False,
    )
    used_in = "its authors' ResNet-50, MobileNet v2 and EfficientNet, and Mask R-CNN"
    acts = True
    recorded = ("groups",)

    def __init__(
        self,
        num_features: int,
        *,
        eps: Eps = 1e-5,
        affine: Affine = True,
        groups: Annotated[
            int | Literal["auto"],
            Setting(
                "evonorm_s0's groups of channels; auto: 32 if C ≥ 128, else C / 4, or fewer that divide C",
                low=1,
                high=10**6,
            ),
        ] = "auto",
        **place: Any,
    ) -> None:
        super().__init__(num_features, eps, affine, bias=True, **place)
        self.groups = count_groups(groups, num_features)
        self.v = nn.Parameter(torch.ones(num_features))

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        x = x.movedim(self.channel_dim, -1)
        grouped = x.unflatten(-1, (self.groups, -1))
        if self.channel_dim == -1:
            in_group: tuple[int, ...] = (-1,)
            values = self.num_features
        else:
            in_group = (*range(1, x.ndim - 1), -1)
            values = math.prod(x.shape[1:])
        self.check_count(values // self.groups, "lower norm.groups")
        variance = self.hold_variance(grouped.var(in_group, correction=0, keepdim=True))
        scale = torch.rsqrt(variance + self.eps)
        acted = grouped * torch.sigmoid(x * self.v.to(x.dtype)).unflatten(-1, (self.groups, -1))
        y = scale_and_shift((acted * scale).flatten(-2), weight, bias, -1)
        return y.movedim(-1, self.channel_dim)
