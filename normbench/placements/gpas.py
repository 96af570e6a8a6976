"""Gradient-preserving activation scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.placements import Pre
from normbench.types import Branch, NormFactory, Site


class GPAS(Pre):
    """Pre-norm whose stream is scaled, but not its gradient: y = x + f(N(x)), x ← y − α·stopgrad(y).

    α = silu(g), with one learned g for all branches of a block. It starts at 0, as pre-norm; later on the stream is
    multiplied by 1 − α, and its gradient by 1. One N stands after the last block.
    Chen et al. 2025b (gradient-preserving activation scaling); compared with the authors' code. Their script for 7B
    clips all gradients to a norm of 1, then those of all g to 0.01; `trainer.grad_clip` clips all together.
    """

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site) -> None:
        super().__init__(branches, norm, site)
        self.gate = nn.Parameter(torch.zeros(1))

    def join(self, x: Tensor, f: Branch, norms: nn.ModuleDict, context: dict[str, Any]) -> Tensor:
        y = super().join(x, f, norms, context)
        return y - F.silu(self.gate).to(y.dtype) * y.detach()
