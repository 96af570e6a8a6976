"""The bottom-to-top connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from torch import Tensor

from normbench.placements import Post, mask_of
from normbench.settings import Setting
from normbench.types import Branch, NormFactory, Site

Rescale = Annotated[bool, Setting("1/√layers on all weights of a block at the start, as the authors' code has it")]


class BottomToTop(Post):
    """Post-norm with a skip around the whole block too: m ← N(x + attention(x)), x ← N(x + m + mlp(m)).

    x joins before the last norm of the block, so its gain around the block is 2. In a decoder the attention to the
    encoder stands between the two, as in post-norm.
    Takase et al. 2023 (B2T connection); compared with the authors' code. That also multiplies all weights of a layer
    but its norms' by 1/√layers at the start, with the layers of its side of an encoder–decoder, and so does
    `placement.rescale=true`; without it `init=` alone says how weights start.
    """

    min_branches = 2
    residual_gain = 2.0
    gains_all = True

    def __init__(
        self, branches: Mapping[str, Branch], norm: NormFactory, site: Site, *, rescale: Rescale = False
    ) -> None:
        super().__init__(branches, norm, site)
        if rescale:
            self.branch_gain = self.stack_depth**-0.5

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        *_, last = self.branches
        y = x
        for role, f in self.branches.items():
            y = y + f(y, **context)
            if role == last:
                y = x + y
            y = self.norms[role]["out"](y, **mask_of(context))  # type: ignore[index]  # a ModuleDict of ModuleDicts
        return y
