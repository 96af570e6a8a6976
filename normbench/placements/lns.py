"""LayerNorm Scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from normbench.placements import Pre, mask_of
from normbench.types import Branch, NormFactory, Site


class LNS(Pre):
    """LayerNorm Scaling, pre-norm with smaller outputs of norms in deeper blocks: x ← x + f(αN(x)), α = 1/√l.

    l is the block's place in its stack, from 1; each side of an encoder–decoder is a stack. One N stands after the last
    block, and is not scaled.
    Sun et al. 2025; compared with OLMo-core (`LayerNormScaledTransformerBlock`), which the authors name as theirs.
    They train it without GPT-2's scaled initialisation, which takes much of its effect: `init.residual_scale=false`.
    """

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> None:
        super().__init__(branches, norm, site)
        self.scale = self.place**-0.5

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        skip = f.shortcut(x)
        y = self.scale * norms["in"](x, **mask_of(context))
        return skip + f(y, **context)
