"""Self-rescaled dynamic normalization."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from normbench.norms.common import Affine, AffineNorm, Eps
from normbench.types import NormFacts, Treatment


class SeeDNorm(AffineNorm):
    """Divides the features of each position by their root mean square, and scales them by what it reads in them.

    y = (γ + tanh(x·β)·α)·x/√(ms(x)+ε), with ms(x) = mean(x²) over the features at one position, and x·β = Σ xᵢβᵢ one
    number for each. γ and α start at 1 and β at 0, so that it starts as RMSNorm, with its invariances: once β is not 0,
    it reads the scale of x as well. With `affine=False` γ stays 1. α and β decay as matrices do, whatever
    `trainer.decay_norms` says.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: Cai, Zhu, Liu & Min 2025, who have published no code; start and decay are as others report them.
    """

    facts = NormFacts(statistics_over="features of one position", centers=False)
    used_in = "its authors' language and vision models, in the place of their norms"
    recorded = ("decayed",)
    decayed = "alpha+beta"
    treated = MappingProxyType({"alpha": Treatment(decay=True), "beta": Treatment(decay=True)})

    def __init__(self, num_features: int, *, eps: Eps = 1e-5, affine: Affine = True, **place: Any) -> None:
        super().__init__(num_features, eps, affine, bias=False, **place)
        self.alpha = nn.Parameter(torch.ones(num_features))
        self.beta = nn.Parameter(torch.zeros(num_features))

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        x = x.movedim(self.channel_dim, -1)
        read = (x * self.beta.to(x.dtype)).sum(-1, keepdim=True)
        gain = torch.tanh(read) * self.alpha.to(x.dtype) + (1 if weight is None else weight)
        mean_square = self.hold_variance(x.square().mean(-1, keepdim=True))
        y = gain * x * torch.rsqrt(mean_square + self.eps)
        return y.movedim(-1, self.channel_dim)
