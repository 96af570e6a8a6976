"""Dynamic erf, and the dynamic inverse square root unit, which has another function in its place."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from normbench.norms.common import Affine, AffineNorm, Bias, scale_and_shift
from normbench.settings import Setting
from normbench.types import NormFacts, Site


class Derf(AffineNorm):
    """Squashes each value by the error function, whose slope and shift are learned; takes no statistics.

    y = γ·erf(αx+s)+β, with one learned α and one learned s, which start at α₀ = `alpha0` and 0; "auto" takes 1 for α₀
    in a language model, as its authors' GPT-2 has it, and 0.5 elsewhere. Their GPT-2 also has a learned factor after
    the embedding, from √d on (`model.embedding_scale=learned`), which they do not give to its LayerNorm.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Source: Chen, Lu, Zhu, Sun & Liu 2025, and their code: `ViT/dynamic_erf.py`, `language model/model_derf.patch`.
    """

    facts = NormFacts(statistics_over="none", centers=False)
    used_in = "its authors' ViT, DiT, wav2vec 2.0, DNA models and GPT-2, in the place of their norms"
    recorded = ("alpha0",)

    nearly_all: ClassVar[float] = torch.erfinv(torch.tensor(0.99)).item()  # |αx+s| at 0.99 of the bound

    def __init__(
        self,
        num_features: int,
        *,
        site: Site | None = None,
        alpha0: Annotated[
            float | Literal["auto"],
            Setting("start of derf's α; auto: 0.5, in a language model 1", above=0, high=1e3),
        ] = "auto",
        affine: Affine = True,
        bias: Bias = True,
        **place: Any,
    ) -> None:
        super().__init__(num_features, None, affine, bias, site=site, **place)
        if alpha0 == "auto":
            alpha0 = 1.0 if site and site.causal else 0.5
        self.alpha0 = alpha0
        self.alpha = nn.Parameter(torch.full((1,), self.alpha0))
        self.shift = nn.Parameter(torch.zeros(1))

    def squash(self, x: Tensor) -> Tensor:
        """Return the bounded function of αx+s."""
        return torch.erf(x)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        shifted = self.alpha.to(x.dtype) * x + self.shift.to(x.dtype)
        return scale_and_shift(self.squash(shifted), weight, bias, self.channel_dim)

    @torch.no_grad()
    def saturation(self, x: Num[Tensor, "..."]) -> Float[Tensor, ""]:
        """Return the share of the values of x at which the function is above 0.99 of its bound."""
        shifted = x.float() * self.alpha + self.shift
        at_bound = shifted.abs().gt(self.nearly_all)
        return at_bound.float().mean()


class DyISRU(Derf):
    """Squashes each value by an inverse square root unit, whose slope and shift are learned; takes no statistics.

    y = γ·u/√(u²+1)+β with u = αx+s, one learned α and one learned s, which start at α₀ = `alpha0` and 0. Stollenwerk's
    √C·x/√(b+x²), which he derives from RMSNorm and does not train, is this with γ = √C, α = 1/√b, s = 0 and β = 0;
    the learned form and its start are those of Derf's authors, who tried it beside theirs.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Source: Stollenwerk 2025; Chen, Lu, Zhu, Sun & Liu 2025, and their code: `DiT/other_functions/isru.py`.
    """

    used_in = "experiments of Derf's authors with ViT and DiT"

    nearly_all = 0.99 / (1 - 0.99**2) ** 0.5

    def __init__(
        self,
        num_features: int,
        *,
        alpha0: Annotated[float, Setting("start of dyisru's α", above=0, high=1e3)] = 0.5,
        **settings: Any,
    ) -> None:
        super().__init__(num_features, alpha0=alpha0, **settings)

    def squash(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square() + 1)
