"""No residual."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from normbench.placements.base import Residual
from normbench.types import Branch


class Plain(Residual):
    """No skip and no norm around the branch, only the branch's own norms: x ← f(x).

    For models without residuals (`cnn_plain`, `mlp_plain`), where it is the only placement.
    """

    slots = ()
    residual = False

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        return f(x, **context)
