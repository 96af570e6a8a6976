"""How arms ended: over crossed factors, over learning rates, and over the time that a step takes."""

from __future__ import annotations

from collections.abc import Sequence
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
from normbench.results.search import Search, searches
from normbench.results.sensitivity import TriedLevels, are_numbers, count_trained, outcome, tried_levels
from normbench.results.statistics import mean_interval
from normbench.show.figures import captions
from normbench.show.figures.figure import Figure
from normbench.show.figures.plots import ROOM, Axis, Series, Subplot, gid_of, near_range, points
from normbench.show.figures.style import (
    INK,
    MOST_PANELS,
    Panel,
    names_in,
    panels_of,
    take_first,
    tell_absent,
)
from normbench.wording import fixed, in_words, join_first

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST_CROSSINGS = 3
WIDE = 8  # times the smallest of some numbers: over a range from there on an axis is logarithmic
TRAINED = Metric("runs that train", "points", "%", 100.0, 0, (0.0, 100.0), lower_is_better=False)

# ---- arms that have no mean


def torn_among(arms: Sequence[Arm], metric: Metric) -> list[str]:
    """Return the names of the arms whose runs end in two groups."""
    return [arm.name for arm in arms if in_two_groups(arm, metric, arm.seeds)]


def mean_of_groups(arms: Sequence[Arm], metric: Metric) -> list[str]:
    """Return a sentence for a figure that draws the mean of arms whose runs end in two groups; nothing without any."""
    torn = torn_among(arms, metric)
    warning = "The mean tells little where an arm's runs end in two groups, as some did not train"
    return [f"{warning}: {join_first(torn)}."] if torn else []


def with_means(arms: Sequence[Arm], metric: Metric) -> tuple[list[Arm], list[str]]:
    """Return the arms that have a mean, and a sentence on those whose runs end in two groups, which have none."""
    torn = torn_among(arms, metric)
    sentences = [f"Not shown, as their runs end in two groups: {join_first(torn)}."] if torn else []
    return [arm for arm in arms if arm.name not in torn], sentences


# ---- arms along an axis


@dataclass(frozen=True)
class Chart:
    """A figure in which arms are drawn along an axis.

    Attributes:
        canvas: the figure.
        panels: the arms of each of its subplots.
        notes: what the caption says of arms that are missing, or that lie beyond an axis.
    """

    canvas: Canvas
    panels: Sequence[Panel]
    notes: list[str]


def draw_against(
    arms: Sequence[Arm],
    data: pd.DataFrame,
    x: str,
    axis: Axis,
    metric: Metric,
    *,
    crosses: bool = False,
    apart: float = 0,
    what: str = "final",
    expected: Sequence[Arm] | None = None,
    rows_below: int = 0,
    on_top: str = "",
) -> Chart:
    """Draw how arms ended along an axis, with lines from low to high.

    Args:
        arms: those that may be drawn; their order decides how each looks.
        data: a row for each point, with its arm, mean, low and high; its marker is filled where `filled` is yes.
        x: the column of data with places on the axis.
        axis: below the points.
        metric: in which the arms are measured.
        crosses: mark at the upper edge, in a row for each arm, where runs diverged.
        apart: how far arms at the same place stand from each other.
        what: which of the metric's values is drawn, such as `final`.
        expected: the arms that the notes name where they are missing; by default `arms`.
        rows_below: how many rows of marks an arm needs at the lower edge.
        on_top: words in the drawing.
    """
    every = panels_of(arms, set(data["arm"]))
    panels, notes = take_first(every, MOST_PANELS, "panels")
    cut = names_in(every[len(panels) :])
    notes += tell_absent(arms if expected is None else expected, data, cut)
    words = metric.final_words if what == "final" else f"{what} {metric.words}"
    most = max(len(panel.entries) for panel in panels)
    limits, is_beyond = limits_of(data, metric, most, crosses, rows_below)
    far = list(dict.fromkeys(data.loc[is_beyond, "arm"]))
    if far:
        notes.append(f"Beyond the axis, with an arrow: {join_first(far)}.")
    arrow = "↑" if metric.lower_is_better else "↓"
    rows = data.rename(columns={x: "x", f"{x}_low": "x_low", f"{x}_high": "x_high"})
    rows["filled"] = rows["filled"] == "yes"
    rows["beyond"] = [f"{arrow} {write_value(mean, metric)}" for mean in rows["mean"]]
    rows["beyond"] = rows["beyond"].where(is_beyond, "")
    if crosses:
        rows["lost"] = rows["diverged"]
    subplots = []
    for panel in panels:
        series = []
        for place, entry in enumerate(panel.entries):
            rows_of_arm = rows[rows["arm"] == entry.arm.name].reset_index(drop=True)
            shift = apart * (place - (len(panel.entries) - 1) / 2)
            value = ", ".join(write_value(mean, metric) for mean in rows_of_arm["mean"])
            series.append(Series(entry, shifted(rows_of_arm, shift), value))
        subplots.append(Subplot(panel.title, series))
    y = Axis(f"{words} ({metric.symbol})", limits=limits)
    joined = not data["arm"].is_unique
    canvas = points(subplots, axis, y, joined=joined, below=not metric.lower_is_better, note=on_top)
    return Chart(canvas, panels, notes)


def shifted(rows: pd.DataFrame, shift: float) -> pd.DataFrame:
    """Return points at other places on their axis."""
    places = [name for name in ("x", "x_low", "x_high") if name in rows]
    return rows.assign(**{name: rows[name] + shift for name in places})


def limits_of(
    drawn: pd.DataFrame, metric: Metric, lines: int, crosses: bool, rows_below: int
) -> tuple[tuple[float, float], pd.Series]:
    """Return the limits of an axis that shows the `near_range`, and which rows lie beyond it.

    drawn: a row for each point, with its mean, low and high. lines: for how many arms an edge needs room. crosses:
    whether there are crosses at the upper edge. rows_below: how many rows of marks an arm has at the lower one.
    """
    values = drawn[["mean", "low", "high"]].stack().dropna().astype(float)
    low, high = near_range(values, metric.lower_is_better)
    is_beyond = (drawn["mean"] < low) | (drawn["mean"] > high)
    pad = ROOM * ((high - low) or 1)
    below, above = pad, pad
    if crosses or (is_beyond.any() and metric.lower_is_better):
        above = pad * (1 + lines)
    if rows_below or (is_beyond.any() and not metric.lower_is_better):
        below = pad * (1 + lines)
    return (low - below, high + above), is_beyond


def write_value(value: float, metric: Metric) -> str:
    """Write a value in a metric's unit."""
    return fixed(value, metric.decimals)


def write_ranges(data: pd.DataFrame, metric: Metric) -> list[str]:
    """Write the range of each arm's values, for those who cannot see them."""
    ranges = []
    for arm, means in data.groupby("arm", sort=False)["mean"]:
        values = means.dropna()
        if len(values):
            low, high = write_value(values.min(), metric), write_value(values.max(), metric)
            ranges.append(f"{arm} {low}" if low == high else f"{arm} {low} to {high}")
    return ranges


# ---- over crossed factors


def draw_interactions(
    arms: Sequence[Arm], baseline: Baseline, metric: Metric, notes: Sequence[str] = ()
) -> list[Figure]:
    """Draw a figure for each two factors that are crossed: a line for each level of one over those of the other."""
    having, torn = with_means(arms, metric)
    crossed = [crossing for crossing in crossings(having, baseline, metric) if len(crossing.cells.columns) > 3]
    return [draw_interaction(crossing, having, metric, [*notes, *torn]) for crossing in crossed[:MOST_CROSSINGS]]


def draw_interaction(one: Crossing, arms: Sequence[Arm], metric: Metric, notes: Sequence[str]) -> Figure:
    """Draw the means over the seeds with t intervals. arms: all that have a mean."""
    subject, factor = short_name(one.subject), short_name(one.factor)
    data = pd.DataFrame(means_of_cells(one, metric)).sort_values("place", kind="stable")
    chart = draw_levels(one, arms, data, metric)
    has_others = len(one.cells.index.names) > 1  # beside the seed
    ranges = write_ranges(data, metric)
    words = captions.interaction(metric, subject=subject, factor=factor, others=has_others, ranges=ranges)
    sentences = [*words.sentences, *notes, *chart.notes]
    name = f"interaction-{subject}-{factor}"
    return Figure(name, words.title, sentences, words.alt, chart.canvas, without_looks(data))


def means_of_cells(one: Crossing, metric: Metric) -> list[dict[str, Any]]:
    """Return a row for each arm and level that have runs: their mean over the seeds, with its t interval."""
    factor, places = short_name(one.factor), places_of(one.levels)
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


def draw_survival(arms: Sequence[Arm], baseline: Baseline, notes: Sequence[str] = ()) -> list[Figure]:
    """Draw the share of runs that train over the first factor that is a number; nothing where all of them do."""
    for crossing in crossings(arms, baseline, TRAINED):
        if not are_numbers(crossing.levels):
            continue
        rows = shares_that_train(crossing, arms)
        if all(row["train"] == row["runs"] for row in rows):
            continue
        data = pd.DataFrame(rows).sort_values("place", kind="stable")
        chart = draw_levels(crossing, arms, data, TRAINED, "share of")
        subject, factor = short_name(crossing.subject), short_name(crossing.factor)
        words = captions.survival(subject=subject, factor=factor, rows=rows)
        sentences = [*words.sentences, *notes, *chart.notes]
        name = f"survival-{subject}-{factor}"
        return [Figure(name, words.title, sentences, words.alt, chart.canvas, without_looks(data))]
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
                short_name(one.factor): level,
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


def draw_levels(one: Crossing, arms: Sequence[Arm], data: pd.DataFrame, metric: Metric, what: str = "final") -> Chart:
    """Draw a row for each arm and level at the places of the levels."""
    names = dict(zip(places_of(one.levels), [in_words(level) for level in one.levels], strict=True))
    apart = 0.3 / max(len(one.arms), 4)
    axis = Axis(short_name(one.factor), names=names)
    return draw_against(one.arms, data, "place", axis, metric, apart=apart, what=what, expected=arms)


def without_looks(data: pd.DataFrame) -> pd.DataFrame:
    """Return the data of a figure without the columns that say where and how a point is drawn."""
    return data.drop(columns=["filled", "place"])


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
    has_two = any(len(levels.by_level) > 1 for levels in tried)
    has_finished = any(row["finished"] for row in rows)
    if not has_two or not has_finished:
        return []
    data = pd.DataFrame(rows)
    crosses = bool(data["diverged"].any())
    arms = [levels.arm for levels in tried]
    axis = Axis("learning rate", "log")
    chart = draw_against(arms, data, "learning_rate", axis, metric, crosses=crosses, rows_below=1)
    draw_largest_rates(chart, data)
    words = captions.learning_rates(metric, crosses=crosses, ranges=write_ranges(data, metric))
    at_each_rate = list[Arm]()
    for levels in tried:
        at_each_rate += levels.by_level.values()
    sentences = [*words.sentences, *chart.notes, *mean_of_groups(at_each_rate, metric)]
    shown = data.rename(columns={"filled": "best"})
    return [Figure("learning-rates", words.title, sentences, words.alt, chart.canvas, shown)]


def ends_at_rates(tried: Sequence[TriedLevels], metric: Metric) -> list[dict[str, Any]]:
    """Return a row for each arm and learning rate. largest: the largest at which the arm trains; NaN if at none."""
    rows = []
    for levels in tried:
        exponents = list(levels.largest.values())
        largest = 2 ** np.mean(exponents) if levels.trains else np.nan
        for rate, arm in levels.by_level.items():
            row = {"arm": levels.arm.name, "learning_rate": rate, **vars(outcome(arm, metric))}
            row["filled"] = "yes" if rate == levels.best and levels.trains_at_best else "no"
            row["largest"] = largest
            rows.append(row)
    return rows


def draw_largest_rates(chart: Chart, data: pd.DataFrame) -> None:
    """Draw a triangle at the largest rate at which each arm trains, below all else, in a row for each arm."""
    largest = data.groupby("arm")["largest"].first()
    for panel, pane in zip(chart.panels, chart.canvas.axes, strict=True):
        at_edge = pane.get_xaxis_transform()
        for place, entry in enumerate(panel.entries):
            gid = gid_of(entry.arm, "the largest rate that trains")
            rate = largest[entry.arm.name]
            pane.plot(rate, 0.03 + ROOM * place, "^", transform=at_edge, color=entry.color, gid=gid)


def draw_search(study: RecordedStudy) -> list[Figure]:
    """Draw what each arm of a study reached at the learning rates of which one was chosen for it, where one was."""
    return draw_searches(searches(study), "learning-rate-search")


def draw_searches(found: Sequence[Search], name: str) -> list[Figure]:
    """Draw what arms reached at the learning rates of which one was chosen for them. name: of the figure."""
    data = pd.DataFrame(ends_of_search(found))
    if data.empty or data["mean"].isna().all():
        return []
    metric = loss_on("val")
    crosses = bool(data["diverged"].any())
    arms = [search.arm for search in found]
    axis = Axis("learning rate", "log")
    chart = draw_against(arms, data, "learning_rate", axis, metric, crosses=crosses, what="held-out")
    length = min(search.length for search in found)
    ranges = write_ranges(data, metric)
    words = captions.search(seeds=data["seeds"].max(), crosses=crosses, ranges=ranges, length=length)
    sentences = [*words.sentences, *chart.notes]
    shown = data.rename(columns={"filled": "chosen", "diverged": "lost"})
    return [Figure(name, words.title, sentences, words.alt, chart.canvas, shown)]


def ends_of_search(found: Sequence[Search]) -> list[dict[str, Any]]:
    """Return a row for each arm and learning rate that was tried to choose one."""
    rows = []
    for search in found:
        for rate, losses in search.losses.items():
            ends = finite_numbers(losses)
            row = {
                "arm": search.arm.name,
                "learning_rate": rate,
                "seeds": len(losses),
                "diverged": search.lost[rate],
                "mean": search.means[rate],
                "low": min(ends, default=np.nan),
                "high": max(ends, default=np.nan),
                "filled": "yes" if rate in search.chosen else "no",
            }
            rows.append(row)
    return rows


# ---- over step time


def draw_step_times(arms: Sequence[Arm], metric: Metric, notes: Sequence[str] = (), on_top: str = "") -> list[Figure]:
    """Draw the Pareto plot of step time and final metric; nothing for fewer than two arms that have both.

    notes: sentences of the caption. on_top: words in the drawing.
    """
    having, torn = with_means(arms, metric)
    data = ends_by_step_time(having, metric)
    if len(data) < 2:
        return []
    front = front_of(data, metric)
    is_on_front = data["arm"].isin(front["arm"])
    data["filled"] = np.where(is_on_front, "yes", "no")
    chart = draw_against(arms, data, "step_ms", Axis("step time (ms)"), metric, expected=having, on_top=on_top)
    for pane in chart.canvas.axes:
        pane.step(front["step_ms"], front["mean"], where="post", color=INK, lw=1, linestyle=(0, (1, 2)), zorder=1)
    ranges = write_ranges(data, metric)
    words = captions.step_time(metric, front=list(front["arm"]), ranges=ranges)
    sentences = [*words.sentences, *notes, *chart.notes, *torn]
    columns = {"mean": "final", "low": "final_low", "high": "final_high", "filled": "on_front"}
    shown = data.rename(columns=columns)
    return [Figure(f"step-time-{metric.kind}", words.title, sentences, words.alt, chart.canvas, shown)]


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
