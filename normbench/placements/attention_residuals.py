"""Attention residuals, by block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from normbench.placements import Residual, mask_of
from normbench.settings import Setting
from normbench.types import Branch, NormFactory, Site

Size = Annotated[int, Setting("layers whose branches add up to one candidate", low=1, high=10**4)]


class AttentionResiduals(Residual):
    """Branches read a mixture of earlier sums of branches, by a softmax over depth, in place of one growing stream.

    The sum p of branches begins anew every `placement.size` layers; what it was then, first of all the embedding, is
    kept as a candidate. A branch reads h = Σᵢ aᵢvᵢ of the candidates and p, with aᵢ = softmax over i of q·N(vᵢ), and
    p ← p + f(N(h)); the first branch of those layers gives p ← f(N(h)). So the first branch of all reads the embedding,
    and after the last layer h is read, in front of the final norm. Each branch has a vector q of its own and a norm for
    N(vᵢ) (slot `streams`), and so has the end (role `closing`). q starts at 0, where the mean of all is read.
    The streams are the candidates, 0 as long as they are not there, and p.

    Memory grows with the candidates: beside what `pre` keeps for the backward pass, about 3·(depth²/size + 3·depth)
    tensors as large as x, in blocks of two branches, three for each candidate that a branch reads. With
    `trainer.recompute=true` it is depth·(⌈depth/size⌉ + 1) of them between the blocks.

    Kimi Team 2026 (block AttnRes), whose q starts at 0 by a second source; compared with transformers'
    `kimi_k3/modular_kimi_k3.py`@aa83b54, read, where 12 layers add up, and q starts as any linear map.
    """

    slots = ("streams", "in")
    needs_final_norm = True
    stack_settings = ("size",)
    streams = 3

    def __init__(self, branches: Mapping[str, Branch], norm: NormFactory, site: Site, *, size: Size = 2) -> None:
        super().__init__(branches, norm, site)
        layer = self.place - 1
        self.size = size
        self.streams = math.ceil(self.stack_depth / size) + 1
        self.kept = math.ceil(layer / size)  # candidates that are there when the block begins
        self.begins = layer % size == 0
        self.queries = nn.ParameterDict()
        for role, branch in branches.items():
            if "streams" in self.slots_of(role):
                self.queries[role] = nn.Parameter(torch.zeros(branch.in_features))
        if self.place == self.stack_depth:
            *_, (self.last_role, last) = branches.items()
            at_end = site.at("closing", sole=True)
            closing = norm(last.out_features, channel_dim=last.channel_dim, site=at_end)
            self.norms["closing"] = nn.ModuleDict({"streams": closing})
            self.queries["closing"] = nn.Parameter(torch.zeros(last.out_features))

    def slots_of(self, role: str) -> tuple[str, ...]:
        """Return the norms of a branch: one less where there is only the embedding to read."""
        is_first = self.place == 1 and role == next(iter(self.branches))
        return ("in",) if is_first else self.slots

    def enter(self, x: Tensor) -> Tensor:
        absent = [torch.zeros_like(x)] * (self.streams - 1)
        return torch.stack([*absent, x])

    def leave(self, x: Tensor, **context: Any) -> Tensor:
        f: Any = self.branches[self.last_role]
        return self.select("closing", x, f, context)

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        *candidates, p = x.unbind(0)
        kept = self.kept
        for number, role in enumerate(self.branches):
            f: Any = self.branches[role]
            norms: Any = self.norms[role]
            h = self.select(role, torch.stack([*candidates[:kept], p]), f, context) if kept else p
            y = f(norms["in"](h, **mask_of(context)), **context)
            p = f.shortcut(p)
            for place in range(len(candidates)):
                there = place < kept
                candidates[place] = f.shortcut(candidates[place]) if there else torch.zeros_like(p)
            if self.begins and number == 0:
                candidates[kept] = p
                kept += 1
                p = y
            else:
                p = p + y
        return torch.stack([*candidates, p])

    def select(self, role: str, x: Tensor, f: Branch, context: Mapping[str, Any]) -> Tensor:
        """Return what a branch, or the end, reads of candidates x (number, batch, ...)."""
        norms: Any = self.norms[role]
        mask = mask_of(context)
        if mask:
            mask = {"mask": mask["mask"].repeat(len(x), 1)}
        normed = norms["streams"](x.flatten(0, 1), **mask).unflatten(0, (len(x), -1))
        axis = f.channel_dim if f.channel_dim == -1 else f.channel_dim + 1
        precise = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            scores = normed.movedim(axis, -1).to(precise) @ self.queries[role].to(precise)
            shares = scores.softmax(dim=0).to(x.dtype).unsqueeze(axis)
        return (shares * x).sum(0)

    def sketch(self, x: Any) -> Any:
        """Return what `forward` makes of the sum of branches, as steps of a drawing."""
        for number, role in enumerate(self.branches):
            f: Any = self.branches[role]
            norms: Any = self.norms[role]
            z = f(norms["in"](x.through("select")))
            x = z if self.begins and number == 0 else x + z
        return x
