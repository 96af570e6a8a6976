"""Root mean square normalization."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.norms.common import Affine, AffineNorm, Eps, Impl, scale_and_shift
from normbench.types import NormFacts, Site


class RMSNorm(AffineNorm):
    """Divides the features of each position by their root mean square.

    y = γ·x/√(ms(x)+ε), with ms(x) = mean(x²) over the features at one position.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: Zhang & Sennrich 2019, equation 4.
    """

    facts: ClassVar[NormFacts] = NormFacts(statistics_over="features of one position", centers=False)

    def __init__(
        self,
        num_features: int,
        *,
        channel_dim: int = -1,
        site: Site | None = None,
        eps: Eps = 1e-5,
        affine: Affine = True,
        impl: Impl = "auto",
    ) -> None:
        super().__init__(num_features, channel_dim, site, impl, "rms_norm", affine=affine, bias=False)
        self.eps: float = eps

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if not self.fused:
            mean_square = x.square().mean(self.channel_dim, keepdim=True)
            return scale_and_shift(x * torch.rsqrt(mean_square + self.eps), weight, bias, self.channel_dim)
        # torch wants the features last, which costs no copy if x is channels_last in memory
        y = F.rms_norm(x.movedim(self.channel_dim, -1), (self.num_features,), weight, self.eps)
        return y.movedim(-1, self.channel_dim)
