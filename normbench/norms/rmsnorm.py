"""Root mean square normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.norms.common import Affine, AffineNorm, Eps, scale_and_shift
from normbench.types import NormFacts


class RMSNorm(AffineNorm):
    """Divides the features of each position by their root mean square.

    y = γ·x/√(ms(x)+ε), with ms(x) = mean(x²) over the features at one position.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: Zhang & Sennrich 2019, equation 4.
    """

    facts = NormFacts(statistics_over="features of one position", centers=False)

    def __init__(self, num_features: int, *, eps: Eps = 1e-5, affine: Affine = True, **place: Any) -> None:
        super().__init__(num_features, "rms_norm", eps, affine, bias=False, **place)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if self.fused:  # torch wants the features last, which costs no copy if x is channels_last in memory
            y = F.rms_norm(x.movedim(self.channel_dim, -1), (self.num_features,), weight, self.eps)
            return y.movedim(-1, self.channel_dim)
        mean_square = x.square().mean(self.channel_dim, keepdim=True)
        return scale_and_shift(x * torch.rsqrt(mean_square + self.eps), weight, bias, self.channel_dim)
