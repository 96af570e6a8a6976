"""Small convolutional networks for images of 8 to 64 pixels, with residual blocks and without."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.models.branches import ConvBranch, PlainConvBranch
from normbench.types import Branch, Model, NormFactory, PlacementFactory, Site, Task


class ConvNet(Model):
    """A residual CNN after He et al. 2016b: a 3 × 3 stem, stages of equal blocks, mean pool, linear head.

    width: channels of the first stage. stages: each stage's channels in multiples of `width`. strides: by how much each
    stage shrinks height and width, the first one in the stem. depth: residual blocks in all, the same number in each
    stage (ResNet-20: 9).
    norm_order: inside a branch, the norm `before` or `after` the activation.

    data flow: images ─ stem ─ blocks ─ final norm, if the placement needs one ─ ReLU ─ mean over pixels ─ head
    """

    kinds = frozenset({"image_classification"})
    roles = ("conv",)
    branch: type[ConvBranch] | type[PlainConvBranch] = ConvBranch

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
        super().__init__()
        check_stages(depth, stages, strides)
        assert task.image_shape is not None
        channels, per_stage = task.image_shape[0], depth // len(stages)
        stem = nn.Conv2d(channels, width, 3, stride=strides[0], padding=1, bias=False)
        self.stem = stem if self.residual else nn.Identity()
        widths = [width if self.residual else channels, *(width * stages[i // per_stage] for i in range(depth))]

        def stride(layer: int) -> int:
            first_of_stage = layer % per_stage == 0 and not (self.residual and layer == 0)
            return strides[layer // per_stage] if first_of_stage else 1

        def block(layer: int) -> nn.Module:
            site = Site("block", layer, depth, branches=depth)
            shape = (widths[layer], widths[layer + 1]), stride(layer)
            branch: Branch = self.branch(*shape, norm, site, norm_order=norm_order)
            return placement({"conv": branch}, norm, site)

        self.blocks = nn.ModuleList([block(layer) for layer in range(depth)])
        self.final = self.make_final(norm, widths[-1], depth)
        self.head = nn.Linear(widths[-1], task.num_classes)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs

    def make_final(self, norm: NormFactory, width: int, depth: int) -> nn.Module:
        """What stands between the last block and the pool."""
        needs_norm = self.blocks[-1].needs_final_norm
        final = norm(width, channel_dim=1, site=Site("final", depth=depth)) if needs_norm else nn.Identity()
        return nn.Sequential(final, nn.ReLU())

    def forward(self, inputs: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        x = self.stem(inputs.contiguous(memory_format=torch.channels_last))
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x).mean(dim=(2, 3)))


class PlainConvNet(ConvNet):
    """The same without skips: each block is convolution, norm and activation; takes `placement=plain` only."""

    residual = False
    branch = PlainConvBranch

    def make_final(self, norm: NormFactory, width: int, depth: int) -> nn.Module:
        return nn.Identity()


def check_stages(depth: int, stages: list[int], strides: list[int]) -> None:
    """Refuse a depth that the stages cannot share, and strides that do not belong to them."""
    if len(stages) != len(strides):
        raise UsageError(f"model.strides has {len(strides)} numbers for {len(stages)} stages: give as many")
    if depth % len(stages):
        raise UsageError(f"model.depth={depth} is not a multiple of the {len(stages)} stages: change model.depth")
