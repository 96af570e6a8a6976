"""Root mean square normalization, of all features or by the first few."""

from __future__ import annotations

import math
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.norms.common import Affine, AffineNorm, Eps, scale_and_shift
from normbench.norms.kernels import liger_rms_norm, native_rms_norm, rms_formula
from normbench.settings import Setting
from normbench.types import NormFacts

FEWEST = 8  # features that the statistic sees; the paper's networks have 500 and more


class RMSNorm(AffineNorm):
    """Divides the features of each position by their root mean square.

    y = γ·x/√(ms(x)+ε), with ms(x) = mean(x²) over the features at one position.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: Zhang & Sennrich 2019, equation 4. Their PyTorch code divides by √ms(x) + 1e-8, with ε outside the root
    (`rmsnorm_torch.py:48`@2e726f1), and their TensorFlow code has 1e-8 inside (`rmsnorm_tensorflow.py:38`). Beside the
    former y is smaller here, by a share of 5e-6 at a root mean square of 1 and by half at 0.0018, and its gradient at
    x = 0 is 1/√ε = 316, and 1e8 there.
    """

    facts = NormFacts(statistics_over="features of one position", centers=False)
    used_in = "T5, LLaMA, Mistral, Gemma, Qwen 2, OLMo 2"
    operator: str | None = "rms_norm"
    kernels = MappingProxyType({"native": native_rms_norm, "liger": liger_rms_norm})

    def __init__(self, num_features: int, *, eps: Eps = 1e-5, affine: Affine = True, **place: Any) -> None:
        super().__init__(num_features, eps, affine, bias=False, **place)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        x = x.movedim(self.channel_dim, -1)  # which costs no copy if x is channels_last in memory
        if self.fused:
            y = F.rms_norm(x, (self.num_features,), weight, self.eps)
        elif self.kernel:
            y = self.kernel(x, weight, self.eps)
        else:
            y = rms_formula(x, weight, self.eps, detach=self.detach != "none")
        return y.movedim(-1, self.channel_dim)


class PartialRMSNorm(RMSNorm):
    """Divides the features of each position by the root mean square of the first few.

    y = γ·x/√(ms(x₁..x_k)+ε), with k = ⌈p·d⌉ of the d features and p = `fraction`.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    k is at least 8 (or all features): below 128 features 6.25 % would be a handful or a single one, which is not a
    statistic. `settings()` records it.
    Source: Zhang & Sennrich 2019, section 5 (their code takes ⌊p·d⌋).
    """

    facts = NormFacts(statistics_over="the first features of one position", centers=False)
    used_in = "no widely used network"
    operator = None
    kernels = MappingProxyType({})
    recorded = ("fraction", "k")

    def __init__(
        self,
        num_features: int,
        *,
        fraction: Annotated[
            float, Setting("share of the features that pRMSNorm's statistic sees, at least 8 of them", above=0, high=1)
        ] = 0.0625,
        **settings: Any,
    ) -> None:
        super().__init__(num_features, **settings)
        self.fraction = fraction
        k = math.ceil(Fraction(str(fraction)) * num_features)  # exact in decimal: in binary 0.07 * 100 is more than 7
        self.k = min(max(k, FEWEST), num_features)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        first = x.narrow(self.channel_dim, 0, self.k)
        mean_square = self.hold_variance(first.square().mean(self.channel_dim, keepdim=True))
        y = x * torch.rsqrt(mean_square + self.eps)
        return scale_and_shift(y, weight, bias, self.channel_dim)
