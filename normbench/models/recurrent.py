"""The recurrent translator with attention, and the gated recurrent unit with norms that it is made of."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normbench.masks import remember_counts, steps_of
from normbench.models.stacks import Width
from normbench.models.transformer import (
    Context,
    Dropout,
    Embedded,
    EmbeddingScale,
    FusedLinear,
    Head,
    Mask,
    Stream,
    Tied,
    TokenStem,
)
from normbench.settings import Setting
from normbench.translation import Translation
from normbench.types import Branch, NormFactory, PlacementFactory, Site

Vector = Float[Tensor, "batch features"]
Row = Bool[Tensor, " batch"]
State = tuple[Tensor, ...]


class TimeStep(NamedTuple):
    """What a mask says of one time step; None where nothing is padded.

    Attributes:
        real: which texts have not ended.
        counted: which count in a norm's statistics.
    """

    real: Row | None = None
    counted: Row | None = None


def time_steps(mask: Mask | None, length: int) -> list[TimeStep]:
    """Return what a mask says of each time step.

    Where fewer than two texts have not ended, the states that the others ended in count too: BatchNorm has no
    statistics of one.
    """
    if mask is None:
        return [TimeStep()] * length
    too_few = mask.sum(dim=0) < 2
    counted = mask | too_few
    pairs = zip(mask.unbind(1), steps_of(counted), strict=True)
    return [TimeStep(real, count) for real, count in pairs]


def compute_weights_once() -> AbstractContextManager[Any]:
    """Let weights that are computed from others (`weights=`) be so once inside the `with`, not at each time step."""
    if torch.compiler.is_compiling():  # which merges what is computed twice by itself
        return nullcontext()
    return parametrize.cached()


class Normed(nn.Module):
    """N(Wx + b)."""

    def __init__(self, inputs: int, outputs: int, norm: NormFactory, site: Site) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = norm(outputs, site=site)

    def forward(self, x: Float[Tensor, "... in"], mask: Tensor | None = None) -> Float[Tensor, "... out"]:
        return self.norm(self.linear(x), mask=mask)


class GRU(nn.Module):
    """A gated recurrent unit with norms (Cho et al. 2014; norms as in Nematus, Zhang & Sennrich 2019).

    r, z = σ(N(Wx + b) + N(Uh)), the two gates as one vector; h̃ = tanh(N(Wx + b) + r ⊙ N(Uh)); h ← (1 − z) ⊙ h̃ + z ⊙ h.
    Without norms this is torch.nn.GRU with a `bias_hh` of 0.
    """

    def __init__(self, inputs: int, width: int, norm: NormFactory, site: Site, name: str) -> None:
        super().__init__()
        self.parts = {"gates": 2 * width, "candidate": width}
        self.input = FusedLinear(inputs, width, parts=3, bias=True)
        self.state = FusedLinear(width, width, parts=3, bias=False)
        self.norms = nn.ModuleDict()
        for of in ("input", "state"):
            for part, size in self.parts.items():
                where = site.at("cell", f"{name}_{of}_{part}")
                self.norms[f"{of}_{part}"] = norm(size, site=where)

    def project(self, of: str, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return N(Wx + b), or with of=`state` N(Uh): of the gates, and of the candidate."""
        linear = self.get_submodule(of)
        sizes = list(self.parts.values())
        gates, candidate = linear(x).split(sizes, dim=-1)
        gates = self.norms[f"{of}_gates"](gates, mask=mask)
        candidate = self.norms[f"{of}_candidate"](candidate, mask=mask)
        return gates, candidate

    def forward(self, gates: Vector, candidate: Vector, state: Vector, step: TimeStep) -> Vector:
        """Return the next state from what `project` made of the input; that of a text that has ended stays."""
        from_gates, from_candidate = self.project("state", state, step.counted)
        reset, update = torch.sigmoid(gates + from_gates).chunk(2, dim=-1)
        new = torch.tanh(candidate + reset * from_candidate)
        new = new + update * (state - new)
        if step.real is None:
            return new
        return torch.where(step.real[:, None], new, state)

    def run(self, x: Stream, mask: Mask | None, steps: list[TimeStep], backwards: bool = False) -> Stream:
        """Return the states at all positions, from a state of 0.

        Args:
            x: the inputs.
            mask: False where they are padded.
            steps: what the mask says of each time step.
            backwards: begin at the last position.
        """
        gates, candidates = self.project("input", x, mask)
        inputs = list(zip(gates.unbind(1), candidates.unbind(1), steps, strict=True))
        if backwards:
            inputs.reverse()
        state = x.new_zeros(len(x), self.parts["candidate"])
        states = []
        for gate, candidate, step in inputs:
            state = self(gate, candidate, state, step)
            states.append(state)
        if backwards:
            states.reverse()
        return torch.stack(states, dim=1)


class BidirectionalGRU(Branch):
    """The encoder: the states of two units, one that reads forwards and one backwards (Bahdanau et al. 2015, §3.2)."""

    def __init__(self, inputs: int, width: int, norm: NormFactory, site: Site, dropout: float) -> None:
        super().__init__()
        self.in_features = inputs
        self.out_features = 2 * width
        self.forwards = GRU(inputs, width, norm, site, "forwards")
        self.backwards = GRU(inputs, width, norm, site, "backwards")
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Stream, mask: Mask | None = None, **_: Any) -> Stream:
        steps = time_steps(mask, x.shape[1])
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
        gates, candidates = self.first.project("input", x, mask)
        bias = torch.zeros_like(memory_mask, dtype=x.dtype).masked_fill(~memory_mask, -torch.inf)
        steps = time_steps(mask, x.shape[1])
        states = []
        contexts = []
        with compute_weights_once():
            for gate, candidate, step in zip(gates.unbind(1), candidates.unbind(1), steps, strict=True):
                state = self.first(gate, candidate, state, step)
                query = self.query(state, step.counted).unsqueeze(1)
                scores = self.score(torch.tanh(keys + query)).squeeze(-1)
                weights = (scores + bias).softmax(dim=-1)
                context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
                second_gates, second_candidate = self.second.project("input", context, step.counted)
                state = self.second(second_gates, second_candidate, state, step)
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
        self.head = Head(embedding, task.num_classes, "positions", tied)

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
