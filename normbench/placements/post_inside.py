"""Norm on the branch's output, inside the residual."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from normbench.placements.base import Residual
from normbench.types import Branch


class PostInside(Residual):
    """The branch's output is normalized before it joins: x ← x + N(f(x)), and one N after the last block.

    Swin v2 (Liu et al. 2022, res-post-norm), OLMo 2 (2024); the last norm of a ResNet v1 block (He et al. 2016a).
    Some texts call this formula post-norm.
    """

    slots = ("out",)
    needs_final_norm = True

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        return f.shortcut(x) + norms["out"](f(x, **context))
