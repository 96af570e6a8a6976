"""UnitNorm: features of the length 1, times a power of their number."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from normbench.norms.common import Affine, AffineNorm, scale_and_shift
from normbench.norms.scalenorm import LeastNorm
from normbench.settings import Setting
from normbench.types import NormFacts


class UnitNorm(AffineNorm):
    """Brings the features of each position to the length 1, and then each by a power of their number to its own scale.

    y = (γ·x/‖x‖+β)·d^(k/2), with the Euclidean norm ‖x‖ of the d features at one position, and one learned k for each
    feature, which starts at `k0`: 0 leaves the length 1, and 1 makes it that of RMSNorm. With `learned_k=False` k stays
    there; γ and β only with `affine=True`. Its authors have the two forms without γ and β: k learned, and k = 0.
    An x shorter than ε = `eps` is divided by ε, which their code, without an ε, does not do.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: the code of Huang, Kümmerle & Zhang 2024: `layers/Normalization.py`, `utils/tools.py`.
    """

    facts = NormFacts(statistics_over="features of one position", centers=False)
    used_in = "its authors' Transformers for time series"
    eps_place = "the least ‖x‖"
    recorded = ("k0", "learned_k")

    def __init__(
        self,
        num_features: int,
        *,
        eps: LeastNorm = 1e-5,
        affine: Affine = False,
        k0: Annotated[float, Setting("start of unitnorm's k", low=-4, high=4)] = 0.0,
        learned_k: Annotated[bool, Setting("k is learned, one for each feature")] = True,
        **place: Any,
    ) -> None:
        super().__init__(num_features, eps, affine, bias=True, **place)
        self.k0 = k0
        self.learned_k = learned_k
        self.k = nn.Parameter(torch.full((num_features,), k0)) if learned_k else None

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        length = self.hold_variance(torch.linalg.vector_norm(x, dim=self.channel_dim, keepdim=True))
        y = scale_and_shift(x / length.clamp_min(self.eps), weight, bias, self.channel_dim)
        if self.k is None:
            return y * self.num_features ** (self.k0 / 2)
        scale = self.num_features ** (self.k.to(x.dtype) / 2)
        return scale_and_shift(y, scale, None, self.channel_dim)
