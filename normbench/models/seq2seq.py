"""The Transformer as it was published: an encoder and a decoder, for translation."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from normbench.masks import share_counts
from normbench.models.stacks import Depth, Width, through
from normbench.models.transformer import (
    Activation,
    Attention,
    Bias,
    Context,
    Dropout,
    Embedded,
    EmbeddingScale,
    FusedLinear,
    Head,
    HeadCount,
    Heads,
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
from normbench.types import NormFactory, PlacementFactory, Site

State = tuple[Tensor, ...]


class CrossAttention(MultiHead):
    """Attention of the decoder to what the encoder has made of the source: `memory` (batch, source, width).

    `memory_mask` (batch, source) is False at padding. (batch, time, width) to the same shape; Vaswani et al. 2017,
    §3.2.3.
    """

    q: FusedLinear
    kv: FusedLinear

    def __init__(self, width: int, heads: int, *, bias: bool, dropout: float) -> None:
        maps = {"q": FusedLinear(width, width, 1, bias), "kv": FusedLinear(width, width, 2, bias)}
        super().__init__(width, heads, causal=False, bias=bias, dropout=dropout, **maps)

    def forward(self, x: Stream, *, memory: Stream, memory_mask: Mask | None = None, **_: Any) -> Stream:
        return self.attended(*self.queries_keys_values(x, memory), memory_mask)

    def queries_keys_values(self, x: Stream, memory: Stream) -> tuple[Heads, Heads, Heads]:
        """Return queries of the stream, keys and values of the memory."""
        k, v = self.split(self.kv(memory), 2)
        return self.split(self.q(x), 1)[0], k, v

    def attention_logits(
        self, x: Stream, *, memory: Stream, memory_mask: Mask | None = None, **_: Any
    ) -> Float[Tensor, "batch heads time source"]:
        """Return the logits of each query and key, −∞ at padding; for probes."""
        return self.logits(*self.queries_keys_values(x, memory)[:2], memory_mask)

    def scaled_weights(self) -> list[Tensor]:
        return [self.kv.weight.chunk(2)[1], self.out.weight]


class Seq2Seq(Embedded):
    """A Transformer with an encoder and a decoder (Vaswani et al. 2017, figure 1), which translates.

    depth, decoder_depth: blocks of the two. hidden: features inside an MLP. The other settings are the Transformer's;
    `rotary` positions turn queries and keys of self-attention only. Both languages have one vocabulary, with one
    embedding (and one of positions), which where `tied` is the output layer's too.

    data flow: source ─ embedding ─ encoder's blocks ─ final norm, if the placement needs one ─ memory; translation up
    to each token ─ embedding ─ decoder's blocks, which read the memory too ─ final norm ─ head.
    """

    kinds = frozenset({"translation"})
    roles = ("attention", "cross", "mlp")

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
    ) -> None:
        super().__init__()
        self.stem = TokenStem(task, width)
        unit = embedding_scale == "unit"
        self.start_stream(task.context, width, width // heads, position, embedding_scale, unit, dropout)
        whole = Site("block", depth=depth + decoder_depth, branches=2 * depth + 3 * decoder_depth, length=task.context)
        whole = replace(whole, sides=(depth, decoder_depth))
        sites = {"encoder": replace(whole, side="encoder"), "decoder": replace(whole, side="decoder", causal=True)}
        self.blocks, self.depth = nn.ModuleList(), depth
        for layer, side in enumerate(["encoder"] * depth + ["decoder"] * decoder_depth):
            attention = Attention(width, heads, causal=sites[side].causal, bias=bias, dropout=dropout)
            cross = {"cross": CrossAttention(width, heads, bias=bias, dropout=dropout)} if side == "decoder" else {}
            branches = {"attention": attention, **cross, "mlp": feed_forward(width, mlp, bias, dropout, hidden)}
            self.blocks.append(placement(branches, norm, replace(sites[side], layer=layer)))
        finals = sites if self.blocks[-1].needs_final_norm else {}
        made = {side: norm(width, site=replace(site, role="final", slot=side)) for side, site in finals.items()}
        self.final_norms = nn.ModuleDict(made)
        self.head = Head(width, task.num_classes, "positions", tied)

    def passed(self, side: str, tokens: Int[Tensor, "batch time"], mask: Mask | None, **context: Any) -> Stream:
        """Return what the blocks of a side make of tokens."""
        share_counts(mask)
        x, rotation = self.stream(self.stem(tokens))
        blocks = self.blocks[: self.depth] if side == "encoder" else self.blocks[self.depth :]
        x = through(blocks, x, self.recompute, rotation=rotation, mask=mask, **context)
        if side not in self.final_norms:
            return x
        return self.final_norms[side](x, mask=mask)

    def forward(
        self, source: Int[Tensor, "batch source"], mask: Mask, previous: Int[Tensor, "batch time"], previous_mask: Mask
    ) -> Float[Tensor, "batch time vocabulary"]:
        memory = self.passed("encoder", source, mask)
        x = self.passed("decoder", previous, previous_mask, memory=memory, memory_mask=mask)
        return self.head(x, None, self.stem)

    def begin(self, source: Int[Tensor, "batch source"], mask: Mask) -> State:
        """Return the state in front of a translation: tensors (batch, ...) of the memory and of no tokens yet."""
        return self.passed("encoder", source, mask), mask, source[:, :0]

    def advance(self, state: State, tokens: Int[Tensor, " batch"]) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """Return the logits behind one more token of each translation, and the state with it.

        The decoder reads all tokens again: a norm may have statistics for each position.
        """
        memory, mask, before = state
        previous = torch.cat((before, tokens[:, None]), dim=1)
        x = self.passed("decoder", previous, None, memory=memory, memory_mask=mask)
        return self.head(x[:, -1], None, self.stem), (memory, mask, previous)
