"""The ResNets of ImageNet: four stages, learned shortcuts where the shape changes, bottlenecks in the deep ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from normbench.models.branches import ConvBranch, ordered
from normbench.models.cnn import ConvStack, Shape, check_stages
from normbench.types import Branch, ImageClassification, NormFactory, PlacementFactory, Site, Task

LARGEST_SMALL = 64  # pixels; larger images are shrunk to a quarter before the first block


def projection(channels: tuple[int, int], stride: int) -> nn.Module:
    """A shortcut that learns where the shape changes, and is x itself elsewhere (He et al. 2016a, option B)."""
    if stride == 1 and channels[0] == channels[1]:
        return nn.Identity()
    return nn.Conv2d(*channels, 1, stride=stride, bias=False)


class BasicBranch(ConvBranch):
    """ConvBranch with a shortcut that learns where the shape changes."""

    expansion: ClassVar[int] = 1

    def __init__(
        self, channels: tuple[int, int], stride: int, norm: NormFactory, site: Site, *, norm_order: str
    ) -> None:
        super().__init__(channels, stride, norm, site, norm_order=norm_order)
        self.projection = projection(channels, stride)

    def shortcut(self, x: Float[Tensor, "batch in height width"]) -> Float[Tensor, "batch out height2 width2"]:
        return self.projection(x)


class BottleneckBranch(Branch):
    """activation, 1 × 1 convolution to a quarter of the channels, 3 × 3 there, 1 × 1 back; norm and activation between.

    The first norm, or the one behind the branch, is the placement's. (batch, in, height, width) to
    (batch, out, height / stride, width / stride); He et al. 2016a, figure 5, in the order of He et al. 2016b. The
    3 × 3 convolution has the stride (Goyal et al. 2017, §5.1).
    """

    channel_dim = 1
    expansion: ClassVar[int] = 4

    def __init__(
        self, channels: tuple[int, int], stride: int, norm: NormFactory, site: Site, *, norm_order: str
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = channels
        inner = self.out_features // self.expansion

        def between(slot: str) -> nn.Sequential:
            return ordered(norm(inner, channel_dim=1, site=site.at("conv", slot)), nn.ReLU(), norm_order)

        self.activation = nn.ReLU()
        self.conv1 = nn.Conv2d(self.in_features, inner, 1, bias=False)
        self.between1 = between("inner1")
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.between2 = between("inner2")
        self.conv3 = nn.Conv2d(inner, self.out_features, 1, bias=False)
        self.projection = projection(channels, stride)

    def forward(
        self, x: Float[Tensor, "batch in height width"], **_: Tensor | None
    ) -> Float[Tensor, "batch out height2 width2"]:
        x = self.between1(self.conv1(self.activation(x)))
        return self.conv3(self.between2(self.conv2(x)))

    def shortcut(self, x: Float[Tensor, "batch in height width"]) -> Float[Tensor, "batch out height2 width2"]:
        return self.projection(x)

    def scaled_weights(self) -> Iterator[Tensor]:
        yield self.conv1.weight
        yield self.conv2.weight
        yield self.conv3.weight

    def output_weights(self) -> Iterator[Tensor]:
        yield self.conv3.weight


class ResNet(ConvStack):
    """A ResNet of two convolutions a block (He et al. 2016a, table 1, 18 and 34 layers) with v2's order inside.

    width: channels of the first stage. stages: each stage's channels in multiples of `width`. blocks: of each stage.
    strides: of each stage's first block. Images of more than 64 pixels start with a 7 × 7 convolution of stride 2 and
    a 3 × 3 max-pool of stride 2, smaller ones with a 3 × 3 convolution.

    Beside the published networks (norm=batchnorm, placement=pre) it has no norm behind the stem and none behind the
    learned shortcuts, since the stream has norms only where the placement puts them; the first norm of a stage has
    the channels of the stage before; and there is a final norm. Every other weight has its published shape.
    """

    branch: ClassVar[type[BasicBranch] | type[BottleneckBranch]] = BasicBranch

    def __init__(
        self,
        task: Task,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        width: int,
        stages: list[int],
        blocks: list[int],
        strides: list[int],
        norm_order: str,
    ) -> None:
        check_stages(stages, blocks=blocks, strides=strides)
        assert isinstance(task, ImageClassification)
        shapes, channels = [], width
        for factor, count, stride in zip(stages, blocks, strides, strict=True):
            for index in range(count):
                out = width * factor * self.branch.expansion
                shapes.append(Shape((channels, out), stride if index == 0 else 1))
                channels = out
        super().__init__(
            task, norm, placement, stem=make_stem(task.image_shape, width), shapes=shapes, norm_order=norm_order
        )


class BottleneckResNet(ResNet):
    """The same with three convolutions a block (50 layers and more); a stage has four times the channels outside."""

    branch = BottleneckBranch


def make_stem(image_shape: tuple[int, int, int], width: int) -> nn.Module:
    """What stands before the first block."""
    channels, *sides = image_shape
    if max(sides) <= LARGEST_SMALL:
        return nn.Conv2d(channels, width, 3, padding=1, bias=False)
    return nn.Sequential(
        nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False), nn.MaxPool2d(3, stride=2, padding=1)
    )
