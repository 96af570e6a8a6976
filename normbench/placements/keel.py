"""Keel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from normbench.placements import Residual, mask_of
from normbench.types import Branch, NormFactory, Site


class Keel(Residual):
    """Post-norm with a strong skip, and a norm before the branch as well: x ← N(αx + f(N(x))).

    α = B, the number of residual branches in the stack. The first block has α = 1, and its first branch no norm after
    the sum: x ← x + f(N(x)), then x ← N(x + f(N(x))). So it is published for blocks of attention and MLP;
    here the first branch of any stack is without that norm, and each side of an encoder–decoder is a stack.
    Chen & Wei 2026; compared with the `KeelTransformerBlock` of DepthBench, not with code of the authors.
    """

    slots = ("in", "out")

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> None:
        super().__init__(branches, norm, site)
        if self.place > 1:
            self.residual_gain = float(self.stack_branches)

    def slots_of(self, role: str) -> tuple[str, ...]:
        """Return the norms of a branch: the first of the stack has none after the sum."""
        is_first = self.place == 1 and role == next(iter(self.branches))
        return ("in",) if is_first else self.slots

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        y = norms["in"](x, **mask_of(context))
        y = self.residual_gain * f.shortcut(x) + f(y, **context)
        if "out" not in norms:
            return y
        return norms["out"](y, **mask_of(context))
