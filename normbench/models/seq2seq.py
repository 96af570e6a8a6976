"""The Transformer as it was published: an encoder and a decoder, for translation."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from normbench.masks import remember_counts
from normbench.models.stacks import Depth, Width, through_stack
from normbench.models.transformer import (
    Activation,
    Attention,
    AttentionCap,
    Bias,
    Cap,
    Context,
    Dropout,
    Embedded,
    EmbeddingScale,
    FusedLinear,
    Gate,
    Head,
    HeadCount,
    Mask,
    MultiHead,
    Position,
    Stream,
    Tied,
    TokenStem,
    feed_forward,
)
from normbench.settings import Setting
from normbench.translation import Translation
from normbench.types import Branch, NormFactory, PlacementFactory, Site

State = tuple[Tensor, ...]


class CrossAttention(MultiHead):
    """Attention of the decoder to what the encoder has made of the source: `memory` (batch, source, width).

    `memory_mask` (batch, source) is False at padding. (batch, time, width) to the same shape; Vaswani et al. 2017,
    §3.2.3.
    """

    q: FusedLinear
    kv: FusedLinear

    def __init__(self, width: int, heads: int, *, bias: bool, dropout: float, **place: Any) -> None:
        maps = {"q": FusedLinear(width, width, 1, bias), "kv": FusedLinear(width, width, 2, bias)}
        super().__init__(width, heads, maps, causal=False, bias=bias, dropout=dropout, **place)

    def forward(
        self, x: Stream, *, memory: Stream, memory_mask: Mask | None = None, mask: Mask | None = None, **_: Any
    ) -> Stream:
        k, v = self.split(self.kv(memory), ("k", "v"), memory_mask)
        (q,) = self.split(self.q(x), ("q",), mask)
        return self.attend(q, k, v, memory_mask, mask, x)

    def scaled_weights(self) -> list[Tensor]:
        return [self.kv.weight.chunk(2)[1], self.out.weight]


class Seq2Seq(Embedded):
    """A Transformer with an encoder and a decoder (Vaswani et al. 2017, figure 1), which translates.

    `rotary` positions turn queries and keys of self-attention only. Both languages have one vocabulary, with one
    embedding (and one of positions), which where `tied` is the output layer's too.

    data flow: source ─ embedding ─ encoder's blocks ─ final norm, if the placement needs one ─ memory; translation up
    to each token ─ embedding ─ decoder's blocks, which read the memory too ─ final norm ─ head.

    Args:
        depth: blocks of the encoder.
        decoder_depth: blocks of the decoder.
        hidden: features inside an MLP.

    The other settings are the Transformer's.
    """

    kinds = frozenset({"translation"})
    roles = ("attention", "cross", "mlp")
    has_streams = True

    def __init__(
        self,
        task: Translation,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        depth: Depth,
        decoder_depth: Annotated[int, Setting("number of the decoder's blocks", low=1, high=1_000)],
        width: Width,
        hidden: Annotated[int, Setting("features inside an MLP", low=1, high=10**6)],
        heads: HeadCount,
        context: Context,
        dropout: Dropout,
        position: Position,
        mlp: Activation,
        tied: Tied,
        bias: Bias,
        embedding_scale: EmbeddingScale,
        softcap: Cap = None,
        attention_softcap: AttentionCap = None,
        attention_gate: Gate = "none",
    ) -> None:
        super().__init__()
        self.stem = TokenStem(task, width)
        unit = embedding_scale == "unit"
        whole = Site(
            "block",
            depth=depth + decoder_depth,
            branches=2 * depth + 3 * decoder_depth,
            sides=(depth, decoder_depth),
            length=task.context,
            width=width,
        )
        self.start_stream(width, width // heads, position, embedding_scale, unit, dropout, norm, whole)
        encoder = replace(whole, side="encoder")
        decoder = replace(whole, side="decoder", causal=True)
        self.depth = depth
        self.blocks = nn.ModuleList()
        for layer in range(depth + decoder_depth):
            site = replace(encoder if layer < depth else decoder, layer=layer)
            about: Any = {"norm": norm, "bias": bias, "dropout": dropout}
            attention: Any = {"cap": attention_softcap, "gate": attention_gate, **about}
            branches: dict[str, Branch] = {}
            branches["attention"] = Attention(width, heads, causal=site.causal, site=site.at("attention"), **attention)
            if site.side == "decoder":
                branches["cross"] = CrossAttention(width, heads, site=site.at("cross"), **attention)
            branches["mlp"] = feed_forward(width, mlp, hidden=hidden, site=site.at("mlp"), **about)
            self.blocks.append(placement(branches, norm, site))
        self.final_norms = nn.ModuleDict()
        for site, last in ((encoder, self.blocks[depth - 1]), (decoder, self.blocks[-1])):
            if last.needs_final_norm:
                self.final_norms[site.side] = norm(width, site=site.at("final", site.side))
        self.head = Head(width, task.num_classes, "positions", tied, norm, decoder, softcap)

    def run(self, side: str, tokens: Int[Tensor, "batch time"], mask: Mask | None, **context: Any) -> Stream:
        """Return what the blocks of a side make of tokens."""
        remember_counts(mask)
        x, rotation = self.stream(self.stem(tokens), mask)
        blocks = self.blocks[: self.depth] if side == "encoder" else self.blocks[self.depth :]
        x = through_stack(blocks, x, self.recompute, rotation=rotation, mask=mask, **context)
        if side not in self.final_norms:
            return x
        return self.final_norms[side](x, mask=mask)

    def forward(
        self, source: Int[Tensor, "batch source"], mask: Mask, previous: Int[Tensor, "batch time"], previous_mask: Mask
    ) -> Float[Tensor, "batch time vocabulary"]:
        memory = self.run("encoder", source, mask)
        x = self.run("decoder", previous, previous_mask, memory=memory, memory_mask=mask)
        return self.head(x, None, self.stem)

    def begin(self, source: Int[Tensor, "batch source"], mask: Mask) -> State:
        """Return the state before a translation begins: tensors (batch, ...) of the memory and of no tokens yet."""
        return self.run("encoder", source, mask), mask, source[:, :0]

    def advance(self, state: State, tokens: Int[Tensor, " batch"]) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """Return the logits after one more token of each translation, and the state with it.

        The decoder reads all tokens again: a norm may have statistics for each position.
        """
        memory, mask, before = state
        previous = torch.cat((before, tokens[:, None]), dim=1)
        x = self.run("decoder", previous, None, memory=memory, memory_mask=mask)
        return self.head(x[:, -1], None, self.stem), (memory, mask, previous)
