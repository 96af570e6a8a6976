"""Stacks of blocks with one branch each: what CNNs and MLPs share, and the MLPs, which are for teaching and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from normbench.settings import Setting
from normbench.types import (
    Branch,
    ImageClassification,
    Model,
    NormFactory,
    Placement,
    PlacementFactory,
    Site,
    optional_norm,
)

Depth = Annotated[int, Setting("number of blocks", low=1, high=10_000)]
Width = Annotated[int, Setting("features of the stream (CNN: of the first stage)", low=1, high=10**5)]
NormOrder = Annotated[Literal["before", "after"], Setting("the norm inside a branch, against its activation")]
Activation = Annotated[Literal["relu", "gelu", "silu", "sigmoid", "tanh"], Setting("activation")]

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


def segment_length(depth: int) -> int:
    """Return how many blocks in a row are computed again at once: about √depth / 4.

    What stays are the inputs of depth / n segments and what one segment of n blocks keeps, each about 16 times its
    input, so that their sum is least at n = √(depth / 16), and grows as √depth (Chen et al. 2016, §4.1).
    """
    return max(1, round(math.sqrt(depth) / 4))


def through(blocks: nn.ModuleList, x: Tensor, recompute: bool | None, **context: Any) -> Tensor:
    """Return the stream x after all blocks.

    Args:
        blocks: each takes and returns the stream.
        x: the stream before them.
        recompute: keep only the inputs of segments of blocks for the backward pass, which computes the rest again, from
            the same random numbers and running statistics: all results have the same bits.
        context: what the blocks take beside.
    """
    if not (recompute and torch.is_grad_enabled()):
        for block in blocks:
            x = block(x, **context)
        return x
    length = segment_length(len(blocks))
    for start in range(0, len(blocks), length):
        segment = blocks[start : start + length]
        # what stands around the first run and around the second
        contexts: Any = partial(tuple, (nullcontext(), Rerun(segment)))
        x = checkpoint(through, segment, x, None, use_reentrant=False, context_fn=contexts, **context)
    return x


def through_stack(blocks: nn.ModuleList, x: Tensor, recompute: bool | None, **context: Any) -> Tensor:
    """Return what is read of a stack of placements: x enters the first block, passes through all, and leaves the last.

    The arguments are those of `through`.
    """
    first: Any = blocks[0]
    last: Any = blocks[-1]
    x = through(blocks, first.enter(x), recompute, **context)
    y: Tensor = last.leave(x, **context)
    return y


class Rerun(AbstractContextManager[None]):
    """Lets a segment of blocks run again as it did first, and leave no trace: with its buffers as they were then.

    Probes see the same again, running statistics included.
    """

    def __init__(self, segment: nn.Module) -> None:
        self.before: list[tuple[nn.Module, str, Tensor]] = []
        for module in segment.modules():
            for name, buffer in module.named_buffers(recurse=False):
                self.before.append((module, name, buffer.clone()))

    def __enter__(self) -> None:
        self.after = [(module, name, getattr(module, name)) for module, name, _ in self.before]
        for module, name, buffer in self.before:
            setattr(module, name, buffer.clone())

    def __exit__(self, *_: object) -> None:
        for module, name, buffer in self.after:
            setattr(module, name, buffer)


class OptionalNorms(nn.ModuleDict):
    """The norms inside a branch, by slot, at places that have none unless they are asked for: see `optional_norm`."""

    def add(self, norm: NormFactory, num_features: int, site: Site, channel_dim: int = -1) -> None:
        """Make the norm of a place, if it is asked for."""
        made = optional_norm(norm, num_features, channel_dim=channel_dim, site=site)
        if made is not None:
            self[site.slot] = made

    def normalize(self, slot: str, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return x normalized by the norm of a slot; x itself where the slot has none."""
        if slot not in self:
            return x
        norm = self[slot]
        y: Tensor = norm(x) if mask is None else norm(x, mask=mask)
        return y


def acts(norm: nn.Module) -> bool:
    """Tell whether a norm contains an activation, so that none stands beside it."""
    return getattr(norm, "acts", False)


def norm_before(block: Placement, role: str) -> nn.Module:
    """Return the norm that stands between the stream and a branch; an identity where there is none."""
    norms: Any = getattr(block, "norms", {})  # which a placement of a user's own need not have
    if role in norms and "in" in norms[role]:
        return norms[role]["in"]
    return nn.Identity()


@dataclass(frozen=True)
class NormActivation:
    """Makes what stands inside a branch: a norm `before` or `after` an activation, if it does not contain one."""

    norm: NormFactory
    channel_dim: int
    site: Site
    activation: type[nn.Module]
    order: str

    def __call__(self, features: int, slot: str = "") -> nn.Sequential:
        """Return the two in their order."""
        norm = self.norm(features, channel_dim=self.channel_dim, site=self.site.at(slot=slot))
        activation = nn.Identity() if acts(norm) else self.activation()
        if self.order == "before":
            return nn.Sequential(norm, activation)
        return nn.Sequential(activation, norm)

    def optional(self, features: int, slot: str) -> nn.Module | None:
        """Return the norm of a place that has none unless it is asked for."""
        return optional_norm(self.norm, features, channel_dim=self.channel_dim, site=self.site.at(slot=slot))


class BlockStack(Model):
    """A stem, a block of one branch for each of `shapes`, and a linear head.

    data flow: inputs ─ stem ─ blocks ─ final norm, if the placement needs one ─ activation ─ head. Without residuals
    each block ends in its own norm and activation, and the head follows the last one.
    Subclasses make `stem` and `shapes` of settings of their own, and hand the rest on.
    """

    kinds = frozenset({"image_classification"})
    has_streams = True
    recompute = False
    branch: ClassVar[Callable[..., Branch]]  # (*shape, inside), with a NormActivation as the last
    channel_dim: ClassVar[int] = -1

    def __init__(
        self,
        stem: nn.Module,
        shapes: Sequence[tuple[Any, ...]],
        task: ImageClassification,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        activation: Activation,
        norm_order: NormOrder,
    ) -> None:
        super().__init__()
        depth = len(shapes)
        role = self.roles[0]
        self.stem = stem
        self.stem_norm: nn.Module | None = None
        if self.residual:  # without residuals there is no stem
            width = shapes[0][0][0]
            site = Site("stem", depth=depth)
            self.stem_norm = optional_norm(norm, width, channel_dim=self.channel_dim, site=site)
        self.blocks = nn.ModuleList()
        since_change = 0
        for layer, shape in enumerate(shapes):
            site = Site("block", layer, depth, branches=depth, since_change=since_change)
            inside = NormActivation(norm, self.channel_dim, site.at(role), ACTIVATIONS[activation], norm_order)
            branch = self.branch(*shape, inside)
            since_change = 1 if branch.changes_shape else since_change + 1
            block = placement({role: branch}, norm, site)
            if acts(norm_before(block, role)):
                branch.activation = nn.Identity()
            self.blocks.append(block)
        self.final: nn.Module = nn.Identity()
        if self.residual:
            final: nn.Module = nn.Identity()
            if self.blocks[-1].needs_final_norm:
                final = norm(branch.out_features, channel_dim=self.channel_dim, site=Site("final", depth=depth))
            last = nn.Identity() if acts(final) else ACTIVATIONS[activation]()
            self.final = nn.Sequential(final, last)
        self.head = nn.Linear(branch.out_features, task.num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return what the head reads."""
        x = self.stem(x)
        if self.stem_norm is not None:
            x = self.stem_norm(x)
        return self.final(through_stack(self.blocks, x, self.recompute))


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

    Args:
        depth: blocks.
        width: features of the stream.
        inside: `activation` and `norm_order`: the norm `before` or `after` it.
    """

    roles = ("linear",)
    has_positions = False
    branch: ClassVar[Callable[..., Branch]] = LinearBranch

    def __init__(self, task: ImageClassification, *factories: Any, depth: Depth, width: Width, **inside: Any) -> None:
        inputs = math.prod(task.image_shape)
        stem: nn.Module
        if self.residual:
            stem = nn.Linear(inputs, width)
            widths = [width] * (depth + 1)
        else:
            stem = nn.Identity()
            widths = [inputs] + [width] * depth
        shapes = [(features,) for features in pairwise(widths)]
        super().__init__(stem, shapes, task, *factories, **inside)

    def forward(self, inputs: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch classes"]:
        return self.head(self.features(inputs.flatten(1)))


class PlainMLP(ResidualMLP):
    """Linear, norm and activation, layer upon layer, no skips; takes `placement=plain` only.

    With three layers of 100 sigmoid units on MNIST it is the network of Ioffe & Szegedy 2015, §4.1 and figure 1.
    """

    residual = False
    branch = PlainLinearBranch
