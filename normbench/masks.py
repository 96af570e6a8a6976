"""What norms take from a mask alone: computed once for all norms of a pass, when the first of them asks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


@dataclass
class Counts:
    """Numbers of a mask on the device, n of whose N positions are real.

    absent: its opposite, (positions, 1). stretched: √(N/n) where it is real, and 0 elsewhere, likewise.
    count: n, at least 1. stretch: √(N/n). bessel: n(N−1)/(N(n−1)). known: whether n is over 1.
    """

    absent: Tensor
    stretched: Tensor
    count: Tensor
    stretch: Tensor
    bessel: Tensor
    known: Tensor
    shares: dict[tuple[float, torch.dtype], Tensor] = field(default_factory=dict)
    factors: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def share(self, momentum: float, dtype: torch.dtype) -> Tensor:
        """Return the momentum, or 0 where a variance would be that of one value."""
        key = momentum, dtype
        if key not in self.shares:
            self.shares[key] = self.known.to(dtype) * momentum
        return self.shares[key]

    def factor(self, dtype: torch.dtype) -> Tensor:
        """Return `stretched` in a format."""
        if dtype not in self.factors:
            self.factors[dtype] = self.stretched.to(dtype)
        return self.factors[dtype]


@dataclass
class Memo:
    """Where the counts of a mask are kept. found: those of all time steps, or of the whole mask alone.

    steps: a mask (batch, time) of which this one is a time step. It holds no mask that it is the memo of, which would
    never be freed.
    """

    found: list[Counts] = field(default_factory=list)
    place: int = 0
    steps: Tensor | None = None


memos = WeakIdKeyDictionary()


def share_counts(mask: Bool[Tensor, "batch time"] | None) -> None:
    """Let all norms that are given this mask from now on share what they count in it.

    A model says so in each forward pass: the same tensor may hold another batch's mask then.
    """
    if isinstance(mask, Tensor) and may_share(mask):  # torch.fx gives something else
        memos[mask] = Memo()


def steps_of(mask: Bool[Tensor, "batch time"]) -> list[Bool[Tensor, " batch"]]:
    """Return the mask of each time step; what norms count in them is computed for all steps at once."""
    steps = [*mask.unbind(1)]
    if may_share(mask):
        found = list[Counts]()
        for place, step in enumerate(steps):
            memos[step] = Memo(found, place, mask)
    return steps


def may_share(mask: Tensor) -> bool:
    """Tell whether there is something to share: launches of a GPU."""
    if torch.compiler.is_compiling() or mask.device.type != "cuda":
        return False
    return not torch._C._are_functorch_transforms_active()


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
    numbers = numbers_of(column.sum(), len(column))
    return Counts(~column, column * numbers[1], *numbers)


def count_steps(mask: Bool[Tensor, "batch time"]) -> list[Counts]:
    """Count what is real at each time step."""
    numbers = numbers_of(mask.sum(0), len(mask))
    stretch = numbers[1]
    absent = (~mask).unsqueeze(-1).unbind(1)
    stretched = (mask * stretch).unsqueeze(-1).unbind(1)
    by_step = [number.unbind() for number in numbers]
    return [Counts(*found) for found in zip(absent, stretched, *by_step, strict=True)]


def numbers_of(real: Tensor, positions: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return count, stretch, bessel and known of so many real ones.

    In float64, in which single numbers leave the format of what they are multiplied with as it is.
    """
    count = real.clamp_min(1).double()
    stretch = torch.sqrt(positions / count)
    bessel = count * (1 - 1 / positions) / (count - 1).clamp_min(1)
    return count, stretch, bessel, real > 1
