"""Layer normalization."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from normbench.norms.common import Affine, AffineNorm, Bias, Eps, Impl, choose, scale_and_shift, standardize
from normbench.types import NormFacts, Site


class LayerNorm(AffineNorm):
    """Standardizes the features of each position.

    y = γ(x−μ)/√(σ²+ε)+β, with the mean μ and the biased variance σ² of the features at one position; no β with
    `bias=False` (nanoGPT).

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels (the whole sample at once: GroupNorm with one group).
    Source: Ba, Kiros & Hinton 2016, equation 3.
    """

    facts: ClassVar[NormFacts] = NormFacts(statistics_over="features of one position", centers=True)

    def __init__(
        self,
        num_features: int,
        *,
        channel_dim: int = -1,
        site: Site | None = None,
        eps: Eps = 1e-5,
        affine: Affine = True,
        bias: Bias = True,
        impl: Impl = "auto",
    ) -> None:
        super().__init__(num_features, channel_dim, site, affine=affine, bias=bias)
        self.eps: float = eps
        fused = ("torch.nn.functional.layer_norm", fused_layer_norm)
        self._layer_norm, self.implementation = choose(impl, layer_norm, fused, "layernorm")

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return self._layer_norm(x, weight, bias, self.eps, self.channel_dim)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, channel_dim: int) -> Tensor:
    """Compute the formula, with the features along channel_dim."""
    return scale_and_shift(standardize(x, (channel_dim,), eps), weight, bias, channel_dim)


def fused_layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, channel_dim: int) -> Tensor:
    """Compute the same by torch's operator, which wants the features last (no copy if x is channels_last in memory)."""
    y = F.layer_norm(x.movedim(channel_dim, -1), (x.shape[channel_dim],), weight, bias, eps)
    return y.movedim(-1, channel_dim)
