"""Filter response normalization, with its thresholded linear unit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.norms.common import Affine, AffineNorm, Eps, Masked, scale_and_shift
from normbench.types import NormFacts


class FRN(AffineNorm):
    """Divides each feature of each sample by its root mean square over time or space, and contains the activation.

    y = max(γ·x/√(ms(x)+ε)+β, τ), with ms(x) = mean(x²) of one feature in one sample over all positions, and one learned
    τ for each feature, which starts at 0. CNNs and MLPs leave out the activation beside it; elsewhere it comes on top.
    ε is that of timm's code; it is not learned.

    Padding counts in no statistic and is 0 in the output; with `masked=False` it counts as if it were text.

    Shapes: `(batch, time, features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where there are no positions, or a single one, of whose value only the sign would be left.
    Source: Singh & Krishnan 2020; timm's `layers/filter_response_norm.py`.
    """

    facts = NormFacts(
        statistics_over="time or space, for each sample and feature",
        centers=False,
        sees_future="always",
        needs_positions=True,
    )
    used_in = "its authors' ResNets and Inception v3, with small batches"
    acts = True
    recorded = ("masked",)

    def __init__(
        self, num_features: int, *, eps: Eps = 1e-5, affine: Affine = True, masked: Masked = True, **place: Any
    ) -> None:
        super().__init__(num_features, eps, affine, bias=True, **place)
        self.masked = masked
        self.tau = nn.Parameter(torch.zeros(num_features))

    @classmethod
    def facts_for(cls, *, masked: bool = True, **_: Any) -> NormFacts:
        return replace(cls.facts, counts_padding=not masked)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        if x.ndim < 3:
            raise UsageError(f"frn{self.where} has no positions: use input with time or space, or another norm")
        x = x.movedim(self.channel_dim, -1)
        self.check_count(math.prod(x.shape[1:-1]), "use input with time or space, or another norm")
        positions = tuple(range(1, x.ndim - 1))
        squares = x.square()
        if real is None:
            mean_square = squares.mean(positions, keepdim=True)
        else:
            count = real.movedim(self.channel_dim, -1).sum(positions, keepdim=True)
            mean_square = squares.sum(positions, keepdim=True) / count.clamp_min(1)
        scale = torch.rsqrt(self.hold_variance(mean_square) + self.eps)
        y = scale_and_shift(x * scale, weight, bias, -1)
        return torch.maximum(y, self.tau.to(x.dtype)).movedim(-1, self.channel_dim)
