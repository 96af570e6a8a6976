"""How a placement passes the stream through a block: it is run on a drawing in place of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
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
        skips, others = [], []
        for side in self.sides:
            if side.is_skip:
                skips.append(side)
            else:
                others.append(side)
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
            for line in lines[1:]:
                rows.append(edge + line.ljust(width) + edge)
        return rows


@dataclass(frozen=True)
class Joint:
    """Ways of several streams that a placement adds up."""

    sides: tuple[Flow, ...]

    def draw(self) -> list[str]:
        """Draw it, a line for each side, from the name of its stream on."""
        width_of_names = max(len(side.source) for side in self.sides)
        drawn = [side.draw_named(width_of_names) for side in self.sides]
        width = max(len(lines[0]) for lines in drawn)
        rows: list[str] = []
        for number, lines in enumerate(drawn):
            is_last = number == len(drawn) - 1
            corner = "┘" if is_last else "┤"
            end = "⊕" if number == 0 else corner
            rows.append(lines[0].ljust(width, "─") + end)
            edge = " " if is_last else "│"
            for line in lines[1:]:
                rows.append(line.ljust(width) + edge)
        return rows


@dataclass(frozen=True)
class Flow:
    """What a placement does to x, drawn while it does it.

    Attributes:
        steps: names, and sums of other ways.
        source: the name of the stream with which it begins; empty where it begins with a sum of several.
    """

    steps: tuple[str | Sum | Joint, ...] = ()
    source: str = "x"
    dtype: ClassVar[torch.dtype] = torch.float32  # which a placement may ask of a tensor

    def through(self, step: str) -> Flow:
        """Return it with a step more."""
        return replace(self, steps=(*self.steps, step))

    def detach(self) -> Flow:
        """Return it with the step that a gradient does not pass."""
        return self.through("stopgrad")

    def __add__(self, other: Flow | Tensor) -> Flow:
        """Return the sum, with what the two have in common before it; with a learned number a step more."""
        if isinstance(other, Tensor):
            return self.through("+b")
        if self.source != other.source:
            return Flow((Joint((self, other)),), source="")
        common = 0
        for mine, theirs in zip(self.steps, other.steps, strict=False):
            if mine != theirs:
                break
            common += 1
        rest = self.steps[common:]
        first: tuple[Flow, ...] = (Flow(rest),)
        if len(rest) == 1 and isinstance(rest[0], Sum):
            first = rest[0].sides  # of several summands
        together = Sum((*first, Flow(other.steps[common:])))
        return replace(self, steps=(*self.steps[:common], together))

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
            if isinstance(step, str):
                count += 1
            else:
                count += max(side.length for side in step.sides)
        return count

    def draw(self) -> list[str]:
        """Draw the steps on the first line, and other sides of sums below."""
        rows = [""]
        for step in self.steps:
            if isinstance(step, Joint):  # the first one
                rows = step.draw()
                continue
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

    def draw_named(self, width: int = 0) -> list[str]:
        """Draw it from the name of its stream on, which takes so much room."""
        if not self.source:
            return self.draw()
        first, *others = self.draw()
        rows = [f"{self.source.ljust(width)} {first or '─'}"]
        for line in others:
            rows.append(" " * (max(width, len(self.source)) + 1) + line)
        return rows

    def draw_to(self, target: str) -> str:
        """Draw it from the name of its stream to another."""
        first, *others = self.draw_named()
        return "\n".join([f"{first}→ {target}", *others])

    def __str__(self) -> str:
        """Draw it from x to x."""
        return self.draw_to("x")


class Step(Branch):
    """Stands for a branch or a norm, and notes that x has passed."""

    in_features = out_features = 1

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Flow, **context: Any) -> Flow:
        return x.through(self.name)


class NamedStep(Step):
    """Stands for a branch whose output several streams use: that has the name z from there on."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.way = Flow()

    def forward(self, x: Flow, **context: Any) -> Flow:
        self.way = x.through(self.name)
        return Flow(source="z")


class Streams:
    """Stands for several streams that are stacked, each by its name."""

    def __init__(self, names: Iterable[str]) -> None:
        self.flows = [Flow(source=name) for name in names]

    def unbind(self, dim: int) -> list[Flow]:
        """Return the streams, each by itself."""
        return self.flows


def draw_start(block: Any) -> str:
    """Draw what a block does to its several streams before its first branch; empty where it does nothing."""
    return draw_changes(block.begin(Streams(block.names).flows), block.names)


def draw_branch(block: Any, role: str) -> str:
    """Draw how several streams pass through a branch of a block, whose output is z where more than one of them uses it.

    Args:
        block: of placements.streams.SeveralStreams, with steps for its branches and norms.
        role: of the branch.
    """
    start = Streams(block.names).flows
    changed = block.pass_branch(start, role, {})
    uses = [way for way, before in zip(changed, start, strict=True) if way != before]
    if len(uses) == 1:
        return draw_changes(changed, block.names)
    branch = NamedStep(block.branches[role].name)
    block.branches[role] = branch
    changed = block.pass_branch(start, role, {})
    return "\n".join([branch.way.draw_to("z"), draw_changes(changed, block.names)])


def draw_end(block: Any) -> str:
    """Draw what is read of several streams after the last block."""
    way: Flow = block.leave(Streams(block.names))
    return way.draw_to("output")


def draw_changes(ways: Iterable[Flow], names: Iterable[str]) -> str:
    """Draw the ways of streams, one below the other, leaving out those to which nothing is done."""
    drawn: list[str] = []
    for way, name in zip(ways, names, strict=True):
        if way != Flow(source=name):
            drawn.append(way.draw_to(name))
    return "\n".join(drawn)


def draw_streams(block: Any) -> str:
    """Draw how several streams pass through a block, and after the last one, if it has norms for that, what is read."""
    drawn = [draw_start(block)]
    for role in block.branches:
        drawn.append(draw_branch(block, role))
    if "closing" in block.norms:
        drawn.append(draw_end(block))
    return "\n".join(drawing for drawing in drawn if drawing)


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
    if hasattr(block, "names"):
        return draw_streams(block)
    return str(block.sketch(Flow()))
