"""VGG: convolutions with a max-pool behind each stage, without residuals."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from normbench.models.branches import PlainConvBranch
from normbench.models.cnn import ConvStack, Shape, check_stages
from normbench.types import ImageClassification, NormFactory, PlacementFactory, Site, Task


class PooledConvBranch(PlainConvBranch):
    """3 × 3 convolution, norm and activation, and a max-pool where there is a stride; no skip.

    An odd height or width is rounded up, so that small images too have a pixel left at the end.
    """

    def __init__(
        self, channels: tuple[int, int], stride: int, norm: NormFactory, site: Site, *, norm_order: str
    ) -> None:
        super().__init__(channels, 1, norm, site, norm_order=norm_order)
        self.pool = nn.MaxPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()

    def forward(
        self, x: Float[Tensor, "batch in height width"], **_: Tensor | None
    ) -> Float[Tensor, "batch out height2 width2"]:
        return self.pool(super().forward(x))


class VGG(ConvStack):
    """A VGG (Simonyan & Zisserman 2015, table 1) with one linear layer as head; takes `placement=plain` only.

    width: channels of the first stage. stages: each stage's channels in multiples of `width`. blocks: convolutions of
    each stage. strides: of the max-pool behind each stage. As everywhere here the convolutions have no bias: the norm
    has one.
    """

    residual = False
    branch = PooledConvBranch

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
        shapes, channels = [], task.image_shape[0]
        for factor, count, stride in zip(stages, blocks, strides, strict=True):
            for index in range(count):
                shapes.append(Shape((channels, width * factor), stride if index == count - 1 else 1))
                channels = width * factor
        super().__init__(task, norm, placement, stem=nn.Identity(), shapes=shapes, norm_order=norm_order)
