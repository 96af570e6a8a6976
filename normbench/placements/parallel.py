"""All branches of a block read the same stream."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Any

from torch import Tensor, nn

from normbench.placements.base import Residual
from normbench.types import Branch, NormFactory


class Parallel(Residual):
    """Attention and MLP side by side: x ← x + attention(N(x)) + mlp(N(x)), and one N after the last block.

    Both branches read the same N, whose site is the block (DyT's table counts it among "all others").
    GPT-J (Wang & Komatsuzaki 2021), PaLM (Chowdhery et al. 2022, §2).
    Some texts call this formula pre-norm.
    """

    slots = ("in",)
    needs_final_norm = True
    min_branches = 2

    def make_norms(self, branches: Mapping[str, Branch], norm: NormFactory) -> nn.ModuleDict:
        first = next(iter(branches.values()))
        return nn.ModuleDict({"shared": self.branch_norms(self.site.role, first, norm)})

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        y = self.norms["shared"]["in"](x)  # type: ignore[index]  # a ModuleDict of ModuleDicts
        return reduce(add, (f(y, **context) for f in self.branches.values()), x)
