"""What the models share: their settings, activations, and stacks of blocks with one branch each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from torch import Tensor, nn

from normbench.settings import Setting
from normbench.types import Branch, Model, NormFactory, PlacementFactory, Site

Depth = Annotated[int, Setting("number of blocks", low=1, high=1_000)]
Width = Annotated[int, Setting("features of the stream (CNN: of the first stage)", low=1, high=10**5)]
NormOrder = Annotated[Literal["before", "after"], Setting("the norm inside a branch, against its activation")]
Activation = Annotated[Literal["relu", "gelu", "silu", "sigmoid", "tanh"], Setting("activation")]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


def ordered(norm: nn.Module, activation: nn.Module, order: str) -> nn.Sequential:
    """Return the norm `before` or `after` the activation."""
    return nn.Sequential(norm, activation) if order == "before" else nn.Sequential(activation, norm)


class BlockStack(Model):
    """A stem, blocks of one branch each, and a linear head.

    data flow: inputs ─ stem ─ blocks ─ final norm, if the placement needs one ─ activation ─ head. Without residuals
    each block ends in its own norm and activation, and the head follows the last one.
    """

    kinds = frozenset({"image_classification"})

    def __init__(
        self,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        stem: nn.Module,
        branch: Callable[[int, Site], Branch],
        depth: int,
        activation: str,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.ModuleList()
        for layer in range(depth):
            site = Site("block", layer, depth, branches=depth)
            last = branch(layer, site)
            self.blocks.append(placement({self.roles[0]: last}, norm, site))
        self.final: nn.Module = nn.Identity()
        if self.residual:
            if self.blocks[-1].needs_final_norm:
                self.final = norm(last.out_features, channel_dim=last.channel_dim, site=Site("final", depth=depth))
            self.final = nn.Sequential(self.final, ACTIVATIONS[activation]())
        self.head = nn.Linear(last.out_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return what the head reads."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.final(x)
