"""Treatments of weights: what a branch multiplies by, made of what the optimizer trains.

| `weights=` | W, of each output (row or filter) with its weights v | start |
|---|---|---|
| `plain` | v | |
| `weight_norm` | g·v/‖v‖ | g = ‖v‖: as plain |
| `standardized` | (v − μ)/√(σ² + ε) | |
| `scaled_standardized` | c·g·(v − μ)/√max(n·σ², ε), n weights | g = 1 |
| `spectral` | V/σ₁(V), of the whole matrix | |
| `fixnorm` | v/‖v‖ | |
| `unit` | v, itself divided by its length after each step | v/‖v‖ |

A treatment holds for the linear maps and convolutions inside the branches of blocks; for embeddings, stem and head
where a rule names them, or where it holds `everywhere`; not for norms. It comes after the weights are drawn and scaled,
so that v starts as the weight does without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn import functional as F
from torch.nn.utils.parametrize import register_parametrization

from normbench.settings import Setting
from normbench.types import NOT_TREATED, Site, Treated

Weight = Float[Tensor, "out in *kernel"]

SMALLEST = 1e-12  # what a length is divided by at the least
FIRST_ITERATIONS = 15  # of the power method before training, as torch.nn.utils.parametrizations.spectral_norm has them


class Weights(ABC):
    """A treatment of weights: `apply` lets the weight of a linear map or a convolution be computed from another.

    Attributes:
        everywhere: whether it also holds for embeddings, stem and head where no rule names them.
        sets_length: whether it divides what is trained by its length after each step.
    """

    everywhere: ClassVar[bool] = False
    sets_length: ClassVar[bool] = False

    @abstractmethod
    def apply(self, module: nn.Module, site: Site) -> None:
        """Treat the weight of a module, which has its start.

        Args:
            module: a linear map, a convolution or, outside the blocks, an embedding.
            site: its place: the role of its branch, and its block; the slot is `out` where it writes to the residual
                stream. Outside the blocks the role is `embedding`, `stem` or `head`.
        """

    def after_step(self, modules: Mapping[nn.Module, Site]) -> None:  # noqa: B027  # most treatments have none
        """Change weights in place after each step of the optimizer; most treatments do not.

        It must wait for no device, and give the same bits in every process.

        Args:
            modules: all that this treatment has been applied to, with their places.
        """


class Plain(Weights):
    """The weights as they are trained."""

    def apply(self, module: nn.Module, site: Site) -> None:
        pass


class WeightNorm(Weights):
    """g·v/‖v‖ for each output, with g learned (Salimans & Kingma 2016, equation 2)."""

    def apply(self, module: nn.Module, site: Site) -> None:
        register_parametrization(module, "weight", LengthAndDirection(module.get_parameter("weight")))


@dataclass(frozen=True)
class Standardized(Weights):
    """(v − μ)/√(σ² + ε) for each output, μ and σ² over its weights (Qiao et al. 2019; timm's form, σ² over n)."""

    eps: Annotated[float, Setting("added to the variance of an output's weights", low=0, high=1)] = 1e-6

    def apply(self, module: nn.Module, site: Site) -> None:
        register_parametrization(module, "weight", Standardization(self.eps))


@dataclass(frozen=True)
class ScaledStandardized(Weights):
    """c·g·(v − μ)/√max(n·σ², ε) for each output with n weights, g learned (Brock et al. 2021; NFNets).

    c is 1, or the constant by which their authors multiply the activation that the weights read: after a ReLU
    1.7139588594 in their code, and √(2/(1 − 1/π)) = 1.7129 in their paper.
    """

    eps: Annotated[float, Setting("least value of n·σ²", above=0, high=1)] = 1e-4
    scale: Annotated[float, Setting("constant factor, of the activation before: c", above=0, high=1e3)] = 1.0

    def apply(self, module: nn.Module, site: Site) -> None:
        outputs = len(module.get_parameter("weight"))
        register_parametrization(module, "weight", ScaledStandardization(outputs, self.eps, self.scale))


@dataclass(frozen=True)
class Spectral(Weights):
    """V/σ₁(V), σ₁ by the power method (Miyato et al. 2018, algorithm 1); of a fused map each part by itself."""

    iterations: Annotated[int, Setting("of the power method in each pass of training", low=1, high=100)] = 1

    def apply(self, module: nn.Module, site: Site) -> None:
        parts = getattr(module, "parts", 1)
        weight = module.get_parameter("weight").detach()
        register_parametrization(module, "weight", SpectralDivision(weight, parts, self.iterations))


class FixNorm(Weights):
    """v/‖v‖ for each output: weight normalization whose g is 1 and not learned.

    At the place `embedding`, with √d times its rows as the stream, it is FixNorm (Nguyen & Chiang 2018).
    """

    def apply(self, module: nn.Module, site: Site) -> None:
        register_parametrization(module, "weight", Direction())


class Unit(Weights):
    """Vectors of length 1 along the features of the stream, made so at the start and after each step.

    Of a map that reads the stream the weights of each output (row or filter), of one that writes to it those of each
    input (column), of an embedding those of each token. Loshchilov et al. 2024 (nGPT).
    """

    everywhere = True
    sets_length = True

    def apply(self, module: nn.Module, site: Site) -> None:
        self.after_step({module: site})

    @torch.no_grad()
    def after_step(self, modules: Mapping[nn.Module, Site]) -> None:
        for module, site in modules.items():
            weight = module.get_parameter("weight")
            writes = site.slot == "out" or site.role == "stem"
            axes = [0] if writes else [*range(1, weight.ndim)]
            dtype = torch.promote_types(weight.dtype, torch.float32)
            lengths = vector_norm(weight, dim=axes, keepdim=True, dtype=dtype)
            weight.div_(lengths.clamp_(min=SMALLEST))


# ---- from what is trained to the weight


class Formula(nn.Module, ABC):
    """A weight as a function of what is trained in its place, in float32 or wider; the result has its dtype.

    Attributes:
        treated: parameters of its own that the optimizer treats otherwise than others.
    """

    treated: ClassVar[Treated] = NOT_TREATED

    def forward(self, trained: Weight) -> Weight:
        dtype = torch.promote_types(trained.dtype, torch.float32)
        return self.weight(trained.to(dtype)).to(trained.dtype)

    @abstractmethod
    def weight(self, trained: Weight) -> Weight:
        """Return the weight."""


class Direction(Formula):
    """v/‖v‖."""

    def weight(self, trained: Weight) -> Weight:
        return F.normalize(trained.flatten(1), dim=1, eps=SMALLEST).view_as(trained)


class LengthAndDirection(Formula):
    """g·v/‖v‖; `gain` is g."""

    def __init__(self, start: Weight) -> None:
        super().__init__()
        self.gain = nn.Parameter(vector_norm(start.detach().flatten(1), dim=1))

    def weight(self, trained: Weight) -> Weight:
        direction = F.normalize(trained.flatten(1), dim=1, eps=SMALLEST)
        return (self.gain.unsqueeze(1) * direction).view_as(trained)


class Standardization(Formula):
    """(v − μ)/√(σ² + ε)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def weight(self, trained: Weight) -> Weight:
        outputs = trained.flatten(1)
        variance, mean = torch.var_mean(outputs, dim=1, correction=0, keepdim=True)
        return ((outputs - mean) * torch.rsqrt(variance + self.eps)).view_as(trained)


class ScaledStandardization(Formula):
    """c·g·(v − μ)/√max(n·σ², ε); `gain` is g, and `scale` c."""

    def __init__(self, outputs: int, eps: float, scale: float) -> None:
        super().__init__()
        self.eps = eps
        self.scale = scale
        self.gain = nn.Parameter(torch.ones(outputs))

    def weight(self, trained: Weight) -> Weight:
        outputs = trained.flatten(1)
        variance, mean = torch.var_mean(outputs, dim=1, correction=0, keepdim=True)
        number = outputs.shape[1]
        scale = self.gain.unsqueeze(1) * torch.rsqrt((number * variance).clamp(min=self.eps))
        if self.scale != 1:
            scale = scale * self.scale
        return ((outputs - mean) * scale).view_as(trained)


class SpectralDivision(Formula):
    """V/σ₁(V).

    Attributes:
        v: the right singular vector of each part as far as it is known, (parts, in); training brings it nearer.
    """

    v: Tensor

    def __init__(self, start: Weight, parts: int, iterations: int) -> None:
        super().__init__()
        self.parts = parts
        self.iterations = iterations
        matrices = self.matrices(start)
        drawn = F.normalize(torch.randn(parts, matrices.shape[2]), dim=1).to(start)
        self.register_buffer("v", self.iterate(matrices, drawn, FIRST_ITERATIONS))

    def matrices(self, weight: Weight) -> Float[Tensor, "parts out in"]:
        """Return the matrix of each part."""
        return weight.flatten(1).unflatten(0, (self.parts, -1))

    def weight(self, trained: Weight) -> Weight:
        matrices = self.matrices(trained)
        with torch.no_grad():
            v = F.normalize(self.v.to(trained.dtype), dim=1, eps=SMALLEST)  # an average of such is shorter than 1
            if self.training:
                v = self.iterate(matrices, v, self.iterations - 1)
                u = left_vector(matrices, v)
                v = right_vector(matrices, u)
                self.v.copy_(v)
            else:
                u = left_vector(matrices, v)
        images = (matrices * v.unsqueeze(1)).sum(dim=2)
        sigma = (u * images).sum(dim=1).clamp(min=SMALLEST)
        return (matrices / sigma.view(-1, 1, 1)).view_as(trained)

    @staticmethod
    def iterate(matrices: Tensor, v: Tensor, times: int) -> Tensor:
        """Return right singular vectors after so many iterations of the power method."""
        for _ in range(times):
            v = right_vector(matrices, left_vector(matrices, v))
        return v


# Products by `*` and `sum`, which autocast leaves in their precision.


def left_vector(matrices: Float[Tensor, "parts out in"], v: Float[Tensor, "parts in"]) -> Float[Tensor, "parts out"]:
    """Return Vv/‖Vv‖ of each part."""
    return F.normalize((matrices * v.unsqueeze(1)).sum(dim=2), dim=1, eps=SMALLEST)


def right_vector(matrices: Float[Tensor, "parts out in"], u: Float[Tensor, "parts out"]) -> Float[Tensor, "parts in"]:
    """Return Vᵀu/‖Vᵀu‖ of each part."""
    return F.normalize((matrices * u.unsqueeze(2)).sum(dim=1), dim=1, eps=SMALLEST)
