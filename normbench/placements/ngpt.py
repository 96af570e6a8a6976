"""The step on the sphere of nGPT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from normbench.placements import Residual, along_features, mask_of
from normbench.settings import Setting
from normbench.types import Branch, NormFactory, Site

Start = Annotated[float, Setting("length of a step towards a branch's output at the start", above=0, below=1)]


class NGPT(Residual):
    """The stream steps towards what the branch says, and is normalized: x ← N((1 − α)x + αN(f(x))).

    α is a learned vector over the features, one for each branch. It starts everywhere at `placement.start` = 0.05, and
    is start·√d·|a|, with d features and the trained a at 1/√d, so that an optimizer such as Adam moves it faster.
    The branch reads the stream as it is, no N stands after the last block, and the first block does not normalize what
    enters it. In nGPT N is x/‖x‖; with `norm=rmsnorm norm.affine=false` it is √d times that everywhere.
    Loshchilov et al. 2024 (nGPT); compared with the authors' code (`model.py:148`@ed19eb2). There the skip reads N(x),
    which is x but in the first block: with embeddings of length 1 (`weights=unit`) that leaves every output as it is,
    and takes from the embedding's gradient what points along it, 1.5 to 3.3 % of its length in small models.
    """

    slots = ("out", "sum")

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site, *, start: Start = 0.05) -> None:
        super().__init__(branches, norm, site)
        self.residual_gain = 1.0 - start
        self.factors: dict[str, float] = {}
        self.rates = nn.ParameterDict()
        for role, branch in branches.items():
            root = branch.out_features**0.5
            self.factors[role] = start * root
            self.rates[role] = nn.Parameter(torch.full((branch.out_features,), 1 / root))

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        mask = mask_of(context)
        for role in self.branches:
            f: Any = self.branches[role]
            norms: Any = self.norms[role]
            rate = along_features(self.factors[role] * self.rates[role].abs(), f).to(x.dtype)
            y = norms["out"](f(x, **context), **mask)
            x = norms["sum"]((1 - rate) * f.shortcut(x) + rate * y, **mask)
        return x
