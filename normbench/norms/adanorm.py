"""AdaNorm: LayerNorm with a gain that depends on the value."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from normbench.norms.common import Affine, AffineNorm, scale_and_shift
from normbench.settings import Setting
from normbench.types import NormFacts


class AdaNorm(AffineNorm):
    """Standardizes the features of each position, and scales each value down by itself, by a factor without a gradient.

    y = C·(1−k·ŷ)·ŷ with ŷ = (x−μ)/(σ+ε), the mean μ and the standard deviation σ of the d features at one position, by
    d−1 as in its authors' code, k = 0.1 and C = `scale`, 2 by default there (their scripts have 0.8 to 2). In the
    backward pass the factor 1−k·ŷ is a constant. γ and β, which it is to do without, only with `affine=True`.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: Xu, Sun, Zhang, Zhao & Lin 2019, and their code: `fairseq/modules/layer_norm.py`.
    """

    facts = NormFacts(statistics_over="features of one position", centers=True)
    used_in = "its authors' Transformers for translation"
    eps_place = "added to the standard deviation"
    exact_gradient = False
    recorded = ("scale", "k")

    def __init__(
        self,
        num_features: int,
        *,
        eps: Annotated[float, Setting("added to the standard deviation", low=0, high=1)] = 1e-5,
        affine: Affine = False,
        scale: Annotated[float, Setting("adanorm's C, which scales its output", above=0, high=1e3)] = 2.0,
        k: Annotated[float, Setting("how much a value scales itself down", low=0, high=1)] = 0.1,
        **place: Any,
    ) -> None:
        super().__init__(num_features, eps, affine, bias=True, **place)
        self.check_count(num_features, "use a wider model")
        self.scale = scale
        self.k = k

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        centered = x - self.hold_mean(x.mean(self.channel_dim, keepdim=True))
        std = self.hold_variance(x.std(self.channel_dim, keepdim=True))
        standard = centered / (std + self.eps)
        gain = self.scale * (1 - self.k * standard.detach())
        return scale_and_shift(gain * standard, weight, bias, self.channel_dim)
