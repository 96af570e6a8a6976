"""Dynamic tanh."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from normbench.norms.common import Affine, AffineNorm, Bias
from normbench.norms.kernels import dyt_formula, liger_dyt, native_dyt
from normbench.settings import Setting
from normbench.types import NormFacts, Site

# width of a LLaMA: α₀ of the norms before attention, α₀ of all others (Zhu et al. 2025, tables 11 and 12)
LLAMA_ALPHA0 = {1024: (1.0, 1.0), 2048: (1.0, 0.5), 4096: (0.8, 0.2), 5120: (0.6, 0.15), 8192: (0.2, 0.05)}


class DyT(AffineNorm):
    """Squashes each value by a tanh whose slope is learned; takes no statistics.

    y = γ·tanh(αx)+β, with one learned α that starts at α₀ = `alpha0`; "auto" takes α₀ in a language model from the
    paper's table for LLaMA, by width and by `site.role`, and 0.5 elsewhere. The paper's form for LLaMA has no β:
    `bias=False`.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Source: Zhu, Chen, He, LeCun & Liu 2025, section 4; α₀ for LLaMA: tables 11 and 12.
    """

    facts = NormFacts(statistics_over="none", centers=False)
    used_in = "its authors' ViT, ConvNeXt, DiT, wav2vec 2.0 and LLaMA, in the place of their norms"
    recorded = ("alpha0",)

    def __init__(
        self,
        num_features: int,
        *,
        site: Site | None = None,
        alpha0: Annotated[
            float | Literal["auto"],
            Setting("start of dyt's α; auto: 0.5, in a language model the paper's table", above=0, high=1e3),
        ] = "auto",
        affine: Affine = True,
        bias: Bias = True,
        **place: Any,
    ) -> None:
        self.kernels = {"native": native_dyt, "liger": liger_dyt} if affine else {}
        super().__init__(num_features, None, affine, bias, site=site, **place)
        self.alpha0 = published_alpha0(num_features, site) if alpha0 == "auto" else alpha0
        self.alpha = nn.Parameter(torch.full((1,), self.alpha0))

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        x = x.movedim(self.channel_dim, -1)
        formula = self.kernel
        if formula is None or weight is None:  # kernels need γ, which folding takes out
            formula = dyt_formula
        y = formula(x, self.alpha.to(x.dtype), weight, bias)
        return y.movedim(-1, self.channel_dim)

    @torch.no_grad()
    def saturation(self, x: Num[Tensor, "..."]) -> Float[Tensor, ""]:
        """Return the share of the values of x with |tanh(αx)| > 0.99."""
        scaled = x.float() * self.alpha
        at_bound = scaled.abs().gt(math.atanh(0.99))
        return at_bound.float().mean()


def published_alpha0(num_features: int, site: Site | None) -> float:
    """Return 0.5; in a language model the row of the widest LLaMA that is not wider than this one, else the first."""
    if site is None or not site.causal:
        return 0.5
    narrower = [width for width in LLAMA_ALPHA0 if width <= num_features]
    width = max(narrower, default=min(LLAMA_ALPHA0))
    attention, others = LLAMA_ALPHA0[width]
    return attention if site.role == "attention" else others
