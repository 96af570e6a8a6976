"""Admin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from normbench.placements import Residual, along_features, mask_of
from normbench.settings import Setting
from normbench.types import Branch, NormFactory, Site

Gain = Annotated[Literal["log", "linear"], Setting("square of the skip's gain at the start: about B/ln B, or B")]


class Admin(Residual):
    """Adaptive model initialisation, post-norm whose skip starts strong and is learned: x ← N(αx + f(x)).

    α is a vector over the features, one for each branch. With B residual branches in the stack it starts everywhere at
    √((B + 1)/ln(B + 1) − 1), by which changes of the output grow as ln B; with `placement.gain=linear` at √B, by which
    they do not grow. Each side of an encoder–decoder is a stack.
    Liu et al. 2020b; the starts are those of the authors' admin-torch, the learned vector is that of their
    Transformer-Clinic. Their first way to a start, from the variances of a forward pass, is not here.
    """

    slots = ("out",)

    def __init__(
        self,
        branches: Mapping[str, Branch],
        norm: NormFactory,
        site: Site,
        *,
        gain: Gain = "log",
    ) -> None:
        super().__init__(branches, norm, site)
        count = self.stack_branches
        square = float(count)
        if gain == "log":
            square = (count + 1) / math.log(count + 1) - 1
        self.residual_gain = math.sqrt(square)
        self.gains = nn.ParameterDict()
        for role, branch in branches.items():
            self.gains[role] = nn.Parameter(torch.full((branch.out_features,), self.residual_gain))

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        for role in self.branches:
            f: Any = self.branches[role]
            norms: Any = self.norms[role]
            gain = self.gains[role].to(x.dtype)
            y = along_features(gain, f) * f.shortcut(x) + f(x, **context)
            x = norms["out"](y, **mask_of(context))
        return x
