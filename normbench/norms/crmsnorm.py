"""Compressed root mean square normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normbench.norms.common import Affine, AffineNorm, Eps, scale_and_shift
from normbench.types import NormFacts


class CRMSNorm(AffineNorm):
    """Divides the features of each position by the root mean square of these and of one more, their sum times −1.

    y = γ·x/√((Σx²+(Σx)²)/(d+1)+ε), with sums over the d features at one position: what LayerNorm makes of x and −Σx,
    d+1 features whose mean is 0, without the last one. Its authors' code has no γ.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: Jiang, Gu, Zhu & Pan 2023, and their code: `example.py`.
    """

    facts = NormFacts(statistics_over="features of one position", centers=False)
    used_in = "Pre-CRMSNorm Transformers, which compute what a Pre-LN Transformer of one feature more does"

    def __init__(self, num_features: int, *, eps: Eps = 1e-5, affine: Affine = True, **place: Any) -> None:
        super().__init__(num_features, eps, affine, bias=False, **place)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        squares = x.square().sum(self.channel_dim, keepdim=True)
        left_out = x.sum(self.channel_dim, keepdim=True)
        variance = self.hold_variance((squares + left_out.square()) / (self.num_features + 1))
        return scale_and_shift(x * torch.rsqrt(variance + self.eps), weight, bias, self.channel_dim)
