"""Recurrent cells with norms: a gated recurrent unit and a long short-term memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, distributed, nn
from torch.nn.utils import parametrize

from normbench.masks import has_others, steps_of
from normbench.models.transformer import FusedLinear, Mask, Stream
from normbench.types import NormFactory, NormFacts, Site

Vector = Float[Tensor, "batch features"]
Row = Bool[Tensor, " batch"]


class TimeStep(NamedTuple):
    """Which time step it is, and what a mask says of it: None where nothing is padded.

    Attributes:
        position: from 0.
        real: which texts have not ended.
        counted: which count in a norm's statistics.
    """

    position: int = 0
    real: Row | None = None
    counted: Row | None = None

    def choose(self, new: Vector, old: Vector) -> Vector:
        """Return the new values of texts that have not ended, and the old ones of the others."""
        if self.real is None:
            return new
        return torch.where(self.real[:, None], new, old)


def time_steps(mask: Mask | None, length: int, together: bool = False) -> list[TimeStep]:
    """Return the time steps, with what a mask says of each.

    Where fewer than two texts have not ended, the states that the others ended in count too: BatchNorm has no
    statistics of one.

    Args:
        mask: False where texts have ended.
        length: of the longest.
        together: whether the texts of all processes that train count in statistics.
    """
    if mask is None:
        return [TimeStep(position) for position in range(length)]
    going_on = mask.sum(dim=0)
    if together and has_others():
        distributed.all_reduce(going_on)
    too_few = going_on < 2
    counted = mask | too_few
    pairs = zip(mask.unbind(1), steps_of(counted), strict=True)
    return [TimeStep(position, real, count) for position, (real, count) in enumerate(pairs)]


def share_statistics(branch: nn.Module) -> bool:
    """Tell whether all norms in a branch whose statistics cross samples take them over all processes that train."""
    crossing = []
    for module in branch.modules():
        facts = getattr(module, "facts", None)
        if isinstance(facts, NormFacts) and facts.crosses_samples:
            crossing.append(module)
    return bool(crossing) and all(getattr(norm, "sync", False) for norm in crossing)


def compute_weights_once() -> AbstractContextManager[Any]:
    """Let weights that are computed from others (`weights=`) be so once inside the `with`, not at each time step."""
    if torch.compiler.is_compiling():  # which merges what is computed twice by itself
        return nullcontext()
    return parametrize.cached()


def by_step(parts: Sequence[Stream]) -> list[tuple[Vector, ...]]:
    """Return what several tensors (batch, time, features) have at each time step."""
    return list(zip(*[part.unbind(1) for part in parts], strict=True))


def computes_in_16_bits(x: Tensor) -> bool:
    """Tell whether a matrix product with x is of 16 bits, by the dtype of x or within an autocast."""
    return x.element_size() < 4 or torch.is_autocast_enabled(x.device.type)


def in_one_piece(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors that lie one after the other in memory, which cuDNN wants of a cell's weights."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


class Cell(nn.Module, ABC):
    """A recurrent cell with norms of what its linear maps make: Wx of the input, and Uh of the state.

    Norms of Wx are computed at all time steps at once, those of Uh at each.

    Args:
        inputs: features of the input.
        width: features of a state.
        parts: how many features of Wx, and of Uh, each norm has, by its name; '' where there is one norm.
        bias: whether the map of the input has a bias, inside the norm.
        name: of the cell, where its block has several.

    Attributes:
        maps: linear maps of the input, and as many of the state.
        fuses: whether torch's own operator may run where no norm changes anything. It calls no norm.
    """

    maps: ClassVar[int]
    fuses = False

    def __init__(
        self, inputs: int, width: int, parts: Mapping[str, int], norm: NormFactory, site: Site, name: str, *, bias: bool
    ) -> None:
        super().__init__()
        self.width = width
        self.parts = dict(parts)
        self.prefix = f"{name}_" if name else ""
        self.input = FusedLinear(inputs, width, parts=self.maps, bias=bias)
        self.state = FusedLinear(width, width, parts=self.maps, bias=False)
        self.norms = nn.ModuleDict()
        for of in ("input", "state"):
            for part, size in parts.items():
                slot = f"{of}_{part}" if part else of
                self.add_norm(slot, size, norm, site)

    def add_norm(self, slot: str, size: int, norm: NormFactory, site: Site) -> None:
        """Make the norm of a slot."""
        self.norms[slot] = norm(size, site=site.at("cell", self.prefix + slot))

    def normalize(self, slot: str, x: Tensor, mask: Tensor | None, position: int | None) -> Tensor:
        """Return x normalized by the norm of a slot.

        Args:
            x: at all time steps, or at one.
            mask: what counts in statistics.
            position: of x, where it is at one time step; norms with statistics of each position are told.
        """
        norm: Any = self.norms[slot]
        y: Tensor
        if position is not None and getattr(norm, "per_position", False):
            y = norm(x, mask=mask, position=position)
        else:
            y = norm(x, mask=mask)
        return y

    def project(self, of: str, x: Tensor, mask: Tensor | None, position: int | None = None) -> list[Tensor]:
        """Return N(Wx), or with of=`state` N(Uh), in the parts that have norms of their own; see `normalize`."""
        linear = self.get_submodule(of)
        parts = linear(x).split(list(self.parts.values()), dim=-1)
        normalized = []
        for name, part in zip(self.parts, parts, strict=True):
            slot = f"{of}_{name}" if name else of
            normalized.append(self.normalize(slot, part, mask, position))
        return normalized

    @abstractmethod
    def start(self, x: Stream) -> Any:
        """Return the state before inputs x, which is 0."""

    @abstractmethod
    def hidden(self, state: Any) -> Vector:
        """Return what others see of a state."""

    @abstractmethod
    def forward(self, projected: Sequence[Vector], state: Any, step: TimeStep) -> Any:
        """Return the next state from what `project` made of the input; that of a text that has ended stays."""

    @abstractmethod
    def run_fused(self, x: Stream) -> Stream:
        """Return the states at all positions, from a state of 0, by torch's own operator, which has no norms."""

    def run(self, x: Stream, mask: Mask | None, steps: Sequence[TimeStep], backwards: bool = False) -> Stream:
        """Return the states at all positions, from a state of 0.

        Args:
            x: the inputs.
            mask: False where they are padded.
            steps: what the mask says of each time step.
            backwards: begin at the last position.
        """
        if mask is None and not backwards and self.may_fuse(x):
            return self.run_fused(x)
        projected = by_step(self.project("input", x, mask))
        inputs = list(zip(projected, steps, strict=True))
        if backwards:
            inputs.reverse()
        state = self.start(x)
        states = []
        for parts, step in inputs:
            state = self(parts, state, step)
            states.append(self.hidden(state))
        if backwards:
            states.reverse()
        return torch.stack(states, dim=1)

    def may_fuse(self, x: Stream) -> bool:
        """Tell whether torch's own operator computes the same, and can: neither torch.compile nor vmap takes it.

        Nor does every CPU in 16 bits, where it also rounds the states, which between norms are not rounded.
        """
        if not self.fuses or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return False
        if x.device.type == "cpu" and computes_in_16_bits(x):
            return False
        return all(getattr(norm, "is_identity", False) for norm in self.norms.values())

    def fused_weights(self, bias: Tensor) -> list[Tensor]:
        """Return the weights as torch's operators take them; the bias of the state is 0."""
        weights = [self.input.weight, self.state.weight, bias, torch.zeros_like(bias)]
        return in_one_piece(weights) if bias.device.type == "cuda" else weights


class GRU(Cell):
    """A gated recurrent unit with norms (Cho et al. 2014; norms as in Nematus, Zhang & Sennrich 2019).

    r, z = σ(N(Wx + b) + N(Uh)), the two gates as one vector; h̃ = tanh(N(Wx + b) + r ⊙ N(Uh)); h ← (1 − z) ⊙ h̃ + z ⊙ h.
    With LayerNorm this is the GRU of Ba et al. 2016, in their code. Without norms it is torch.nn.GRU with a `bias_hh`
    of 0.
    """

    maps = 3

    def __init__(self, inputs: int, width: int, norm: NormFactory, site: Site, name: str = "") -> None:
        parts = {"gates": 2 * width, "candidate": width}
        super().__init__(inputs, width, parts, norm, site, name, bias=True)

    def start(self, x: Stream) -> Vector:
        return x.new_zeros(len(x), self.width)

    def hidden(self, state: Vector) -> Vector:
        return state

    def forward(self, projected: Sequence[Vector], state: Vector, step: TimeStep) -> Vector:
        gates, candidate = projected
        from_gates, from_candidate = self.project("state", state, step.counted, step.position)
        reset, update = torch.sigmoid(gates + from_gates).chunk(2, dim=-1)
        new = torch.tanh(candidate + reset * from_candidate)
        new = new + update * (state - new)
        return step.choose(new, state)

    def run_fused(self, x: Stream) -> Stream:
        start = x.new_zeros(1, len(x), self.width)
        weights = self.fused_weights(self.input.bias)
        states: Tensor = torch.gru(x, start, weights, True, 1, 0.0, self.training, False, True)[0]
        return states


class LSTMState(NamedTuple):
    """What an LSTM knows: what others see of it, and its memory cell."""

    hidden: Vector
    memory: Vector


class LSTM(Cell):
    """A long short-term memory with norms (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, g, o = N(Wx) + N(Uh) + b, all four as one vector; c ← σ(f) ⊙ c + σ(i) ⊙ tanh(g); h = σ(o) ⊙ tanh(N(c)). With
    LayerNorm these are equations 20 to 22 of Ba et al. 2016, with BatchNorm 6 to 8 of Cooijmans et al. 2017. Without
    norms this is torch.nn.LSTM with a `bias_hh` of 0.
    """

    maps = 4

    def __init__(self, inputs: int, width: int, norm: NormFactory, site: Site, name: str = "") -> None:
        super().__init__(inputs, width, {"": 4 * width}, norm, site, name, bias=False)
        self.add_norm("memory", width, norm, site)
        self.bias = nn.Parameter(torch.zeros(4 * width))

    def start(self, x: Stream) -> LSTMState:
        zeros = x.new_zeros(len(x), self.width)
        return LSTMState(zeros, zeros)

    def hidden(self, state: LSTMState) -> Vector:
        return state.hidden

    def forward(self, projected: Sequence[Vector], state: LSTMState, step: TimeStep) -> LSTMState:
        (from_input,) = projected
        (from_state,) = self.project("state", state.hidden, step.counted, step.position)
        input_gate, forget, new, output = (from_input + from_state + self.bias).chunk(4, dim=-1)
        memory = torch.sigmoid(forget) * state.memory + torch.sigmoid(input_gate) * torch.tanh(new)
        normalized = self.normalize("memory", memory, step.counted, step.position)
        hidden = torch.sigmoid(output) * torch.tanh(normalized)
        return LSTMState(step.choose(hidden, state.hidden), step.choose(memory, state.memory))

    def run_fused(self, x: Stream) -> Stream:
        start = x.new_zeros(1, len(x), self.width)
        weights = self.fused_weights(self.bias)
        states: Tensor = torch.lstm(x, (start, start), weights, True, 1, 0.0, self.training, False, True)[0]
        return states
