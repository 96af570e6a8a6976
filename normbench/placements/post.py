"""Post-norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from normbench.placements.base import Residual
from normbench.types import Branch


class Post(Residual):
    """The sum is normalized: x ← N(x + f(x)).

    The original Transformer (Vaswani et al. 2017, §3.1), BERT.
    """

    slots = ("out",)

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        return norms["out"](f.shortcut(x) + f(x, **context))
