"""The residual blocks of networks without norms, NF-ResNets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.placements import Pre, mask_of
from normbench.settings import Setting
from normbench.types import Branch, NormFactory, Site

Alpha = Annotated[float, Setting("what each branch adds to the stream's deviation", above=0, high=1e3)]


class NormalizerFree(Pre):
    """Pre-norm whose branch reads the stream at a deviation of 1: x ← x + α·s·f(N(βx)), and one N after the last block.

    α is the same everywhere, s one learned number for each branch, which starts at 0. β = 1/√(1 + α²k) is 1 over the
    deviation that the stream would have if it began with 1 and each of k branches before, since the last that changed
    its shape, had added α². A block that changes the shape has f.shortcut(relu(βx)) in the place of x.

    With `norm=none weights=scaled_standardized` as published for ResNets (Brock et al. 2021b; DeepMind's
    `nf_resnet.py`), whose activations are multiplied by a constant, which `weights.scale` is here.
    """

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site, *, alpha: Alpha = 0.2) -> None:
        super().__init__(branches, norm, site)
        self.alpha = alpha
        self.gains = nn.ParameterDict()
        self.betas = dict[str, float]()
        blocks = self.place - 1 if site.since_change is None else site.since_change
        for number, role in enumerate(branches):
            before = blocks * len(branches) + number
            self.betas[role] = (1 + alpha**2 * before) ** -0.5
            self.gains[role] = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        for role in self.branches:
            f: Any = self.branches[role]
            norms: Any = self.norms[role]
            read = self.betas[role] * x
            skip = f.shortcut(F.relu(read) if f.changes_shape else x)
            y = f(norms["in"](read, **mask_of(context)), **context)
            x = skip + (self.alpha * self.gains[role].to(x.dtype)) * y
        return x
