"""All initialisation, in one place.

| parameter | value |
|---|---|
| weight of a linear map or convolution | std of `init=` × one standard-normal draw |
| embedding (tokens, positions, class token) | `init.embedding_std` × one standard-normal draw |
| bias | 0 |
| a branch's scaled weights | × the placement's gain (DeepNorm's β) |
| a branch's output weights | × 1/√(residual branches), with `init.residual_scale` (GPT-2) |
| norms | untouched: a norm knows its own start |
| anything else (Conv1d, a parameter of a user's own) | untouched: as its class makes it, from seeded random numbers |

Each draw is seeded by (seed, parameter name) alone, so the same weight starts alike whatever the norm or placement;
what classes draw where they are made is seeded too (`normbench.build.build_model`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from normbench.models.transformer import FusedLinear
from normbench.settings import Setting
from normbench.types import Branch, Model, Placement, stable_seed


@dataclass(frozen=True)
class Initialization(ABC):
    """How wide the weights start.

    embedding_std: standard deviation of embeddings.
    residual_scale: GPT-2's 1/√(residual branches) on the weights that write to the stream (Radford et al. 2019, §2.3).
    """

    embedding_std: Annotated[float, Setting("standard deviation of embeddings", low=0, high=1e3)]
    residual_scale: Annotated[bool, Setting("GPT-2's 1/√branches on weights that write to the stream")]

    @abstractmethod
    def std(self, fan_in: int, fan_out: int) -> float:
        """Return the standard deviation of a weight matrix."""


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


def fans(module: nn.Module) -> tuple[int, int]:
    """Return inputs and outputs of one linear map (of each, where several are fused in one matrix)."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    parts = module.parts if isinstance(module, FusedLinear) else 1
    receptive = weight[0, 0].numel()
    return weight.shape[1] * receptive, weight.shape[0] * receptive // parts


@torch.no_grad()
def initialize(model: Model, init: Initialization, seed: int, norms: Iterable[nn.Module] = ()) -> None:
    """Give every weight outside the norms its start, then apply the gains (see the module's table)."""
    inside_norms = {id(module) for norm in norms for module in norm.modules()}
    for name, module in model.named_modules():
        if id(module) not in inside_norms:
            start(name, module, init, seed)
    blocks = [module for module in model.modules() if isinstance(module, Placement)]
    branches = [(block, branch) for block in blocks for branch in block.branches.values() if isinstance(branch, Branch)]
    for block, branch in branches:
        scale(branch.scaled_weights(), block.branch_gain)
        if init.residual_scale:
            scale(branch.output_weights(), 1.0 / math.sqrt(len(branches)))


def start(name: str, module: nn.Module, init: Initialization, seed: int) -> None:
    """Draw the weight of one module, if it has one of a kind that starts at random, and zero its bias."""
    if isinstance(module, nn.Embedding):
        std = init.embedding_std
    elif isinstance(module, nn.Linear | nn.Conv2d):
        std = init.std(*fans(module))
        if module.bias is not None:
            module.bias.zero_()
    else:
        return
    generator = torch.Generator().manual_seed(stable_seed(seed, f"{name}.weight"))
    module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * std)


def scale(weights: Iterable[Tensor], gain: float) -> None:
    """Multiply weights by a gain."""
    for weight in weights:
        weight.mul_(gain)
