"""All initialisation, in one place.

| parameter | value |
|---|---|
| weight of a linear map or convolution | what `init=` makes of one standard-normal draw (std × draw) × `init.factor` |
| embedding (tokens, positions, class token) | `init.embedding_std` × one standard-normal draw |
| factor on a text's embedding | 1 / root mean square of what it multiplies, with `model.embedding_scale=unit` |
| bias | 0 |
| a branch's scaled weights | × the placement's gain (DeepNorm's β) |
| all weights of a branch | × what `init=` gives its block's place (`init=scaled`: 1/√place, from 1) |
| a branch's output weights | × 1/√(residual branches), with `init.residual_scale` (GPT-2) |
| norms | untouched: a norm knows its own start |
| anything else (Conv1d, a parameter of a user's own) | untouched: as its class makes it, from seeded random numbers |

Each draw is seeded by (seed, parameter name) alone, so the same weight starts alike whatever the norm or placement;
what classes draw where they are made is seeded too (`normbench.build.build_model`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from normbench.settings import Setting
from normbench.types import Block, Branch, Model, Placement, stable_seed

Factor = Annotated[float, Setting("factor on all weights but embeddings", above=0, high=1e4)]


@dataclass(frozen=True)
class Initialization(ABC):
    """How wide the weights start.

    Args:
        embedding_std: standard deviation of embeddings.
        residual_scale: GPT-2's 1/√(residual branches) on the weights that write to the stream (Radford et al. 2019,
            §2.3).
        factor: on all weights but embeddings, whose size `embedding_std` and `model.embedding_scale` say.
    """

    embedding_std: Annotated[float, Setting("standard deviation of embeddings", low=0, high=1e3)]
    residual_scale: Annotated[bool, Setting("GPT-2's 1/√branches on weights that write to the stream")]
    factor: Factor = field(default=1.0, kw_only=True)

    @abstractmethod
    def std(self, fan_in: int, fan_out: int) -> float:
        """Return the standard deviation of a weight matrix."""

    def weight(self, draw: Tensor) -> Tensor:
        """Return the start of a weight (out, in, ...) that has this standard-normal draw."""
        return draw * self.std(draw[0].numel(), draw[:, 0].numel())

    def at_place(self, place: int) -> float:
        """Return the factor on the weights of the block at this place, from 1, of its stack."""
        return 1.0


@dataclass(frozen=True)
class Normal(Initialization):
    """The same standard deviation everywhere (GPT-2: 0.02)."""

    weight_std: Annotated[float, Setting("standard deviation of weight matrices", low=0, high=1e3)]

    def std(self, fan_in: int, fan_out: int) -> float:
        return self.weight_std


@dataclass(frozen=True)
class Xavier(Initialization):
    """√(2 / (fan_in + fan_out)): Glorot & Bengio 2010, equation 12 and 16, with a normal draw."""

    def std(self, fan_in: int, fan_out: int) -> float:
        return math.sqrt(2.0 / (fan_in + fan_out))


@dataclass(frozen=True)
class Kaiming(Initialization):
    """√(2 / fan_in), for ReLU networks: He et al. 2015, equation 10."""

    def std(self, fan_in: int, fan_out: int) -> float:
        return math.sqrt(2.0 / fan_in)


@dataclass(frozen=True)
class Scaled(Xavier):
    """Xavier, in the l-th block of its stack times 1/√l: DS-Init, α = 1 (Zhang, Titov & Sennrich 2019), normal draw."""

    def at_place(self, place: int) -> float:
        return place**-0.5


@dataclass(frozen=True)
class Orthogonal(Initialization):
    """Rows, or columns where there are fewer, that are orthonormal (Saxe et al. 2014); kernels of convolutions as rows.

    The draw's Q of Q·R, with the signs that make it uniform over such matrices: R has a positive diagonal.
    """

    def std(self, fan_in: int, fan_out: int) -> float:
        return max(fan_in, fan_out) ** -0.5

    def weight(self, draw: Tensor) -> Tensor:
        matrix = draw.flatten(1)
        wide = matrix.shape[0] < matrix.shape[1]
        tall = matrix.T if wide else matrix
        q, r = torch.linalg.qr(tall)
        q = q * r.diagonal().sign()
        orthonormal = q.T if wide else q
        return orthonormal.reshape(draw.shape)


@torch.no_grad()
def initialize(model: Model, init: Initialization, seed: int, norms: Iterable[nn.Module] = ()) -> None:
    """Give every weight outside the norms its start, then apply the gains (see the module's table)."""
    inside_norms = {module for norm in norms for module in norm.modules()}
    for name, module in model.named_modules():
        if module not in inside_norms:
            draw_weight(name, module, init, seed)
    blocks = model.anatomy().blocks
    scale_by_place(blocks, init, inside_norms)
    scale_branches(blocks, init)
    model.weights_drawn()


def draw_weight(name: str, module: nn.Module, init: Initialization, seed: int) -> None:
    """Give the weight of an embedding, a linear map or a convolution its start, from a draw of its own; the bias 0."""
    if not isinstance(module, nn.Embedding | nn.Linear | nn.Conv2d):
        return
    generator = torch.Generator().manual_seed(stable_seed(seed, f"{name}.weight"))
    draw = torch.randn(module.weight.shape, generator=generator)
    if isinstance(module, nn.Embedding):
        module.weight.copy_(draw * init.embedding_std)
    else:  # of a FusedLinear each part by itself
        parts = [init.weight(part) for part in draw.chunk(getattr(module, "parts", 1))]
        module.weight.copy_(torch.cat(parts) * init.factor)
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        bias.zero_()


def scale_by_place(blocks: Iterable[Block], init: Initialization, inside_norms: set[nn.Module]) -> None:
    """Multiply the weights of each block's branches by what `init` gives its place in the stack of its side."""
    places = Counter[str]()
    for block in blocks:
        places[block.side] += 1
        factor = init.at_place(places[block.side])
        for branch in block.branches.values():
            for module in branch.modules():
                if isinstance(module, nn.Linear | nn.Conv2d) and module not in inside_norms:
                    module.weight.mul_(factor)


def scale_branches(blocks: Iterable[Block], init: Initialization) -> None:
    """Multiply the weights that branches name by their placement's gain, and with `residual_scale` by 1/√branches."""
    placed = []
    for block in blocks:
        for branch in block.branches.values():
            if isinstance(block.module, Placement) and isinstance(branch, Branch):
                placed.append((block.module, branch))
    for placement, branch in placed:
        for weight in branch.scaled_weights():
            weight.mul_(placement.branch_gain)
        if init.residual_scale:
            for weight in branch.output_weights():
                weight.mul_(1.0 / math.sqrt(len(placed)))
