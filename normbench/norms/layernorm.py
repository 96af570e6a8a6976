"""Layer normalization."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from normbench.norms.common import Affine, AffineNorm, Bias, Eps, scale_and_shift, standardize
from normbench.norms.kernels import liger_layer_norm
from normbench.types import NormFacts


class LayerNorm(AffineNorm):
    """Standardizes the features of each position.

    y = γ(x−μ)/√(σ²+ε)+β, with the mean μ and the biased variance σ² of the features at one position; no β with
    `bias=False` (nanoGPT).

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels (the whole sample at once: GroupNorm with one group).
    Source: Ba, Kiros & Hinton 2016, equation 3.
    """

    facts = NormFacts(statistics_over="features of one position", centers=True)
    used_in = "the 2017 Transformer, BERT, GPT-2, GPT-3, ViT, Swin, ConvNeXt, Whisper"
    operator = "layer_norm"

    def __init__(
        self, num_features: int, *, eps: Eps = 1e-5, affine: Affine = True, bias: Bias = True, **place: Any
    ) -> None:
        self.kernels = {"liger": liger_layer_norm} if affine and bias else {}
        super().__init__(num_features, eps, affine, bias, **place)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        kernel = self.kernel
        if self.fused or kernel:
            last = x.movedim(self.channel_dim, -1)  # which costs no copy if x is channels_last in memory
            if kernel:
                y = kernel(last, weight, bias, self.eps)
            else:
                y = F.layer_norm(last, (self.num_features,), weight, bias, self.eps)
            return y.movedim(-1, self.channel_dim)
        y = standardize(x, (self.channel_dim,), self.eps, self.detach)
        return scale_and_shift(y, weight, bias, self.channel_dim)
