"""Manifold-constrained hyper-connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from normbench.placements import mask_of
from normbench.placements.hyper_connections import HyperConnections, Streams, mix_streams
from normbench.settings import Setting
from normbench.types import Branch, NormFactory, Site

SCALE = 0.01  # of what depends on the streams, at the start
STD = 0.02  # of the maps, at the start
EPS = 1e-6  # added to weights of reading and mixing, and to sums by which these are divided

Iterations = Annotated[int, Setting("steps that make the mixing doubly stochastic", low=1, high=1000)]
Diagonal = Annotated[
    float, Setting("bias of a stream's share in itself; 0: all mix evenly, 8: each nearly stays", low=-100, high=100)
]


class Reading(nn.Module):
    """A map of all streams at a position, normalized as one vector, to some numbers: s·(N(x)·φ) + b.

    Args:
        inputs: features of all streams together.
        sizes: how many numbers each of its outputs has, which has a scale s of its own.
    """

    def __init__(self, inputs: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = sizes
        self.map = nn.Parameter(STD * torch.randn(sum(sizes), inputs))
        self.base = nn.Parameter(torch.zeros(sum(sizes)))
        self.scale = nn.Parameter(torch.full((len(sizes),), SCALE))

    def forward(self, normed: Tensor) -> tuple[Tensor, ...]:
        """Return each output (batch, ..., size) of normalized streams (batch, ..., inputs), in float32 or wider."""
        dtype = torch.promote_types(normed.dtype, torch.float32)
        with torch.autocast(normed.device.type, enabled=False):
            mapped = normed.to(dtype) @ self.map.to(dtype).T
        outputs = []
        parts = zip(mapped.split(self.sizes, -1), self.base.split(self.sizes), self.scale, strict=True)
        for part, base, scale in parts:
            outputs.append(part * scale.to(dtype) + base.to(dtype))
        return tuple(outputs)


class ManifoldHyperConnections(HyperConnections):
    """Hyper-connections whose mixing is doubly stochastic, so that it keeps the size of n streams in all.

    z = f(N(Σᵢ aᵢxᵢ)) and xⱼ ← Σᵢ Aᵢⱼxᵢ + bⱼz, with numbers of each branch that depend on the position: a = σ(ã) + ε,
    b = 2σ(b̃), and A is made of softmax(Ã) + ε, row by row, by dividing its columns and then, `placement.iterations` − 1
    times, its rows and its columns by their sums (Sinkhorn & Knopp 1967), plus ε = 10⁻⁶. Each of ã, b̃ and Ã is
    s·(N(x)·φ) + c, with N(x) of all streams together as one vector of n times the features (slot `streams`). All
    streams start as the embedding, and after the last block x = Σᵢ aᵢxᵢ with a of the same form and a norm of its own
    (role `closing`) is read, in front of the final norm. φ starts as a draw of the standard deviation 0.02, s at 0.01
    and c at 0, where all streams mix evenly, each takes all of z, and a norm that takes out the scale reads what
    pre-norm does. With `placement.diagonal` c of each Aᵢᵢ starts there: at 8 each stream nearly keeps to itself.

    Xie et al. 2025 (mHC), equations 7 to 9, s of table 5; softmax, ε and what is read at the end are DeepSeek-V4's, and
    the starts of φ and c those of transformers 5.24 (`deepseek_v4/modular_deepseek_v4.py`), as the paper has none.
    There s starts at 1, and N has no γ (`norm@streams.affine=false norm@closing.affine=false`).
    """

    def __init__(
        self,
        branches: Mapping[str, Branch],
        norm: NormFactory,
        site: Site,
        *,
        streams: Streams = 4,
        iterations: Iterations = 20,
        diagonal: Diagonal = 0.0,
    ) -> None:
        self.iterations = iterations  # before the connections are made
        self.diagonal = diagonal
        super().__init__(branches, norm, site, streams=streams, dynamic=True)
        self.residual_gain = 1 / (1 + EPS)  # the sums of columns, of as many streams as there are
        if self.place == self.stack_depth:
            *_, (self.last_role, last) = branches.items()
            width = streams * last.out_features
            self.read_out = Reading(width, (streams,))
            at_end = site.at("closing", sole=True)
            self.norms["closing"] = nn.ModuleDict({"streams": norm(width, channel_dim=last.channel_dim, site=at_end)})

    def width_at(self, slot: str, branch: Branch) -> int:
        width = super().width_at(slot, branch)
        return self.streams * width if slot == "streams" else width

    def connect(self, number: int, branch: Branch) -> nn.Module:
        n = self.streams
        connection = Reading(n * branch.in_features, (n, n, n * n))
        with torch.no_grad():
            connection.base[2 * n :] += self.diagonal * torch.eye(n).flatten()
        return connection

    def weights(self, x: Tensor, role: str, context: dict[str, Any]) -> tuple[Tensor, Tensor]:
        f: Any = self.branches[role]
        norms: Any = self.norms[role]
        connection: Any = self.connections[role]
        read, write, mix = connection(self.normed(x, norms["streams"], f, context))
        read = torch.sigmoid(read) + EPS
        write = 2 * torch.sigmoid(write)
        mix = make_doubly_stochastic(mix.unflatten(-1, (self.streams, self.streams)), self.iterations)
        weights = torch.cat((read.unsqueeze(-1), mix), dim=-1)
        return weights.movedim(-2, 0).to(x.dtype), write.movedim(-1, 0).unsqueeze(-1).to(x.dtype)

    def normed(self, x: Tensor, norm: nn.Module, f: Branch, context: Mapping[str, Any]) -> Tensor:
        """Return streams (n, batch, ...) as one normalized vector at each position, (batch, ..., n · features)."""
        axis = f.channel_dim if f.channel_dim == -1 else f.channel_dim + 1
        together = torch.cat(x.unbind(0), dim=axis if axis == -1 else axis - 1)
        y: Tensor = norm(together, **mask_of(context))
        return y if f.channel_dim == -1 else y.movedim(f.channel_dim, -1)

    def leave(self, x: Tensor, **context: Any) -> Tensor:
        f: Any = self.branches[self.last_role]
        norms: Any = self.norms["closing"]
        (read,) = self.read_out(self.normed(x, norms["streams"], f, context))
        weights = (torch.sigmoid(read) + EPS).movedim(-1, 0).unsqueeze(-1).to(x.dtype)
        y = mix_streams(self.features_last(x, f), weights)[0]
        return y if f.channel_dim == -1 else y.movedim(-1, f.channel_dim)


def make_doubly_stochastic(logits: Tensor, iterations: int) -> Tensor:
    """Return a matrix (..., n, n) of non-negative numbers whose columns, and nearly its rows, sum to 1."""
    matrix = logits.softmax(dim=-1) + EPS
    matrix = matrix / (matrix.sum(dim=-2, keepdim=True) + EPS)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(dim=-1, keepdim=True) + EPS)
        matrix = matrix / (matrix.sum(dim=-2, keepdim=True) + EPS)
    return matrix
