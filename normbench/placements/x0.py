"""The start of the stream, mixed in before each block."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from normbench.placements import mask_of
from normbench.placements.streams import Parts, SeveralStreams
from normbench.types import Branch, NormFactory, Site, Treatment


class StartMixedIn(SeveralStreams):
    """Pre-norm that mixes the start x₀ of the stream in before each block: x ← rx + λx₀, then x ← x + f(N(x)).

    r and λ are learned, one of each a block. From the first to the last block of a stack r starts at 1.15 to 1.05 and λ
    at 0.20 to 0.05, in equal steps. r learns at a hundredth of the rate of λ, and decays. One N stands after the last
    block.
    Karpathy 2025 (nanochat, `resid_lambdas` and `x0_lambdas`); compared with its code. There the embedding is
    normalized (`norm@stem=rmsnorm`), and at the end a share of the stream at half the depth is subtracted, which is
    left out here.
    """

    slots = ("in",)
    needs_final_norm = True
    streams = 2
    names = ("x", "x₀")
    treated = MappingProxyType({"gain": Treatment(decay=True, lr=0.01)})

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> None:
        super().__init__(branches, norm, site)
        way = (self.place - 1) / max(self.stack_depth - 1, 1)  # from the first block to the last, from 0 to 1
        self.residual_gain = 1.15 - 0.10 * way
        self.gain = nn.Parameter(torch.tensor([self.residual_gain]))
        self.start_gain = nn.Parameter(torch.tensor([0.20 - 0.15 * way]))

    def begin(self, parts: Parts) -> Parts:
        x, start = parts
        x = self.gain.to(x.dtype) * x + self.start_gain.to(x.dtype) * start
        return x, start

    def pass_branch(self, parts: Parts, role: str, context: dict[str, Any]) -> Parts:
        f: Any = self.branches[role]
        norms: Any = self.norms[role]
        x, start = parts
        y = norms["in"](x, **mask_of(context))
        return f.shortcut(x) + f(y, **context), f.shortcut(start)

    def leave(self, x: Tensor, **context: Any) -> Tensor:
        x, _ = self.take_apart(x)
        return x
