"""The recurrent translator with attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from normbench.masks import remember_counts
from normbench.models.cells import GRU, Vector, by_step, compute_weights_once, share_statistics, time_steps
from normbench.models.stacks import Width
from normbench.models.transformer import (
    Context,
    Dropout,
    Embedded,
    EmbeddingScale,
    Head,
    Mask,
    Stream,
    Tied,
    TokenStem,
)
from normbench.settings import Setting
from normbench.translation import Translation
from normbench.types import Branch, NormFactory, PlacementFactory, Site

State = tuple[Tensor, ...]


class Normed(nn.Module):
    """N(Wx + b)."""

    def __init__(self, inputs: int, outputs: int, norm: NormFactory, site: Site) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = norm(outputs, site=site)

    def forward(self, x: Float[Tensor, "... in"], mask: Tensor | None = None) -> Float[Tensor, "... out"]:
        return self.norm(self.linear(x), mask=mask)


class BidirectionalGRU(Branch):
    """The encoder: the states of two units, one that reads forwards and one backwards (Bahdanau et al. 2015, §3.2)."""

    def __init__(self, inputs: int, width: int, norm: NormFactory, site: Site, dropout: float) -> None:
        super().__init__()
        self.in_features = inputs
        self.out_features = 2 * width
        self.forwards = GRU(inputs, width, norm, site, "forwards")
        self.backwards = GRU(inputs, width, norm, site, "backwards")
        self.dropout = nn.Dropout(dropout)
        self.counts_together = share_statistics(self)

    def forward(self, x: Stream, mask: Mask | None = None, **_: Any) -> Stream:
        steps = time_steps(mask, x.shape[1], self.counts_together and self.training)
        with compute_weights_once():
            forwards = self.forwards.run(x, mask, steps)
            backwards = self.backwards.run(x, mask, steps, backwards=True)
        memory = torch.cat((forwards, backwards), dim=-1)
        return self.dropout(memory)


class ConditionalGRU(Branch):
    """The decoder: two gated recurrent units with additive attention between them, and what is read from them.

    s′ = GRU₁(y, s); c = Σ softmax(v · tanh(N(W m + b) + N(W s′ + b))) m over the memory m; s ← GRU₂(c, s′); the output
    is tanh(N(W s + b) + N(W y + b) + N(W c + b)). The first s is tanh(N(W m̄ + b)), with m̄ the mean of the memory.
    Bahdanau et al. 2015, appendix A.2, in the form of Nematus (Sennrich et al. 2017, §2), norms included; attention is
    as wide as a state here, and twice there.
    """

    def __init__(self, inputs: int, width: int, norm: NormFactory, site: Site, dropout: float) -> None:
        super().__init__()
        self.in_features = self.out_features = inputs
        self.initial = Normed(2 * width, width, norm, site.at("initial"))
        self.first = GRU(inputs, width, norm, site, "first")
        self.second = GRU(2 * width, width, norm, site, "second")
        self.keys = Normed(2 * width, width, norm, site.at("attention", "memory"))
        self.query = Normed(width, width, norm, site.at("attention", "state"))
        self.score = nn.Linear(width, 1, bias=False)
        self.outputs = nn.ModuleDict()
        for name, size in (("state", width), ("embedding", inputs), ("context", 2 * width)):
            self.outputs[name] = Normed(size, inputs, norm, site.at("output", name))
        self.dropout = nn.Dropout(dropout)
        self.counts_together = share_statistics(self)

    def begin(self, memory: Stream, memory_mask: Mask) -> tuple[Vector, Stream]:
        """Return the first state, and what attention compares it with at each position of the memory."""
        weights = memory_mask.to(memory.dtype).unsqueeze(-1)
        mean = (memory * weights).sum(dim=1) / weights.sum(dim=1)
        first_state = torch.tanh(self.initial(mean))
        return first_state, self.keys(memory, memory_mask)

    def go_on(
        self, x: Stream, state: Vector, keys: Stream, memory: Stream, memory_mask: Mask, mask: Mask | None = None
    ) -> tuple[Stream, Vector]:
        """Return the outputs from embeddings of the tokens before them, and the last state.

        Args:
            x: the embeddings.
            state: the state before them.
            keys: what `begin` made of the memory.
            memory: what attention reads.
            memory_mask: False where the memory is padded.
            mask: False where x is padded.
        """
        inputs = by_step(self.first.project("input", x, mask))
        bias = torch.zeros_like(memory_mask, dtype=x.dtype).masked_fill(~memory_mask, -torch.inf)
        steps = time_steps(mask, x.shape[1], self.counts_together and self.training)
        states = []
        contexts = []
        with compute_weights_once():
            for parts, step in zip(inputs, steps, strict=True):
                state = self.first(parts, state, step)
                query = self.query(state, step.counted).unsqueeze(1)
                scores = self.score(torch.tanh(keys + query)).squeeze(-1)
                weights = (scores + bias).softmax(dim=-1)
                context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
                second_parts = self.second.project("input", context, step.counted, step.position)
                state = self.second(second_parts, state, step)
                states.append(state)
                contexts.append(context)
        from_state = self.outputs["state"](torch.stack(states, dim=1), mask)
        from_embedding = self.outputs["embedding"](x, mask)
        from_context = self.outputs["context"](torch.stack(contexts, dim=1), mask)
        outputs = torch.tanh(torch.stack((from_state, from_embedding, from_context)).sum(dim=0))
        return self.dropout(outputs), state

    def forward(self, x: Stream, *, memory: Stream, memory_mask: Mask, mask: Mask | None = None, **_: Any) -> Stream:
        state, keys = self.begin(memory, memory_mask)
        outputs, _last_state = self.go_on(x, state, keys, memory, memory_mask, mask)
        return outputs


class RNNSearch(Embedded):
    """A recurrent translator with attention (Bahdanau et al. 2015) and norms in its cells (Zhang & Sennrich 2019).

    Both languages have one vocabulary with one embedding, which where `tied` is the output layer's too. Takes
    `placement=plain` only.

    data flow: source ─ embedding ─ BidirectionalGRU ─ memory; translation up to each token ─ embedding ─
    ConditionalGRU, which reads the memory ─ head.

    Args:
        width: features of a state, in the encoder of each direction.
        embedding: features of a token's embedding.
    """

    kinds = frozenset({"translation"})
    roles = ("cell",)
    residual = False
    has_positions = False
    recurrent = True
    recompute = None  # each step needs the one before

    def __init__(
        self,
        task: Translation,
        norm: NormFactory,
        placement: PlacementFactory,
        *,
        width: Width,
        embedding: Annotated[int, Setting("features of a token's embedding", low=1, high=10**5)],
        context: Context,
        dropout: Dropout,
        tied: Tied,
        embedding_scale: EmbeddingScale,
    ) -> None:
        super().__init__()
        self.stem = TokenStem(task, embedding)
        whole = Site("block", depth=2, branches=2, sides=(1, 1), length=task.context)
        unit = embedding_scale == "unit"
        self.start_stream(embedding, 1, "none", embedding_scale, unit, dropout, norm, whole)
        encoder = replace(whole, layer=0, side="encoder")
        decoder = replace(whole, layer=1, side="decoder", causal=True)
        reads = BidirectionalGRU(embedding, width, norm, encoder, dropout)
        writes = ConditionalGRU(embedding, width, norm, decoder, dropout)
        self.blocks = nn.ModuleList()
        self.blocks.append(placement({"cell": reads}, norm, encoder))
        self.blocks.append(placement({"cell": writes}, norm, decoder))
        self.head = Head(
            embedding, task.num_classes, "positions", tied, norm, replace(whole, side="decoder", causal=True)
        )

    @property
    def decoder(self) -> Any:
        """Return what the second block is of: a ConditionalGRU."""
        return self.blocks[1].branches["cell"]  # type: ignore[index]  # a placement has them

    def embed(self, tokens: Int[Tensor, "batch time"], mask: Mask | None = None) -> Stream:
        """Return the embeddings of tokens."""
        x, _ = self.stream(self.stem(tokens), mask)
        return x

    def forward(
        self, source: Int[Tensor, "batch source"], mask: Mask, previous: Int[Tensor, "batch time"], previous_mask: Mask
    ) -> Float[Tensor, "batch time vocabulary"]:
        remember_counts(mask)
        remember_counts(previous_mask)
        memory = self.blocks[0](self.embed(source, mask), mask=mask)
        x = self.blocks[1](self.embed(previous, previous_mask), mask=previous_mask, memory=memory, memory_mask=mask)
        return self.head(x, None, self.stem)

    def begin(self, source: Int[Tensor, "batch source"], mask: Mask) -> State:
        """Return the state before a translation begins: tensors (batch, ...)."""
        memory = self.blocks[0](self.embed(source, mask), mask=mask)
        return *self.decoder.begin(memory, mask), memory, mask

    def advance(self, state: State, tokens: Int[Tensor, " batch"]) -> tuple[Float[Tensor, "batch vocabulary"], State]:
        """Return the logits after one more token of each translation, and the state with it."""
        x, last = self.decoder.go_on(self.embed(tokens.unsqueeze(1)), *state)
        return self.head(x[:, 0], None, self.stem), (last, *state[1:])
