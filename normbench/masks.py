"""What norms take from a mask alone: computed once for all norms of a pass, when the first of them asks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor, distributed
from torch.utils.weak import WeakIdKeyDictionary


@dataclass
class Counts:
    """Numbers of a mask on the device, n of whose N positions are real.

    Attributes:
        absent: the opposite of the mask, (positions, 1).
        stretched: √(N/n) where it is real, and 0 elsewhere, (positions, 1).
        count: n, at least 1.
        stretch: √(N/n).
        bessel: n(N−1)/(N(n−1)).
        known: whether n is over 1, so that there is a variance.
        momenta, factors: what the methods have computed, by their arguments.
    """

    absent: Tensor
    stretched: Tensor
    count: Tensor
    stretch: Tensor
    bessel: Tensor
    known: Tensor
    momenta: dict[tuple[float, torch.dtype], Tensor] = field(default_factory=dict)
    factors: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def momentum_if_known(self, momentum: float, dtype: torch.dtype) -> Tensor:
        """Return the momentum, or 0 where a variance would be that of one value."""
        key = momentum, dtype
        if key not in self.momenta:
            self.momenta[key] = self.known.to(dtype) * momentum
        return self.momenta[key]

    def factor(self, dtype: torch.dtype) -> Tensor:
        """Return `stretched` in a format."""
        if dtype not in self.factors:
            self.factors[dtype] = self.stretched.to(dtype)
        return self.factors[dtype]


@dataclass
class Memo:
    """Where the counts of a mask are kept. It holds no mask that it is the memo of, which would never be freed.

    Attributes:
        found: the counts of all time steps, or of the whole mask alone; empty until a norm asks.
        place: which of them are those of this mask.
        steps: a mask (batch, time) of which this one is a time step; None for a whole mask.
    """

    found: list[Counts] = field(default_factory=list)
    place: int = 0
    steps: Tensor | None = None


memos = WeakIdKeyDictionary()


def remember_counts(mask: Bool[Tensor, "batch time"] | None) -> None:
    """Let what the first norm counts in this mask be remembered for all others that are given it from now on.

    A model says so in each forward pass: the same tensor may hold another batch's mask then.
    """
    if isinstance(mask, Tensor) and may_remember(mask):  # torch.fx gives something else
        memos[mask] = Memo()


def steps_of(mask: Bool[Tensor, "batch time"]) -> list[Bool[Tensor, " batch"]]:
    """Return the mask of each time step; what norms count in them is computed for all steps at once."""
    steps = [*mask.unbind(1)]
    if may_remember(mask):
        found = list[Counts]()
        for place, step in enumerate(steps):
            memos[step] = Memo(found, place, mask)
    return steps


def may_remember(mask: Tensor) -> bool:
    """Tell whether remembering saves something, launches of a GPU, and does no harm."""
    if torch.compiler.is_compiling() or mask.device.type != "cuda":
        return False
    return not torch._C._are_functorch_transforms_active()


def has_others() -> bool:
    """Tell whether this is one of several processes that train together."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    return distributed.get_world_size() > 1


def counts_of(mask: Bool[Tensor, "..."]) -> Counts:
    """Return the counts of a mask."""
    memo = memos.get(mask)
    if memo is None:
        return count(mask)
    if not memo.found:
        if memo.steps is None:
            memo.found.append(count(mask))
        else:
            memo.found.extend(count_steps(memo.steps))
    return memo.found[memo.place]


def count(mask: Bool[Tensor, "..."]) -> Counts:
    """Count what is real, without a wait for the device."""
    column = mask.reshape(-1, 1)
    count, stretch, bessel, known = numbers_of(column.sum(), len(column))
    return Counts(~column, column * stretch, count, stretch, bessel, known)


def count_steps(mask: Bool[Tensor, "batch time"]) -> list[Counts]:
    """Count what is real at each time step."""
    count, stretch, bessel, known = numbers_of(mask.sum(0), len(mask))
    absent = (~mask).unsqueeze(-1)
    stretched = (mask * stretch).unsqueeze(-1)
    numbers = [number.unbind() for number in (count, stretch, bessel, known)]
    by_step = zip(absent.unbind(1), stretched.unbind(1), *numbers, strict=True)
    return [Counts(*step) for step in by_step]


def numbers_of(real: Tensor, positions: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `count`, `stretch`, `bessel` and `known` of a mask, as `Counts` has them.

    In float64, in which single numbers leave the format of what they are multiplied with as it is.

    Args:
        real: how many positions are real.
        positions: how many there are.
    """
    count = real.clamp_min(1).double()
    stretch = torch.sqrt(positions / count)
    bessel = count * (1 - 1 / positions) / (count - 1).clamp_min(1)
    return count, stretch, bessel, real > 1
