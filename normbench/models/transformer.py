"""One Transformer stack: a causal language model, or a classifier of texts or images, as the data asks."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.models.branches import MLP, Attention, SwiGLU, make_dropout
from normbench.types import (
    Branch,
    ImageClassification,
    LanguageModeling,
    Model,
    NormFactory,
    PlacementFactory,
    Site,
    Task,
    TextClassification,
)


class TokenStem(nn.Module):
    """Token embedding; its weight is also the output layer's, where `tied`."""

    def __init__(self, task: LanguageModeling | TextClassification, width: int) -> None:
        super().__init__()
        self.length = task.context
        self.embedding = nn.Embedding(task.vocabulary_size, width)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        return self.embedding(tokens)


class PatchStem(nn.Module):
    """Patches to tokens (Dosovitskiy et al. 2021, §3.1)."""

    def __init__(self, task: ImageClassification, width: int, patch: int) -> None:
        super().__init__()
        channels, height, image_width = task.image_shape
        if patch > min(height, image_width) or height % patch or image_width % patch:
            raise UsageError(
                f"model.patch={patch} does not tile images of {height} × {image_width} pixels: "
                f"use a common divisor of {height} and {image_width}"
            )
        self.projection = nn.Conv2d(channels, width, patch, stride=patch)
        self.length = (height // patch) * (image_width // patch)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch time features"]:
        return self.projection(images).flatten(2).transpose(1, 2)


class LanguageHead(nn.Module):
    """Logits over the vocabulary at each position."""

    def __init__(self, width: int, vocabulary: int, tied: nn.Embedding | None) -> None:
        super().__init__()
        self.linear = nn.Linear(width, vocabulary, bias=False) if tied is None else None
        self.tied = [tied] if tied is not None else []  # in a list, so that the embedding is not a part of the head too

    def forward(
        self, x: Float[Tensor, "batch time width"], mask: Tensor | None = None
    ) -> Float[Tensor, "batch time vocabulary"]:
        return F.linear(x, self.tied[0].weight) if self.linear is None else self.linear(x)


class ClassHead(nn.Module):
    """Logits over the classes, from the class token or from the mean over positions that are no padding."""

    def __init__(self, width: int, classes: int, class_token: bool) -> None:
        super().__init__()
        self.class_token = class_token
        self.linear = nn.Linear(width, classes)

    def forward(
        self, x: Float[Tensor, "batch time width"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        return self.linear(x[:, 0] if self.class_token else masked_mean(x, mask))


def masked_mean(
    x: Float[Tensor, "batch time width"], mask: Bool[Tensor, "batch time"] | None
) -> Float[Tensor, "batch width"]:
    """Mean over the positions where the mask is True, or over all."""
    if mask is None:
        return x.mean(dim=1)
    weights = mask.to(x.dtype).unsqueeze(-1)
    return (x * weights).sum(dim=1) / weights.sum(dim=1)


def rotary(length: int, size: int, base: float = 10_000.0) -> Float[Tensor, "2 time half"]:
    """Cosines and sines of the angles position · base^(−2i / size) of feature pairs i (Su et al. 2021, eq. 15)."""
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return torch.stack((angles.cos(), angles.sin())).float()


class Transformer(Model):
    """A stack of attention and MLP blocks (Vaswani et al. 2017).

    depth: blocks. width: features of the stream. heads: attention heads, which divide the width.
    position: `learned` or, for text, `rotary`. mlp: `swiglu`, or an activation such as `gelu`.
    tied: the output layer uses the token embedding. patch: side of an image patch in pixels.
    pool: `mean` or `class_token`, for a classifier. bias: in linear maps of the blocks.
    embedding_scale: one learned scalar, starting at √width, on the embedding's output (DyT's LLaMA form).

    data flow: inputs ─ stem ─(class token in front)─(× scale)─ + positions ─ dropout ─ blocks ─ final norm, if the
    placement needs one ─ head. With a mask (False where a text is padded) nobody attends to padding.
    """

    kinds = frozenset({"language_model", "text_classification", "image_classification"})
    roles = ("attention", "mlp")

    def __init__(
        self,
        task: Task,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        depth: int,
        width: int,
        heads: int,
        context: int,
        dropout: float,
        position: str,
        mlp: str,
        tied: bool,
        bias: bool,
        embedding_scale: bool,
        patch: int,
        pool: str,
    ) -> None:
        super().__init__()
        check_choices(position, pool, width, heads)
        assert isinstance(task, LanguageModeling | TextClassification | ImageClassification)
        self.stem: TokenStem | PatchStem
        if isinstance(task, ImageClassification):
            if position == "rotary":
                raise UsageError("model.position=rotary is for text: images use model.position=learned")
            self.stem = PatchStem(task, width, patch)
        else:
            self.stem = TokenStem(task, width)
        class_token = pool == "class_token" and not task.causal
        self.class_token = nn.Embedding(1, width) if class_token else None
        length = self.stem.length + class_token
        self.scale = nn.Parameter(torch.tensor(width**0.5)) if embedding_scale else None
        rotates = position == "rotary"
        self.positions = None if rotates else nn.Embedding(length, width)
        self.rotation: Tensor | None
        rotation = rotary(length, width // heads) if rotates else None
        self.register_buffer("rotation", rotation, persistent=False)
        self.dropout = make_dropout(dropout)

        def block(layer: int) -> nn.Module:
            branches: dict[str, Branch] = {
                "attention": Attention(width, heads, causal=task.causal, bias=bias, dropout=dropout),
                "mlp": SwiGLU(width, bias=bias, dropout=dropout)
                if mlp == "swiglu"
                else MLP(width, activation=mlp, bias=bias, dropout=dropout),
            }
            return placement(branches, norm, Site("block", layer, depth, branches=2 * depth))

        self.blocks = nn.ModuleList([block(layer) for layer in range(depth)])
        needs_final_norm = self.blocks[-1].needs_final_norm
        self.final_norm = norm(width, site=Site("final", depth=depth)) if needs_final_norm else nn.Identity()
        if task.causal:
            assert isinstance(self.stem, TokenStem)
            embedding = self.stem.embedding if tied else None
            self.head: nn.Module = LanguageHead(width, task.num_classes, embedding)
        else:
            self.head = ClassHead(width, task.num_classes, class_token)

    def forward(self, inputs: Tensor, mask: Bool[Tensor, "batch time"] | None = None) -> Float[Tensor, "..."]:
        x = self.stem(inputs)
        if self.class_token is not None:
            x = torch.cat((self.class_token.weight.expand(x.shape[0], 1, -1), x), dim=1)
            mask = None if mask is None else F.pad(mask, (1, 0), value=True)
        time = x.shape[1]
        if self.scale is not None:
            x = x * self.scale
        if self.positions is not None:
            x = x + self.positions.weight[:time]
        x = self.dropout(x)
        rotation = None if self.rotation is None else self.rotation[:, :time]
        attended = None if mask is None else mask[:, None, None, :]
        for block in self.blocks:
            x = block(x, rotation=rotation, mask=attended)
        return self.head(self.final_norm(x), mask)


def check_choices(position: str, pool: str, width: int, heads: int) -> None:
    """Refuse unknown words, and heads that do not divide the width."""
    if position not in ("learned", "rotary"):
        raise UsageError(f"model.position={position} is unknown: use learned or rotary")
    if pool not in ("mean", "class_token"):
        raise UsageError(f"model.pool={pool} is unknown: use mean or class_token")
    if width % heads:
        raise UsageError(
            f"model.width={width} is not divisible by model.heads={heads}: choose heads that divide the width"
        )
    if position == "rotary" and (width // heads) % 2:
        raise UsageError(f"model.position=rotary needs an even width a head, not {width // heads}: change model.heads")
