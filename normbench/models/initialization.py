"""All initialisation, in one place.

| parameter | value |
|---|---|
| weight of a linear map or convolution | std of `init=` × one standard-normal draw |
| embedding (tokens, positions, class token) | `init.embedding_std` × one standard-normal draw |
| factor on a text's embedding | 1 / root mean square of what it multiplies, with `model.embedding_scale=unit` |
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


@torch.no_grad()
def initialize(model: Model, init: Initialization, seed: int, norms: Iterable[nn.Module] = ()) -> None:
    """Give every weight outside the norms its start, then apply the gains (see the module's table)."""
    inside_norms = {id(module) for norm in norms for module in norm.modules()}
    for name, module in model.named_modules():
        if id(module) in inside_norms or not isinstance(module, nn.Embedding | nn.Linear | nn.Conv2d):
            continue
        weight = module.weight
        fan_in, fan_out = weight[0].numel(), weight[:, 0].numel() // getattr(module, "parts", 1)  # of a FusedLinear
        std = init.embedding_std if isinstance(module, nn.Embedding) else init.std(fan_in, fan_out)
        generator = torch.Generator().manual_seed(stable_seed(seed, f"{name}.weight"))
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)
        if isinstance(bias := getattr(module, "bias", None), Tensor):
            bias.zero_()
    blocks = [module for module in model.modules() if isinstance(module, Placement)]
    branches = [(block, branch) for block in blocks for branch in block.branches.values() if isinstance(branch, Branch)]
    for block, branch in branches:
        for weight in branch.scaled_weights():
            weight.mul_(block.branch_gain)
        for weight in branch.output_weights() if init.residual_scale else ():
            weight.mul_(1.0 / math.sqrt(len(branches)))
    model.weights_drawn()
