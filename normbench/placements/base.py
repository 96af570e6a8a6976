"""What every placement shares: the norms of a block, one for each branch and slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from normbench.types import Branch, NormFactory, Placement, Site


class Residual(Placement):
    """A block that applies its branches one after another; subclasses give the arithmetic of one branch in `join`.

    A norm's site is named after its branch (`block03.mlp`); where a placement has two norms a branch,
    `block03.mlp.in` and `block03.mlp.out`.
    """

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> None:
        super().__init__()
        self.site = site
        self.branches = nn.ModuleDict(branches)
        self.norms = self.make_norms(branches, norm)

    def make_norms(self, branches: Mapping[str, Branch], norm: NormFactory) -> nn.ModuleDict:
        """Return one norm for each branch and slot."""
        return nn.ModuleDict({role: self.branch_norms(role, branch, norm) for role, branch in branches.items()})

    def branch_norms(self, role: str, branch: Branch, norm: NormFactory) -> nn.ModuleDict:
        """Return one norm for each slot: `in` reads the stream, `out` what the branch has made of it."""
        norms = nn.ModuleDict()
        for slot in self.slots:
            site = self.site.at(role, slot if len(self.slots) > 1 else "")
            width = branch.in_features if slot == "in" else branch.out_features
            norms[slot] = norm(width, channel_dim=branch.channel_dim, site=site)
        return norms

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        for role, branch in self.branches.items():
            x = self.join(x, branch, self.norms[role], context)  # type: ignore[arg-type]  # ModuleDict holds Modules
        return x

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        """Return x after one branch f; `f.shortcut(x)` is x, unless f changes its shape."""
        raise NotImplementedError
