"""Step time against the final loss, or accuracy, and the arms that none beats in both."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from normbench.analysis.figures.canvas import LEFT, WIDTH, Drawing, grid, handle, near
from normbench.analysis.figures.lettering import log_ticks, plain
from normbench.analysis.figures.palette import INK
from normbench.analysis.figures.selection import Entry, panels_of
from normbench.analysis.measures import Metric, final, known
from normbench.analysis.records import Arm

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

COLUMNS = ("arm", "runs", "step_ms", "step_ms_low", "step_ms_high", "final", "final_low", "final_high", "on_front")

# Of so many arms all have their names beside them where there is room; of more, those on the front.
NAMED = 10
INNER, EDGE = 72 * (LEFT + 0.05), 72 * (WIDTH - 0.05)  # where names may stand, in points

Box = tuple[float, float, float, float]  # left, right, lower and upper edge, in points


@dataclass(frozen=True)
class Spot:
    """An arm: middle, lowest and highest of its runs' median step times (ms) and of the final values.

    runs: that finished. ms: median of the runs, as in the table of costs. final: mean of those that finished. shown:
    where it stands on the axis, which is the edge for one that is far off.
    """

    entry: Entry
    runs: int
    ms: tuple[float, float, float]
    final: tuple[float, float, float]
    shown: float

    @property
    def inside(self) -> bool:
        """Whether it stands at its value."""
        return self.shown == self.final[0]

    @property
    def name(self) -> str:
        """Beside the marker; with the value where the axis does not tell it."""
        arrow = "↑" if self.final[0] > self.shown else "↓"
        return plain(self.entry.arm.name, 30) + ("" if self.inside else f" {arrow} {self.final[0]:.3g}")


def step_time_against(arms: Sequence[Arm], metric: Metric, choice: str) -> Drawing | None:
    """The Pareto plot; None for fewer than two arms with both figures."""
    entries = [e for panel in panels_of(arms, together=0) for e in panel.entries]
    spots = [spot for e in entries if (spot := spot_of(e, metric)) is not None]
    if len(spots) < 2:
        return None
    low, high = limits(spots, metric)
    spots = [replace(spot, shown=min(max(spot.final[0], low), high)) for spot in spots]
    front = front_of(spots, metric)
    drawn = grid([""], height=3.6)
    draw_spots(drawn.axes[0], spots, front, (low, high))
    drawn.finish("step time (ms)", f"final {metric.words} ({metric.symbol})", *looks([spot.entry for spot in spots]))
    name_spots(drawn.axes[0], spots, front)
    best = ", ".join(spot.entry.arm.name for spot in front)
    far = "" if all(spot.inside for spot in spots) else " With an arrow: beyond the axis, at the value that it names."
    return Drawing(
        f"step-time-{metric.tag.partition('/')[0]}",
        f"Step time against final {metric.words}",
        f"Mean {metric.words} of the seeds that finished, and median over the runs of their median step times, with "
        "lines from the lowest to the highest. Filled, and joined by the dotted line: no other arm is both faster and "
        f"better.{far}{choice}",
        f"Step time in milliseconds against the final {metric.words} of {len(spots)} arms; on the front: {best}.",
        drawn.canvas,
        COLUMNS,
        [(s.entry.arm.name, s.runs, *s.ms, *s.final, "yes" if s in front else "no") for s in spots],
    )


def spot_of(entry: Entry, metric: Metric) -> Spot | None:
    """An arm's place; None where it has no step time, or no run that finished."""
    times = np.array(known((run.summary.get("step_time") or {}).get("median_ms") for run in entry.arm.runs))
    values = np.array(known(final(run, metric) for run in entry.arm.runs))
    if not len(times) or not len(values):
        return None
    mean = float(values.mean())
    return Spot(entry, len(values), spread(float(np.median(times)), times), spread(mean, values), mean)


def spread(middle: float, values: np.ndarray) -> tuple[float, float, float]:
    """The middle, the lowest and the highest."""
    return middle, float(values.min()), float(values.max())


def limits(spots: Sequence[Spot], metric: Metric) -> tuple[float, float]:
    """From where to where arms stand at their values: all, but for those so much worse that they squeeze the others."""
    values = [spot.final[0] for spot in spots]
    first, last = near(values)
    pad = 0.15 * (last - first)
    if metric.lower_is_better:
        return min(values), last + pad if last < max(values) else last
    return first - pad if first > min(values) else first, max(values)


def front_of(spots: Sequence[Spot], metric: Metric) -> list[Spot]:
    """Those for which no other is at least as fast and better, by step time."""
    sign = 1 if metric.lower_is_better else -1
    front: list[Spot] = []
    for spot in sorted(spots, key=lambda spot: (spot.ms[0], sign * spot.final[0])):
        if not front or sign * spot.final[0] < sign * front[-1].final[0]:
            front.append(spot)
    return front


def draw_spots(axes: Axes, spots: Sequence[Spot], front: Sequence[Spot], shown: tuple[float, float]) -> None:
    """The arms and the line that joins the front. shown: from where to where arms stand at their values."""
    for spot in spots:
        draw_spot(axes, spot, front=spot in front)
    times, values = [spot.ms[0] for spot in front], [spot.shown for spot in front]
    axes.step(times, values, where="post", color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    if max(spot.ms[0] for spot in spots) > 5 * min(spot.ms[0] for spot in spots):
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
    axes.margins(0.1)
    if not all(spot.inside for spot in spots):
        ends = [*shown, *(end for spot in spots if spot.inside for end in spot.final[1:])]
        pad = 0.1 * (max(ends) - min(ends))
        axes.set_ylim(min(ends) - pad, max(ends) + pad)


def draw_spot(axes: Axes, spot: Spot, *, front: bool) -> None:
    """A marker, and lines over the ranges of the runs; without that of the values where it stands at the edge."""
    (x, left, right), (y, low, high) = spot.ms, spot.final if spot.inside else (spot.shown,) * 3
    color = spot.entry.color
    axes.errorbar(
        x, y, [[y - low], [high - y]], [[x - left], [right - x]], color=color, marker=spot.entry.marker, markersize=7,
        markerfacecolor=color if front else "none", elinewidth=0.9,
    )  # fmt: skip


def name_spots(axes: Axes, spots: Sequence[Spot], front: Sequence[Spot]) -> None:
    """Names beside the markers, as far as they cover no other name, no marker and no line of one.

    Of many arms those on the front have one, and those that are far off.
    """
    axes.autoscale_view()
    first = [*front, *(spot for spot in spots if spot not in front and not spot.inside)]
    others = [spot for spot in spots if spot not in first] if len(spots) <= NAMED else []
    taken = [box for spot in spots for box in boxes_of(axes, spot)]
    for spot in [*first, *others]:
        ((x, y),) = points(axes, [(spot.ms[0], spot.shown)])
        for side, rise in PLACES:
            box = box_of(spot.name, x + side, y + rise, to_the_left=side < 0)
            if box[0] >= INNER and box[1] <= EDGE and not any(overlap(box, other) for other in taken):
                taken.append(box)
                at, align = (spot.ms[0], spot.shown), "left" if side > 0 else "right"
                axes.annotate(spot.name, at, (side, rise), textcoords="offset points", fontsize=9, ha=align)
                break


# Where a name may begin, or end to the left, in points from its marker; the first free one is taken.
PLACES = [(side, rise) for rise in (5.0, -12.0, -3.5, 11.0, -18.0) for side in (7.0, -7.0)]


def box_of(name: str, x: float, y: float, *, to_the_left: bool) -> Box:
    """What a name covers whose line begins, or ends, at a place."""
    width = 5.7 * len(name)
    return (x - width if to_the_left else x, x if to_the_left else x + width, y - 2, y + 8)


def boxes_of(axes: Axes, spot: Spot) -> list[Box]:
    """What a marker and the lines through it cover."""
    (x, left, right), (_, low, high), y = spot.ms, spot.final, spot.shown
    low, high = (low, high) if spot.inside else (y, y)
    (x, y), (left, low), (right, high) = points(axes, [(x, y), (left, low), (right, high)])
    return [(x - 5, x + 5, y - 5, y + 5), (left, right, y - 1.5, y + 1.5), (x - 1.5, x + 1.5, low, high)]


def points(axes: Axes, places: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Places on the axes in points of the figure."""
    scale = 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]  # axes that are drawn on stand in one
    return [(float(x) * scale, float(y) * scale) for x, y in axes.transData.transform(list(places))]


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes share a place."""
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


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
