"""Fully connected networks, for teaching and tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from normbench.models.common import BlockStack, Depth, NormActivation, Width
from normbench.types import Branch, ImageClassification


class LinearBranch(Branch):
    """activation, linear, norm and activation, linear: as ConvBranch, fully connected."""

    scaled = ("fc1", "fc2")
    output = ("fc2",)

    def __init__(self, features: tuple[int, int], inside: NormActivation) -> None:
        super().__init__()
        self.in_features, self.out_features = features
        self.activation = inside.activation()
        self.fc1 = nn.Linear(*features)
        self.between = inside(self.out_features, "inner")
        self.fc2 = nn.Linear(self.out_features, self.out_features)

    def forward(self, x: Float[Tensor, "batch in"], **_: Tensor | None) -> Float[Tensor, "batch out"]:
        return self.fc2(self.between(self.fc1(self.activation(x))))


class PlainLinearBranch(Branch):
    """Linear, norm and activation, without a skip (Ioffe & Szegedy 2015, §4.1)."""

    def __init__(self, features: tuple[int, int], inside: NormActivation) -> None:
        super().__init__()
        self.in_features, self.out_features = features
        self.fc1 = nn.Linear(*features)
        self.after = inside(self.out_features)

    def forward(self, x: Float[Tensor, "batch in"], **_: Tensor | None) -> Float[Tensor, "batch out"]:
        return self.after(self.fc1(x))


class ResidualMLP(BlockStack):
    """A residual MLP on flattened images: a linear stem, blocks of two linear layers, a linear head.

    depth: blocks. width: features of the stream. norm_order: inside a branch, the norm `before` or `after` the
    activation.
    """

    roles = ("linear",)
    has_positions = False
    branch: ClassVar[Callable[..., Branch]] = LinearBranch

    def __init__(self, task: ImageClassification, *factories: Any, depth: Depth, width: Width, **inside: Any) -> None:
        inputs = math.prod(task.image_shape)
        widths = [width if self.residual else inputs, *[width] * depth]
        stem = nn.Linear(inputs, width) if self.residual else nn.Identity()
        super().__init__(stem, [(features,) for features in pairwise(widths)], task, *factories, **inside)

    def forward(self, inputs: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch classes"]:
        return self.head(self.features(inputs.flatten(1)))


class PlainMLP(ResidualMLP):
    """Linear, norm and activation, layer upon layer, no skips; takes `placement=plain` only.

    With three layers of 100 sigmoid units on MNIST it is the network of Ioffe & Szegedy 2015, §4.1 and figure 1.
    """

    residual = False
    branch = PlainLinearBranch
