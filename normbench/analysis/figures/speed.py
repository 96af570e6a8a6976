"""Step time against final loss, and the arms that none beats in both."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from normbench.analysis.figures.canvas import WIDTH, Drawing, grid, handle
from normbench.analysis.figures.lettering import log_ticks, plain
from normbench.analysis.figures.palette import INK
from normbench.analysis.figures.selection import Entry, panels_of
from normbench.analysis.measures import Metric, final, known
from normbench.analysis.records import Arm

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

COLUMNS = ("arm", "runs", "step_ms", "step_ms_low", "step_ms_high", "loss", "loss_low", "loss_high", "on_front")


# Of so many arms all have their names beside them where there is room; of more, those on the front.
NAMED = 10
EDGE = 72 * (WIDTH - 0.05)  # of the figure, in points


@dataclass(frozen=True)
class Spot:
    """An arm: mean, lowest and highest over the seeds that finished, of the median step time (ms) and the loss."""

    entry: Entry
    runs: int
    ms: tuple[float, float, float]
    loss: tuple[float, float, float]


def step_time_against_loss(arms: Sequence[Arm], metric: Metric, choice: str) -> Drawing | None:
    """The Pareto plot; None for fewer than two arms with both figures."""
    entries = [e for panel in panels_of(arms, together=0) for e in panel.entries]
    spots = [spot for e in entries if (spot := spot_of(e, metric)) is not None]
    if len(spots) < 2:
        return None
    front = front_of(spots)
    drawn = grid([""], height=3.6)
    axes = drawn.axes[0]
    for spot in spots:
        draw_spot(axes, spot, front=spot in front)
    times, losses = [spot.ms[0] for spot in front], [spot.loss[0] for spot in front]
    axes.step(times, losses, where="post", color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    if max(spot.ms[0] for spot in spots) > 5 * min(spot.ms[0] for spot in spots):
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
    axes.margins(0.1)
    drawn.finish("step time (ms)", f"final {metric.words} ({metric.symbol})", *looks([spot.entry for spot in spots]))
    name_spots(axes, [*front, *(spot for spot in spots if spot not in front)] if len(spots) <= NAMED else front, spots)
    best = ", ".join(spot.entry.arm.name for spot in front)
    return Drawing(
        "step-time-loss",
        f"Step time against final {metric.words}",
        "Mean of the seeds that finished, with lines from the lowest to the highest; step time: each run's median. "
        f"Filled, and joined by the dotted line: no other arm is both faster and better.{choice}",
        f"Step time in milliseconds against the final {metric.words} of {len(spots)} arms; on the front: {best}.",
        drawn.canvas,
        COLUMNS,
        [(s.entry.arm.name, s.runs, *s.ms, *s.loss, "yes" if s in front else "no") for s in spots],
    )


def spot_of(entry: Entry, metric: Metric) -> Spot | None:
    """An arm's place; None where no run that finished has both."""
    pairs = (
        (known([(run.summary.get("step_time") or {}).get("median_ms")]), final(run, metric)) for run in entry.arm.runs
    )
    having = [(ms[0], loss) for ms, loss in pairs if ms and math.isfinite(loss)]
    if not having:
        return None
    ms, loss = np.array(having).T
    return Spot(entry, len(having), spread(ms), spread(loss))


def spread(values: Any) -> tuple[float, float, float]:
    """Mean, lowest and highest."""
    return float(values.mean()), float(values.min()), float(values.max())


def front_of(spots: Sequence[Spot]) -> list[Spot]:
    """Those for which no other is at least as fast and better, by step time."""
    front: list[Spot] = []
    for spot in sorted(spots, key=lambda spot: (spot.ms[0], spot.loss[0])):
        if not front or spot.loss[0] < front[-1].loss[0]:
            front.append(spot)
    return front


def draw_spot(axes: Axes, spot: Spot, *, front: bool) -> None:
    """A marker, and lines over the ranges of the seeds."""
    (x, left, right), (y, low, high) = spot.ms, spot.loss
    color = spot.entry.color
    axes.errorbar(
        x, y, [[y - low], [high - y]], [[x - left], [right - x]], color=color, marker=spot.entry.marker, markersize=7,
        markerfacecolor=color if front else "none", elinewidth=0.9,
    )  # fmt: skip


def name_spots(axes: Axes, named: Sequence[Spot], spots: Sequence[Spot]) -> None:
    """Names beside the markers, above or below them, as far as they cover neither each other nor a marker."""
    axes.autoscale_view()
    scale = 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]  # axes that are drawn on stand in one
    places = {spot.entry.arm.name: axes.transData.transform((spot.ms[0], spot.loss[0])) * scale for spot in spots}
    taken = [(x - 5, x + 5, y) for x, y in places.values()]
    for spot in named:
        name, (x, y) = plain(spot.entry.arm.name, 30), places[spot.entry.arm.name]
        width = 6 * len(name)
        side = 7 if x + 7 + width < EDGE else -7  # to the left where the figure ends
        for rise in (5.0, -12.0, -3.0):
            left, height = x + side - (width if side < 0 else 0), y + rise + 3
            if all(left + width < start or end < left or abs(height - other) > 9 for start, end, other in taken):
                taken.append((left, left + width, height))
                at, align = (spot.ms[0], spot.loss[0]), "left" if side > 0 else "right"
                axes.annotate(name, at, xytext=(side, rise), textcoords="offset points", fontsize=9, ha=align)
                break


def looks(entries: Sequence[Entry]) -> tuple[list[Artist], list[str]]:
    """For the legend: colours, and markers where they tell something more."""
    from matplotlib.lines import Line2D

    colors = {e.label: handle(e, lines=True, marker=False) for e in entries}
    titles = {marker_words(e, colors): e.marker for e in entries}
    markers = {
        title: Line2D([], [], color=INK, marker=marker, linestyle="none", markerfacecolor="none")
        for title, marker in titles.items()
        if title
    }
    together: dict[str, Artist] = {**colors, **(markers if len(markers) > 1 else {})}
    return list(together.values()), list(together)


def marker_words(entry: Entry, colors: Container[str]) -> str:
    """What the marker of an arm tells: its name without what the colour tells."""
    return " · ".join(word for word in entry.arm.name.split(" · ") if word not in colors)
