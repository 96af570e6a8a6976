"""The forest plot: differences from the baseline, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.evidence.labels import name_settings
from normbench.evidence.measures import Metric
from normbench.results.result import Difference
from normbench.show.figures import captions
from normbench.show.figures.figure import Drawing, Figure, make_figures
from normbench.show.figures.panes import LINE, ROOM, blank, breadth, gid_of, near_range, wrap
from normbench.show.figures.style import INK, Entry, panels_of, take_first, tell_absent
from normbench.wording import fixed, precision, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 40
TORN = "two groups"  # in the place of a mean
SIDE = 0.15  # inches at the left and at the right of all
NO_MEAN_YET = "fewer than two seeds finished in it and its baseline"


@dataclass(frozen=True)
class Row:
    """A row of the forest plot.

    name: of the arm, in full. lines: the words above what is drawn. numbers: those at the right.
    """

    one: Difference
    entry: Entry
    name: str
    lines: list[str]
    numbers: str


@dataclass(frozen=True)
class Range:
    """The lowest and the highest value that an axis of the forest plot shows, and its title."""

    low: float
    high: float
    title: str = ""


def draw_forest(differences: Sequence[Difference], arms: Sequence[Arm], note: str) -> list[Figure]:
    """Draw a row for each arm that has a baseline; nothing where no comparison has two seeds."""
    several = [one for one in differences if one.n > 1]
    shown, more = take_first(several, MOST_ROWS, "rows")
    if not shown:
        return []
    metric = shown[0].metric
    shown = sorted(shown, key=rank)
    data = data_of(shown)
    cut = [one.arm for one in several[MOST_ROWS:]]
    more += tell_absent(arms, data, cut, NO_MEAN_YET)
    ranges = ranges_of(data, metric)
    rows = write_rows(shown, arms, len(ranges))
    any_torn = any(one.torn for one in shown)
    rows_in_words = [f"{row.name} {row.numbers}" for row in rows]
    words = captions.differences(
        metric,
        baselines=baselines_of(shown),
        rows=rows_in_words,
        torn=any_torn,
        panes=len(ranges),
    )
    drawing = Drawing(draw_rows(rows, ranges, metric), "", "", data)
    return make_figures("differences", words.title, words.caption + note + more, words.alt, [drawing])


# ---- the numbers


def rank(one: Difference) -> tuple[bool, float]:
    """Return a key that sorts the best first and those without a mean last."""
    badness = one.mean if one.metric.lower_is_better else -one.mean
    return bool(one.torn), badness


def data_of(shown: Sequence[Difference]) -> pd.DataFrame:
    """Return a row for all that is drawn: each comparison's mean, NaN where it has none, and each of its seeds."""
    rows: list[dict[str, Any]] = []
    for one in shown:
        both = {"arm": one.arm, "baseline": one.baseline}
        mean = np.nan if one.torn else one.mean
        low, high = one.interval or (np.nan, np.nan)
        summary = {"difference": mean, "low": low, "high": high, "corrected_p": one.corrected}
        rows.append({**both, "kind": "mean", "seed": None, **summary})
        for seed, value in zip(one.seeds, one.values, strict=True):
            rows.append({**both, "kind": "seed", "seed": seed, "difference": value})
    return pd.DataFrame(rows, dtype=object)


def ranges_of(data: pd.DataFrame, metric: Metric) -> list[Range]:
    """Return the range of all that is drawn; where some of it lies far from the rest, first the range without that."""
    numbers = data[["difference", "low", "high"]].stack().dropna()
    reach = pd.Series([0.0, *numbers], dtype=float)
    close = near_range(reach, metric.lower_is_better)
    whole = (reach.min(), reach.max())
    if close == whole:
        return [Range(*whole)]
    return [Range(*close, "near zero"), Range(*whole, "all")]


# ---- the words


def baselines_of(shown: Sequence[Difference]) -> list[str]:
    """Return the names of the baselines, each once."""
    names: dict[str, None] = {}
    for one in shown:
        names[one.baseline] = None
    return list(names)


def write_rows(shown: Sequence[Difference], arms: Sequence[Arm], panes: int) -> list[Row]:
    """Return the rows of the plot, with the names of arms, and of baselines where there are several, in lines that fit.

    panes: how many axes stand side by side.
    """
    entries = {}
    for panel in panels_of(arms):
        for entry in panel.entries:
            entries[entry.arm.name] = entry
    numbers = [f"{write_mean(one)}  n = {one.n}" for one in shown]
    room = (blank(1.0).get_figwidth() - 2 * SIDE) / panes
    if panes == 1:  # numbers stand beside the names
        room -= max(map(breadth, numbers)) + SIDE
    has_one_baseline = len(baselines_of(shown)) == 1
    arm_named = {arm.name: arm for arm in arms}
    rows = []
    for one, told in zip(shown, numbers, strict=True):
        name = one.arm
        arm = arm_named[one.arm]
        label = name_settings(arm, list(arm.settings))
        if not has_one_baseline:
            against = f" − {other_settings(arm, arm_named[one.baseline])}"
            name += against
            label += against
        lines = wrap(label, room)
        rows.append(Row(one, entries[one.arm], name, lines, told))
    return rows


def other_settings(arm: Arm, baseline: Arm) -> str:
    """Name a baseline by the settings in which it differs from the arm."""
    others = {}
    for key, value in baseline.settings.items():
        if arm.settings.get(key) != value:
            others[key] = value
    return Arm(others).name


def write_mean(one: Difference) -> str:
    """Write the mean of a comparison, or that its arms have none."""
    if one.torn:
        return TORN
    return fixed(one.mean, precision(one.mean, one.interval), sign=True)


def write_mean_and_interval(one: Difference) -> str:
    """Write the mean of a comparison, and its interval where it has one."""
    mean, interval = write_mean(one), one.interval
    if interval is None:
        return mean
    return f"{mean} ({span(interval, precision(one.mean, interval), sign=True)})"


# ---- the drawing


def draw_rows(rows: Sequence[Row], ranges: Sequence[Range], metric: Metric) -> Axes:
    """Draw the forest plot, with axes for each range; return the first axes."""
    from matplotlib import rcParams

    most_lines = max(len(row.lines) for row in rows)
    row_height = 0.42 + LINE * (most_lines - 1)  # inches
    width, _ = rcParams["figure.figsize"]
    about = wrap(f"difference of the {metric.final_words} ({metric.unit})", width - 2 * SIDE)
    below = 0.56 + LINE * (len(about) - 1)
    height = row_height * len(rows) + 0.24 + below
    canvas = blank(height)
    room = {
        "left": SIDE / width,
        "right": 1 - SIDE / width,
        "top": 1 - 0.22 / height,
        "bottom": below / height,
        "wspace": 0.12,
    }
    panes = canvas.subplots(1, len(ranges), sharey=True, squeeze=False, gridspec_kw=room)[0]
    for axes, shown in zip(panes, ranges, strict=True):
        draw_pane(axes, shown, rows)
        axes.locator_params(axis="x", nbins=6 // len(ranges) + 1, min_n_ticks=3)
    left, right = panes[0], panes[-1]
    for place, row in enumerate(rows):
        above = place - 0.07 / row_height
        how = {"va": "bottom", "linespacing": 1.0, "gid": gid_of(row.entry.arm, "")}
        left.text(0, above, "\n".join(row.lines), transform=left.get_yaxis_transform(), **how)
        right.text(1, above, row.numbers, transform=right.get_yaxis_transform(), ha="right", **how)
    lowest = len(rows) - 1 + 0.22 / row_height  # dots of the last row stand below it
    highest = 0.19 / row_height - 1
    left.set(ylim=(lowest, highest), yticks=[])
    better, worse = ("better", "worse") if metric.lower_is_better else ("worse", "better")
    about.append(f"← {better}      {worse} →")
    canvas.supxlabel("\n".join(about), y=0.02 / height)
    first_pane: Axes = left
    return first_pane


def draw_pane(axes: Axes, shown: Range, rows: Sequence[Row]) -> None:
    """Draw all rows in one range, with a line at zero."""
    axes.set_title(shown.title)
    axes.spines["left"].set_visible(False)
    places = np.arange(len(rows))
    axes.vlines([0] * len(rows), places - 0.12, places + 0.46, INK, linewidth=0.8)
    pad = ROOM * ((shown.high - shown.low) or 1)
    axes.set_xlim(shown.low - pad, shown.high + pad)
    for place, row in enumerate(rows):
        draw_difference(axes, place, row.one, row.entry)


def draw_difference(axes: Axes, place: int, one: Difference, entry: Entry) -> None:
    """Draw one comparison: its mean and interval, each seed below them, and an arrow to a mean beyond the axes.

    Where the runs of an arm end in two groups, only the seeds are drawn.
    """
    look: dict[str, Any] = {"color": entry.color, "gid": gid_of(entry.arm, write_mean_and_interval(one))}
    apart = min(0.06, 0.24 / one.n)
    heights = place + 0.2 + apart * np.arange(one.n)
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
    filling = entry.color if one.real else "none"
    axes.plot(one.mean, place, entry.marker, markersize=5.5, mfc=filling, **look)
