"""The final loss, or accuracy, against the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from normbench.analysis.comparisons import LEARNING_RATE, without_rate
from normbench.analysis.figures.canvas import Drawing, finish, grid
from normbench.analysis.figures.lettering import log_ticks
from normbench.analysis.figures.losses import counted
from normbench.analysis.figures.selection import Entry, Panel, diverged, panels_of, shown, value_of
from normbench.analysis.measures import Metric, final, known
from normbench.analysis.records import Arm, Study
from normbench.analysis.sensitivity import tried_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE = 0.06  # of a panel's height, for a row of crosses

COLUMNS = ("arm", "learning_rate", "runs", "diverged", "finished", "mean", "low", "high", "best")


@dataclass(frozen=True)
class Point:
    """The runs of an arm at one learning rate. mean, low, high: of those that finished; NaN where none did."""

    rate: float
    runs: int
    diverged: int
    finished: int
    mean: float
    low: float
    high: float


def learning_rates(study: Study, metric: Metric) -> Drawing | None:
    """The U curves; None where no arm has two learning rates."""
    if LEARNING_RATE not in study.varied:
        return None
    arms, points = families(study, metric)
    best = {one.name: one.best for one in tried_rates(study)}
    if not any(len(found) > 1 and any(point.finished for point in found) for found in points.values()):
        return None
    panels, note = shown(panels_of(arms))
    panels = panels if len(panels) == 1 else tuple(map(with_one_marker, panels))
    panes = grid([panel.title for panel in panels])
    drawn = [point for panel in panels for e in panel.entries for point in points[e.arm.name]]
    fit(panes.axes, drawn, crossed := rows_of_crosses(panels, points), metric)
    for panel, one in zip(panels, panes.axes, strict=True):
        draw_panel(one, panel, points, best)
    rates = sorted({point.rate for point in drawn})
    log_ticks(panes.axes[0].xaxis, rates if len(rates) <= (9 if len(panels) == 1 else 3) else ())
    finish(panels, panes, "learning rate", f"final {metric.words} ({metric.symbol})", markers=True)
    crosses = (
        " × at the upper edge, in a row for each arm: rates at which some of its runs diverged." if crossed else ""
    )
    return Drawing(
        "learning-rates",
        f"Final {metric.words} against learning rate",
        "Mean of the seeds that finished; bars: from the lowest to the highest seed; filled: the best rate of the arm, "
        f"with the fewest runs lost and then the lowest mean validation loss.{crosses}{note}",
        f"Final {metric.words} against the learning rate, on a logarithmic axis, for {counted(panels)}.",
        panes.canvas,
        COLUMNS,
        [
            (e.arm.name, *vars(point).values(), "yes" if point.rate == best.get(e.arm.name) else "no")
            for panel in panels
            for e in panel.entries
            for point in points[e.arm.name]
        ],
    )


def with_one_marker(panel: Panel) -> Panel:
    """What markers would tell, the panel's title does."""
    return replace(panel, entries=tuple(replace(e, marker="o") for e in panel.entries))


def families(study: Study, metric: Metric) -> tuple[list[Arm], dict[str, list[Point]]]:
    """The arms without their learning rates, and the points of each by its name, by rate."""
    first: dict[str, Arm] = {}
    points: dict[str, list[Point]] = {}
    for arm in study.arms:
        if arm.settings[LEARNING_RATE] is None:  # an optimizer that has none
            continue
        family = without_rate(arm)
        first.setdefault(family.name, family)
        points.setdefault(family.name, []).append(point_of(arm, metric))
    return list(first.values()), {name: sorted(found, key=lambda point: point.rate) for name, found in points.items()}


def point_of(arm: Arm, metric: Metric) -> Point:
    """An arm at one learning rate."""
    values = np.array(known(final(run, metric) for run in arm.runs) or [np.nan])
    rate, finished = float(value_of(arm, LEARNING_RATE)), int(np.isfinite(values).sum())
    spread = (float(values.mean()), float(values.min()), float(values.max()))
    return Point(rate, len(arm.runs), len(diverged(arm.runs)), finished, *spread)


def rows_of_crosses(panels: Sequence[Panel], points: dict[str, list[Point]]) -> int:
    """How many arms of a panel have crosses at its upper edge, in the panel with most."""
    return max(sum(any(p.diverged for p in points[e.arm.name]) for e in panel.entries) for panel in panels)


def fit(axes: Sequence[Axes], points: Sequence[Point], crossed: int, metric: Metric) -> None:
    """Axes for the points, without values that are far worse than most, and with room for crosses above."""
    having = [point for point in points if point.finished]
    low, high = min(point.low for point in having), max(point.high for point in having)
    q1, q3 = np.quantile([point.mean for point in having], [0.25, 0.75])
    reach = 3 * (q3 - q1) + 1e-9
    low, high = (low, min(high, q3 + reach)) if metric.lower_is_better else (max(low, q1 - reach), high)
    room = min(LINE * crossed + (0.02 if crossed else 0), 0.6)
    span = (high - low) or 0.1
    for one in axes:
        one.set_xscale("log")
        one.set_ylim(low - 0.06 * span, high + (0.06 + room / (1 - room)) * span)
    rates = [point.rate for point in points]
    axes[0].set_xlim(min(rates) / 1.4, max(rates) * 1.4)


def draw_panel(axes: Axes, panel: Panel, points: dict[str, list[Point]], best: Mapping[str, float]) -> None:
    """The curves of a panel, and above them a row of crosses for each arm of which runs diverged."""
    place = 0
    for e in panel.entries:
        draw_points(axes, e, points[e.arm.name], best.get(e.arm.name))
        lost = [point.rate for point in points[e.arm.name] if point.diverged]
        if lost:
            draw_crosses(axes, e, lost, 0.98 - LINE * place)
            place += 1


def draw_crosses(axes: Axes, entry: Entry, rates: Sequence[float], height: float) -> None:
    """Crosses in the arm's marker, at a height between 0 and 1."""
    look: dict[str, Any] = {"color": entry.color, "linestyle": "none", "transform": axes.get_xaxis_transform()}
    axes.plot(rates, [height] * len(rates), marker="x", markersize=4, clip_on=False, **look)
    axes.plot(
        rates,
        [height] * len(rates),
        marker=entry.marker,
        markersize=9,
        markerfacecolor="none",
        markeredgewidth=0.7,
        clip_on=False,
        **look,
    )


def draw_points(axes: Axes, entry: Entry, points: Sequence[Point], best: float | None) -> None:
    """One arm's curve over the rates at which runs finished. best: the rate that is filled."""
    having = [point for point in points if point.finished]
    if not having:
        return
    x, y, low, high = (np.array([getattr(p, name) for p in having]) for name in ("rate", "mean", "low", "high"))
    look: dict[str, Any] = {"color": entry.color, "marker": entry.marker}
    axes.errorbar(x, y, [y - low, high - y], linestyle=entry.dash, markerfacecolor="none", elinewidth=1, **look)
    axes.plot(x[x == best], y[x == best], markersize=7, linestyle="none", **look)
