"""Hyper-connections."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from normbench.placements import Residual, mask_of
from normbench.settings import Setting
from normbench.types import Branch, NormFactory, Site, Treatment

Streams = Annotated[int, Setting("number of streams", low=2, high=64)]
Dynamic = Annotated[bool, Setting("what branches read, carry on and write depends on the streams at each position")]

SCALE = 0.01  # of what depends on the streams, at the start


class Connection(nn.Module):
    """The weights with which one branch reads n streams, mixes them and writes to them.

    Args:
        streams: n.
        read: the stream that the branch reads at the start.
        features: of a stream, if the weights depend on the streams; None if they do not.
    """

    treated = MappingProxyType({"mix": Treatment(decay=False)})

    def __init__(self, streams: int, read: int, features: int | None) -> None:
        super().__init__()
        start = torch.eye(streams)
        self.mix = nn.Parameter(torch.cat((start[:, read : read + 1], start), dim=1))
        self.write = nn.Parameter(torch.ones(streams))
        if features is not None:
            self.mix_map = nn.Parameter(torch.zeros(features, streams + 1))
            self.mix_scale = nn.Parameter(torch.tensor([SCALE]))
            self.write_map = nn.Parameter(torch.zeros(features, 1))
            self.write_scale = nn.Parameter(torch.tensor([SCALE]))

    def static(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both weights for streams x (n, batch, ..., features): (n, 1, ..., n + 1) and (n, 1, ..., 1)."""
        between = [1] * (x.ndim - 2)
        streams, columns = self.mix.shape
        return self.mix.view(streams, *between, columns), self.write.view(streams, *between, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both weights for each position of normalized streams (n, batch, ..., features)."""
        mix, write = self.static(x)
        mix = mix + self.mix_scale * torch.tanh(x @ self.mix_map.to(x.dtype))
        write = write + self.write_scale * torch.tanh(x @ self.write_map.to(x.dtype))
        return mix, write


class HyperConnections(Residual):
    """Pre-norm with n streams that learn which of them a branch reads, how they mix and to which it writes.

    z = f(N(Σᵢ aᵢxᵢ)) and xⱼ ← Σᵢ Aᵢⱼxᵢ + bⱼz, with learned numbers a, A and b of each branch. All streams start as the
    embedding, and the output is their sum, in front of the final norm. At the start A is the identity, b is 1, and the
    k-th branch of the stack, from 0, reads the stream k mod n, so that each stream is that of pre-norm.
    With `placement.dynamic=true` these numbers depend on the position: s·tanh(N(xᵢ)·w) is added to each, with a vector
    w for aᵢ, one for each column of Aᵢⱼ and one for bᵢ, which start at 0, and learned factors s, which start at 0.01.
    This N is one for all streams (slot `streams`). `placement.streams` is n; a, A and b do not decay.
    Zhu et al. 2024 (hyper-connections), appendix J. Their section 4 also scales the standard deviation of the weights
    that write to the streams by a factor of √n at the start, which is left out here: `init=` says how weights start.
    In a CNN, where a block has a stride, b is taken at the pixels that it keeps.
    """

    slots = ("streams", "in")
    needs_final_norm = True
    streams = 4

    def __init__(
        self,
        branches: Mapping[str, Branch],
        norm: NormFactory,
        site: Site,
        *,
        streams: Streams = 4,
        dynamic: Dynamic = True,
    ) -> None:
        self.is_dynamic = dynamic  # before the norms are made
        self.streams = streams
        super().__init__(branches, norm, site)
        self.connections = nn.ModuleDict()
        before = (self.place - 1) * len(branches)
        for number, (role, branch) in enumerate(branches.items()):
            self.connections[role] = self.connect(before + number, branch)

    def connect(self, number: int, branch: Branch) -> nn.Module:
        """Return what has the weights of a branch, which is the one of this number, from 0, in its stack."""
        features = branch.in_features if self.is_dynamic else None
        return Connection(self.streams, number % self.streams, features)

    def slots_of(self, role: str) -> tuple[str, ...]:
        """Return the norms of a branch: one more where the streams say how they are read, mixed and written."""
        return self.slots if self.is_dynamic else ("in",)

    def enter(self, x: Tensor) -> Tensor:
        return torch.stack([x] * self.streams)

    def leave(self, x: Tensor, **context: Any) -> Tensor:
        return x.sum(0)

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        for role in self.branches:
            x = self.pass_branch(x, role, context)
        return x

    def pass_branch(self, x: Tensor, role: str, context: dict[str, Any]) -> Tensor:
        """Return the streams (n, batch, ...) after the branch of a role."""
        f: Any = self.branches[role]
        norms: Any = self.norms[role]
        mix, write = self.weights(x, role, context)
        mixed = mix_streams(self.features_last(x, f), mix)
        mixed = mixed if f.channel_dim == -1 else mixed.movedim(-1, f.channel_dim + 1)
        z = f(norms["in"](mixed[0], **mask_of(context)), **context)
        carried = f.shortcut(mixed[1:].flatten(0, 1)).unflatten(0, (self.streams, -1))
        write = write if f.channel_dim == -1 else write.movedim(-1, f.channel_dim + 1)
        if self.is_dynamic and f.channel_dim == 1:  # an image, of which a block with a stride keeps some pixels
            write = write[..., :: f.stride, :: f.stride]
        return carried + write * z

    def weights(self, x: Tensor, role: str, context: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the weights of a branch, with features last, in the dtype of x."""
        f: Any = self.branches[role]
        norms: Any = self.norms[role]
        connection: Any = self.connections[role]
        if not self.is_dynamic:
            mix, write = connection.static(self.features_last(x, f))
            return mix.to(x.dtype), write.to(x.dtype)
        mask = mask_of(context)
        if mask:
            mask = {"mask": mask["mask"].repeat(self.streams, 1)}
        normed = norms["streams"](x.flatten(0, 1), **mask).unflatten(0, (self.streams, -1))
        mix, write = connection(self.features_last(normed, f))
        return mix.to(x.dtype), write.to(x.dtype)

    def features_last(self, x: Tensor, f: Branch) -> Tensor:
        """Return streams (n, batch, ...) with their features along the last axis."""
        return x if f.channel_dim == -1 else x.movedim(f.channel_dim + 1, -1)

    def sketch(self, x: Any) -> Any:
        """Return what `forward` makes of all streams at once, as steps of a drawing."""
        for role in self.branches:
            f: Any = self.branches[role]
            norms: Any = self.norms[role]
            z = f(norms["in"](x.through("read")))
            x = x.through("mix") + z.through("write")
        return x


def mix_streams(x: Tensor, mix: Tensor) -> Tensor:
    """Return m weighted sums of n streams x (n, batch, ..., features), by weights (n, batch, ..., m).

    In the dtype of x even where autocast would round a product of matrices to 16 bits.
    """
    with torch.autocast(x.device.type, enabled=False):
        return torch.einsum("s...t,s...d->t...d", mix, x)
