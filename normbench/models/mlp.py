"""Fully connected networks, for teaching and tests."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor, nn

from normbench.models.branches import LinearBranch, PlainLinearBranch, make_activation
from normbench.types import ImageClassification, Model, NormFactory, PlacementFactory, Site, Task


class ResidualMLP(Model):
    """A residual MLP on flattened images: a linear stem, blocks of two linear layers, a linear head.

    depth: blocks. width: features of the stream. activation: any of relu, gelu, silu, sigmoid, tanh.
    norm_order: inside a branch, the norm `before` or `after` the activation.
    """

    kinds = frozenset({"image_classification"})
    roles = ("linear",)
    has_positions = False
    branch: type[LinearBranch] | type[PlainLinearBranch] = LinearBranch

    def __init__(
        self,
        task: Task,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        depth: int,
        width: int,
        activation: str,
        norm_order: str,
    ) -> None:
        super().__init__()
        assert isinstance(task, ImageClassification)
        inputs = math.prod(task.image_shape)
        self.stem = nn.Linear(inputs, width) if self.residual else nn.Identity()
        widths = [width if self.residual else inputs, *[width] * depth]

        def block(layer: int) -> nn.Module:
            site = Site("block", layer, depth, branches=depth)
            features = (widths[layer], widths[layer + 1])
            branch = self.branch(features, norm, site, activation=activation, norm_order=norm_order)
            return placement({"linear": branch}, norm, site)

        self.blocks = nn.ModuleList([block(layer) for layer in range(depth)])
        self.final = self.make_final(norm, width, depth, activation)
        self.head = nn.Linear(width, task.num_classes)

    def make_final(self, norm: NormFactory, width: int, depth: int, activation: str) -> nn.Module:
        """What stands between the last block and the head."""
        needs_norm = self.blocks[-1].needs_final_norm
        final = norm(width, site=Site("final", depth=depth)) if needs_norm else nn.Identity()
        return nn.Sequential(final, make_activation(activation))

    def forward(self, inputs: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch classes"]:
        x = self.stem(inputs.flatten(1))
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))


class PlainMLP(ResidualMLP):
    """Linear, norm and activation, layer upon layer, no skips; takes `placement=plain` only.

    With three layers of 100 sigmoid units on MNIST it is the network of Ioffe & Szegedy 2015, §4.1 and figure 1.
    """

    residual = False
    branch = PlainLinearBranch

    def make_final(self, norm: NormFactory, width: int, depth: int, activation: str) -> nn.Module:
        return nn.Identity()
