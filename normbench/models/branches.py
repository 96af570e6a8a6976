"""What residual blocks compute: attention, MLPs, convolutions, linear layers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.types import Branch, NormFactory, Site

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


def make_activation(name: str) -> nn.Module:
    """The activation of this name.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in ACTIVATIONS:
        raise UsageError(f"model.activation={name} is unknown: use one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()


def make_dropout(p: float) -> nn.Module:
    """Dropout, or nothing at all at p = 0, where torch's module would still cost a kernel."""
    return nn.Dropout(p) if p else nn.Identity()


class FusedLinear(nn.Linear):
    """Several linear maps of one input in one matrix; initialisation treats each of the `parts` by itself."""

    def __init__(self, in_features: int, out_features: int, parts: int, bias: bool = False) -> None:
        super().__init__(in_features, parts * out_features, bias=bias)
        self.parts = parts

    def part(self, index: int) -> Tensor:
        """The weight of one of the maps (a view)."""
        return self.weight.chunk(self.parts)[index]


def rotate(
    x: Float[Tensor, "batch heads time size"], rotation: Float[Tensor, "2 time half"]
) -> Float[Tensor, "batch heads time size"]:
    """Rotary position embedding by cosines and sines, halves as pairs (Su et al. 2021, eq. 34; GPT-NeoX's layout)."""
    cos, sin = rotation
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(Branch):
    """Multi-head self-attention (Vaswani et al. 2017, §3.2): (batch, time, width) to the same shape.

    `rotation` (2, time, width / heads / 2), if given, rotates queries and keys; `mask` (batch, 1, 1, time) is
    False where nobody may look.
    """

    def __init__(self, width: int, heads: int, *, causal: bool, bias: bool, dropout: float) -> None:
        super().__init__()
        self.in_features = self.out_features = width
        self.heads, self.causal, self.dropout_p = heads, causal, dropout
        self.qkv = FusedLinear(width, width, parts=3, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.dropout = make_dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch time width"], rotation: Tensor | None = None, mask: Tensor | None = None
    ) -> Float[Tensor, "batch time width"]:
        q, k, v = self.queries_keys_values(x, rotation)
        dropout_p = self.dropout_p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal, dropout_p=dropout_p)
        return self.dropout(self.out(y.transpose(1, 2).reshape(x.shape)))

    def queries_keys_values(
        self, x: Float[Tensor, "batch time width"], rotation: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, heads, time, size) each: queries, keys and values; the first two rotated where asked for."""
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return (q, k, v) if rotation is None else (rotate(q, rotation), rotate(k, rotation), v)

    def attention_logits(
        self, x: Float[Tensor, "batch time width"], rotation: Tensor | None = None, mask: Tensor | None = None
    ) -> Float[Tensor, "batch heads time time"]:
        """q·k/√size of each query and key, −∞ where a query may not look; for who wants to see what attention does."""
        q, k, _ = self.queries_keys_values(x, rotation)
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.causal:
            seen = torch.ones(logits.shape[-2:], dtype=torch.bool, device=x.device).tril()
            mask = seen if mask is None else mask & seen
        return logits if mask is None else logits.masked_fill(~mask, -math.inf)

    def scaled_weights(self) -> Iterator[Tensor]:
        yield self.qkv.part(2)
        yield self.out.weight

    def output_weights(self) -> Iterator[Tensor]:
        yield self.out.weight


class MLP(Branch):
    """Two linear maps with an activation between (Vaswani et al. 2017, §3.3), four times as wide inside."""

    def __init__(self, width: int, *, activation: str, bias: bool, dropout: float) -> None:
        super().__init__()
        self.in_features = self.out_features = width
        self.fc1 = nn.Linear(width, 4 * width, bias=bias)
        self.activation = make_activation(activation)
        self.fc2 = nn.Linear(4 * width, width, bias=bias)
        self.dropout = make_dropout(dropout)

    def forward(self, x: Float[Tensor, "batch time width"], **_: Tensor | None) -> Float[Tensor, "batch time width"]:
        return self.dropout(self.fc2(self.activation(self.fc1(x))))

    def scaled_weights(self) -> Iterator[Tensor]:
        yield self.fc1.weight
        yield self.fc2.weight

    def output_weights(self) -> Iterator[Tensor]:
        yield self.fc2.weight


class SwiGLU(Branch):
    """fc2(silu(gate(x)) · up(x)) (Shazeer 2020, equation 6), 8/3 as wide inside, in multiples of 8."""

    def __init__(self, width: int, *, bias: bool, dropout: float) -> None:
        super().__init__()
        self.in_features = self.out_features = width
        hidden = 8 * -(-width // 3)
        self.fc1 = FusedLinear(width, hidden, parts=2, bias=bias)
        self.fc2 = nn.Linear(hidden, width, bias=bias)
        self.dropout = make_dropout(dropout)

    def forward(self, x: Float[Tensor, "batch time width"], **_: Tensor | None) -> Float[Tensor, "batch time width"]:
        gate, up = self.fc1(x).chunk(2, dim=-1)
        return self.dropout(self.fc2(F.silu(gate) * up))

    def scaled_weights(self) -> Iterator[Tensor]:
        yield self.fc1.weight
        yield self.fc2.weight

    def output_weights(self) -> Iterator[Tensor]:
        yield self.fc2.weight


def ordered(norm: nn.Module, activation: nn.Module, order: str) -> nn.Sequential:
    """A norm `before` or `after` the activation.

    Raises:
        UsageError: the order is neither.
    """
    if order not in ("before", "after"):
        raise UsageError(f"model.norm_order={order} is unknown: use before or after (the activation)")
    return nn.Sequential(norm, activation) if order == "before" else nn.Sequential(activation, norm)


class ConvBranch(Branch):
    """activation, 3 × 3 convolution, norm and activation, 3 × 3 convolution: a ResNet v2 branch less its first norm.

    That norm, or the one behind the branch, is the placement's. (batch, in, height, width) to
    (batch, out, height / stride, width / stride); He et al. 2016b, figure 4e.
    """

    channel_dim = 1

    def __init__(
        self, channels: tuple[int, int], stride: int, norm: NormFactory, site: Site, *, norm_order: str
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = channels
        self.stride = stride
        self.activation = nn.ReLU()
        self.conv1 = nn.Conv2d(*channels, 3, stride=stride, padding=1, bias=False)
        inner = norm(self.out_features, channel_dim=1, site=site.at("conv", "inner"))
        self.between = ordered(inner, nn.ReLU(), norm_order)
        self.conv2 = nn.Conv2d(self.out_features, self.out_features, 3, padding=1, bias=False)

    def forward(
        self, x: Float[Tensor, "batch in height width"], **_: Tensor | None
    ) -> Float[Tensor, "batch out height2 width2"]:
        return self.conv2(self.between(self.conv1(self.activation(x))))

    def shortcut(self, x: Float[Tensor, "batch in height width"]) -> Float[Tensor, "batch out height2 width2"]:
        """Parameter-free: every `stride`-th pixel, new channels zero (He et al. 2016a, option A)."""
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        new = self.out_features - self.in_features
        return F.pad(x, (0, 0, 0, 0, 0, new)) if new else x

    def scaled_weights(self) -> Iterator[Tensor]:
        yield self.conv1.weight
        yield self.conv2.weight

    def output_weights(self) -> Iterator[Tensor]:
        yield self.conv2.weight


class PlainConvBranch(Branch):
    """3 × 3 convolution, norm and activation, without a skip."""

    channel_dim = 1

    def __init__(
        self, channels: tuple[int, int], stride: int, norm: NormFactory, site: Site, *, norm_order: str
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = channels
        self.conv1 = nn.Conv2d(*channels, 3, stride=stride, padding=1, bias=False)
        self.after = ordered(norm(self.out_features, channel_dim=1, site=site.at("conv")), nn.ReLU(), norm_order)

    def forward(
        self, x: Float[Tensor, "batch in height width"], **_: Tensor | None
    ) -> Float[Tensor, "batch out height2 width2"]:
        return self.after(self.conv1(x))


class LinearBranch(Branch):
    """activation, linear, norm and activation, linear: the fully connected twin of ConvBranch."""

    def __init__(
        self, features: tuple[int, int], norm: NormFactory, site: Site, *, activation: str, norm_order: str
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = features
        self.activation = make_activation(activation)
        self.fc1 = nn.Linear(*features)
        self.between = ordered(
            norm(self.out_features, site=site.at("linear", "inner")), make_activation(activation), norm_order
        )
        self.fc2 = nn.Linear(self.out_features, self.out_features)

    def forward(self, x: Float[Tensor, "batch in"], **_: Tensor | None) -> Float[Tensor, "batch out"]:
        return self.fc2(self.between(self.fc1(self.activation(x))))

    def scaled_weights(self) -> Iterator[Tensor]:
        yield self.fc1.weight
        yield self.fc2.weight

    def output_weights(self) -> Iterator[Tensor]:
        yield self.fc2.weight


class PlainLinearBranch(Branch):
    """Linear, norm and activation, without a skip (Ioffe & Szegedy 2015, §4.1)."""

    def __init__(
        self, features: tuple[int, int], norm: NormFactory, site: Site, *, activation: str, norm_order: str
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = features
        self.fc1 = nn.Linear(*features)
        self.after = ordered(norm(self.out_features, site=site.at("linear")), make_activation(activation), norm_order)

    def forward(self, x: Float[Tensor, "batch in"], **_: Tensor | None) -> Float[Tensor, "batch out"]:
        return self.after(self.fc1(x))
