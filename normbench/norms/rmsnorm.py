"""Root mean square normalization."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.norms.common import Affine, AffineNorm, Eps, Impl, choose, scale_and_shift
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
        super().__init__(num_features, channel_dim, site, affine=affine, bias=False)
        self.eps: float = eps
        fused = ("torch.nn.functional.rms_norm", fused_rms_norm)
        self._rms_norm, self.implementation = choose(impl, rms_norm, fused, "rmsnorm")

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return self._rms_norm(x, weight, self.eps, self.channel_dim)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, channel_dim: int) -> Tensor:
    """Compute the formula, with the features along channel_dim."""
    mean_square = x.square().mean(channel_dim, keepdim=True)
    return scale_and_shift(x * torch.rsqrt(mean_square + eps), weight, None, channel_dim)


def fused_rms_norm(x: Tensor, weight: Tensor | None, eps: float, channel_dim: int) -> Tensor:
    """Compute the same by torch's operator, which wants the features last (no copy if x is channels_last in memory)."""
    return F.rms_norm(x.movedim(channel_dim, -1), (x.shape[channel_dim],), weight, eps).movedim(-1, channel_dim)
