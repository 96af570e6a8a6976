"""ScaleNorm: features of a learned length."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from normbench.norms.common import AffineNorm, scale_and_shift
from normbench.settings import Setting
from normbench.types import NormFacts

LeastNorm = Annotated[float, Setting("least ‖x‖ that x is divided by", low=0, high=1)]


class ScaleNorm(AffineNorm):
    """Brings the features of each position to one length, which is learned.

    y = γ·x/max(‖x‖, ε), with the Euclidean norm ‖x‖ of the d features at one position and one learned number γ, which
    starts at `gain0`; "auto": √d. With `affine=False` γ stays there.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: Nguyen & Salazar 2019, and their code: `layers.py`.
    """

    facts = NormFacts(statistics_over="features of one position", centers=False)
    used_in = "its authors' Transformers for translation of low-resource languages"
    eps_place = "the least ‖x‖"
    recorded = ("gain0",)

    def __init__(
        self,
        num_features: int,
        *,
        eps: LeastNorm = 1e-5,
        affine: Annotated[bool, Setting("learned γ, one number")] = True,
        gain0: Annotated[
            float | Literal["auto"], Setting("start of scalenorm's γ; auto: √C", above=0, high=1e6)
        ] = "auto",
        **place: Any,
    ) -> None:
        super().__init__(num_features, eps, affine=False, bias=False, **place)
        self.fixed_weight = None  # in whose place is fixed_gain
        self.gain0 *= math.sqrt(num_features) if gain0 == "auto" else gain0
        self.fixed_gain = 1.0 if affine else self.gain0  # 1 also where γ has been folded into what follows
        if affine:
            self.weight = nn.Parameter(torch.full((1,), self.gain0 - self.offset))

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        length = self.hold_variance(torch.linalg.vector_norm(x, dim=self.channel_dim, keepdim=True))
        y = x / length.clamp_min(self.eps)
        if weight is None:
            return y * self.fixed_gain
        return scale_and_shift(y, weight, bias, self.channel_dim)
