"""Differences from the baseline, paired by seed, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normbench.analysis.comparisons import Comparison
from normbench.analysis.figures.canvas import WIDTH, Drawing, blank, near
from normbench.analysis.figures.lettering import plain
from normbench.analysis.figures.palette import INK
from normbench.analysis.figures.selection import Entry, panels_of
from normbench.analysis.records import Arm
from normbench.analysis.statistics import PairedDifference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 40
DOT = 0.011  # the width of a seed's dot, as a part of the axis
STACK = 0.5  # the height of all dots of a row, in rows
COLUMNS = ("arm", "baseline", "kind", "seed", "difference", "low", "high", "corrected_p")


def forest(comparisons: Sequence[Comparison], arms: Sequence[Arm], choice: str) -> Drawing | None:
    """A row for each arm that has a baseline; None where no comparison has two seeds."""
    judged = [one for one in comparisons if one.n > 1]
    drawn = judged[:MOST_ROWS]
    if not drawn:
        return None
    metric, looks = drawn[0].metric, looks_of(arms)
    baselines = list(dict.fromkeys(one.baseline.name for one in drawn))
    canvas = blank(WIDTH, (0.3 if len(drawn) <= 20 else 0.24) * len(drawn) + 1.1)
    axes = canvas.subplots()
    axes.axvline(0, color=INK, linewidth=1)
    left, right = limits(drawn)
    axes.set_xlim(left, right)
    for place, one in enumerate(drawn):
        draw_row(axes, place, one, looks[one.arm.name])
    write_rows(axes, drawn, several=len(baselines) > 1)
    better, worse = ("better", "worse") if metric.lower_is_better else ("worse", "better")
    axes.set_xlabel(f"← {better}   difference of the final {metric.words} ({metric.unit})   {worse} →")
    against = f"against {baselines[0]}" if len(baselines) == 1 else "against the arm named behind it"
    note = f" The first {MOST_ROWS} of {len(judged)}." if len(judged) > MOST_ROWS else ""
    return Drawing(
        "differences",
        f"Differences of the final {metric.words}, paired by seed",
        f"Each arm {against}: mean of the differences with its 95 % t interval; dots: the seeds; filled: a "
        f"difference after Holm's correction (p < 0.05); right: mean and number of seeds; arrow at the edge: beyond "
        f"it.{choice}{note}",
        f"Forest plot with {len(drawn)} rows: " + "; ".join(map(told, drawn[:12])) + ".",
        canvas,
        COLUMNS,
        [row for one in drawn for row in rows_of(one)],
    )


def looks_of(arms: Sequence[Arm]) -> dict[str, Entry]:
    """How each arm looks, by its name."""
    return {e.arm.name: e for panel in panels_of(arms) for e in panel.entries}


def draw_row(axes: Axes, place: int, one: Comparison, look: Entry) -> None:
    """One comparison: the seeds, the interval, the mean."""
    paired = pairs(one)
    left, right = axes.get_xlim()
    seeds: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 2.4, "markeredgewidth": 0}
    heights = place + 0.25 + np.array(stacked(paired.differences, DOT * (right - left)))
    axes.plot(paired.differences, heights, color=look.color, **seeds)
    axes.plot(ends(one), [place, place], color=look.color, linewidth=2, solid_capstyle="butt")
    for edge, arrow, beyond in ((left, "<", min(ends(one)) < left), (right, ">", max(ends(one)) > right)):
        if beyond:
            axes.plot(edge, place, marker=arrow, markersize=6, color=look.color, clip_on=False)
    face = look.color if one.real else "none"
    axes.plot(paired.mean, place, marker=look.marker, markersize=7, color=look.color, markerfacecolor=face)


def stacked(values: Sequence[float], width: float) -> list[float]:
    """How far below the first each value's dot stands, in rows, so that dots closer than a width stay apart."""
    taken: list[list[float]] = []
    levels = []
    for value in values:
        free = (n for n, level in enumerate(taken) if all(abs(value - other) >= width for other in level))
        level = next(free, len(taken))
        if level == len(taken):
            taken.append([])
        taken[level].append(value)
        levels.append(level)
    step = min(0.13, STACK / max(*levels, 1))
    return [step * level for level in levels]


def limits(drawn: Sequence[Comparison]) -> tuple[float, float]:
    """What the axis shows: means and seeds but those far off, and intervals but those far wider than most."""
    first, last = near([0.0, *(pairs(one).mean for one in drawn)])
    drawn = [one for one in drawn if first <= pairs(one).mean <= last] or drawn
    inside = [0.0, *(value for one in drawn for value in (pairs(one).mean, *pairs(one).differences))]
    usual = 4 * float(np.median([(ends(one)[1] - ends(one)[0]) / 2 for one in drawn]))
    left = min(*inside, *(max(ends(one)[0], pairs(one).mean - usual) for one in drawn))
    right = max(*inside, *(min(ends(one)[1], pairs(one).mean + usual) for one in drawn))
    pad = 0.05 * (right - left) or 1e-6
    return left - pad, right + pad


def pairs(one: Comparison) -> PairedDifference:
    """What the statistics say of a comparison that has seeds."""
    assert one.paired is not None
    return one.paired


def ends(one: Comparison) -> tuple[float, float]:
    """Of its interval; of differences that are all the same, which have none, the mean."""
    if one.interval is None:
        return pairs(one).mean, pairs(one).mean
    return one.interval.lower, one.interval.upper


def write_rows(axes: Axes, drawn: Sequence[Comparison], *, several: bool) -> None:
    """Names at the left, numbers at the right."""
    names = [one.arm.name + (f" − {one.baseline.name}" if several else "") for one in drawn]
    axes.set_yticks(range(len(drawn)), [plain(name, 48) for name in names])
    axes.set_ylim(len(drawn) - 0.2, -0.5)  # dots of the last row stand below it
    axes.tick_params(axis="y", length=0, pad=8)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    right.set_yticks(range(len(drawn)), [f"{signed(pairs(one).mean)}  n = {one.n}" for one in drawn])
    right.tick_params(axis="y", length=0, pad=8)
    right.grid(visible=False)
    right.spines[:].set_visible(False)


def rows_of(one: Comparison) -> list[Sequence[Any]]:
    """The data of one comparison."""
    start, paired = (one.arm.name, one.baseline.name), pairs(one)
    seeds = zip(paired.seeds, paired.differences, strict=True)
    mean = (*start, "mean", None, paired.mean, *(ends(one) if one.interval else (None, None)), one.corrected)
    return [mean, *((*start, "seed", seed, value, None, None, None) for seed, value in seeds)]


def told(one: Comparison) -> str:
    """A row in words."""
    low, high = map(signed, ends(one))
    found = f"{low} to {high}" if one.interval else "in each seed"
    return f"{one.arm.name} less {one.baseline.name} {signed(pairs(one).mean)} ({found}) {one.metric.unit}"


def signed(value: float) -> str:
    """A difference to three significant digits, at most four behind the point."""
    digits = 4 if abs(value) < 0.01 else 3 if abs(value) < 1 else 2
    return f"{value:+.{digits}f}".replace("-", "−")
