"""How arms ended: paired differences, norms × placements, against the learning rate, and against step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from normbench.analysis.comparisons import Comparison
from normbench.analysis.figures import panels as grid
from normbench.analysis.figures.panels import Entry, panels_of, plain, sample, value_of
from normbench.analysis.figures.style import EMPTY, INK, Drawing, describe
from normbench.analysis.measures import Metric, known
from normbench.analysis.records import Arm, Study
from normbench.analysis.sensitivity import Outcome, outcome, tried_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.transforms import Bbox

MOST_ROWS = 40  # of the forest plot
MOST_FIELDS = 4  # of the heat map
CROSSES = 0.06  # of a panel's height, for a row of crosses
NAMED = 10  # so many arms all have their names beside them where there is room; of more, those on the front


def blank(height: float) -> Canvas:
    """Return an empty figure whose parts find their places from the size of their words."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(grid.WIDTH, height), layout="constrained")


# ---- differences from the baseline, paired by seed


def forest(comparisons: Sequence[Comparison], arms: Sequence[Arm], note: str) -> Drawing | None:
    """Draw a row for each arm that has a baseline; None where no comparison has two seeds."""
    judged = [one for one in comparisons if one.n > 1]
    if not judged:
        return None
    drawn, metric = judged[:MOST_ROWS], judged[0].metric
    entries = {entry.arm.name: entry for panel in panels_of(arms) for entry in panel.entries}
    baselines = list(dict.fromkeys(one.baseline.name for one in drawn))
    names = [one.arm.name + (f" − {one.baseline.name}" if len(baselines) > 1 else "") for one in drawn]
    numbers = [f"{signed(one.paired.mean)}  n = {one.n}" for one in drawn]
    canvas = blank((0.3 if len(drawn) <= 20 else 0.24) * len(drawn) + 1.1)
    axes = canvas.subplots()
    axes.axvline(0, color=INK, linewidth=1)
    left, right = grid.near([0.0, *(value for one in drawn for value in extent(one))])
    pad = 0.05 * (right - left) or 1e-6
    axes.set_xlim(left - pad, right + pad)
    for place, one in enumerate(drawn):
        draw_difference(axes, place, one, entries[one.arm.name])
    for side, labels in ((axes, [plain(name, 48) for name in names]), (axes.twinx(), numbers)):
        side.set_yticks(range(len(drawn)), labels)
        side.set_ylim(len(drawn) - 0.2, -0.5)  # dots of the last row stand below it
        side.tick_params(axis="y", length=0, pad=8)
        side.grid(visible=False, axis="y")
        side.spines[["left", "right"]].set_visible(False)
    better, worse = ("better", "worse") if metric.lower_is_better else ("worse", "better")
    axes.set_xlabel(f"← {better}   difference of the final {metric.words} ({metric.unit})   {worse} →")
    rows = list(zip(names, numbers, strict=True))
    texts = describe("differences", note, metric=metric, baselines=baselines, rows=rows, count=len(judged))
    columns = ("arm", "baseline", "kind", "seed", "difference", "low", "high", "corrected_p")
    return Drawing("differences", *texts, canvas, columns, [row for one in drawn for row in difference_rows(one)])


def draw_difference(axes: Axes, place: int, one: Comparison, entry: Entry) -> None:
    """Draw one comparison: the mean, the interval, and below it each seed at its own height."""
    seeds, color, (left, right) = one.paired.differences, entry.color, axes.get_xlim()
    heights = place + 0.22 + min(0.06, 0.24 / len(seeds)) * np.arange(len(seeds))
    axes.plot(seeds, heights, ".", color=color, markersize=4, markeredgewidth=0)
    axes.plot(extent(one)[-2:], [place, place], color=color, linewidth=2, solid_capstyle="butt")
    for edge, arrow in ((left, "<"), (right, ">")):
        if (min(extent(one)) < left) if arrow == "<" else (max(extent(one)) > right):
            axes.plot(edge, place, arrow, markersize=6, color=color, clip_on=False)
    face = color if one.real else "none"
    axes.plot(one.paired.mean, place, marker=entry.marker, markersize=7, color=color, markerfacecolor=face)


def extent(one: Comparison) -> list[float]:
    """Return what is drawn of a comparison: the seeds, and the ends of the interval, or the mean where it has none."""
    low, high = (one.interval.lower, one.interval.upper) if one.interval else (one.paired.mean, one.paired.mean)
    return [*one.paired.differences, low, high]


def difference_rows(one: Comparison) -> list[Sequence[Any]]:
    """Return the data of one comparison."""
    names = (one.arm.name, one.baseline.name)
    low, high = extent(one)[-2:] if one.interval else (None, None)
    seeds = zip(one.paired.seeds, one.paired.differences, strict=True)
    mean = (*names, "mean", None, one.paired.mean, low, high, one.corrected)
    return [mean, *((*names, "seed", seed, value, None, None, None) for seed, value in seeds)]


def signed(value: float) -> str:
    """Return a difference to three significant digits, at most four behind the point."""
    digits = 4 if abs(value) < 0.01 else 3 if abs(value) < 1 else 2
    return f"{value:+.{digits}f}".replace("-", "−")


# ---- norms × placements


def heat_map(arms: Sequence[Arm], metric: Metric, note: str) -> Drawing | None:
    """Draw a table of cells; None where norms or placements do not vary."""
    varied = grid.varied_among(arms)
    if not {"norm", "placement"} <= set(varied):
        return None
    rest = [key for key in varied if key not in ("norm", "placement")]
    fields: dict[str, dict[tuple[str, str], Outcome]] = {}
    for arm in arms:
        place = str(value_of(arm, "norm")), str(value_of(arm, "placement"))
        fields.setdefault(grid.words(arm, rest), {})[place] = outcome(arm, metric)
    titles = list(fields)[:MOST_FIELDS]
    rows = [(title, *place, *found[:4]) for title in titles for place, found in fields[title].items()]
    worse = 1 if metric.lower_is_better else -1
    badness = [worse * mean for mean in known(row[-1] for row in rows)]
    if not badness:
        return None
    q1, q3 = np.quantile(badness, [0.25, 0.75])
    best, worst = min(badness), min(max(badness), q3 + 1.5 * (q3 - q1))  # what is far worse has the end of the scale
    canvas = blank(sum(0.52 * len({norm for norm, _ in fields[title]}) + 0.75 for title in titles))
    for pane, title in zip(canvas.subplots(len(titles), 1, squeeze=False).ravel(), titles, strict=True):
        draw_field(pane, fields[title], 2 if metric.scale == 100 else 3, worse, (best, worst))
        pane.set_title(plain(title))
    lost = any(row[5] for row in rows)
    texts = describe("norm-placement", note, metric=metric, lost=lost, shown=len(titles), count=len(fields))
    columns = ("panel", "norm", "placement", "runs", "finished", "diverged", "mean")
    return Drawing("norm-placement", *texts, canvas, columns, rows)


def cell_colors(badness: float, best: float, worst: float) -> tuple[str, str]:
    """Return the colours of a cell and of its words, on a dark page too: the better, the darker."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    place = 0.08 + 0.84 * min(max((badness - best) / (worst - best or 1), 0), 1)
    return to_hex(colormaps["viridis"](place)), "#0e1216" if place > 0.45 else "#fbfbfc"


def draw_field(
    axes: Axes, field: Mapping[tuple[str, str], Outcome], digits: int, worse: int, scale: tuple[float, float]
) -> None:
    """Draw one table: in each cell its mean, and how many runs diverged."""
    from matplotlib.patches import Rectangle

    norms, placements = (list(dict.fromkeys(names)) for names in zip(*field, strict=True))
    for y, x in np.ndindex(len(norms), len(placements)):
        found = field.get((norms[y], placements[x]), Outcome(0, 0, 0, np.nan, np.nan, np.nan))
        fill, ink = cell_colors(worse * found.mean, *scale) if found.finished else (EMPTY, INK)
        axes.add_patch(Rectangle((x - 0.48, y - 0.47), 0.96, 0.94, facecolor=fill))
        words = [f"{found.mean:.{digits}f}" if found.finished else "–"]
        words += [f"{found.diverged}/{found.runs} diverged"] if found.diverged else []
        axes.text(x, y, "\n".join(words), color=ink, ha="center", va="center", linespacing=1.4)
    axes.set_xticks(range(len(placements)), [plain(name, 20) for name in placements])
    axes.set_yticks(range(len(norms)), [plain(name, 20) for name in norms])
    axes.set(xlim=(-0.5, len(placements) - 0.5), ylim=(len(norms) - 0.5, -0.5))
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


# ---- against the learning rate


def learning_rates(study: Study, metric: Metric) -> Drawing | None:
    """Draw each arm over its learning rates; None where no arm has two."""
    tried = {one.name: one for one in tried_rates(study, fewest=1)}
    points = {name: {r: outcome(arm, metric) for r, arm in one.by_rate.items()} for name, one in tried.items()}
    if not any(len(found) > 1 and any(point.finished for point in found.values()) for found in points.values()):
        return None
    panels, more = grid.first_panels(panels_of([one.arm for one in tried.values()]))
    if several := len(panels) > 1:  # what markers would tell, the panels' titles do
        panels = [replace(panel, entries=[replace(e, marker="o") for e in panel.entries]) for panel in panels]
    drawn = [(e, rate, point) for panel in panels for e in panel.entries for rate, point in points[e.arm.name].items()]
    titles, legend = [panel.title for panel in panels], grid.legend_of(panels, markers=True)
    canvas, panes = grid.draw_grid(titles, "learning rate", f"final {metric.words} ({metric.symbol})", legend)
    for panel, pane in zip(panels, panes, strict=True):
        for place, entry in enumerate(panel.entries):
            draw_rates(pane, entry, points[entry.arm.name], tried[entry.arm.name].best, 0.98 - CROSSES * place)
    rates, finals = sorted({rate for _, rate, _ in drawn}), [point[3:] for _, _, point in drawn if point.finished]
    low, high = grid.near([value for values in finals for value in values])
    low, high = (min(map(min, finals)), high) if metric.lower_is_better else (low, max(map(max, finals)))
    crosses = any(point.diverged for _, _, point in drawn)
    room = min(CROSSES * max(len(panel.entries) for panel in panels) + 0.02, 0.6) if crosses else 0
    span = (high - low) or 0.1
    panes[0].set(xscale="log", xlim=(rates[0] / 1.4, rates[-1] * 1.4))
    panes[0].set_ylim(low - 0.06 * span, high + (0.06 + room / (1 - room)) * span)
    grid.log_ticks(panes[0].xaxis, rates if len(rates) <= (3 if several else 9) else (), narrow=several)
    texts = describe("learning-rates", more, metric=metric, crosses=crosses, arms=grid.counted(panels))
    columns = ("arm", "learning_rate", "runs", "finished", "diverged", "mean", "low", "high", "best")
    rows = [(e.arm.name, rate, *point, "yes" if rate == tried[e.arm.name].best else "no") for e, rate, point in drawn]
    return Drawing("learning-rates", *texts, canvas, columns, rows)


def draw_rates(axes: Axes, entry: Entry, points: dict[float, Outcome], best: float, height: float) -> None:
    """Draw an arm over the rates at which runs finished, the best filled; crosses, at a height, where some diverged."""
    look: dict[str, Any] = {"color": entry.color, "marker": entry.marker}
    if having := {rate: point for rate, point in points.items() if point.finished}:
        y, low, high = np.array([point[3:] for point in having.values()]).T
        axes.errorbar(list(having), y, [y - low, high - y], linestyle=entry.dash, mfc="none", elinewidth=1, **look)
    if best in having:
        axes.plot(best, having[best].mean, markersize=7, **look)
    if lost := [rate for rate, point in points.items() if point.diverged]:
        look = {"color": entry.color, "transform": axes.get_xaxis_transform(), "clip_on": False, "linestyle": "none"}
        axes.plot(lost, [height] * len(lost), marker="x", markersize=4, **look)
        axes.plot(
            lost, [height] * len(lost), marker=entry.marker, markersize=9, markerfacecolor="none", mew=0.8, **look
        )


# ---- against step time


class Spot(NamedTuple):
    """An arm: median, lowest and highest of its runs' median step times (ms), and how it ended.

    shown: where it stands on the axis of the final values, which is near the edge for one that is far off.
    """

    entry: Entry
    ms: tuple[float, float, float]
    ended: Outcome
    shown: float


def step_time_against(arms: Sequence[Arm], metric: Metric, note: str) -> Drawing | None:
    """Draw the Pareto plot; None for fewer than two arms with both figures."""
    worse = 1 if metric.lower_is_better else -1
    spots = spots_of([entry for panel in panels_of(arms, together=0) for entry in panel.entries], metric, worse)
    if len(spots) < 2:
        return None
    front: list[Spot] = []  # those for which no other is at least as fast and better
    for spot in sorted(spots, key=lambda spot: (spot.ms[0], worse * spot.ended.mean)):
        if not front or worse * spot.ended.mean < worse * front[-1].ended.mean:
            front.append(spot)
    legend = {spot.entry.label: sample(spot.entry.color, "solid") for spot in spots}
    rest = {s.entry.marker: " · ".join(w for w in s.entry.arm.name.split(" · ") if w not in legend) for s in spots}
    if len(rest) > 1:  # what markers tell, colours do not
        legend |= {title: sample(INK, marker=marker) for marker, title in rest.items() if title}
    y = f"final {metric.words} ({metric.symbol})"
    canvas, (axes,) = grid.draw_grid([""], "step time (ms)", y, legend, height=3.6)
    draw_spots(axes, spots, front)
    far, names = any(spot.shown != spot.ended.mean for spot in spots), [spot.entry.arm.name for spot in front]
    texts = describe("step-time", note, metric=metric, far=far, count=len(spots), front=names)
    columns = ("arm", "runs", "step_ms", "step_ms_low", "step_ms_high", "final", "final_low", "final_high", "on_front")
    rows = [(s.entry.arm.name, s.ended.finished, *s.ms, *s.ended[3:], "yes" if s in front else "no") for s in spots]
    return Drawing(f"step-time-{metric.tag.partition('/')[0]}", *texts, canvas, columns, rows)


def spots_of(entries: Sequence[Entry], metric: Metric, worse: int) -> list[Spot]:
    """Return the arms that have a step time and a run that finished; worse: the sign of what is worse.

    Those so much worse that they would squeeze the others stand a bit beyond the worst of these.
    """
    spots = []
    for entry in entries:
        times = known((run.summary.get("step_time") or {}).get("median_ms") for run in entry.arm.runs)
        ended = outcome(entry.arm, metric)
        if times and ended.finished:
            spots.append(Spot(entry, (float(np.median(times)), min(times), max(times)), ended, ended.mean))
    badness = [worse * spot.shown for spot in spots] or [0.0]
    first, last = grid.near(badness)
    edge = last + 0.15 * (last - first) if last < max(badness) else last
    return [spot._replace(shown=worse * min(bad, edge)) for spot, bad in zip(spots, badness, strict=False)]


def draw_spots(axes: Axes, spots: Sequence[Spot], front: Sequence[Spot]) -> None:
    """Draw the arms with lines over the ranges of their runs, and the line that joins the front; name them."""
    from matplotlib.transforms import Bbox

    spans = []
    for spot in spots:
        (x, left, right), y = spot.ms, spot.shown
        low, high = spot.ended[4:] if y == spot.ended.mean else (y, y)
        look: dict[str, Any] = {
            "color": spot.entry.color,
            "marker": spot.entry.marker,
            "markersize": 7,
            "elinewidth": 0.9,
        }
        look["markersize"], face = 7, spot.entry.color if spot in front else "none"
        axes.errorbar(x, y, [[y - low], [high - y]], [[x - left], [right - x]], mfc=face, **look)
        spans += [[(left, y), (right, y)], [(x, low), (x, high)]]
    times, values = [spot.ms[0] for spot in front], [spot.shown for spot in front]
    axes.step(times, values, where="post", color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    if max(spot.ms[0] for spot in spots) > 5 * min(spot.ms[0] for spot in spots):
        axes.set_xscale("log")
        grid.log_ticks(axes.xaxis)
    axes.margins(0.1)
    axes.autoscale_view()
    name_spots(axes, spots, front, [Bbox(axes.transData.transform(span)).padded(2) for span in spans])


# Where a name may begin, or end to the left, in points from its marker; the first free one is taken.
PLACES = [(side, rise) for rise in (5.0, -12.0, -3.5, 11.0, -18.0) for side in (7.0, -7.0)]


def name_spots(axes: Axes, spots: Sequence[Spot], front: Sequence[Spot], taken: list[Bbox]) -> None:
    """Write names beside the markers, as far as they cover no other name, no marker and no line of one.

    Of many arms those on the front have one, and those that are far off. taken: the boxes of markers and lines.
    """
    first = [*front, *(spot for spot in spots if spot not in front and spot.shown != spot.ended.mean)]
    others = [spot for spot in spots if spot not in first] if len(spots) <= NAMED else []
    for spot in [*first, *others]:
        (x, *_), y, mean, name = spot.ms, spot.shown, spot.ended.mean, plain(spot.entry.arm.name, 30)
        name += "" if mean == y else f" {'↑' if mean > y else '↓'} {mean:.3g}"
        for side, rise in PLACES:
            look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "ha": "left" if side > 0 else "right"}
            text = axes.annotate(name, (x, y), (side, rise), **look)
            box = text.get_window_extent()
            if axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1 and not any(map(box.overlaps, taken)):
                taken.append(box)
                break
            text.remove()
