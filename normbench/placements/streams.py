"""Placements with several streams: what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normbench.placements import Residual, mask_of
from normbench.types import Branch, NormFactory, Site

Parts = Sequence[Tensor]  # the streams, each by itself


class SeveralStreams(Residual):
    """A block that applies its branches one after another, and each of them changes several streams.

    All streams start alike. The norms in `closing` read them after the last block of a stack, which makes these norms;
    their sites have the role `closing` (`block05.closing`, or with several of them `block05.closing.post`).

    Attributes:
        names: of the streams, in the order in which they are stacked.
        closing: slots of the norms that read the streams after the last block.
        pass_branch: the arithmetic of the branch of a role, which returns the streams after it.
    """

    names: ClassVar[tuple[str, ...]]
    closing: ClassVar[tuple[str, ...]] = ()
    pass_branch: Callable[[Parts, str, dict[str, Any]], Parts]

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> None:
        super().__init__(branches, norm, site)
        if self.closing and self.place == self.stack_depth:
            self.norms["closing"] = self.closing_norms(branches, norm)

    def closing_norms(self, branches: Mapping[str, Branch], norm: NormFactory) -> nn.ModuleDict:
        """Return the norms that read the streams after the last block."""
        *_, last = branches.values()
        norms = nn.ModuleDict()
        for slot in self.closing:
            site = self.site.at("closing", slot, sole=len(self.closing) == 1)
            norms[slot] = norm(last.out_features, channel_dim=last.channel_dim, site=site)
        return norms

    def enter(self, x: Tensor) -> Tensor:
        return torch.stack([x] * self.streams)

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        parts = self.begin(self.take_apart(x))
        for role in self.branches:
            parts = self.pass_branch(parts, role, context)
        return torch.stack(list(parts))

    def take_apart(self, x: Tensor) -> Parts:
        """Return the streams, each by itself."""
        parts = x.unbind(0)
        return [parts[place] for place in range(self.streams)]  # torch.fx can follow an index, and no loop over parts

    def begin(self, parts: Parts) -> Parts:
        """Return the streams as the first branch of the block finds them."""
        return parts

    def close(self, slot: str, x: Tensor, context: Mapping[str, Any]) -> Tensor:
        """Return a stream normalized by a closing norm."""
        norms: Any = self.norms["closing"]
        y: Tensor = norms[slot](x, **mask_of(context))
        return y
