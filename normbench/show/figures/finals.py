"""How arms ended: over crossed factors, over learning rates, and over the time that a step takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from normbench.config.rules import short_name
from normbench.evidence.arms import Arm, Baseline
from normbench.evidence.measures import Metric, finite_numbers, loss_on
from normbench.evidence.study import RecordedStudy
from normbench.results.comparisons import in_two_groups
from normbench.results.designs import Crossing, crossings, gather
from normbench.results.sensitivity import (
    Search,
    TriedLevels,
    are_numbers,
    count_trained,
    outcome,
    searches,
    tried_levels,
)
from normbench.results.statistics import mean_interval
from normbench.show.figures import captions
from normbench.show.figures.figure import Drawing, Figure, make_figures, write_values
from normbench.show.figures.panes import (
    ROOM,
    draw_arrow,
    draw_panels,
    gid_of,
    log_scale,
    name_ticks,
    set_limits,
    size_of,
    tell_beyond,
)
from normbench.show.figures.style import (
    INK,
    MOST_PANELS,
    Entry,
    Panel,
    names_in,
    panels_of,
    take_first,
    tell_absent,
)
from normbench.wording import in_words, join_first

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CROSSINGS = 3
WIDE = 8  # times the smallest of some numbers: over a range from there on an axis is logarithmic
TRAINED = Metric("runs that train", "points", "%", 100.0, 0, (0.0, 100.0), lower_is_better=False)
MARKER_HEIGHT = 6 / 72  # inches of a row of markers, which are 5 points high

# ---- arms that have no mean


def torn_among(arms: Sequence[Arm], metric: Metric) -> list[str]:
    """Return the names of the arms whose runs end in two groups."""
    return [arm.name for arm in arms if in_two_groups(arm, metric, arm.seeds)]


def mean_of_groups(arms: Sequence[Arm], metric: Metric) -> str:
    """Return a sentence for a figure that draws the mean of arms whose runs end in two groups; empty without any."""
    torn = torn_among(arms, metric)
    said = " The mean tells little where an arm's runs end in two groups, as some did not train"
    return f"{said}: {join_first(torn)}." if torn else ""


def with_means(arms: Sequence[Arm], metric: Metric) -> tuple[list[Arm], str]:
    """Return the arms that have a mean, and a sentence on those whose runs end in two groups, which have none."""
    torn = torn_among(arms, metric)
    said = f" Not shown, as their runs end in two groups: {join_first(torn)}." if torn else ""
    return [arm for arm in arms if arm.name not in torn], said


# ---- panels in which arms are drawn along an axis


@dataclass(frozen=True)
class Chart:
    """Panels and their axes. note: what the caption says of arms that are missing, or that lie beyond an axis."""

    panels: Sequence[Panel]
    panes: Sequence[Axes]
    note: str


def draw_against(
    arms: Sequence[Arm],
    data: pd.DataFrame,
    x: str,
    axis: str,
    metric: Metric,
    *,
    crosses: bool = False,
    apart: float = 0,
    what: str = "final",
    expected: Sequence[Arm] | None = None,
) -> Chart:
    """Draw how arms ended along an axis, with lines from low to high.

    Args:
        arms: those that may be drawn; their order decides how each looks.
        data: a row for each point, with its arm, mean, low and high; its marker is filled where `filled` is yes.
        x: the column of data with places on the axis.
        axis: words of the axis.
        metric: in which the arms are measured.
        crosses: mark at the upper edge, in a row for each arm, where runs diverged.
        apart: how far arms at the same place stand from each other.
        what: which of the metric's values is drawn, such as `final`.
        expected: the arms that the note names where they are missing; by default `arms`.
    """
    every = panels_of(arms, set(data["arm"]))
    panels, note = take_first(every, MOST_PANELS, "panels")
    cut = names_in(every[len(panels) :])
    note += tell_absent(arms if expected is None else expected, data, cut)
    words = metric.final_words if what == "final" else f"{what} {metric.words}"
    y = f"{words} ({metric.symbol})"
    panes = draw_panels(panels, axis, y, named="points" if data["arm"].is_unique else "lines")
    most = max(len(panel.entries) for panel in panels)
    is_beyond = set_limits(panes[0], data, metric, most, crosses)
    beyond = data[is_beyond]
    note += tell_beyond(list(dict.fromkeys(beyond["arm"])))
    for panel, pane in zip(panels, panes, strict=True):
        middle = (len(panel.entries) - 1) / 2
        for place, entry in enumerate(panel.entries):
            own = data[data["arm"] == entry.arm.name]
            drawn = draw_points(pane, own, x, entry, shift=apart * (place - middle))
            lost = own[own["diverged"] > 0] if crosses else own[:0]
            drawn += draw_crosses(pane, lost[x], entry, place)
            far = beyond[beyond["arm"] == entry.arm.name]
            for at, mean in zip(far[x], far["mean"], strict=True):
                drawn.append(draw_arrow(pane, at, mean, place, entry.color, metric))
            means = [write_value(mean, metric) for mean in own["mean"]]
            gid = gid_of(entry.arm, ", ".join(means))
            for artist in drawn:
                artist.set_gid(gid)
    return Chart(panels, panes, note)


def draw_points(pane: Axes, own: pd.DataFrame, x: str, entry: Entry, shift: float) -> list[Any]:
    """Draw the points of an arm with their bars, shifted on the axis; return what was drawn."""
    places, means = own[x], own["mean"]
    left = places - own.get(f"{x}_low", places)
    right = own.get(f"{x}_high", places) - places
    below = (means - own["low"]).clip(0)  # a mean is rounded
    above = (own["high"] - means).clip(0)
    at = places + shift
    look: dict[str, Any] = {"color": entry.color, "marker": entry.marker}
    how: dict[str, Any] = {"linestyle": entry.dash, "mfc": "none", "elinewidth": 0.8}
    bars = pane.errorbar(at, means, [below, above], [left, right], **how, **look)
    is_filled = own["filled"] == "yes"
    filled = pane.plot(at[is_filled], means[is_filled], markersize=5, linestyle="", **look)
    return [*bars.get_children(), *filled]


def draw_crosses(pane: Axes, lost: pd.Series, entry: Entry, place: int) -> list[Any]:
    """Draw a cross at the upper edge, in an arm's row, at each place where it lost runs; return what was drawn."""
    heights = [0.97 - place * ROOM] * len(lost)
    return pane.plot(lost, heights, "x", color=entry.color, transform=pane.get_xaxis_transform())


def drawings_of(chart: Chart, data: pd.DataFrame, metric: Metric, value: str = "mean") -> list[Drawing]:
    """Return panels with their words, which tell the range of each arm's values. value: the column that has them."""
    drawings = []
    for panel, pane in zip(chart.panels, chart.panes, strict=True):
        told = dict[str, str]()
        for entry in panel.entries:
            is_own = data["arm"] == entry.arm.name
            values = data.loc[is_own, value].dropna()
            if len(values):
                low = write_value(values.min(), metric)
                high = write_value(values.max(), metric)
                told[entry.label] = low if low == high else f"{low} to {high}"
        own = data[data["arm"].isin(panel.names)]
        drawings.append(Drawing(pane, panel.title, f"From the lowest to the highest: {write_values(told)}", own))
    return drawings


def write_value(value: float, metric: Metric) -> str:
    """Write a value in a metric's unit."""
    return f"{value:.{metric.decimals}f}"


# ---- over crossed factors


def short(key: str) -> str:
    """Return the last part of a setting's name."""
    return short_name(key)


def draw_interactions(arms: Sequence[Arm], baseline: Baseline, metric: Metric, note: str) -> list[Figure]:
    """Draw a figure for each two factors that are crossed: a line for each level of one over those of the other."""
    having, said = with_means(arms, metric)
    crossed = []
    for one in crossings(having, baseline, metric):
        if len(one.cells.columns) > 3:
            crossed.append(one)
    figures: list[Figure] = []
    for one in crossed[:MOST_CROSSINGS]:
        figures += draw_interaction(one, having, metric, note + said)
    return figures


def draw_interaction(one: Crossing, arms: Sequence[Arm], metric: Metric, note: str) -> list[Figure]:
    """Draw the means over the seeds with t intervals. arms: all that have a mean."""
    subject, factor = short(one.subject), short(one.factor)
    rows = means_of_cells(one, metric)
    drawings, more = draw_levels(one, arms, rows, metric)
    has_others = len(one.cells.index.names) > 1  # beside the seed
    words = captions.interaction(metric, subject=subject, factor=factor, others=has_others)
    name = f"interaction-{subject}-{factor}"
    return make_figures(name, words.title, words.caption + note + more, words.alt, drawings)


def means_of_cells(one: Crossing, metric: Metric) -> list[dict[str, Any]]:
    """Return a row for each arm and level that have runs: their mean over the seeds, with its t interval."""
    factor, places = short(one.factor), places_of(one.levels)
    rows = []
    for number, level in one.cells.columns:
        cell = one.cells[number, level]
        seeds = finite_numbers(cell.groupby(level="seed").mean())
        mean, interval = mean_interval(seeds, metric.bounds)
        low, high = interval or (mean, mean)
        row = {
            "arm": one.arms[number].name,
            factor: one.levels[level],
            "place": places[level],
            "seeds": len(seeds),
            "filled": "no",
            "mean": mean,
            "low": low,
            "high": high,
        }
        rows.append(row)
    return rows


def draw_survival(arms: Sequence[Arm], baseline: Baseline, note: str) -> list[Figure]:
    """Draw the share of runs that train over the first factor that is a number; nothing where all of them do."""
    for one in crossings(arms, baseline, TRAINED):
        if not are_numbers(one.levels):
            continue
        rows = shares_that_train(one, arms)
        if all(row["train"] == row["runs"] for row in rows):
            continue
        drawings, more = draw_levels(one, arms, rows, TRAINED, "share of")
        subject, factor = short(one.subject), short(one.factor)
        words = captions.survival(subject=subject, factor=factor, rows=rows)
        name = f"survival-{subject}-{factor}"
        return make_figures(name, words.title, words.caption + note + more, words.alt, drawings)
    return []


def shares_that_train(one: Crossing, arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Return a row for each arm and level that has runs: the share that trains, with its interval (Wilson 1927)."""
    places = places_of(one.levels)
    rows = []
    for arm in one.arms:
        for level, place in zip(one.levels, places, strict=True):
            runs = [run for run in gather(arms, {**arm.settings, one.factor: level}).runs if run.ended]
            if not runs:
                continue
            train = count_trained(runs)
            low, high = stats.binomtest(train, len(runs)).proportion_ci(method="wilson")
            row = {
                "arm": arm.name,
                short(one.factor): level,
                "place": place,
                "runs": len(runs),
                "train": train,
                "filled": "no",
                "mean": 100 * train / len(runs),
                "low": 100 * low,
                "high": 100 * high,
            }
            rows.append(row)
    return rows


def draw_levels(
    one: Crossing, arms: Sequence[Arm], rows: Sequence[Mapping[str, Any]], metric: Metric, what: str = "final"
) -> tuple[list[Drawing], str]:
    """Draw the rows at the places of their levels; return the panels, and a note for the caption."""
    data = pd.DataFrame(rows).sort_values("place", kind="stable")
    apart = 0.3 / max(len(one.arms), 4)
    chart = draw_against(one.arms, data, "place", short(one.factor), metric, apart=apart, what=what, expected=arms)
    names = [in_words(level) for level in one.levels]
    for pane in chart.panes:
        name_ticks(pane, places_of(one.levels), names)
    shown = data.drop(columns=["filled", "place"])
    return drawings_of(chart, shown, metric), chart.note


def places_of(levels: Sequence[Any]) -> list[float]:
    """Return the places of levels on an axis: words in a row, numbers by size, or by its logarithm over a wide range.

    On average, neighbours are 1 apart.
    """
    if not are_numbers(levels):
        return [float(place) for place in range(len(levels))]
    places = np.array(levels, dtype=float)
    if 0 < WIDE * places.min() <= places.max():
        places = np.log(places)
    places *= (len(levels) - 1) / np.ptp(places)
    return [float(place) for place in places]


# ---- over learning rates


def draw_learning_rates(study: RecordedStudy, metric: Metric) -> list[Figure]:
    """Draw each arm over its learning rates; nothing where no arm has two, or none has finished."""
    tried = tried_levels(study.arms, fewest=1)
    rows = ends_at_rates(tried, metric)
    has_two = any(len(one.by_level) > 1 for one in tried)
    has_finished = any(row["finished"] for row in rows)
    if not has_two or not has_finished:
        return []
    data = pd.DataFrame(rows)
    crosses = bool(data["diverged"].any())
    arms = [one.arm for one in tried]
    chart = draw_against(arms, data, "learning_rate", "learning rate", metric, crosses=crosses)
    draw_largest_rates(chart, data)
    log_scale(chart.panes[0], "x")
    drawings = drawings_of(chart, data.rename(columns={"filled": "best"}), metric)
    words = captions.learning_rates(metric, crosses=crosses, arms=join_first([arm.name for arm in arms]))
    at_each_rate = list[Arm]()
    for one in tried:
        at_each_rate += one.by_level.values()
    note = chart.note + mean_of_groups(at_each_rate, metric)
    return make_figures("learning-rates", words.title, words.caption + note, words.alt, drawings)


def ends_at_rates(tried: Sequence[TriedLevels], metric: Metric) -> list[dict[str, Any]]:
    """Return a row for each arm and learning rate. largest: the largest at which the arm trains; NaN if at none."""
    rows = []
    for one in tried:
        exponents = list(one.largest.values())
        largest = 2 ** np.mean(exponents) if one.trains else np.nan
        for rate, arm in one.by_level.items():
            row = {"arm": one.arm.name, "learning_rate": rate, **vars(outcome(arm, metric))}
            row["filled"] = "yes" if rate == one.best else "no"
            row["largest"] = largest
            rows.append(row)
    return rows


def draw_largest_rates(chart: Chart, data: pd.DataFrame) -> None:
    """Draw a triangle at the largest rate at which each arm trains, below all else, in a row for each arm."""
    first_pane = chart.panes[0]
    _, height = size_of(first_pane)
    row = MARKER_HEIGHT / height
    low, high = first_pane.get_ylim()
    most = max(len(panel.entries) for panel in chart.panels)
    first_pane.set_ylim(low - row * most * (high - low), high)
    largest = data.groupby("arm")["largest"].first()
    for panel, pane in zip(chart.panels, chart.panes, strict=True):
        at_edge = pane.get_xaxis_transform()
        for place, entry in enumerate(panel.entries):
            gid = gid_of(entry.arm, "the largest rate that trains")
            rate = largest[entry.arm.name]
            pane.plot(rate, row * (place + 0.5), "^", transform=at_edge, color=entry.color, gid=gid)


def draw_search(study: RecordedStudy) -> list[Figure]:
    """Draw what each arm reached at the learning rates of which one was chosen for it, where one was."""
    found = searches(study)
    data = pd.DataFrame(ends_of_search(found))
    if data.empty or data["mean"].isna().all():
        return []
    metric = loss_on("val")
    crosses = bool(data["diverged"].any())
    arms = [one.arm for one in found]
    chart = draw_against(arms, data, "learning_rate", "learning rate", metric, crosses=crosses, what="held-out")
    log_scale(chart.panes[0], "x")
    columns = {"filled": "chosen", "diverged": "lost"}
    drawings = drawings_of(chart, data.rename(columns=columns), metric)
    names = join_first([arm.name for arm in arms])
    words = captions.search(seeds=data["seeds"].max(), crosses=crosses, arms=names)
    return make_figures("learning-rate-search", words.title, words.caption + chart.note, words.alt, drawings)


def ends_of_search(found: Sequence[Search]) -> list[dict[str, Any]]:
    """Return a row for each arm and learning rate that was tried to choose one."""
    rows = []
    for one in found:
        for rate, losses in one.losses.items():
            ends = finite_numbers(losses)
            row = {
                "arm": one.arm.name,
                "learning_rate": rate,
                "seeds": len(losses),
                "diverged": one.lost[rate],
                "mean": one.means[rate],
                "low": min(ends, default=np.nan),
                "high": max(ends, default=np.nan),
                "filled": "yes" if rate == one.chosen else "no",
            }
            rows.append(row)
    return rows


# ---- over step time


def draw_step_times(arms: Sequence[Arm], metric: Metric, note: str) -> list[Figure]:
    """Draw the Pareto plot of step time and final metric; nothing for fewer than two arms that have both."""
    having, said = with_means(arms, metric)
    data = ends_by_step_time(having, metric)
    if len(data) < 2:
        return []
    front = front_of(data, metric)
    is_on_front = data["arm"].isin(front["arm"])
    data["filled"] = np.where(is_on_front, "yes", "no")
    chart = draw_against(arms, data, "step_ms", "step time (ms)", metric, expected=having)
    for pane in chart.panes:
        pane.step(front["step_ms"], front["mean"], where="post", color=INK, lw=1, linestyle=(0, (1, 2)), zorder=1)
    columns = {"mean": "final", "low": "final_low", "high": "final_high", "filled": "on_front"}
    drawings = drawings_of(chart, data.rename(columns=columns), metric, "final")
    name = f"step-time-{metric.kind}"
    names = join_first([arm.name for arm in arms])
    words = captions.step_time(metric, front=list(front["arm"]), arms=names)
    caption = words.caption + note + chart.note + said
    return make_figures(name, words.title, caption, words.alt, drawings)


def ends_by_step_time(arms: Sequence[Arm], metric: Metric) -> pd.DataFrame:
    """Return a row for each arm of which some run finished and some was timed."""
    rows = []
    for arm in arms:
        times = finite_numbers(run.step_ms for run in arm.runs)
        if times:
            row = {"arm": arm.name, **vars(outcome(arm, metric))}
            row["step_ms"] = np.median(times)
            row["step_ms_low"] = min(times)
            row["step_ms_high"] = max(times)
            rows.append(row)
    return pd.DataFrame(rows).dropna()


def front_of(data: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the rows for which no other is at least as fast and better."""
    badness = data["mean"] if metric.lower_is_better else -data["mean"]
    ordered = data.assign(badness=badness).sort_values(["step_ms", "badness"])
    best_so_far = ordered["badness"].cummin()
    is_better = ordered["badness"] < best_so_far.shift(fill_value=np.inf)
    return ordered[is_better]
