"""Norms and placements of this year as their sources have them, around the branches of a model of ours.

Hyper-connections are transformers' own modules for DeepSeek-V4. Of gated RMSNorm and attention residuals no code for
PyTorch is installed: they are written here as their papers do.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS = {
    "gated RMSNorm": ("norm=gatedrmsnorm",),
    "mHC": (
        "norm=rmsnorm", "placement=mhc", "norm@streams=rmsnorm", "norm@streams.affine=false", "norm@closing=rmsnorm",
        "norm@closing.affine=false",
    ),
    "AttnRes": ("norm=rmsnorm", "placement=attnres"),
}  # fmt: skip


class GatedNorm(nn.Module):
    """y·σ(W↑ silu(W↓ y)) of torch's own RMSNorm y (Qiu et al. 2026), with the weights of a norm of ours."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        rank, features = norm.down.shape
        self.norm = nn.RMSNorm(features, norm.eps)
        self.down = nn.Linear(features, rank, bias=False)
        self.up = nn.Linear(rank, features, bias=False)
        for own, weight in ((self.norm, norm.weight), (self.down, norm.down), (self.up, norm.up)):
            own.weight = nn.Parameter(weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        gated: Tensor = y * torch.sigmoid(self.up(F.silu(self.down(y))))
        return gated


def with_gated_norms(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose gated norms are those of the paper."""
    made = copy.deepcopy(model)
    for path, module in model.named_modules():
        if hasattr(module, "down") and hasattr(module, "eps"):
            made.set_submodule(path, GatedNorm(module))
    return made


class Source(nn.Module, ABC):
    """A language model of ours, with the residual arithmetic of another source in place of its placements."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)

    @abstractmethod
    def through(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return what is read after all blocks of a stream that starts as x."""

    def branch(self, block: Any, role: str, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return what a branch makes of its input, with the norm before it."""
        y: Tensor = block.branches[role](block.norms[role]["in"](x), rotation=rotation)
        return y

    def forward(self, tokens: Tensor) -> Tensor:
        own = self.model
        x, rotation = own.stream(own.stem(tokens), None)
        logits: Tensor = own.head(own.final_norm(self.through(x, rotation)), None, own.stem)
        return logits


class DeepSeek(Source):
    """mHC by transformers' modules for DeepSeek-V4, and its decoder layer's sums."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        library = import_module("transformers.models.deepseek_v4.modeling_deepseek_v4")
        first = model.blocks[0]
        self.streams = first.streams
        config = SimpleNamespace(
            hc_mult=first.streams,
            hc_sinkhorn_iters=first.iterations,
            hc_eps=1e-6,
            rms_norm_eps=first.norms["attention"]["streams"].eps,
            hidden_size=first.branches["attention"].in_features,
        )
        self.connections = nn.ModuleList()
        for block in model.blocks:
            for reading in block.connections.values():
                connection = library.DeepseekV4HyperConnection(config)
                pairs = (
                    (connection.fn, reading.map),
                    (connection.base, reading.base),
                    (connection.scale, reading.scale),
                )
                for theirs, ours in pairs:
                    theirs.data.copy_(ours)
                self.connections.append(connection)
        last = model.blocks[-1].read_out
        self.head = library.DeepseekV4HyperHead(config)
        pairs = ((self.head.hc_fn, last.map), (self.head.hc_base, last.base), (self.head.hc_scale, last.scale))
        for theirs, ours in pairs:
            theirs.data.copy_(ours)

    def through(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        streams = x.unsqueeze(2).expand(-1, -1, self.streams, -1).contiguous()
        connections = iter(self.connections)
        for block in self.model.blocks:
            for role in block.branches:
                post, comb, collapsed = next(connections)(streams)
                y = self.branch(block, role, collapsed, rotation)
                streams = post.unsqueeze(-1) * y.unsqueeze(-2) + comb.transpose(-1, -2) @ streams
        read: Tensor = self.head(streams)
        return read


class Kimi(Source):
    """Attention residuals by block, as the paper's listing has them: a list of sums, stacked for each branch."""

    def through(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        done = [x]
        partial: Tensor | None = None
        for number, block in enumerate(self.model.blocks):
            for place, role in enumerate(block.branches):
                is_first = number == place == 0
                h = x if is_first else self.select(block, role, done, partial)
                y = self.branch(block, role, h, rotation)
                if place == 0 and number % block.size == 0:
                    if partial is not None:
                        done.append(partial)
                    partial = y
                else:
                    partial = partial + y
        return self.select(self.model.blocks[-1], "closing", done, partial)

    def select(self, block: Any, role: str, done: list[Tensor], partial: Tensor | None) -> Tensor:
        """Return the mixture of finished sums, and of the one that goes on."""
        values = torch.stack([*done, partial] if partial is not None else done)
        norm = block.norms[role]["streams"]
        keys = F.rms_norm(values, values.shape[-1:], norm.weight, norm.eps)
        shares = torch.einsum("d,nbtd->nbt", block.queries[role], keys).softmax(0)
        return torch.einsum("nbt,nbtd->btd", shares, values)


SOURCES = {"gated RMSNorm": with_gated_norms, "mHC": DeepSeek, "AttnRes": Kimi}
