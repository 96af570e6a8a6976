"""How arms ended: paired differences, norms × placements, against the learning rate, and against step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normbench.analysis.comparisons import Comparison
from normbench.analysis.figures import panels as grid
from normbench.analysis.figures.panels import Entry, first, panels_of, plain
from normbench.analysis.figures.style import EMPTY, INK, Drawing, described
from normbench.analysis.measures import Metric, known
from normbench.analysis.records import Arm, Study
from normbench.analysis.sensitivity import Outcome, outcome, tried_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 40  # of the forest plot
MOST_FIELDS = 4  # of the heat map
PALE, BLACK = "#fbfbfc", "#0e1216"  # words in its cells, on a dark page too

# ---- differences from the baseline, paired by seed


def forest(comparisons: Sequence[Comparison], arms: Sequence[Arm], note: str) -> Drawing | None:
    """Draw a row for each arm that has a baseline; None where no comparison has two seeds."""
    drawn, more = first([one for one in comparisons if one.n > 1], MOST_ROWS, "rows")
    if not drawn:
        return None
    metric = drawn[0].metric
    looks = {entry.arm.name: entry for panel in panels_of(arms) for entry in panel.entries}
    baselines = list(dict.fromkeys(one.baseline.name for one in drawn))
    names = [one.arm.name + (f" − {one.baseline.name}" if len(baselines) > 1 else "") for one in drawn]
    numbers = [f"{one.mean:+.3g}  n = {one.n}".replace("-", "−") for one in drawn]
    canvas = grid.blank((0.3 if len(drawn) <= 20 else 0.24) * len(drawn) + 1.1)
    axes = canvas.subplots()
    axes.axvline(0, color=INK, linewidth=1)
    rows: list[tuple[Any, ...]] = []
    for place, one in enumerate(drawn):
        rows += draw_difference(axes, place, one, looks[one.arm.name])
        axes.annotate(numbers[place], (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=9)
    more += grid.limit(axes, "x", {("0",): (0.0,)} | {row[:4]: row[4:7] for row in rows}, metric)
    axes.set_yticks(range(len(drawn)), [plain(name) for name in names])
    axes.set_ylim(len(drawn) - 0.2, -0.5)  # dots of the last row stand below it
    axes.tick_params(axis="y", length=0, pad=8)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    better, worse = ("better", "worse") if metric.lower_is_better else ("worse", "better")
    axes.set_xlabel(f"← {better}   difference of the final {metric.words} ({metric.unit})   {worse} →")
    columns = ("arm", "baseline", "kind", "seed", "difference", "low", "high", "corrected_p")
    facts = {"metric": metric, "baselines": baselines, "pairs": list(zip(names, numbers, strict=True))}
    return described("differences", "differences", canvas, columns, rows, note + more, **facts)


def draw_difference(axes: Axes, place: int, one: Comparison, entry: Entry) -> list[tuple[Any, ...]]:
    """Draw one comparison: the mean, the interval, and below it each seed at its own height; return its data."""
    names = (one.arm.name, one.baseline.name)
    ends = (one.interval.lower, one.interval.upper) if one.interval else (one.mean, one.mean)
    heights = place + 0.22 + min(0.06, 0.24 / one.n) * np.arange(one.n)
    axes.plot(one.values, heights, ".", color=entry.color, markersize=4, markeredgewidth=0)
    axes.plot(ends, [place, place], color=entry.color, linewidth=2, solid_capstyle="butt")
    face = entry.color if one.real else "none"
    axes.plot(one.mean, place, entry.marker, markersize=7, color=entry.color, markerfacecolor=face)
    seeds = zip(one.seeds, one.values, strict=True)
    mean = (*names, "mean", None, one.mean, *(ends if one.interval else (None, None)), one.corrected)
    return [mean, *((*names, "seed", seed, value, None, None, None) for seed, value in seeds)]


# ---- norms × placements


def heat_map(arms: Sequence[Arm], metric: Metric, note: str) -> Drawing | None:
    """Draw tables of cells; None where norms or placements do not vary."""
    varied = grid.varied_among(arms)
    if not {"norm", "placement"} <= set(varied):
        return None
    rest = [key for key in varied if key not in ("norm", "placement")]
    fields: dict[str, dict[tuple[str, str], Outcome]] = {}
    for arm in arms:
        place = str(arm.settings["norm"]), str(arm.settings["placement"])
        fields.setdefault(grid.words(arm, rest), {})[place] = outcome(arm, metric)
    shown, more = first(list(fields.items()), MOST_FIELDS, "settings")
    rows = [(title, *place, *found[:4]) for title, field in shown for place, found in field.items()]
    finals = known(row[-1] for row in rows)
    if not finals:
        return None
    limits = grid.near(finals, metric.lower_is_better)  # what is far worse has the end of the scale
    canvas = grid.blank(sum(0.52 * len({norm for norm, _ in field}) + 0.75 for _, field in shown))
    for pane, (title, field) in zip(canvas.subplots(len(shown), squeeze=False).ravel(), shown, strict=True):
        draw_field(pane, field, metric, limits)
        pane.set_title(plain(title))
    columns = ("panel", "norm", "placement", "runs", "finished", "diverged", "mean")
    facts = {"metric": metric, "lost": any(row[5] for row in rows)}
    return described("norm-placement", "norm-placement", canvas, columns, rows, note + more, **facts)


def draw_field(
    axes: Axes, field: Mapping[tuple[str, str], Outcome], metric: Metric, limits: tuple[float, float]
) -> None:
    """Draw one table: in each cell its mean, and how many runs diverged; the better, the darker."""
    norms, placements = (list(dict.fromkeys(names)) for names in zip(*field, strict=True))
    means = [[field[norm, place].mean if (norm, place) in field else np.nan for place in placements] for norm in norms]
    colors = "viridis" if metric.lower_is_better else "viridis_r"
    mesh = axes.pcolormesh(means, cmap=colors, vmin=limits[0], vmax=limits[1])
    axes.set_facecolor(EMPTY)
    for (norm, placement), found in field.items():
        bright = mesh.to_rgba(np.array(found.mean))[1] > 0.5  # green grows with the brightness
        text, ink = (f"{found.mean:.{metric.decimals}f}", BLACK if bright else PALE) if found.finished else ("–", INK)
        text += f"\n{found.diverged}/{found.runs} diverged" if found.diverged else ""
        x, y = placements.index(placement) + 0.5, norms.index(norm) + 0.5
        axes.text(x, y, text, color=ink, ha="center", va="center", linespacing=1.4)
    axes.set_xticks(np.arange(len(placements)) + 0.5, [plain(name, 20) for name in placements])
    axes.set_yticks(np.arange(len(norms)) + 0.5, [plain(name, 20) for name in norms])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


# ---- against the learning rate, and against step time


def draw_ended(
    axes: Axes, entry: Entry, x: Sequence[float], ended: Sequence[Outcome], filled: Sequence[bool], spans: Any = None
) -> None:
    """Draw how an arm ended at places on the x axis, with lines from the lowest seed to the highest.

    spans: how far lines along the axis reach to the left and the right.
    """
    mean, low, high = np.array([one[3:] for one in ended]).T
    look: dict[str, Any] = {"color": entry.color, "marker": entry.marker}
    axes.errorbar(x, mean, [mean - low, high - mean], spans, linestyle=entry.dash, mfc="none", elinewidth=1, **look)
    axes.plot(np.array(x)[[*filled]], mean[[*filled]], linestyle="none", markersize=7, **look)


def learning_rates(study: Study, metric: Metric) -> Drawing | None:
    """Draw each arm over its learning rates; None where no arm has two."""
    tried, ended = tried_rates(study, fewest=1), {}
    for one in tried:
        ended[one.name] = [(rate, outcome(arm, metric), rate == one.best) for rate, arm in one.by_rate.items()]
    if not any(len(own) > 1 and any(found.finished for _, found, _ in own) for own in ended.values()):
        return None
    panels, more = first(panels_of([one.arm for one in tried]), grid.MOST_PANELS, "panels")
    canvas, panes = grid.draw_grid(panels, "learning rate", f"final {metric.words} ({metric.symbol})", markers=True)
    rows: list[tuple[Any, ...]] = []
    for panel, pane in zip(panels, panes, strict=True):
        for place, entry in enumerate(panel.entries):
            own = ended[entry.arm.name]
            draw_ended(pane, entry, *zip(*own, strict=True))
            lost = [rate for rate, found, _ in own if found.diverged]
            heights = [0.97 - place * grid.ROOM] * len(lost)
            pane.plot(lost, heights, "x", color=entry.color, transform=pane.get_xaxis_transform())
            rows += [(entry.arm.name, rate, *found, "yes" if best else "no") for rate, found, best in own]
    grid.log_scale(panes[0], "x")
    crosses = any(row[4] for row in rows)
    lines = max(len(panel.entries) for panel in panels) if crosses else 0
    more += grid.limit(panes[0], "y", {row[:2]: row[5:8] for row in rows}, metric, lines)
    columns = ("arm", "learning_rate", "runs", "finished", "diverged", "mean", "low", "high", "best")
    facts = {"metric": metric, "crosses": crosses, "arms": grid.counted(panels)}
    return described("learning-rates", "learning-rates", canvas, columns, rows, more, **facts)


def step_time_against(arms: Sequence[Arm], metric: Metric, note: str) -> Drawing | None:
    """Draw the Pareto plot; None for fewer than two arms with both figures."""
    worse = 1 if metric.lower_is_better else -1
    ended = {arm.name: outcome(arm, metric) for arm in arms}
    timed = {arm.name: known((run.summary.get("step_time") or {}).get("median_ms") for run in arm.runs) for arm in arms}
    ms = {name: float(np.median(times)) for name, times in timed.items() if times and ended[name].finished}
    if len(ms) < 2:
        return None
    front: list[str] = []  # those for which no other is at least as fast and better
    for name in sorted(ms, key=lambda name: (ms[name], worse * ended[name].mean)):
        if not front or worse * ended[name].mean < worse * ended[front[-1]].mean:
            front.append(name)
    panels, more = first(panels_of(arms, ms), grid.MOST_PANELS, "panels")
    canvas, panes = grid.draw_grid(panels, "step time (ms)", f"final {metric.words} ({metric.symbol})", markers=True)
    times, finals = [ms[name] for name in front], [ended[name].mean for name in front]
    rows: list[tuple[Any, ...]] = []
    for panel, pane in zip(panels, panes, strict=True):
        pane.step(times, finals, where="post", color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        for entry in panel.entries:
            name, one = entry.arm.name, ended[entry.arm.name]
            low, high = min(timed[name]), max(timed[name])
            draw_ended(pane, entry, [ms[name]], [one], [name in front], [[ms[name] - low], [high - ms[name]]])
            rows.append((name, one.finished, ms[name], low, high, *one[3:], "yes" if name in front else "no"))
    more += grid.limit(panes[0], "y", {row[:1]: row[5:8] for row in rows}, metric)
    columns = ("arm", "runs", "step_ms", "step_ms_low", "step_ms_high", "final", "final_low", "final_high", "on_front")
    facts = {"metric": metric, "front": front, "arms": grid.counted(panels)}
    return described(
        f"step-time-{metric.tag.partition('/')[0]}", "step-time", canvas, columns, rows, note + more, **facts
    )
