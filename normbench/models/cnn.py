"""Convolutional networks: what all of them share, and the small ones for images of 8 to 64 pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.models.branches import ConvBranch, PlainConvBranch
from normbench.types import Branch, ImageClassification, Model, NormFactory, PlacementFactory, Site, Task


class Shape(NamedTuple):
    """What a block does to its input: channels in and out, and by how much height and width shrink."""

    channels: tuple[int, int]
    stride: int


class ConvStack(Model):
    """A stem, one block for each shape, and a linear head on the mean over pixels.

    norm_order: inside a branch, the norm `before` or `after` the activation.

    data flow: images ─ stem ─ blocks ─ final norm, if the placement needs one ─ ReLU ─ mean over pixels ─ head.
    Without residuals each block ends in its own norm and activation, and the mean follows the last one.
    """

    kinds = frozenset({"image_classification"})
    roles = ("conv",)
    branch: ClassVar[Callable[..., Branch]]  # (channels, stride, norm, site, *, norm_order)

    def __init__(
        self,
        task: Task,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        stem: nn.Module,
        shapes: Sequence[Shape],
        norm_order: str,
    ) -> None:
        super().__init__()
        depth = len(shapes)
        self.stem = stem

        def block(layer: int) -> nn.Module:
            site = Site("block", layer, depth, branches=depth)
            branch = self.branch(*shapes[layer], norm, site, norm_order=norm_order)
            return placement({"conv": branch}, norm, site)

        self.blocks = nn.ModuleList([block(layer) for layer in range(depth)])
        features = shapes[-1].channels[1]
        self.final = self.make_final(norm, features, depth) if self.residual else nn.Identity()
        self.head = nn.Linear(features, task.num_classes)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs

    def make_final(self, norm: NormFactory, features: int, depth: int) -> nn.Module:
        """What stands between the last residual block and the pool."""
        needs_norm = self.blocks[-1].needs_final_norm
        final = norm(features, channel_dim=1, site=Site("final", depth=depth)) if needs_norm else nn.Identity()
        return nn.Sequential(final, nn.ReLU())

    def forward(self, inputs: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        x = self.stem(inputs.contiguous(memory_format=torch.channels_last))
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x).mean(dim=(2, 3)))


class ConvNet(ConvStack):
    """A residual CNN after He et al. 2016b: a 3 × 3 stem, stages of equal blocks, mean pool, linear head.

    width: channels of the first stage. stages: each stage's channels in multiples of `width`. strides: by how much each
    stage shrinks height and width, the first one in the stem. depth: residual blocks in all, the same number in each
    stage (ResNet-20: 9).
    """

    branch: ClassVar[Callable[..., Branch]] = ConvBranch

    def __init__(
        self,
        task: Task,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        depth: int,
        width: int,
        stages: list[int],
        strides: list[int],
        norm_order: str,
    ) -> None:
        check_stages(stages, strides=strides)
        if depth % len(stages):
            raise UsageError(f"model.depth={depth} is not a multiple of the {len(stages)} stages: change model.depth")
        assert isinstance(task, ImageClassification)
        channels, per_stage = task.image_shape[0], depth // len(stages)
        stem = nn.Conv2d(channels, width, 3, stride=strides[0], padding=1, bias=False)
        widths = [width if self.residual else channels, *(width * stages[i // per_stage] for i in range(depth))]

        def shape(layer: int) -> Shape:
            first_of_stage = layer % per_stage == 0 and not (self.residual and layer == 0)
            return Shape((widths[layer], widths[layer + 1]), strides[layer // per_stage] if first_of_stage else 1)

        super().__init__(
            task,
            norm,
            placement,
            stem=stem if self.residual else nn.Identity(),
            shapes=[shape(layer) for layer in range(depth)],
            norm_order=norm_order,
        )


class PlainConvNet(ConvNet):
    """The same without skips: each block is convolution, norm and activation; takes `placement=plain` only."""

    residual = False
    branch = PlainConvBranch


def check_stages(stages: list[int], **others: list[int]) -> None:
    """Refuse lists that do not belong to the stages."""
    for name, numbers in others.items():
        if len(numbers) != len(stages):
            raise UsageError(f"model.{name} has {len(numbers)} numbers for {len(stages)} stages: give as many")
