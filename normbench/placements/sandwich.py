"""Norms on both sides of the branch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from normbench.placements.base import Residual
from normbench.types import Branch


class Sandwich(Residual):
    """The branch's input and output are normalized: x ← x + N(f(N(x))), and one N after the last block.

    CogView (Ding et al. 2021), Gemma 2 (2024), Peri-LN (Kim et al. 2025).
    """

    slots = ("in", "out")
    needs_final_norm = True

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        return f.shortcut(x) + norms["out"](f(norms["in"](x), **context))
