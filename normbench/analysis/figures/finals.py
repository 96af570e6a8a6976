"""How arms ended: paired differences, norms × placements, against the learning rate, and against step time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normbench.analysis.comparisons import Comparison
from normbench.analysis.figures import panels as grid
from normbench.analysis.figures.panels import Entry, first, panels_of, plain
from normbench.analysis.figures.style import EMPTY, INK, Figure, described
from normbench.analysis.measures import Metric, known
from normbench.analysis.records import Arm, Study
from normbench.analysis.sensitivity import outcome, tried_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 40  # of the forest plot
MOST_FIELDS = 4  # of the heat map
PALE, BLACK = "#fbfbfc", "#0e1216"  # words in its cells, on a dark page too

# ---- differences from the baseline, paired by seed


def forest(comparisons: Sequence[Comparison], arms: Sequence[Arm], note: str) -> Figure | None:
    """Draw a row for each arm that has a baseline; None where no comparison has two seeds."""
    drawn, more = first([one for one in comparisons if one.n > 1], MOST_ROWS, "rows")
    if not drawn:
        return None
    metric = drawn[0].metric
    looks = {entry.arm.name: entry for _, entries in panels_of(arms) for entry in entries}
    baselines = list(dict.fromkeys(one.baseline.name for one in drawn))
    names = [one.arm.name + (f" − {one.baseline.name}" if len(baselines) > 1 else "") for one in drawn]
    numbers = [f"{one.paired.mean:+.3g}  n = {one.n}".replace("-", "−") for one in drawn]
    canvas = grid.blank((0.3 if len(drawn) <= 20 else 0.24) * len(drawn) + 1.1)
    axes = canvas.subplots()
    axes.axvline(0, color=INK, linewidth=1)
    rows: list[dict[str, Any]] = []
    for place, one in enumerate(drawn):
        rows += draw_difference(axes, place, one, looks[one.arm.name])
        axes.text(1.02, place, numbers[place], transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    data = pd.DataFrame(rows, dtype=object)
    reach = data.set_index("arm")[["difference", "low", "high"]]
    reach.loc["0"] = 0.0
    more += grid.limit(axes, "x", reach, metric)
    axes.set_yticks(range(len(drawn)), [plain(name) for name in names])
    axes.set_ylim(len(drawn) - 0.2, -0.5)  # dots of the last row stand below it
    axes.tick_params(axis="y", length=0, pad=8)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    better, worse = ("better", "worse") if metric.lower_is_better else ("worse", "better")
    axes.set_xlabel(f"← {better}   difference of the final {metric.words} ({metric.unit})   {worse} →")
    canvas.tight_layout()
    facts = {"metric": metric, "baselines": baselines, "pairs": list(zip(names, numbers, strict=True))}
    return described("differences", "differences", canvas, data, note + more, **facts)


def draw_difference(axes: Axes, place: int, one: Comparison, entry: Entry) -> list[dict[str, Any]]:
    """Draw one comparison: the mean, the interval, and below it each seed at its own height; return its data."""
    paired, both = one.paired, {"arm": one.arm.name, "baseline": one.baseline.name}
    low, high = (one.interval.lower, one.interval.upper) if one.interval else (np.nan, np.nan)
    heights = place + 0.22 + min(0.06, 0.24 / one.n) * np.arange(one.n)
    axes.plot(paired.differences, heights, ".", color=entry.color, markersize=4, markeredgewidth=0)
    axes.plot([low, high], [place, place], color=entry.color, linewidth=2, solid_capstyle="butt")
    face = entry.color if one.real else "none"
    axes.plot(paired.mean, place, entry.marker, markersize=7, color=entry.color, markerfacecolor=face)
    mean = {"kind": "mean", "seed": None, "difference": paired.mean, "low": low, "high": high}
    seeds = [
        {**both, "kind": "seed", "seed": seed, "difference": value}
        for seed, value in zip(paired.seeds, paired.differences, strict=True)
    ]
    return [both | mean | {"corrected_p": one.corrected}, *seeds]


# ---- norms × placements


def heat_map(arms: Sequence[Arm], metric: Metric, note: str) -> Figure | None:
    """Draw tables of cells; None where norms or placements do not vary."""
    varied = grid.varied_among(arms)
    if not {"norm", "placement"} <= set(varied):
        return None
    rest = [key for key in varied if key not in ("norm", "placement")]
    data = pd.DataFrame(
        {"panel": grid.words(arm, rest), "norm": arm.settings["norm"], "placement": arm.settings["placement"]}
        | outcome(arm, metric)
        for arm in arms
    ).astype({"norm": str, "placement": str})
    shown, more = first(data["panel"].unique(), MOST_FIELDS, "settings")
    data = data[data["panel"].isin(shown)]
    if not data["finished"].any():
        return None
    limits = grid.near(data["mean"].dropna(), metric.lower_is_better)  # what is far worse has the end of the scale
    fields = {title: data[data["panel"] == title] for title in shown}
    canvas = grid.blank(sum(0.52 * field["norm"].nunique() + 0.75 for field in fields.values()))
    for pane, (title, field) in zip(canvas.subplots(len(shown), squeeze=False).ravel(), fields.items(), strict=True):
        draw_field(pane, field, metric, limits)
        pane.set_title(plain(title))
    canvas.tight_layout()
    lost = data["diverged"].any()
    return described("norm-placement", "norm-placement", canvas, data, note + more, metric=metric, lost=lost)


def draw_field(axes: Axes, field: pd.DataFrame, metric: Metric, limits: tuple[float, float]) -> None:
    """Draw one table: in each cell its mean, and how many runs diverged; the better, the darker."""
    means = field.pivot(index="norm", columns="placement", values="mean")
    colors = "viridis" if metric.lower_is_better else "viridis_r"
    mesh = axes.pcolormesh(means, cmap=colors, vmin=limits[0], vmax=limits[1])
    axes.set_facecolor(EMPTY)
    for cell in field.itertuples():
        bright = mesh.to_rgba(np.array(cell.mean))[1] > 0.5  # green grows with the brightness
        text, ink = (f"{cell.mean:.{metric.decimals}f}", BLACK if bright else PALE) if cell.finished else ("–", INK)
        text += f"\n{cell.diverged}/{cell.runs} diverged" if cell.diverged else ""
        x, y = means.columns.get_loc(cell.placement) + 0.5, means.index.get_loc(cell.norm) + 0.5
        axes.text(x, y, text, color=ink, ha="center", va="center", linespacing=1.4)
    axes.set_xticks(np.arange(means.shape[1]) + 0.5, [plain(name, 20) for name in means.columns])
    axes.set_yticks(np.arange(means.shape[0]) + 0.5, [plain(name, 20) for name in means.index])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


# ---- against the learning rate, and against step time


def draw_ended(axes: Axes, entry: Entry, own: pd.DataFrame, x: str, filled: str, spans: Any = None) -> None:
    """Draw how an arm ended at places on the x axis, with lines from the lowest seed to the highest.

    x, filled: the columns of these places, and of which of them are filled. spans: how far lines along the axis reach.
    """
    look: dict[str, Any] = {"color": entry.color, "marker": entry.marker}
    reach = own["mean"] - own["low"], own["high"] - own["mean"]
    axes.errorbar(own[x], own["mean"], reach, spans, linestyle=entry.dash, mfc="none", elinewidth=1, **look)
    full = own[own[filled] == "yes"]
    axes.plot(full[x], full["mean"], linestyle="none", markersize=7, **look)


def learning_rates(study: Study, metric: Metric) -> Figure | None:
    """Draw each arm over its learning rates; None where no arm has two, or none has finished."""
    tried = tried_rates(study)
    rows = [
        {
            "arm": one.arm.name,
            "learning_rate": rate,
            **outcome(arm, metric),
            "best": "yes" if rate == one.best else "no",
        }
        for one in tried
        for rate, arm in one.by_rate.items()
    ]
    if not any(row["finished"] for row in rows):
        return None
    panels, more = first(panels_of([one.arm for one in tried]), grid.MOST_PANELS, "panels")
    canvas, panes = grid.draw_grid(panels, "learning rate", f"final {metric.words} ({metric.symbol})", markers=True)
    data = pd.DataFrame(rows)
    for (_, entries), pane in zip(panels, panes, strict=True):
        for place, entry in enumerate(entries):
            own = data[data["arm"] == entry.arm.name]
            draw_ended(pane, entry, own, "learning_rate", "best")
            lost = own.loc[own["diverged"] > 0, "learning_rate"]
            heights = [0.97 - place * grid.ROOM] * len(lost)
            pane.plot(lost, heights, "x", color=entry.color, transform=pane.get_xaxis_transform())
    grid.log_scale(panes[0], "x")
    crosses = data["diverged"].any()
    lines = max(len(entries) for _, entries in panels) if crosses else 0
    more += grid.limit(panes[0], "y", data.set_index("arm")[["mean", "low", "high"]], metric, lines)
    facts = {"metric": metric, "crosses": crosses, "arms": grid.counted(panels)}
    return described("learning-rates", "learning-rates", canvas, data, more, **facts)


def step_time_against(arms: Sequence[Arm], metric: Metric, note: str) -> Figure | None:
    """Draw the Pareto plot; None for fewer than two arms with both figures."""
    rows = []
    for arm in arms:
        ended = outcome(arm, metric)
        ms = known((run.summary.get("step_time") or {}).get("median_ms") for run in arm.runs)
        if ms and ended["finished"]:
            times = {"step_ms": np.median(ms), "step_ms_low": min(ms), "step_ms_high": max(ms)}
            rows.append({"arm": arm.name} | ended | times)
    if len(rows) < 2:
        return None
    data = pd.DataFrame(rows)
    badness = data["mean"] * (1 if metric.lower_is_better else -1)
    ordered = data.assign(badness=badness).sort_values(["step_ms", "badness"])
    # those for which no other is at least as fast and better
    front = ordered[ordered["badness"] < ordered["badness"].cummin().shift(fill_value=np.inf)]
    data["on_front"] = np.where(data["arm"].isin(front["arm"]), "yes", "no")
    panels, more = first(panels_of(arms, set(data["arm"])), grid.MOST_PANELS, "panels")
    canvas, panes = grid.draw_grid(panels, "step time (ms)", f"final {metric.words} ({metric.symbol})", markers=True)
    for (_, entries), pane in zip(panels, panes, strict=True):
        pane.step(
            front["step_ms"], front["mean"], where="post", color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1
        )
        for entry in entries:
            own = data[data["arm"] == entry.arm.name]
            spans = own["step_ms"] - own["step_ms_low"], own["step_ms_high"] - own["step_ms"]
            draw_ended(pane, entry, own, "step_ms", "on_front", spans)
    more += grid.limit(panes[0], "y", data.set_index("arm")[["mean", "low", "high"]], metric)
    name = f"step-time-{metric.tag.partition('/')[0]}"
    facts = {"metric": metric, "front": list(front["arm"]), "arms": grid.counted(panels)}
    return described(name, "step-time", canvas, data, note + more, **facts)
