"""Bounded hyperbolic tangent."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from normbench.norms.common import Affine, AffineNorm, Eps, scale_and_shift
from normbench.norms.kernels import copy_if_last
from normbench.settings import Setting
from normbench.types import NormFacts


class BHyT(AffineNorm):
    """Squashes the features of each position, divided by their root mean square, by a tanh whose slope is learned.

    y = γ·tanh(λ·κ⁻¹·x/√(ms(x)+ε)), with ms(x) = mean(x²) over the features at one position, κ⁻¹ = `inv_kappa` = 0.1 and
    one learned λ, which starts at `lambda0`. That is its authors' BHyT*; their BHyT guesses the second norm's root
    mean square in a block from the first's, which one norm by itself cannot.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: the code of Byun, Choi, Kim, Park & Song 2026: `models/hf_src/llama/modeling_llama.py`, class BHyT_Star, in
    which λ starts at 2 by default; their scripts try 1 to 5.
    """

    facts = NormFacts(statistics_over="features of one position", centers=False)
    used_in = "its authors' LLaMA of 1B and 3B parameters"
    recorded = ("lambda0", "inv_kappa")

    def __init__(
        self,
        num_features: int,
        *,
        eps: Eps = 1e-6,
        affine: Affine = True,
        lambda0: Annotated[float, Setting("start of bhyt's λ", above=0, high=1e3)] = 2.0,
        inv_kappa: Annotated[float, Setting("bhyt's κ⁻¹, which is not learned", above=0, high=1e3)] = 0.1,
        **place: Any,
    ) -> None:
        super().__init__(num_features, eps, affine, bias=False, **place)
        self.lambda0 = lambda0
        self.inv_kappa = inv_kappa
        self.lam = nn.Parameter(torch.full((1,), lambda0))

    def scaled(self, x: Tensor) -> Tensor:
        """Return λ·κ⁻¹·x/√(ms(x)+ε)."""
        mean_square = self.hold_variance(x.square().mean(self.channel_dim, keepdim=True))
        slope = self.lam.to(x.dtype) * self.inv_kappa * torch.rsqrt(mean_square + self.eps)
        return slope * x

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        y = copy_if_last(torch.tanh(self.scaled(x)), weight, bias)
        return scale_and_shift(y, weight, bias, self.channel_dim)

    @torch.no_grad()
    def saturation(self, x: Num[Tensor, "..."]) -> Float[Tensor, ""]:
        """Return the share of the values of x at which tanh is above 0.99 or below −0.99."""
        at_bound = self.scaled(x.float()).abs().gt(math.atanh(0.99))
        return at_bound.float().mean()
