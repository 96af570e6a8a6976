"""Convolutional networks: small residual ones, the ResNets of ImageNet, VGG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.models.stacks import BlockStack, Depth, NormActivation, NormOrder, Width
from normbench.settings import Setting, either
from normbench.types import Branch, ImageClassification

Stages = Annotated[list[int], Setting("channels of each stage, in multiples of the width", low=1, high=10**4)]
Strides = Annotated[list[int], Setting("by how much each stage shrinks height and width", low=1, high=100)]

Image = Float[Tensor, "batch channels height width"]
Channels = tuple[int, int]  # in, out
ActivationAt = Annotated[
    Literal["branch", "sum"],
    Setting("activation between blocks: before the branch, as ResNet v2, or after the sum, as v1"),
]
Layout = Annotated[
    Literal["auto", "channels_last", "contiguous"], Setting("how images and weights lie in memory; auto: by device")
]
FORMATS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}

# What `model.layout=auto` is, by device: `scripts/gpu_check layouts` measures both on a GPU. On a CPU (Intel, AVX-512,
# float32, one thread, images of 32 pixels) a step takes with `contiguous` 0.98 to 1.23 times as long (`cnn` and
# `resnet20`; BatchNorm, LayerNorm, GroupNorm).
LAYOUTS = {"cpu": "channels_last", "cuda": "channels_last"}
OTHERWISE = "channels_last"

LARGEST_SMALL = 64  # pixels; larger images are shrunk to a quarter before the first block


def every_nth_pixel(x: Image, n: int) -> Image:
    """Return every `n`-th pixel of each row and column, the first one included."""
    return x[:, :, ::n, ::n] if n > 1 else x


FEW_CHANNELS = 16  # with fewer, a 1 × 1 convolution with a stride is not safe on the CPU


def unsafe_convolutions(model: nn.Module) -> str:
    """Return a sentence on the 1 × 1 convolutions with a stride and few input channels; empty if there are none.

    oneDNN writes past its workspace in their backward pass if images are channels last in memory (uxlfoundation/oneDNN
    issue 6035): below 8 input channels on CPUs without AVX-512, below 16 with it. The gradient is wrong then, or the
    process dies. A slice and a convolution with stride 1 compute the same, safely.
    """
    unsafe = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Conv2d):
            continue
        strided = module.kernel_size == (1, 1) and max(module.stride) > 1
        if strided and module.in_channels // module.groups < FEW_CHANNELS:
            unsafe.append(name)
    if not unsafe:
        return ""
    what = f"a 1 × 1 convolution with a stride and fewer than {FEW_CHANNELS} input channels"
    cure = "convolve x[:, :, ::stride, ::stride] with stride 1"
    return f"{', '.join(unsafe)}: {what}, whose gradients can be wrong on a CPU; {cure} instead"


class ActivatedBranch(Branch):
    """A branch that begins with an activation, through which the skip may pass too, as in a ResNet v1.

    There the activation stands after the sum: the stream here is that sum, and its next readers are branch and skip.
    """

    activation: nn.Module
    activates_skip = False

    def skipped(self, x: Image) -> Image:
        """Return what the skip has of the stream."""
        return F.relu(x) if self.activates_skip else x


class ConvBranch(ActivatedBranch):
    """activation, 3 × 3 convolution, norm and activation, 3 × 3 convolution: a ResNet v2 branch less its first norm.

    That norm, or the one after the branch, is the placement's. (batch, in, height, width) to
    (batch, out, height / stride, width / stride); He et al. 2016b, figure 4e.
    """

    channel_dim = 1
    scaled = ("conv1", "conv2")
    output = ("conv2",)

    def __init__(self, channels: Channels, stride: int, inside: NormActivation) -> None:
        super().__init__()
        self.in_features, self.out_features = channels
        self.stride = stride
        self.activation = nn.ReLU()
        self.conv1 = nn.Conv2d(*channels, 3, stride=stride, padding=1, bias=False)
        self.between = inside(self.out_features, "inner")
        self.conv2 = nn.Conv2d(self.out_features, self.out_features, 3, padding=1, bias=False)

    def forward(self, x: Image, **_: Tensor | None) -> Image:
        return self.conv2(self.between(self.conv1(self.activation(x))))

    def shortcut(self, x: Image) -> Image:
        """Return every `stride`-th pixel, with zeros in new channels: no parameters (He et al. 2016a, option A)."""
        x = every_nth_pixel(self.skipped(x), self.stride)
        new = self.out_features - self.in_features
        return F.pad(x, (0, 0, 0, 0, 0, new)) if new else x


class ProjectedShortcut(ActivatedBranch):
    """A branch whose shortcut learns where the shape changes, and is x itself elsewhere (He et al. 2016a, option B).

    A norm stands after what it learns, where one is asked for.
    """

    stride: int

    def make_shortcut(self, channels: Channels, stride: int, inside: NormActivation) -> None:
        """Make the shortcut from so many channels to so many, which reads every `stride`-th pixel."""
        self.stride = stride
        self.projection: nn.Module = nn.Identity()
        self.shortcut_norm: nn.Module | None = None
        if stride > 1 or channels[0] != channels[1]:
            self.projection = nn.Conv2d(*channels, 1, bias=False)
            self.shortcut_norm = inside.optional(channels[1], "shortcut")

    def shortcut(self, x: Image) -> Image:
        x = self.skipped(x)
        x = every_nth_pixel(x, self.stride)  # and not a stride of the convolution: see `unsafe_convolutions`
        x = self.projection(x)
        return x if self.shortcut_norm is None else self.shortcut_norm(x)


class BasicBranch(ProjectedShortcut, ConvBranch):
    """ConvBranch with a shortcut that learns where the shape changes."""

    def __init__(self, channels: Channels, stride: int, inside: NormActivation) -> None:
        super().__init__(channels, stride, inside)
        self.make_shortcut(channels, stride, inside)


class BottleneckBranch(ProjectedShortcut):
    """activation, 1 × 1 convolution to a quarter of the channels, 3 × 3 there, 1 × 1 back; norm and activation between.

    The first norm, or the one after the branch, is the placement's. (batch, in, height, width) to
    (batch, out, height / stride, width / stride); He et al. 2016a, figure 5, in the order of He et al. 2016b. The
    3 × 3 convolution has the stride (Goyal et al. 2017, §5.1).
    """

    channel_dim = 1
    scaled = ("conv1", "conv2", "conv3")
    output = ("conv3",)

    def __init__(self, channels: Channels, stride: int, inside: NormActivation) -> None:
        super().__init__()
        self.in_features, self.out_features = channels
        inner = self.out_features // 4
        self.activation = nn.ReLU()
        self.conv1 = nn.Conv2d(self.in_features, inner, 1, bias=False)
        self.between1 = inside(inner, "inner1")
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.between2 = inside(inner, "inner2")
        self.conv3 = nn.Conv2d(inner, self.out_features, 1, bias=False)
        self.make_shortcut(channels, stride, inside)

    def forward(self, x: Image, **_: Tensor | None) -> Image:
        x = self.between1(self.conv1(self.activation(x)))
        return self.conv3(self.between2(self.conv2(x)))


class PlainConvBranch(Branch):
    """3 × 3 convolution, norm and activation, without a skip."""

    channel_dim = 1

    def __init__(self, channels: Channels, stride: int, inside: NormActivation) -> None:
        super().__init__()
        self.in_features, self.out_features = channels
        self.conv1 = nn.Conv2d(*channels, 3, stride=stride, padding=1, bias=False)
        self.after = inside(self.out_features)

    def forward(self, x: Image, **_: Tensor | None) -> Image:
        return self.after(self.conv1(x))


class PooledConvBranch(PlainConvBranch):
    """3 × 3 convolution, norm and activation, and a max-pool where there is a stride; no skip.

    An odd height or width is rounded up, so that small images too have a pixel left at the end.
    """

    def __init__(self, channels: Channels, stride: int, inside: NormActivation) -> None:
        super().__init__(channels, 1, inside)
        self.pool = nn.MaxPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()

    def forward(self, x: Image, **_: Tensor | None) -> Image:
        return self.pool(super().forward(x))


class ConvStack(BlockStack):
    """A stem, stages of blocks, and a linear head on the mean over pixels.

    Without residuals there is no stem.

    Args:
        width: channels of the first stage.
        stages: each stage's channels in multiples of `width` × `expansion`.
        blocks: how many each stage has.
        strides: of each stage's first block, or, where it is `pooled`, of its last one.
        layout: how images and weights lie in memory, which changes the time of a step and its last digits.
        activation_at: where the activation between blocks stands: before the `branch`, or after the `sum`, so that the
            skip passes through it too, and the norm of the stem, where one is asked for, stands before its max-pool.
            It is meant for placements whose norms stand after the branch: one before it reads the sum as it is.

    Raises:
        UsageError: numbers that do not fit each other, or an activation after sums that are not there.
    """

    roles = ("conv",)
    channel_dim = 1
    pooled: ClassVar[bool] = False
    expansion: ClassVar[int] = 1

    def __init__(
        self,
        task: ImageClassification,
        *factories: Any,
        width: Width,
        stages: Stages,
        blocks: Annotated[list[int], Setting("blocks of each stage", low=1, high=1_000)],
        strides: Strides,
        norm_order: NormOrder,
        layout: Layout = "auto",
        activation_at: ActivationAt = "branch",
    ) -> None:
        if activation_at == "sum" and not self.residual:
            what = "model.activation_at=sum is for blocks with a skip, and this model has none"
            raise UsageError(f"{what}: leave it out, or use model=resnet18 or cnn")
        for name, numbers in (("blocks", blocks), ("strides", strides)):
            if len(numbers) != len(stages):
                raise UsageError(f"model.{name} has {len(numbers)} numbers for {len(stages)} stages: give as many")
        stem: nn.Module = nn.Identity()
        channels, *sides = task.image_shape
        if self.residual:
            stem, first = self.make_stem(channels, max(sides), width, strides[0])
            channels = width
            strides = [first, *strides[1:]]
        shapes = []
        for factor, count, stride in zip(stages, blocks, strides, strict=True):
            out = width * factor * self.expansion
            shrinks = count - 1 if self.pooled else 0  # the block that has the stride
            for index in range(count):
                own_stride = stride if index == shrinks else 1
                shapes.append(((channels, out), own_stride))
                channels = out
        super().__init__(stem, shapes, task, *factories, activation="relu", norm_order=norm_order)
        if activation_at == "sum":
            self.activate_sums()
        self.layout = layout
        self.lies = "contiguous"
        self.lay_out()

    def _apply(self, *given: Any, **how: Any) -> ConvStack:
        """Move or cast the weights as every module does; they then lie as is best where they have come."""
        super()._apply(*given, **how)
        self.lay_out()
        return self

    def lay_out(self) -> None:
        """Let the weights of convolutions lie in memory as their device wants them."""
        layout = self.layout_on(next(self.parameters()).device)
        if layout != self.lies:
            self.lies = layout
            self.to(memory_format=FORMATS[layout])  # type: ignore[call-overload]  # not in torch's stubs

    def activate_sums(self) -> None:
        """Let skips pass through the activation before each branch, and move the stem's norm before its max-pool."""
        for module in self.blocks.modules():
            if isinstance(module, ActivatedBranch):
                module.activates_skip = True
        if isinstance(self.stem, nn.Sequential) and self.stem_norm is not None:
            convolution, pool = self.stem
            self.stem = nn.Sequential(convolution, self.stem_norm, pool)
            self.stem_norm = None

    def layout_on(self, device: torch.device) -> str:
        """Return how images and weights lie in memory on a device."""
        if self.layout == "auto":
            return LAYOUTS.get(device.type, OTHERWISE)
        return self.layout

    def make_stem(self, channels: int, side: int, width: int, stride: int) -> tuple[nn.Module, int]:
        """Return the stem for images of this longest side, and the stride that it leaves to the first stage."""
        if side <= LARGEST_SMALL:
            return nn.Conv2d(channels, width, 3, padding=1, bias=False), stride
        convolution = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        return nn.Sequential(convolution, nn.MaxPool2d(3, stride=2, padding=1)), stride

    def forward(self, inputs: Image) -> Float[Tensor, "batch classes"]:
        if self.layout_on(inputs.device) == "channels_last":  # vmap does not accept memory_format
            inputs = inputs.movedim(1, -1).contiguous().movedim(-1, 1)
        return self.head(self.features(inputs).mean(dim=(2, 3)))


class ConvNet(ConvStack):
    """A residual CNN after He et al. 2016b: a 3 × 3 stem, stages of equal blocks, mean pool, linear head.

    Args:
        depth: residual blocks in all, the same number in each stage (ResNet-20: 9).
        width: channels of the first stage.
        stages: each stage's channels in multiples of `width`.
        strides: by how much each stage shrinks height and width, the first one in the stem.
    """

    branch: ClassVar[Callable[..., Branch]] = ConvBranch

    def __init__(
        self,
        *given: Any,
        depth: Depth,
        width: Width,
        stages: Stages,
        strides: Strides,
        norm_order: NormOrder,
        layout: Layout = "auto",
        activation_at: ActivationAt = "branch",
    ) -> None:
        if depth % len(stages):
            each = depth // len(stages)
            nearby = sorted({max(1, each) * len(stages), (each + 1) * len(stages)})
            cure = f"set model.depth to {either(map(str, nearby))}"
            raise UsageError(f"model.depth={depth} is not a multiple of the {len(stages)} stages of this model: {cure}")
        blocks = [depth // len(stages)] * len(stages)
        sizes: Any = {"width": width, "stages": stages, "blocks": blocks, "strides": strides}
        super().__init__(*given, **sizes, norm_order=norm_order, layout=layout, activation_at=activation_at)

    def make_stem(self, channels: int, side: int, width: int, stride: int) -> tuple[nn.Module, int]:
        return nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False), 1


class PlainConvNet(ConvNet):
    """The same without skips: each block is convolution, norm and activation; takes `placement=plain` only."""

    residual = False
    branch = PlainConvBranch


class ResNet(ConvStack):
    """A ResNet of two convolutions a block (He et al. 2016a, table 1, 18 and 34 layers) with v2's order inside.

    With `activation_at=sum` it has v1's order, ReLU after the sum of skip and branch; `scheme=resnet_v1` is v1 whole.
    Images of more than 64 pixels start with a 7 × 7 convolution of stride 2 and a 3 × 3 max-pool of stride 2, smaller
    ones with a 3 × 3 convolution.

    Beside the published networks (norm=batchnorm, placement=pre) it has no norm after the stem and none after the
    learned shortcuts, since the stream has norms only where the placement puts them; the first norm of a stage has
    the channels of the stage before; and there is a final norm. Every other weight has its published shape.

    Args:
        width: channels of the first stage.
        stages: each stage's channels in multiples of `width`.
        blocks: how many each stage has.
        strides: of each stage's first block.
    """

    branch: ClassVar[Callable[..., Branch]] = BasicBranch


class BottleneckResNet(ResNet):
    """The same with three convolutions a block (50 layers and more); a stage has four times the channels outside."""

    branch = BottleneckBranch
    expansion = 4


class VGG(ConvStack):
    """A VGG (Simonyan & Zisserman 2015, table 1) with one linear layer as head; takes `placement=plain` only.

    As everywhere here the convolutions have no bias: the norm has one.

    Args:
        width: channels of the first stage.
        stages: each stage's channels in multiples of `width`.
        blocks: convolutions of each stage.
        strides: of the max-pool after each stage.
    """

    residual = False
    pooled = True
    branch = PooledConvBranch
