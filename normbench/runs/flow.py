"""How a placement passes the stream through a block: it is run on a drawing in place of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from normbench.types import Branch, PlacementFactory, Site


@dataclass(frozen=True)
class Sum:
    """Ways of the stream that a placement adds up."""

    sides: tuple[Flow, ...]

    def draw(self) -> list[str]:
        """Draw it, a line for each side: the one with the longest way first, the skip last."""
        skips = [side for side in self.sides if side.is_skip]
        others = [side for side in self.sides if not side.is_skip]
        others.sort(key=lambda side: side.length, reverse=True)
        drawn = [side.draw() for side in others + skips]
        width = max(len(lines[0]) for lines in drawn)
        rows: list[str] = []
        for number, lines in enumerate(drawn):
            left, right = "├┤"
            if number == 0:
                left, right = "┬⊕"
            elif number == len(drawn) - 1:
                left, right = "└┘"
            rows.append(left + lines[0].ljust(width, "─") + right)
            edge = "│" if number < len(drawn) - 1 else " "
            rows += [edge + line.ljust(width) + edge for line in lines[1:]]
        return rows


@dataclass(frozen=True)
class Flow:
    """What a placement does to x, drawn while it does it.

    Attributes:
        steps: names, and sums of other ways.
    """

    steps: tuple[str | Sum, ...] = ()
    dtype: ClassVar[torch.dtype] = torch.float32  # which a placement may ask of a tensor

    def through(self, step: str) -> Flow:
        """Return it with a step more."""
        return Flow((*self.steps, step))

    def detach(self) -> Flow:
        """Return it with the step that a gradient does not pass."""
        return self.through("stopgrad")

    def __add__(self, other: Flow) -> Flow:
        """Return the sum, with what the two have in common before it."""
        common = 0
        for mine, theirs in zip(self.steps, other.steps, strict=False):
            if mine != theirs:
                break
            common += 1
        rest = self.steps[common:]
        first: tuple[Flow, ...] = (Flow(rest),)
        if len(rest) == 1 and isinstance(rest[0], Sum):
            first = rest[0].sides  # of several summands
        return Flow((*self.steps[:common], Sum((*first, Flow(other.steps[common:])))))

    def __sub__(self, other: Flow) -> Flow:
        return self + other.through("·(−1)")

    def __mul__(self, gain: float | Tensor) -> Flow:
        return self.through("·α")

    __rmul__ = __truediv__ = __mul__

    @property
    def is_skip(self) -> bool:
        """Tell whether x passes unchanged, but for a factor."""
        return all(step == "·α" for step in self.steps)

    @property
    def length(self) -> int:
        """Return the number of steps on the longest way."""
        count = 0
        for step in self.steps:
            count += max(side.length for side in step.sides) if isinstance(step, Sum) else 1
        return count

    def draw(self) -> list[str]:
        """Draw the steps on the first line, and other sides of sums below."""
        rows = [""]
        for step in self.steps:
            drawn = step.draw() if isinstance(step, Sum) else [f" {step} "]
            width = len(rows[0])
            rows[0] += "─" + drawn[0]
            for number, line in enumerate(drawn[1:], start=1):
                if number == len(rows):
                    rows.append("")
                rows[number] = rows[number].ljust(width + 1) + line
        if rows[0]:
            rows[0] += "─"
        return rows

    def __str__(self) -> str:
        """Draw it from x to x."""
        first, *others = self.draw()
        lines = [f"x {first}→ x"]
        for line in others:
            lines.append(f"  {line}")
        return "\n".join(lines)


class Step(Branch):
    """Stands for a branch or a norm, and notes that x has passed."""

    in_features = out_features = 1

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Flow, **context: Any) -> Flow:
        return x.through(self.name)


def draw_block(
    make_placement: PlacementFactory, site: Site, labels: Mapping[str, str], name_norm: Callable[[Site], str]
) -> str:
    """Draw how the stream passes through a block of a model.

    Args:
        make_placement: makes the block.
        site: of the block.
        labels: what is written for each of its branches, by role.
        name_norm: names the norm at a site.
    """
    branches = {role: Step(label) for role, label in labels.items()}

    def make_norm(num_features: int, *, channel_dim: int = -1, site: Site) -> Any:
        name = name_norm(site)
        return nn.Identity() if name == "none" else Step(name)

    block: Any = make_placement(branches, make_norm, site)
    return str(block(Flow()))
