"""Pre-norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from normbench.placements.base import Residual
from normbench.types import Branch


class Pre(Residual):
    """The branch reads a normalized stream: x ← x + f(N(x)), and one N after the last block.

    GPT-2 (Radford et al. 2019), Xiong et al. 2020; in a CNN, ResNet v2 (He et al. 2016b).
    """

    slots = ("in",)
    needs_final_norm = True

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        return f.shortcut(x) + f(norms["in"](x), **context)
