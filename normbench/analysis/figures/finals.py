"""How arms ended: paired differences, norms × placements, against the learning rate, and against step time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normbench.analysis.comparisons import Comparison
from normbench.analysis.figures import style as grid
from normbench.analysis.figures.style import EMPTY, INK, Entry, Figure, described, first, panels_of, plain
from normbench.analysis.measures import Metric, known
from normbench.analysis.records import Arm, Study, shortened
from normbench.analysis.sensitivity import outcome, tried_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MOST_ROWS = 40  # of the forest plot and the table
PALE, BLACK = "#fbfbfc", "#0e1216"  # words in the table's cells, on a dark page too

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
    numbers = [f"{one.mean:+.3g}  n = {one.n}".replace("-", "−") for one in drawn]
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
    axes.set_xlabel(f"difference of the final {metric.words} ({metric.unit})\n← {better}      {worse} →")
    canvas.tight_layout()
    facts = {"metric": metric, "baselines": baselines, "pairs": list(zip(names, numbers, strict=True))}
    return described("differences", "differences", canvas, data, note + more, **facts)


def draw_difference(axes: Axes, place: int, one: Comparison, entry: Entry) -> list[dict[str, Any]]:
    """Draw one comparison: the mean, the interval, and below it each seed at its own height; return its data."""
    both = {"arm": one.arm.name, "baseline": one.baseline.name}
    low, high = (one.interval.lower, one.interval.upper) if one.interval else (np.nan, np.nan)
    heights = place + 0.22 + min(0.06, 0.24 / one.n) * np.arange(one.n)
    axes.plot(one.values, heights, ".", color=entry.color, markersize=4, markeredgewidth=0)
    axes.plot([low, high], [place, place], color=entry.color, linewidth=2, solid_capstyle="butt")
    face = entry.color if one.real else "none"
    axes.plot(one.mean, place, entry.marker, markersize=7, color=entry.color, markerfacecolor=face)
    mean = {"kind": "mean", "seed": None, "difference": one.mean, "low": low, "high": high}
    seeds = [
        {**both, "kind": "seed", "seed": seed, "difference": value}
        for seed, value in zip(one.seeds, one.values, strict=True)
    ]
    return [both | mean | {"corrected_p": one.corrected}, *seeds]


# ---- norms × placements


def heat_map(arms: Sequence[Arm], metric: Metric, note: str) -> Figure | None:
    """Draw a table: a column for each placement, a row for each norm and what else varies; the better, the darker.

    None where norms or placements do not vary, or none has finished.
    """
    varied = grid.varied_among(arms)
    data = pd.DataFrame([outcome(arm, metric) for arm in arms])
    if not {"norm", "placement"} <= set(varied) or not data["finished"].any():
        return None
    data.insert(0, "norm", [grid.words(arm, [key for key in varied if key != "placement"]) for arm in arms])
    data.insert(1, "placement", [grid.words(arm, ["placement"]) for arm in arms])
    columns = data["placement"].unique()
    shown, more = first(data["norm"].unique(), MOST_ROWS, "rows")
    data = data[data["norm"].isin(shown)]
    means = data.pivot(index="norm", columns="placement", values="mean").reindex(shown, columns=[*columns])
    low, high = grid.near(data["mean"].dropna(), metric.lower_is_better)  # what is far worse has the end of the scale
    canvas = grid.blank(0.52 * len(means) + 0.75)
    axes = canvas.subplots()
    axes.set_facecolor(EMPTY)
    mesh = axes.pcolormesh(means, cmap="viridis" if metric.lower_is_better else "viridis_r", vmin=low, vmax=high)
    for cell in data.itertuples():
        bright = mesh.to_rgba(np.array(cell.mean))[1] > 0.5  # green grows with the brightness
        text, ink = (f"{cell.mean:.{metric.decimals}f}", BLACK if bright else PALE) if cell.finished else ("–", INK)
        text += f"\n{cell.diverged}/{cell.runs} diverged" if cell.diverged else ""
        x, y = means.columns.get_loc(cell.placement) + 0.5, means.index.get_loc(cell.norm) + 0.5
        axes.text(x, y, text, color=ink, ha="center", va="center", linespacing=1.4)
    axes.set_xticks(np.arange(means.shape[1]) + 0.5, [plain(name, 20) for name in means.columns])
    axes.set_yticks(np.arange(means.shape[0]) + 0.5, [plain(name) for name in means.index])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    canvas.tight_layout()
    facts = {"metric": metric, "lost": data["diverged"].any()}
    return described("norm-placement", "norm-placement", canvas, data, note + more, **facts)


# ---- against the learning rate, and against step time


def draw_against(
    arms: Sequence[Arm], data: pd.DataFrame, x: str, filled: str, axis: str, metric: Metric, crosses: bool = False
) -> tuple[Canvas, list[Axes], str]:
    """Draw how arms ended along an axis, with lines from the lowest seed to the highest; return panels and a note.

    x, filled: the columns of data with places on the axis, and whether a marker is filled. crosses: at the upper edge
    in a row for each arm, where runs diverged.
    """
    panels, more = first(panels_of(arms, set(data["arm"])), grid.MOST_PANELS, "panels")
    canvas, panes = grid.draw_grid(panels, axis, f"final {metric.words} ({metric.symbol})", markers=True)
    for (_, entries), pane in zip(panels, panes, strict=True):
        for place, entry in enumerate(entries):
            own, look = data[data["arm"] == entry.arm.name], {"color": entry.color, "marker": entry.marker}
            spans = own[x] - own.get(f"{x}_low", own[x]), own.get(f"{x}_high", own[x]) - own[x]
            reach = own["mean"] - own["low"], own["high"] - own["mean"]
            pane.errorbar(own[x], own["mean"], reach, spans, linestyle=entry.dash, mfc="none", elinewidth=1, **look)
            full = own[own[filled] == "yes"]
            pane.plot(full[x], full["mean"], entry.marker, color=entry.color, markersize=7)
            lost = own.loc[own["diverged"] > 0, x] if crosses else []
            heights = [0.97 - place * grid.ROOM] * len(lost)
            pane.plot(lost, heights, "x", color=entry.color, transform=pane.get_xaxis_transform())
    lines = max(len(entries) for _, entries in panels) if crosses else 0
    more += grid.limit(panes[0], "y", data.set_index("arm")[["mean", "low", "high"]], metric, lines)
    return canvas, panes, more


def learning_rates(study: Study, metric: Metric) -> Figure | None:
    """Draw each arm over its learning rates; None where no arm has two, or none has finished."""
    tried = tried_rates(study, fewest=1)
    rows = [
        {
            "arm": one.arm.name,
            "learning_rate": rate,
            **outcome(arm, metric),
            "best": "yes" if rate == one.best else "no",
            "largest": 2 ** np.mean([*one.largest.values()]) if one.largest else np.nan,
        }
        for one in tried
        for rate, arm in one.by_rate.items()
    ]
    if not any(row["finished"] for row in rows) or all(len(one.by_rate) < 2 for one in tried):
        return None
    data, arms = pd.DataFrame(rows), [one.arm for one in tried]
    crosses = data["diverged"].any()
    canvas, panes, more = draw_against(arms, data, "learning_rate", "best", "learning rate", metric, crosses)
    for (_, entries), pane in zip(grid.panels_of(arms, set(data["arm"])), panes, strict=False):
        for place, entry in enumerate(entries):
            largest = data.loc[data["arm"] == entry.arm.name, "largest"].iloc[0]
            pane.plot(largest, 0.03 + 0.04 * place, "^", color=entry.color, transform=pane.get_xaxis_transform())
    grid.log_scale(panes[0], "x")
    facts = {"metric": metric, "crosses": crosses, "arms": shortened([arm.name for arm in arms])}
    return described("learning-rates", "learning-rates", canvas, data, more, **facts)


def step_time_against(arms: Sequence[Arm], metric: Metric, note: str) -> Figure | None:
    """Draw the Pareto plot; None for fewer than two arms with both figures."""
    rows = []
    for arm in arms:
        ms = known((run.summary.get("step_time") or {}).get("median_ms") for run in arm.runs)
        times = {"step_ms": np.median(ms), "step_ms_low": min(ms), "step_ms_high": max(ms)} if ms else {}
        rows.append({"arm": arm.name, **outcome(arm, metric), **times})
    data = pd.DataFrame(rows).dropna()
    if len(data) < 2 or "step_ms" not in data:
        return None
    badness = data["mean"] * (1 if metric.lower_is_better else -1)
    ordered = data.assign(badness=badness).sort_values(["step_ms", "badness"])
    # those for which no other is at least as fast and better
    front = ordered[ordered["badness"] < ordered["badness"].cummin().shift(fill_value=np.inf)]
    data["on_front"] = np.where(data["arm"].isin(front["arm"]), "yes", "no")
    canvas, panes, more = draw_against(arms, data, "step_ms", "on_front", "step time (ms)", metric)
    for pane in panes:
        pane.step(
            front["step_ms"], front["mean"], where="post", color=INK, linewidth=1, linestyle=(0, (1, 2)), zorder=1
        )
    data = data.rename(columns={"mean": "final", "low": "final_low", "high": "final_high"})
    name = f"step-time-{metric.tag.partition('/')[0]}"
    facts = {"metric": metric, "front": list(front["arm"]), "arms": shortened([arm.name for arm in arms])}
    return described(name, "step-time", canvas, data, note + more, **facts)
