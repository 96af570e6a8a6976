"""LayerScale, ReZero and SkipInit: a learned factor on what a branch adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from normbench.placements import Pre, along_features, mask_of
from normbench.settings import Setting
from normbench.types import Branch, NormFactory, Site

Per = Annotated[Literal["feature", "branch", "block"], Setting("what has a learned α of its own")]
Start = Annotated[float | Literal["auto"], Setting("α at the start; auto: by depth, as LayerScale", low=0, high=1e3)]


class LayerScale(Pre):
    """Pre-norm with a learned factor on what a branch adds: x ← x + α·f(N(x)), and one N after the last block.

    `placement.per` says what has an α of its own, and `placement.start` where α starts: `auto` is 0.1 in stacks of up
    to 18 blocks, 1e-5 up to 24 and 1e-6 in deeper ones.

    - `layerscale`: an α for each feature, auto (Touvron et al. 2021b; compared with the authors' CaiT).
    - `rezero`: one for each block, 0, where blocks that keep the shape are the identity; with `norm=none` as published
      (Bachlechner et al. 2021; compared with the authors' Transformer).
    - `skipinit`: one for each branch, 0; with `norm=none` as published (De & Smith 2020; compared with DeepMind's
      ResNet, whose convolutions have biases and whose learned shortcuts read what the branch's first activation gives).
    """

    def __init__(
        self,
        branches: Mapping[str, Branch],
        norm: NormFactory,
        site: Site,
        *,
        per: Per = "feature",
        start: Start = "auto",
    ) -> None:
        super().__init__(branches, norm, site)
        self.is_shared = per == "block"
        value = published_start(self.stack_depth) if start == "auto" else start
        self.scales = nn.ParameterDict()
        for role, branch in branches.items():
            size = branch.out_features if per == "feature" else 1
            self.scales["block" if self.is_shared else role] = nn.Parameter(torch.full((size,), value))

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        for role in self.branches:
            f: Any = self.branches[role]
            norms: Any = self.norms[role]
            scale = self.scales["block" if self.is_shared else role].to(x.dtype)
            skip = f.shortcut(x)
            y = f(norms["in"](x, **mask_of(context)), **context)
            x = skip + along_features(scale, f) * y
        return x


def published_start(depth: int) -> float:
    """Return LayerScale's α at the start for a stack of so many blocks."""
    if depth <= 18:
        return 0.1
    if depth <= 24:
        return 1e-5
    return 1e-6
