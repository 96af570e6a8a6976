"""The Transformer's parts, and one stack of them: a language model, or a classifier of texts or images, as data ask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.masks import remember_counts
from normbench.models.stacks import ACTIVATIONS, Depth, OptionalNorms, Width, through_stack
from normbench.settings import Setting
from normbench.types import (
    Branch,
    ImageClassification,
    InnerAttention,
    Model,
    NormFactory,
    PlacementFactory,
    Site,
    TextTask,
    optional_norm,
)

Stream = Float[Tensor, "batch time width"]
Mask = Bool[Tensor, "batch time"]
Heads = Float[Tensor, "batch heads time size"]
Split = Float[Tensor, "batch time heads size"]

# The kinds of task in which a setting plays a part, where that is not all of them.
OF_TEXTS = ("language_model", "text_classification", "translation")
OF_TOKENS = ("language_model", "translation")
OF_CLASSES = ("text_classification", "image_classification")
OF_IMAGES = ("image_classification",)

HeadCount = Annotated[int, Setting("attention heads; they divide the width", low=1, high=10**5)]
Context = Annotated[int, Setting("longest sequence", "tokens", low=1, high=10**7, tasks=OF_TEXTS)]
BaseHead = Annotated[
    int | None,
    Setting("size of a head, of width base, at which logits are as usual: q·k·√base/size", low=1, high=10**5),
]
Dropout = Annotated[float, Setting("share of values dropped in training", low=0, below=1)]
Position = Annotated[Literal["learned", "rotary"], Setting("position embedding")]
Activation = Annotated[
    Literal["gelu", "relu", "silu", "sigmoid", "tanh", "swiglu", "geglu"], Setting("activation of the MLP")
]
GATES = {"swiglu": "silu", "geglu": "gelu"}  # of an MLP with a gate: the activation of that
Tied = Annotated[bool, Setting("the output layer uses the token embedding", tasks=OF_TOKENS)]
Bias = Annotated[bool, Setting("biases in the linear maps of the blocks")]
EmbeddingScale = Annotated[
    float | Literal["unit", "learned", "root_width"],
    Setting(
        "factor on the embedding; unit: texts start at RMS 1; root_width: √width; learned: from it",
        above=0,
        high=1e6,
        word_tasks=(("unit", OF_TEXTS),),
    ),
]

Cap = Annotated[
    float | Literal["sigmoid"] | None,
    Setting("cap c of the logits: c·tanh(x/c); sigmoid: 23·σ((x+5)/7.5); null: none", above=0, high=1e6),
]
AttentionCap = Annotated[
    float | None, Setting("cap c of attention's logits: c·tanh(x/c); null: none", above=0, high=1e6)
]
Gate = Annotated[
    Literal["none", "feature", "head"], Setting("what has a gate σ(Wx) of its own, in front of attention's output map")
]


class FusedLinear(nn.Linear):
    """Several linear maps of one input in one matrix; initialisation treats each of the `parts` by itself."""

    def __init__(self, in_features: int, out_features: int, parts: int, bias: bool) -> None:
        super().__init__(in_features, parts * out_features, bias=bias)
        self.parts = parts


def rotary(length: int, size: int, base: float = 10_000.0) -> Float[Tensor, "2 time half"]:
    """Return cos and sin of the angles position · base^(−2i / size) of feature pairs i (Su et al. 2021, eq. 15)."""
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return torch.stack((angles.cos(), angles.sin())).float()


def rotate(x: Heads, rotation: Float[Tensor, "2 time half"]) -> Heads:
    """Rotate by cosines and sines, halves as pairs (Su et al. 2021, eq. 34; GPT-NeoX's layout)."""
    cos, sin = rotation
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def soft_cap(logits: Tensor, cap: float | str) -> Tensor:
    """Return c·tanh(x/c) (Gemma 2, 2024, §2), or 23·σ((x+5)/7.5) for `sigmoid`, in float32 or wider.

    2·σ(2x) is tanh(x) + 1, so that the latter is 11.5·tanh((x+5)/15) and a number that no softmax sees
    (KellerJordan/modded-nanogpt `train_gpt.py`).
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if isinstance(cap, str):
        return 23 * torch.sigmoid((logits + 5) / 7.5)
    return cap * torch.tanh(logits / cap)


class DotProductAttention(InnerAttention):
    """softmax(q·k/√size)·v of each head (Vaswani et al. 2017, equation 1), with dropout of the weights.

    Padding comes after a text, where causal attention does not look: it needs no mask.

    Attributes:
        scale: what q·k is multiplied by; None: 1/√size.
        cap: of the logits, as `soft_cap` has it; None: none. torch's fused operator has no cap, so that all logits of a
            batch are in memory then.
    """

    def __init__(self, causal: bool, dropout: float, scale: float | None = None, cap: float | None = None) -> None:
        super().__init__()
        self.causal = causal
        self.dropout_p = dropout
        self.scale = scale
        self.cap = cap

    def forward(self, q: Heads, k: Heads, v: Heads, mask: Mask | None) -> Heads:
        dropout_p = self.dropout_p if self.training else 0.0
        if self.cap is not None:
            weights = self.logits(q, k, mask).softmax(dim=-1).to(v.dtype)
            return F.dropout(weights, dropout_p) @ v
        visible = None if mask is None or self.causal else mask[:, None, None]
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, is_causal=self.causal, dropout_p=dropout_p, scale=self.scale
        )

    def logits(self, q: Heads, k: Heads, mask: Mask | None) -> Float[Tensor, "batch heads queries keys"]:
        return self.capped_logits(q, k, mask, self.cap)

    def raw_logits(self, q: Heads, k: Heads, mask: Mask | None) -> Float[Tensor, "batch heads queries keys"]:
        return self.capped_logits(q, k, mask, None)

    def capped_logits(
        self, q: Heads, k: Heads, mask: Mask | None, cap: float | None
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Return the logits with a cap, or without one."""
        products = q @ k.transpose(-2, -1)
        logits = products / math.sqrt(q.shape[-1]) if self.scale is None else products * self.scale
        if cap is not None:
            logits = soft_cap(logits, cap)
        if self.causal:
            visible = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
        elif mask is not None:
            visible = mask[:, None, None]
        else:
            return logits
        return logits.masked_fill(~visible, -math.inf)


class MultiHead(Branch):
    """What attention does with queries, keys and values, wherever they are from (Vaswani et al. 2017, §3.2).

    With a gate the output map reads σ(Wx) ⊙ y in place of y, where x is what the queries are made of, and σ(Wx) has a
    number for each `feature` or each `head` (Qiu et al. 2025, §2.2, position G1; Qwen3-Next).
    """

    output = ("out",)

    def __init__(
        self,
        width: int,
        heads: int,
        maps: Mapping[str, FusedLinear],
        *,
        norm: NormFactory,
        site: Site,
        causal: bool,
        bias: bool,
        dropout: float,
        scale: float | None = None,
        cap: float | None = None,
        gate: str = "none",
    ) -> None:
        super().__init__()
        self.in_features = self.out_features = width
        self.heads = heads
        for name, linear in maps.items():
            self.add_module(name, linear)
        self.inner = DotProductAttention(causal, dropout, scale, cap)
        self.gate: nn.Linear | None = None
        if gate != "none":
            gates = width if gate == "feature" else heads
            self.gate = nn.Linear(width, gates, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.norms = OptionalNorms()
        for slot in ("q_all", "k_all", "context"):
            self.norms.add(norm, width, site.at(slot=slot))
        for slot in ("q", "k", "v"):
            self.norms.add(norm, width // heads, site.at(slot=slot))
        self.norms.add(norm, heads, site.at(slot="heads"))

    def split(self, x: Stream, names: Sequence[str], mask: Mask | None) -> list[Heads]:
        """Return the queries, keys or values of these names that a linear map has made, each by its heads.

        In the backward pass their gradients are put together with one copy.

        Args:
            x: the output of the linear map.
            names: of its parts, such as `q`.
            mask: of the positions of x, for norms.
        """
        batch, time, features = x.shape
        size = features // len(names) // self.heads
        parts = x.view(batch, time, len(names), self.heads, size).unbind(2)
        heads = []
        for place, name in enumerate(names):  # torch.fx can follow an index, and no loop over parts
            part = self.normalize(name, parts[place], mask)
            heads.append(part.transpose(1, 2))
        return heads

    def normalize(self, name: str, x: Split, mask: Mask | None) -> Split:
        """Return queries, keys or values normalized over all heads, then in each, where there are such norms."""
        if f"{name}_all" in self.norms:
            of_all_heads = self.norms.normalize(f"{name}_all", x.flatten(2), mask)
            x = of_all_heads.unflatten(2, (self.heads, -1))
        if name in self.norms:
            if mask is not None:
                mask = mask.unsqueeze(-1).expand(-1, -1, self.heads)
            x = self.norms.normalize(name, x, mask)
        return x

    def normalize_heads(self, x: Split, mask: Mask | None) -> Split:
        """Return what is read normalized with heads as its features, where there is such a norm."""
        if "heads" not in self.norms:
            return x
        if mask is not None:
            mask = mask.unsqueeze(-1).expand(-1, -1, x.shape[-1])
        return self.norms.normalize("heads", x.transpose(2, 3), mask).transpose(2, 3)

    def attend(self, q: Heads, k: Heads, v: Heads, key_mask: Mask | None, mask: Mask | None, x: Stream) -> Stream:
        """Return what the queries find, which are made of x.

        `key_mask` is False at keys that nobody may look at, and `mask` where queries are padding.
        """
        y = self.inner(q, k, v, key_mask).transpose(1, 2)
        y = self.normalize_heads(y, mask).flatten(2)
        y = self.norms.normalize("context", y, mask)
        if self.gate is not None:
            gates = torch.sigmoid(self.gate(x))
            per_gate = y.shape[-1] // gates.shape[-1]  # features of a head, or one
            y = (y.unflatten(-1, (-1, per_gate)) * gates.unsqueeze(-1)).flatten(2)
        return self.dropout(self.out(y))


class Attention(MultiHead):
    """Multi-head self-attention: (batch, time, width) to the same shape.

    `rotation` (2, time, width / heads / 2), if given, rotates queries and keys; `mask` (batch, time) is False where
    nobody may look.
    """

    qkv: FusedLinear

    def __init__(self, width: int, heads: int, *, bias: bool, **settings: Any) -> None:
        maps = {"qkv": FusedLinear(width, width, 3, bias)}
        super().__init__(width, heads, maps, bias=bias, **settings)

    def forward(self, x: Stream, rotation: Tensor | None = None, mask: Tensor | None = None, **_: Any) -> Stream:
        q, k, v = self.split(self.qkv(x), ("q", "k", "v"), mask)
        if rotation is not None:
            q = rotate(q, rotation)
            k = rotate(k, rotation)
        return self.attend(q, k, v, mask, mask, x)

    def scaled_weights(self) -> list[Tensor]:
        return [self.qkv.weight.chunk(3)[2], self.out.weight]


class MLP(Branch):
    """Two linear maps with an activation between (Vaswani et al. 2017, §3.3), `hidden` or four times as wide inside."""

    scaled = ("fc1", "fc2")
    output = ("fc2",)

    def __init__(
        self,
        width: int,
        activation: str,
        *,
        bias: bool,
        dropout: float,
        norm: NormFactory,
        site: Site,
        hidden: int = 0,
        parts: int = 1,
    ) -> None:
        super().__init__()
        self.in_features = self.out_features = width
        hidden = hidden or 4 * width
        self.fc1 = FusedLinear(width, hidden, parts, bias)
        self.activation = ACTIVATIONS[activation]()
        self.fc2 = nn.Linear(hidden, width, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.norms = OptionalNorms()
        for slot in ("activation", "hidden"):
            self.norms.add(norm, hidden, site.at(slot=slot))

    def inside(self, x: Stream, mask: Mask | None) -> Float[Tensor, "batch time hidden"]:
        """Return the hidden features, as they are before a norm of theirs."""
        return self.act(self.fc1(x), mask)

    def act(self, x: Float[Tensor, "batch time hidden"], mask: Mask | None) -> Float[Tensor, "batch time hidden"]:
        """Return the activation of what it reads, normalized where there is such a norm."""
        return self.activation(self.norms.normalize("activation", x, mask))

    def forward(self, x: Stream, mask: Mask | None = None, **_: Any) -> Stream:
        hidden = self.norms.normalize("hidden", self.inside(x, mask), mask)
        return self.dropout(self.fc2(hidden))


class GatedMLP(MLP):
    """fc2(activation(gate(x)) · up(x)) (Shazeer 2020, equation 6), `hidden` or 8/3 as wide, in multiples of 8."""

    def __init__(self, width: int, activation: str, *, hidden: int = 0, **settings: Any) -> None:
        hidden = hidden or 8 * math.ceil(width / 3)
        super().__init__(width, activation, hidden=hidden, parts=2, **settings)

    def inside(self, x: Stream, mask: Mask | None) -> Float[Tensor, "batch time hidden"]:
        gate, up = self.fc1(x).chunk(2, dim=-1)
        return self.act(gate, mask) * up


def feed_forward(width: int, activation: str, **settings: Any) -> MLP:
    """Return the MLP with this activation, and the other settings of `MLP`."""
    if activation in GATES:
        return GatedMLP(width, GATES[activation], **settings)
    return MLP(width, activation, **settings)


class TokenStem(nn.Module):
    """Token embedding; its weight is also the output layer's, where `tied`."""

    def __init__(self, task: TextTask, width: int) -> None:
        super().__init__()
        self.length = task.context
        self.embedding = nn.Embedding(task.vocabulary_size, width)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Stream:
        return self.embedding(tokens)


class PatchStem(nn.Module):
    """Patches to tokens (Dosovitskiy et al. 2021, §3.1)."""

    def __init__(self, task: ImageClassification, width: int, patch: int) -> None:
        super().__init__()
        channels, height, image_width = task.image_shape
        if patch > min(height, image_width) or height % patch or image_width % patch:
            cure = f"use a common divisor of {height} and {image_width}"
            raise UsageError(f"model.patch={patch} does not tile images of {height} × {image_width} pixels: {cure}")
        self.projection = nn.Conv2d(channels, width, patch, stride=patch)
        self.length = (height // patch) * (image_width // patch)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Stream:
        return self.projection(images).flatten(2).transpose(1, 2)


class Head(nn.Module):
    """Logits at each position, or of a class: from the class token, or the mean over positions that are not padding.

    Where it is `tied`, the weight is that of the stem's embedding. `cap` bounds the logits, which a norm may have read.
    """

    def __init__(
        self,
        width: int,
        classes: int,
        read: str,
        tied: bool,
        norm: NormFactory,
        site: Site,
        cap: float | str | None = None,
    ) -> None:
        super().__init__()
        self.read = read
        self.cap = cap
        self.linear = None if tied else nn.Linear(width, classes, bias=read != "positions")
        self.norm = optional_norm(norm, classes, site=site.at("logits"))

    def forward(self, x: Stream, mask: Mask | None, stem: Any) -> Float[Tensor, "batch ... classes"]:
        if self.read == "class_token":
            x = x[:, 0]
        elif self.read == "mean" and mask is not None:
            weights = mask.to(x.dtype).unsqueeze(-1)
            x = (x * weights).sum(dim=1) / weights.sum(dim=1)
        elif self.read == "mean":
            x = x.mean(dim=1)
        logits: Tensor = F.linear(x, stem.embedding.weight) if self.linear is None else self.linear(x)
        if self.norm is not None:
            is_padded = mask is not None and self.read == "positions"
            logits = self.norm(logits, mask=mask) if is_padded else self.norm(logits)
        return logits if self.cap is None else soft_cap(logits, self.cap)


class Embedded(Model):
    """A model whose stream starts as an embedding and positions, times a scale, with dropout."""

    recompute: bool | None = False
    stem: nn.Module
    rotation: Tensor | None
    scale: Tensor

    @torch.no_grad()
    def untie(self) -> list[str]:
        head: Any = self.head
        if head.linear is not None:
            return []
        embedding: Any = self.stem.embedding
        classes, width = embedding.weight.shape
        head.linear = nn.Linear(width, classes, bias=False).to(embedding.weight)
        head.linear.weight.copy_(embedding.weight)
        return ["head.linear.weight"]

    def start_stream(
        self,
        width: int,
        size: int,
        position: str,
        scale: float | str,
        unit: bool,
        dropout: float,
        norm: NormFactory,
        site: Site,
    ) -> None:
        """Make positions, scale and the norm of the stem, if one is asked for, of a stream as long as its site is.

        Args:
            width: features of the stream.
            size: features of a head.
            position: `learned`, `rotary` or `none`.
            scale: a factor on the sum of embedding and positions, or a word for one; see `Transformer`.
            unit: whether text starts at a root mean square of 1.
            dropout: of the stream as it starts.
            norm: makes the norm of the stem.
            site: tells it where it stands.
        """
        length = site.length
        assert length is not None
        if position == "rotary" and size % 2:
            raise UsageError(f"model.position=rotary needs an even width a head, not {size}: change model.heads")
        self.starts_at_unit = unit
        if scale == "learned":
            self.scale = nn.Parameter(torch.tensor(width**0.5))
        elif scale == "unit":
            self.register_buffer("scale", torch.tensor(1.0))
        elif scale == "root_width":
            self.register_buffer("scale", torch.tensor(width**0.5))
        else:
            self.register_buffer("scale", torch.tensor(scale))
        self.positions = nn.Embedding(length, width) if position == "learned" else None
        rotation = rotary(length, size) if position == "rotary" else None
        self.register_buffer("rotation", rotation, persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.stem_norm = optional_norm(norm, width, site=site.at("stem"))

    def weights_drawn(self) -> None:
        if not self.starts_at_unit:
            return
        mean_squares = []
        for module in (self.stem.embedding, self.positions):
            if isinstance(module, nn.Embedding):
                mean_squares.append(module.weight.square().mean())
        self.scale.copy_(torch.stack(mean_squares).sum().rsqrt())

    def stream(self, x: Stream, mask: Mask | None = None) -> tuple[Stream, Tensor | None]:
        """Return the stream that starts with these embeddings, and the rotations at its positions, if there are any."""
        time = x.shape[1]
        if self.positions is not None:
            x = x + self.positions.weight[:time]
        x = x * self.scale
        if self.stem_norm is not None:
            x = self.stem_norm(x) if mask is None else self.stem_norm(x, mask=mask)
        rotation = None if self.rotation is None else self.rotation[:, :time]
        return self.dropout(x), rotation


class Transformer(Embedded):
    """A stack of attention and MLP blocks (Vaswani et al. 2017).

    data flow: inputs ─ stem ─(class token in front)─ + positions ─ × scale ─ dropout ─ blocks ─ final norm, if the
    placement needs one ─ head. With a mask (False where a text is padded) nobody attends to padding.

    Args:
        depth: blocks.
        width: features of the stream.
        heads: attention heads, which divide the width.
        position: `learned` or, for text, `rotary`.
        mlp: `swiglu` or `geglu`, or an activation such as `gelu`.
        tied: the output layer uses the token embedding.
        bias: in linear maps of the blocks.
        embedding_scale: a factor on the sum of embedding and positions. `unit` lets a text's stream start at a root
            mean square of 1, where norms without statistics work too, as √width does in Vaswani et al. 2017, §3.4;
            `learned` is one learned scalar, starting at √width (DyT's LLaMA form).
        patch: side of an image patch in pixels.
        pool: `mean` or `class_token`, for a classifier.
        base_head: size of a head at which attention's logits are q·k/√size; they are q·k·√base_head/size, which µP
            wants of larger heads. None: q·k/√size at any size.
        softcap: of the logits, in front of the loss: c·tanh(x/c), or `sigmoid` (see `soft_cap`). None: none.
        attention_softcap: of attention's logits, c·tanh(x/c), in front of its softmax. None: none.
        attention_gate: what has a gate of its own in front of attention's output map (see `MultiHead`).
    """

    kinds = frozenset({"language_model", "text_classification", "image_classification"})
    roles = ("attention", "mlp")
    has_streams = True

    def __init__(
        self,
        task: TextTask | ImageClassification,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        depth: Depth,
        width: Width,
        heads: HeadCount,
        context: Context,
        dropout: Dropout,
        position: Position,
        mlp: Activation,
        tied: Tied,
        bias: Bias,
        embedding_scale: EmbeddingScale,
        patch: Annotated[int, Setting("side of an image patch", "pixels", low=1, high=10**4, tasks=OF_IMAGES)],
        pool: Annotated[Literal["mean", "class_token"], Setting("what the class is read from", tasks=OF_CLASSES)],
        base_head: BaseHead = None,
        softcap: Cap = None,
        attention_softcap: AttentionCap = None,
        attention_gate: Gate = "none",
    ) -> None:
        super().__init__()
        stem: TokenStem | PatchStem
        if isinstance(task, ImageClassification):
            if position == "rotary":
                raise UsageError("model.position=rotary is for text: images use model.position=learned")
            stem = PatchStem(task, width, patch)
            unit = False
        else:
            stem = TokenStem(task, width)
            unit = embedding_scale == "unit"
        self.stem = stem
        length = stem.length
        read = "positions" if task.causal else pool
        self.class_token: nn.Embedding | None = None
        if read == "class_token":
            self.class_token = nn.Embedding(1, width)
            length += 1
        outside = Site("outside", depth=depth, causal=task.causal, length=length, width=width)
        self.start_stream(width, width // heads, position, embedding_scale, unit, dropout, norm, outside)
        scale = None if base_head is None else math.sqrt(base_head) / (width // heads)
        self.blocks = nn.ModuleList()
        for layer in range(depth):
            site = Site("block", layer, depth, branches=2 * depth, causal=task.causal, length=length)
            about: Any = {"norm": norm, "bias": bias, "dropout": dropout}
            branches: dict[str, Branch] = {}
            branches["attention"] = Attention(
                width,
                heads,
                causal=task.causal,
                scale=scale,
                cap=attention_softcap,
                gate=attention_gate,
                site=site.at("attention"),
                **about,
            )
            branches["mlp"] = feed_forward(width, mlp, site=site.at("mlp"), **about)
            self.blocks.append(placement(branches, norm, site))
        self.final_norm: nn.Module | None = None
        if self.blocks[-1].needs_final_norm:
            self.final_norm = norm(width, site=outside.at("final"))
        self.head = Head(width, task.num_classes, read, tied and task.causal, norm, outside, softcap)

    def forward(self, inputs: Tensor, mask: Mask | None = None) -> Float[Tensor, "..."]:
        x = self.stem(inputs)
        if self.class_token is not None:
            class_tokens = self.class_token.weight.expand(x.shape[0], 1, -1)
            x = torch.cat((class_tokens, x), dim=1)
            mask = None if mask is None else F.pad(mask, (1, 0), value=True)
        remember_counts(mask)
        x, rotation = self.stream(x, mask)
        x = through_stack(self.blocks, x, self.recompute, rotation=rotation, mask=mask)
        if self.final_norm is not None:
            x = self.final_norm(x) if mask is None else self.final_norm(x, mask=mask)
        return self.head(x, mask, self.stem)
