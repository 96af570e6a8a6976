"""What a benchmark has found: ratios of alternated measurements, their table, and the page that holds it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

HEADS = ("what", "ours", "against", "ratio", "target", "")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        part: the part of the benchmark.
        what: what was measured.
        ours: our median, in words.
        against: that of the other, in words.
        values: one of each alternated pair, ratios unless they have a unit.
        target: what their median must reach.
        higher: whether more is better.
        short: why the target is not met, whatever the values are.
        notes: where the time goes.
    """

    part: str
    what: str
    ours: str
    against: str
    values: tuple[float, ...]
    target: float
    higher: bool = False
    unit: str = ""
    short: str = ""
    notes: tuple[str, ...] = ()

    @property
    def median(self) -> float:
        """The median over the pairs."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """Whether the target is met, and if not, by how much it is missed."""
        if self.short:
            return f"missed: {self.short}"
        beyond = self.median - self.target
        if self.higher:
            beyond = -beyond
        return f"missed by {beyond:.3g}{self.unit}" if beyond > 0 else "met"

    @property
    def cells(self) -> tuple[str, ...]:
        """What the table shows, in the order of HEADS."""
        sign = "≥" if self.higher else "≤"
        return (
            f"{self.part}: {self.what}",
            self.ours,
            self.against,
            spread(self.values, self.unit),
            f"{sign} {self.target:.3g}{self.unit}",
            self.verdict,
        )


def spread(values: Sequence[float], unit: str = "") -> str:
    """Return median, extremes and number of measurements."""
    median = f"{statistics.median(values):.3g}{unit}"
    if len(values) == 1:
        return f"{median}, n = 1"
    return f"{median} [{min(values):.3g}–{max(values):.3g}], n = {len(values)}"


def compare(
    part: str,
    what: str,
    pairs: Sequence[tuple[float, float]],
    target: float,
    *,
    unit: str = "s",
    peer: str = "",
    higher: bool = False,
    short: str = "",
    notes: Iterable[str] = (),
) -> Row:
    """Return the row of pairs measured in alternation, ours first. peer: who the other is."""
    ours = f"{statistics.median(one for one, _ in pairs):.3g} {unit}"
    theirs = f"{statistics.median(other for _, other in pairs):.3g} {unit}"
    ratios = tuple(one / other for one, other in pairs)
    return Row(part, what, ours, f"{theirs} {peer}".strip(), ratios, target, higher, short=short, notes=tuple(notes))


def shares(seconds: Mapping[str, float], whole: float, rest: str = "the rest") -> str:
    """Say where time goes: shares of the whole, largest first; what is in none of them is the rest."""
    known = {**seconds, rest: max(0.0, whole - sum(seconds.values()))}
    ordered = sorted(known.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {number / whole:.0%}" for name, number in ordered if number / whole >= 0.005)


def line(row: Row) -> str:
    """Return a row as a line of text, with its notes below."""
    what, ours, against, ratio, target, verdict = row.cells
    sides = f"{ours} against {against}" if against else ours
    return "\n    ".join([f"{what}: {sides}; {ratio}; target {target}: {verdict}", *row.notes])


def markdown(rows: Sequence[Row], facts: Mapping[str, str], ended: Mapping[str, str]) -> str:
    """Return a table of rows, with where it was measured above, and what the rows say of themselves below.

    ended: parts that have no rows, and why.
    """
    table = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    notes = []
    for row in rows:
        table.append(f"| {' | '.join(row.cells)} |")
        notes += [f"- {row.part}, {row.what}: {note}" for note in row.notes]
    sections = {
        "Measured on": [f"- {name}: {fact}" for name, fact in facts.items()],
        "Ratios": table,
        "Where the time goes": notes,
        "Not measured": [f"- {part}: {reason}" for part, reason in ended.items()],
    }
    written = []
    for title, lines in sections.items():
        if lines:
            written.append(f"## {title}\n\n" + "\n".join(lines))
    return "\n\n".join(written) + "\n"
