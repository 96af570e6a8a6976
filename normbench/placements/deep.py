"""DeepNorm."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from normbench.placements.base import Residual
from normbench.types import Branch


class Deep(Residual):
    """Post-norm with a stronger skip and smaller branch weights: x ← N(αx + f(x)).

    α = B^¼ multiplies the skip and β = (4B)^−¼ the branch's scaled weights at initialisation, with B residual
    branches in the whole stack; for M Transformer layers B = 2M, so α = (2M)^¼ and β = (8M)^−¼.
    Wang et al. 2022 (DeepNet), figure 2 and table 1; there the weights are Xavier normal (`init=xavier`).
    """

    slots = ("out",)

    @property
    def residual_gain(self) -> float:
        return float(self.site.branches) ** 0.25

    @property
    def branch_gain(self) -> float:
        return (4.0 * self.site.branches) ** -0.25

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        return norms["out"](self.residual_gain * f.shortcut(x) + f(x, **context))
