"""How arms ended: paired differences, and over crossed factors, learning rates and step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from normbench.analysis.comparisons import Baseline, Comparison, in_two_groups
from normbench.analysis.designs import Crossing, crossings
from normbench.analysis.figures import captions
from normbench.analysis.figures import style as grid
from normbench.analysis.figures.style import INK, Drawing, Entry, Figure, first, in_figures, panels_of
from normbench.analysis.measures import Metric, known, loss_on
from normbench.analysis.records import Arm, RecordedStudy, shortened
from normbench.analysis.sensitivity import are_numbers, is_lost, outcome, searches, tried_levels
from normbench.analysis.statistics import mean_interval
from normbench.analysis.wording import fixed, in_words, precision, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 40  # of the forest plot
MOST_CROSSINGS = 3
TORN = "two groups"  # in the place of a mean
WIDE = 8  # times the smallest of some numbers: over a range from there on an axis is logarithmic
TRAINED = Metric("runs that train", "points", "%", 100.0, 0, (0.0, 100.0), lower_is_better=False)
MARKER_HEIGHT = 6 / 72  # inches of a row of markers, which are 5 points high

# ---- differences from the baseline, paired by seed


@dataclass(frozen=True)
class Row:
    """A row of the forest plot.

    name: of the arm, in full. lines: the words above what is drawn. numbers: those at the right.
    """

    one: Comparison
    entry: Entry
    name: str
    lines: list[str]
    numbers: str


@dataclass(frozen=True)
class Range:
    """From where to where an axis of the forest plot goes, and its title."""

    low: float
    high: float
    title: str = ""


def forest(comparisons: Sequence[Comparison], arms: Sequence[Arm], note: str) -> list[Figure]:
    """Draw a row for each arm that has a baseline; nothing where no comparison has two seeds."""
    several = [one for one in comparisons if one.n > 1]
    shown, more = first(several, MOST_ROWS, "rows")
    if not shown:
        return []
    metric = shown[0].metric
    shown = sorted(shown, key=rank)
    data = pd.DataFrame([row for one in shown for row in rows_of(one)], dtype=object)
    cut = [one.arm.name for one in several[MOST_ROWS:]]
    more += grid.absent(arms, data, cut, "fewer than two seeds finished in it and its baseline")
    ranges = ranges_of(data, metric)
    rows = worded_rows(shown, arms, len(ranges))
    baselines = list(dict.fromkeys(one.baseline.name for one in shown))
    words = captions.differences(
        metric,
        baselines=baselines,
        rows=[(row.name, row.numbers) for row in rows],
        torn=any(one.torn for one in shown),
        panes=len(ranges),
    )
    drawing = Drawing(draw_rows(rows, ranges, metric), "", "", data)
    return in_figures("differences", words.title, words.caption + note + more, words.alt, [drawing])


def rank(one: Comparison) -> tuple[bool, float]:
    """Return a key that sorts the best first and those without a mean last."""
    badness = one.mean if one.metric.lower_is_better else -one.mean
    return bool(one.torn), badness


def ranges_of(data: pd.DataFrame, metric: Metric) -> list[Range]:
    """Return the range that is shown: of all that is drawn; two, where some lies far from the rest."""
    numbers = data[["difference", "low", "high"]].stack().dropna()
    reach = pd.Series([0.0, *numbers], dtype=float)
    close = grid.near(reach, metric.lower_is_better)
    whole = (reach.min(), reach.max())
    if close == whole:
        return [Range(*whole)]
    return [Range(*close, "near zero"), Range(*whole, "all")]


def worded_rows(shown: Sequence[Comparison], arms: Sequence[Arm], panes: int) -> list[Row]:
    """Return the rows with the names of their arms, in lines that have room; and of baselines, where there are several.

    panes: how many stand side by side.
    """
    looks = {entry.arm.name: entry for _, entries in panels_of(arms) for entry in entries}
    has_one_baseline = len({one.baseline.name for one in shown}) == 1
    numbers = [f"{write_mean(one)}  n = {one.n}" for one in shown]
    room = (grid.blank(1.0).get_figwidth() - 0.3) / panes
    if panes == 1:  # numbers stand beside the names
        room -= max(map(grid.breadth, numbers)) + 0.15
    rows = []
    for one, told in zip(shown, numbers, strict=True):
        against = "" if has_one_baseline else f" − {other_settings(one)}"
        words = grid.words(one.arm, [*one.arm.settings])
        rows.append(Row(one, looks[one.arm.name], one.arm.name + against, grid.wrap(words + against, room), told))
    return rows


def draw_rows(rows: Sequence[Row], ranges: Sequence[Range], metric: Metric) -> Axes:
    """Draw the forest plot; return its first axes."""
    row_height = 0.42 + grid.LINE * (max(len(row.lines) for row in rows) - 1)  # inches
    canvas = grid.blank(row_height * len(rows) + 0.8)
    width, height = canvas.get_size_inches()
    room = {
        "left": 0.15 / width,
        "right": 1 - 0.15 / width,
        "top": 1 - 0.22 / height,
        "bottom": 0.56 / height,
        "wspace": 0.12,
    }
    panes = canvas.subplots(1, len(ranges), sharey=True, squeeze=False, gridspec_kw=room)[0]
    places = np.arange(len(rows))
    for axes, shown in zip(panes, ranges, strict=True):
        axes.set_title(shown.title)
        axes.spines["left"].set_visible(False)
        axes.vlines([0] * len(rows), places - 0.12, places + 0.46, INK, linewidth=0.8)
        pad = grid.ROOM * ((shown.high - shown.low) or 1)
        axes.set_xlim(shown.low - pad, shown.high + pad)
        axes.locator_params(axis="x", nbins=6 // len(ranges) + 1, min_n_ticks=3)
        for place, row in enumerate(rows):
            draw_difference(axes, place, row.one, row.entry)
    left, right = panes[0], panes[-1]
    for place, row in enumerate(rows):
        above = place - 0.07 / row_height
        how = {"va": "bottom", "linespacing": 1.0, "gid": grid.gid_of(row.one.arm, "")}
        left.text(0, above, "\n".join(row.lines), transform=left.get_yaxis_transform(), **how)
        right.text(1, above, row.numbers, transform=right.get_yaxis_transform(), ha="right", **how)
    lowest = len(rows) - 1 + 0.22 / row_height  # dots of the last row stand below it
    highest = 0.19 / row_height - 1
    left.set(ylim=(lowest, highest), yticks=[])
    better, worse = ("better", "worse") if metric.lower_is_better else ("worse", "better")
    about = f"difference of the final {metric.words} ({metric.unit})\n← {better}      {worse} →"
    canvas.supxlabel(about, y=0.02 / height)
    axes = left
    return axes


def other_settings(one: Comparison) -> str:
    """Name a baseline by the settings that it has otherwise than the arm."""
    mine = one.arm.settings
    others = {key: value for key, value in one.baseline.settings.items() if mine.get(key) != value}
    return Arm(others).name


def write_mean(one: Comparison) -> str:
    """Write the mean of a comparison, or that its arms have none."""
    if one.torn:
        return TORN
    return fixed(one.mean, precision(one.mean, one.interval), sign=True)


def draw_difference(axes: Axes, place: int, one: Comparison, entry: Entry) -> None:
    """Draw one comparison: mean, interval, below it each seed at its own height; an arrow to a mean beyond.

    Of an arm whose runs end in two groups the seeds alone.
    """
    value = write_mean(one)
    if one.interval:
        value += f" ({span(one.interval, precision(one.mean, one.interval), True)})"
    look: dict[str, Any] = {"color": entry.color, "gid": grid.gid_of(one.arm, value)}
    heights = place + 0.2 + min(0.06, 0.24 / one.n) * np.arange(one.n)
    axes.plot(one.values, heights, ".", markersize=3, markeredgewidth=0, **look)
    if one.torn:
        return
    if one.interval:
        axes.plot(one.interval, [place, place], linewidth=1.6, solid_capstyle="butt", **look)
    low, high = axes.get_xlim()
    beyond: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "clip_on": False, "markersize": 6}
    if one.mean > high:
        axes.plot(1, place, ">", **beyond, **look)
    elif one.mean < low:
        axes.plot(0, place, "<", **beyond, **look)
    axes.plot(one.mean, place, entry.marker, markersize=5.5, mfc=entry.color if one.real else "none", **look)


def rows_of(one: Comparison) -> list[dict[str, Any]]:
    """Return what is drawn of a comparison: its mean, where it has one, and each seed."""
    both = {"arm": one.arm.name, "baseline": one.baseline.name}
    low, high = one.interval or (np.nan, np.nan)
    mean = np.nan if one.torn else one.mean
    rows = [
        {
            **both,
            "kind": "mean",
            "seed": None,
            "difference": mean,
            "low": low,
            "high": high,
            "corrected_p": one.corrected,
        }
    ]
    for seed, value in zip(one.seeds, one.values, strict=True):
        rows.append({**both, "kind": "seed", "seed": seed, "difference": value})
    return rows


def torn_among(arms: Sequence[Arm], metric: Metric) -> list[str]:
    """Return the names of the arms whose runs end in two groups."""
    return [arm.name for arm in arms if in_two_groups(arm, metric, {run.seed for run in arm.runs})]


def mean_of_groups(arms: Sequence[Arm], metric: Metric) -> str:
    """Return a sentence for a figure that draws the mean of arms whose runs end in two groups; empty without any."""
    torn = torn_among(arms, metric)
    said = " The mean tells little where an arm's runs end in two groups, as some did not train"
    return f"{said}: {shortened(torn)}." if torn else ""


def with_means(arms: Sequence[Arm], metric: Metric) -> tuple[list[Arm], str]:
    """Return the arms that have a mean, and a sentence on those whose runs end in two groups, which have none."""
    torn = torn_among(arms, metric)
    said = f" Not shown, as their runs end in two groups: {shortened(torn)}." if torn else ""
    return [arm for arm in arms if arm.name not in torn], said


# ---- over crossed factors, learning rates and step time


def draw_against(
    arms: Sequence[Arm],
    data: pd.DataFrame,
    x: str,
    axis: str,
    metric: Metric,
    crosses: bool = False,
    apart: float = 0,
    what: str = "final",
    expected: Sequence[Arm] | None = None,
) -> tuple[list[grid.Panel], list[Axes], str]:
    """Draw how arms ended along an axis, with lines from low to high; return panels, their axes, and a note.

    x: the column of data with places on the axis; markers are filled where `filled` is yes. crosses: at the upper edge
    in a row for each arm, where runs diverged. apart: how far arms at the same place stand from each other. what: of
    the metric is drawn. expected: the arms of which the note tells, should they not be there; by default those drawn.
    """
    every = panels_of(arms, set(data["arm"]))
    panels, more = first(every, grid.MOST_PANELS, "panels")
    cut = grid.names_in(every[len(panels) :])
    more += grid.absent(arms if expected is None else expected, data, cut)
    named: Literal["points", "lines"] = "points" if data["arm"].is_unique else "lines"
    panes = grid.draw_panels(panels, axis, f"{what} {metric.words} ({metric.symbol})", named=named)
    most = max(len(entries) for _, entries in panels)
    beyond, sentence = grid.limit(panes[0], data, metric, most, crosses)
    for (_, entries), pane in zip(panels, panes, strict=True):
        middle = (len(entries) - 1) / 2
        for place, entry in enumerate(entries):
            own = data[data["arm"] == entry.arm.name]
            shift = apart * (place - middle)
            drawn = draw_points(pane, own, x, entry, shift)
            lost = own.loc[own["diverged"] > 0, x] if crosses else []
            height = [0.97 - place * grid.ROOM] * len(lost)
            drawn += pane.plot(lost, height, "x", color=entry.color, transform=pane.get_xaxis_transform())
            for far in own.loc[beyond, [x, "mean"]].to_numpy():
                drawn.append(grid.arrow(pane, far, place, entry.color, metric))
            values = ", ".join(f"{value:.{metric.decimals}f}" for value in own["mean"])
            for artist in drawn:
                artist.set_gid(grid.gid_of(entry.arm, values))
    return [*panels], panes, more + sentence


def draw_points(pane: Axes, own: pd.DataFrame, x: str, entry: Entry, shift: float) -> list[Any]:
    """Draw what is known of an arm, shifted on the axis; return what was drawn."""
    places, means = own[x], own["mean"]
    left = places - own.get(f"{x}_low", places)
    right = own.get(f"{x}_high", places) - places
    below = (means - own["low"]).clip(0)  # a mean is rounded
    above = (own["high"] - means).clip(0)
    at = places + shift
    look: dict[str, Any] = {"color": entry.color, "marker": entry.marker}
    how: dict[str, Any] = {"linestyle": entry.dash, "mfc": "none", "elinewidth": 0.8}
    bars = pane.errorbar(at, means, [below, above], [left, right], **how, **look)
    full = own["filled"] == "yes"
    filled = pane.plot(at[full], means[full], markersize=5, linestyle="", **look)
    return [*bars.get_children(), *filled]


def drawings_of(
    panels: Sequence[grid.Panel], panes: Sequence[Axes], data: pd.DataFrame, metric: Metric, value: str = "mean"
) -> list[Drawing]:
    """Return panels with their words: where the values of each arm lie. value: the column that has them."""
    drawings = []
    for (title, entries), pane in zip(panels, panes, strict=True):
        own = data[data["arm"].isin([entry.arm.name for entry in entries])]
        told = dict[str, str]()
        for entry in entries:
            values = own.loc[own["arm"] == entry.arm.name, value].dropna()
            if len(values):
                low, high = (f"{end:.{metric.decimals}f}" for end in (values.min(), values.max()))
                told[entry.label] = low if low == high else f"{low} to {high}"
        drawings.append(Drawing(pane, title, f"From the lowest to the highest: {grid.values_told(told)}", own))
    return drawings


def short(key: str) -> str:
    """Return the last part of a setting's name."""
    return key.rpartition(".")[2]


def interactions(arms: Sequence[Arm], baseline: Baseline, metric: Metric, note: str) -> list[Figure]:
    """Draw a figure for each two factors that are crossed: a line for each level of one over those of the other."""
    having, said = with_means(arms, metric)
    figures: list[Figure] = []
    crossed = [one for one in crossings(having, baseline, metric) if len(one.cells.columns) > 3]
    for one in crossed[:MOST_CROSSINGS]:
        figures += draw_interaction(one, having, metric, note + said)
    return figures


def draw_interaction(one: Crossing, arms: Sequence[Arm], metric: Metric, note: str) -> list[Figure]:
    """Draw the means over the seeds with t intervals. arms: all that have a mean."""
    subject, factor = short(one.subject), short(one.factor)
    rows, places = [], places_of(one.levels)
    for number, level in one.cells.columns:
        seeds = known(one.cells[number, level].groupby(level="seed").mean())
        mean, interval = mean_interval(seeds, metric.bounds)
        low, high = interval or (mean, mean)
        row = {"arm": one.arms[number].name, factor: one.levels[level], "place": places[level], "seeds": len(seeds)}
        rows.append({**row, "filled": "no", "mean": mean, "low": low, "high": high})
    drawings, more = draw_levels(one, arms, rows, metric)
    words = captions.interaction(metric, subject=subject, factor=factor, others=len(one.cells.index.names) > 1)
    name = f"interaction-{subject}-{factor}"
    return in_figures(name, words.title, words.caption + note + more, words.alt, drawings)


def survival(arms: Sequence[Arm], baseline: Baseline, note: str) -> list[Figure]:
    """Draw the share of runs that train over the first factor that is a number; nothing where all of them do."""
    for one in crossings(arms, baseline, TRAINED):
        if not are_numbers(one.levels):
            continue
        rows = shares_that_train(one)
        if all(row["train"] == row["runs"] for row in rows):
            continue
        drawings, more = draw_levels(one, arms, rows, TRAINED, "share of")
        subject, factor = short(one.subject), short(one.factor)
        words = captions.survival(subject=subject, factor=factor, rows=rows)
        name = f"survival-{subject}-{factor}"
        return in_figures(name, words.title, words.caption + note + more, words.alt, drawings)
    return []


def shares_that_train(one: Crossing) -> list[dict[str, Any]]:
    """Return a row for each arm and level that has runs; intervals: of a binomial share (Wilson 1927)."""
    factor = short(one.factor)
    rows = []
    for arm in one.arms:
        for level, place in zip(one.levels, places_of(one.levels), strict=True):
            runs = [run for run in arm.runs if run.ended and run.config.get(one.factor) == level]
            if not runs:
                continue
            train = sum(not is_lost(run) for run in runs)
            low, high = stats.binomtest(train, len(runs)).proportion_ci(method="wilson")
            row = {"arm": arm.name, factor: level, "place": place, "runs": len(runs), "train": train}
            rows.append({**row, "filled": "no", "mean": 100 * train / len(runs), "low": 100 * low, "high": 100 * high})
    return rows


def draw_levels(
    one: Crossing, arms: Sequence[Arm], rows: Sequence[Mapping[str, Any]], metric: Metric, what: str = "final"
) -> tuple[list[Drawing], str]:
    """Draw what was found of each arm at each level of a factor, at the level's place; return a note too."""
    data = pd.DataFrame(rows).sort_values("place", kind="stable")
    apart = 0.3 / max(len(one.arms), 4)
    panels, panes, more = draw_against(
        one.arms, data, "place", short(one.factor), metric, apart=apart, what=what, expected=arms
    )
    for pane in panes:
        grid.name_ticks(pane, places_of(one.levels), [in_words(level) for level in one.levels])
    return drawings_of(panels, panes, data.drop(columns=["filled", "place"]), metric), more


def places_of(levels: Sequence[Any]) -> list[float]:
    """Return where levels stand on an axis: words in a row; numbers by size, over a wide range by its logarithm.

    On average two neighbours have the distance 1.
    """
    if not are_numbers(levels):
        return [float(place) for place in range(len(levels))]
    places = np.array(levels, dtype=float)
    if 0 < WIDE * places.min() <= places.max():
        places = np.log(places)
    places *= (len(levels) - 1) / np.ptp(places)
    return [float(place) for place in places]


def learning_rates(study: RecordedStudy, metric: Metric) -> list[Figure]:
    """Draw each arm over its learning rates; nothing where no arm has two, or none has finished."""
    tried = tried_levels(study.arms, fewest=1)
    rows = []
    for one in tried:
        largest = 2 ** np.mean([*one.largest.values()]) if one.largest else np.nan
        for rate, arm in one.by_level.items():
            row = {"arm": one.arm.name, "learning_rate": rate, **outcome(arm, metric)}
            rows.append({**row, "filled": "yes" if rate == one.best else "no", "largest": largest})
    if not any(row["finished"] for row in rows) or all(len(one.by_level) < 2 for one in tried):
        return []
    data = pd.DataFrame(rows)
    arms = [one.arm for one in tried]
    crosses = bool(data["diverged"].any())
    panels, panes, more = draw_against(arms, data, "learning_rate", "learning rate", metric, crosses)
    draw_largest_rates(panels, panes, data)
    grid.log_scale(panes[0], "x")
    drawings = drawings_of(panels, panes, data.rename(columns={"filled": "best"}), metric)
    words = captions.learning_rates(metric, crosses=crosses, arms=shortened([arm.name for arm in arms]))
    note = more + mean_of_groups([arm for one in tried for arm in one.by_level.values()], metric)
    return in_figures("learning-rates", words.title, words.caption + note, words.alt, drawings)


def draw_largest_rates(panels: Sequence[grid.Panel], panes: Sequence[Axes], data: pd.DataFrame) -> None:
    """Draw a triangle at the largest rate at which each arm trains, below all else, in a row for each arm."""
    _, height = grid.size_of(panes[0])
    row = MARKER_HEIGHT / height
    low, high = panes[0].get_ylim()
    most = max(len(entries) for _, entries in panels)
    panes[0].set_ylim(low - row * most * (high - low), high)
    for (_, entries), pane in zip(panels, panes, strict=True):
        for place, entry in enumerate(entries):
            largest = data.loc[data["arm"] == entry.arm.name, "largest"].iloc[0]
            gid = grid.gid_of(entry.arm, "the largest rate that trains")
            at_edge = pane.get_xaxis_transform()
            pane.plot(largest, row * (place + 0.5), "^", transform=at_edge, color=entry.color, gid=gid)


def search(study: RecordedStudy) -> list[Figure]:
    """Draw what each arm reached at the learning rates of which one was chosen for it, where one was."""
    found = searches(study)
    rows = []
    for one in found:
        for rate, losses in one.losses.items():
            ends = known(losses) if rate in one.means else []
            row = {"arm": one.arm.name, "learning_rate": rate, "seeds": len(losses), "diverged": one.lost[rate]}
            row |= {"mean": one.means[rate], "low": min(ends, default=np.nan), "high": max(ends, default=np.nan)}
            rows.append({**row, "filled": "yes" if rate == one.chosen else "no"})
    data = pd.DataFrame(rows)
    if not rows or data["mean"].isna().all():
        return []
    metric, arms = loss_on("val"), [one.arm for one in found]
    crosses = bool(data["diverged"].any())
    panels, panes, more = draw_against(
        arms, data, "learning_rate", "learning rate", metric, crosses=crosses, what="held-out"
    )
    grid.log_scale(panes[0], "x")
    columns = {"filled": "chosen", "diverged": "lost"}
    drawings = drawings_of(panels, panes, data.rename(columns=columns), metric)
    names = shortened([arm.name for arm in arms])
    words = captions.search(seeds=data["seeds"].max(), crosses=crosses, arms=names)
    return in_figures("learning-rate-search", words.title, words.caption + more, words.alt, drawings)


def step_time_against(arms: Sequence[Arm], metric: Metric, note: str) -> list[Figure]:
    """Draw the Pareto plot; nothing for fewer than two arms with both figures."""
    having, said = with_means(arms, metric)
    rows = []
    for arm in having:
        row = {"arm": arm.name, **outcome(arm, metric)}
        ms = known(run.step_ms for run in arm.runs)
        if ms:
            row |= {"step_ms": np.median(ms), "step_ms_low": min(ms), "step_ms_high": max(ms)}
        rows.append(row)
    data = pd.DataFrame(rows).dropna()
    if len(data) < 2 or "step_ms" not in data:
        return []
    front = front_of(data, metric)
    data["filled"] = np.where(data["arm"].isin(front["arm"]), "yes", "no")
    panels, panes, more = draw_against(arms, data, "step_ms", "step time (ms)", metric, expected=having)
    for pane in panes:
        pane.step(front["step_ms"], front["mean"], where="post", color=INK, lw=1, linestyle=(0, (1, 2)), zorder=1)
    columns = {"mean": "final", "low": "final_low", "high": "final_high", "filled": "on_front"}
    drawings = drawings_of(panels, panes, data.rename(columns=columns), metric, "final")
    name = f"step-time-{metric.tag.partition('/')[0]}"
    words = captions.step_time(metric, front=list(front["arm"]), arms=shortened([arm.name for arm in arms]))
    return in_figures(name, words.title, words.caption + note + more + said, words.alt, drawings)


def front_of(data: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the rows for which no other is at least as fast and better."""
    badness = data["mean"] if metric.lower_is_better else -data["mean"]
    ordered = data.assign(badness=badness).sort_values(["step_ms", "badness"])
    best_so_far = ordered["badness"].cummin()
    is_better = ordered["badness"] < best_so_far.shift(fill_value=np.inf)
    return ordered[is_better]
