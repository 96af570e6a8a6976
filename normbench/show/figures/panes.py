"""The axes of panels: each in a small figure of its own, with room for words, limits, ticks, and a legend.

Panels of one figure have the same size, the same axes and words of one size. A page lays them out and shows each as
large as it was drawn, also on a phone. matplotlib is imported only when it is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import quote

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.evidence.measures import Metric
from normbench.show.figures.style import MOST_TOGETHER, Entry, Panel
from normbench.wording import join_first

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Inches.
ABOVE, BELOW, LEFT, RIGHT = 0.29, 0.47, 0.7, 0.13  # around a panel, for words
BESIDE = 0.8  # for a scale of colours
LINE, SAMPLE = 0.19, 0.6  # of a line of words, and of the sample in front of a legend's words
WORD = 0.5  # between the words of ticks side by side
NARROWEST, LOWEST = 1.2, 1.2  # of a panel
LEANING = 0.9  # of names below an axis that lean

SIZE = 9  # points of all letters, as normbench.mplstyle has it
FLAT = 0.62  # the height of a panel is this share of its width
STEPS = (1, 2, 3, 4, 5, 10)  # between ticks, by whatever power of ten

FAR = 10  # median absolute deviations from the median: what is worse may lie beyond the axes
ROOM = 0.06  # share of what an axis shows, left free at its ends
SQUEEZED = 5  # where the range of all values is this many times that of the near ones, the others lie beyond

# ---- figures and their axes


def blank(height: float) -> Canvas:
    """Return an empty figure, as wide as the style says."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure as Canvas

    width, _ = rcParams["figure.figsize"]
    return Canvas(figsize=(width, height))


def draw_panels(
    panels: Sequence[Panel], x: str, y: str, *, named: Literal["ends", "lines", "points"] = "ends"
) -> list[Axes]:
    """Return the axes of panels, each in a figure of its own: all of one size, and with common limits.

    x, y: words of the axes. named: where the arms are named: at the `ends` of lines, if there is room for `label_ends`;
    else in a legend above, beside samples of `lines` or of `points`.

    Sizes are computed here, as matplotlib's own layout would take as long as the drawing.
    """
    width = blank(1.0).get_figwidth()
    labels = [label_entries(panel, width - SAMPLE) for panel in panels]
    most = max(map(len, labels))
    longest, deepest = measure_labels(labels)
    beside = RIGHT + 0.32 + longest
    has_room = width - LEFT - beside >= NARROWEST
    at_ends = named == "ends" and most <= MOST_TOGETHER and deepest == 1 and has_room
    columns = max(1, int((width - 0.2) / (longest + SAMPLE)))  # of the legend
    top, right = ABOVE, RIGHT
    if at_ends:
        right = beside
    else:
        rows = math.ceil(most / columns)
        top += LINE * deepest * rows
    height = max(LOWEST, FLAT * (width - LEFT - right))
    panes: list[Axes] = []
    for own in labels:
        first_pane = panes[0] if panes else None
        pane = draw_pane(height, x, y, top=top, right=right, sharex=first_pane, sharey=first_pane)
        pane.locator_params(nbins=5, min_n_ticks=3, steps=STEPS)
        if not at_ends:
            with_line = named != "points"
            samples = [make_sample(entry, with_line) for entry in own.values()]
            pane.figure.legend(samples, list(own), loc="upper center", ncols=min(columns, len(own)))
        panes.append(pane)
    return panes


def label_entries(panel: Panel, inches: float) -> dict[str, Entry]:
    """Return the arms of a panel by their labels, which are broken into lines that are no wider."""
    found = {}
    for entry in panel.entries:
        label = "\n".join(wrap(entry.label, inches))
        found[label] = entry
    return found


def measure_labels(labels: Iterable[Iterable[str]]) -> tuple[float, int]:
    """Return how wide the widest label is, in inches, and how many lines the longest has. labels: of each panel."""
    longest, deepest = 0.0, 1
    for own in labels:
        for label in own:
            lines = label.split("\n")
            longest = max(longest, *map(breadth, lines))
            deepest = max(deepest, len(lines))
    return longest, deepest


def draw_pane(
    height: float, x: str, y: str, *, top: float = ABOVE, bottom: float = BELOW, right: float = RIGHT, **how: Any
) -> Axes:
    """Return axes in a figure of their own. All lengths are inches, of the axes and of the room for words around them.

    x, y: words of the axes, in several lines where they are long. how: as matplotlib has it.
    """
    whole = top + height + bottom
    canvas = blank(whole)
    width = canvas.get_figwidth()
    below, beside = wrap(x, width), wrap(y, whole)
    bottom += LINE * (len(below) - 1)
    left = LEFT + LINE * (len(beside) - 1)
    whole = top + height + bottom
    canvas.set_figheight(whole)
    across = width - left - right
    pane = canvas.add_axes((left / width, bottom / whole, across / width, height / whole), **how)
    canvas.supxlabel("\n".join(below), x=(left + across / 2) / width, y=0.01)
    canvas.supylabel("\n".join(beside), x=0.01)
    for axis in (pane.xaxis, pane.yaxis):
        axis.set_label_coords(0.5, 0.5)  # of no words: else a place for them is sought in each drawing
    return pane


def canvas_of(pane: Axes) -> Canvas:
    """Return the figure that axes are in."""
    return cast("Canvas", pane.figure)


def size_of(pane: Axes) -> tuple[float, float]:
    """Return the width and height of axes in inches."""
    part = pane.get_position()
    width, height = canvas_of(pane).get_size_inches()
    return part.width * width, part.height * height


def add_color_bar(pane: Axes, mesh: Any, words: str) -> None:
    """Add the scale of colours to a pane that has `BESIDE` inches at its right. words: what the colours are."""
    canvas = canvas_of(pane)
    place = pane.get_position()
    width = canvas.get_figwidth()
    left = 1 - (BESIDE - 0.15) / width
    bar = canvas.add_axes((left, place.y0, 0.1 / width, place.height))
    canvas.colorbar(mesh, cax=bar)
    bar.set_title(words)


# ---- names of arms


def make_sample(entry: Entry, line: bool = True, xdata: Any = (), ydata: Any = (), **how: Any) -> Artist:
    """Return a marker, or a short line with it, that looks as an arm does."""
    from matplotlib.lines import Line2D

    dash: Any = entry.dash if line else ""
    return Line2D(xdata, ydata, color=entry.color, linestyle=dash, marker=entry.marker, mfc="none", **how)


def label_ends(axes: Axes, ends: Sequence[tuple[float, Entry]]) -> None:
    """Write on the right of axes which lines end there, or with an arrow beyond: in their order, not over each other.

    Where there is a legend nothing is written. ends: the value at which each line ends.
    """
    if canvas_of(axes).legends or not ends:
        return
    ordered = sorted(ends, key=lambda end: end[0])
    low, high = axes.get_ylim()
    on_screen = axes.transData.transform([(0, end) for end, _ in ordered])
    heights = axes.transAxes.inverted().transform(on_screen)[:, 1]
    _, height = size_of(axes)
    places = spread_out(heights, LINE / height)
    inch = axes.figure.dpi / axes.bbox.width  # of the width of the axes
    line = [1 + 0.04 * inch, 1 + 0.22 * inch]
    start = 1 + 0.28 * inch
    for place, (end, entry) in zip(places, ordered, strict=True):
        label = cut_middle(entry.label)
        if end > high:
            label += " ↑"
        elif end < low:
            label += " ↓"
        how: dict[str, Any] = {"transform": axes.transAxes, "gid": gid_of(entry.arm, "")}
        axes.add_artist(make_sample(entry, xdata=line, ydata=[place] * 2, markevery=[1], clip_on=False, **how))
        axes.text(start, place, label, va="center", **how)


def spread_out(heights: np.ndarray, gap: float) -> np.ndarray:
    """Return places for labels that would stand at sorted heights: with a gap between two, and none above 1."""
    gaps = gap * np.arange(len(heights))
    places = np.maximum.accumulate(heights.clip(0, 1) - gaps) + gaps
    above = max(places[-1] - 1, 0)
    return np.asarray(places - above)


def gid_of(arm: Arm, value: str) -> str:
    """Return the name of what is drawn of an arm, of which `Figure.svg` makes a title: the arm, and a value of it."""
    return f"arm {quote(arm.name, safe=' ')} | {quote(value, safe=' ')}"


# ---- what axes show


def near_range(values: Sequence[float], lower_is_better: bool = True) -> tuple[float, float]:
    """Return the range of values, without those so much worse that they would squeeze the others."""
    badness = np.array(values)
    if not lower_is_better:
        badness = -badness
    middle = np.median(badness)
    reach = FAR * np.median(np.abs(badness - middle))
    close = badness[badness <= middle + reach]
    if reach > 0 and np.ptp(badness) > SQUEEZED * np.ptp(close):
        badness = close
    best, worst = float(badness.min()), float(badness.max())
    return (best, worst) if lower_is_better else (-worst, -best)


def set_limits(axes: Axes, drawn: pd.DataFrame, metric: Metric, lines: int, crosses: bool = False) -> pd.Series:
    """Let axes show the `near_range`; return which rows lie beyond it, for `draw_arrow`.

    drawn: a row for each point, with its mean, low and high. lines: for how many rows of words an edge needs room.
    crosses: whether there are crosses at the upper edge.
    """
    values = drawn[["mean", "low", "high"]].stack().dropna().astype(float)
    low, high = near_range(values, metric.lower_is_better)
    is_beyond = (drawn["mean"] < low) | (drawn["mean"] > high)
    pad = ROOM * ((high - low) or 1)
    below, above = pad, pad
    if crosses or (is_beyond.any() and metric.lower_is_better):
        above = pad * (1 + lines)
    if is_beyond.any() and not metric.lower_is_better:
        below = pad * (1 + lines)
    axes.set_ylim(low - below, high + above)
    return is_beyond


def tell_beyond(names: Sequence[str]) -> str:
    """Return a sentence on the arms that lie beyond an axis; empty where there are none."""
    return f" Beyond the axis, with an arrow: {join_first(names)}." if names else ""


def draw_arrow(axes: Axes, x: float, value: float, place: int, color: str, metric: Metric) -> Artist:
    """Write a value that lies beyond the axes, with an arrow, at the edge on its side. place: its row there."""
    text = f"{value:.{metric.decimals}f}"
    how: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "color": color, "ha": "center", "va": "center"}
    if metric.lower_is_better:
        return axes.text(x, 0.97 - place * ROOM, f"↑ {text}", **how)
    return axes.text(x, 0.03 + place * ROOM, f"↓ {text}", **how)


# ---- words that have room


def cut_middle(text: str, most: int = 42) -> str:
    """Return a text, without its middle where it is long."""
    if len(text) <= most:
        return text
    half = most // 2
    begin, end = text[:half], text[len(text) + 1 - half :]
    return f"{begin}…{end}"


@cache
def breadth(text: str) -> float:
    """Return how wide words are in our style, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    points, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=SIZE), False)
    return float(points) / 72


def wrap(text: str, inches: float) -> list[str]:
    """Break words into lines that are no wider; no line ends with a minus, and a wider word is broken anywhere."""
    lines = [""]
    for word in text.replace("− ", "−\N{NO-BREAK SPACE}").split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if breadth(longer) <= inches:
            lines[-1] = longer
            continue
        rest = word
        while rest:
            most = len(rest)
            while breadth(rest[:most]) > inches and most > 1:
                most -= 1
            lines.append(rest[:most])
            rest = rest[most:]
    return [line for line in lines if line]


def fit(text: str, inches: float) -> str:
    """Return a text that is no wider, without its middle where it has to be cut."""
    most = len(text)
    while breadth(cut_middle(text, most)) > inches and most > 3:
        most -= 1
    return cut_middle(text, most)


# ---- ticks


def name_ticks(pane: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Name places on the axis below; where names would overlap they lean, and the figure grows for them."""
    low, high = pane.get_xlim()
    across, _ = size_of(pane)
    closest = min(np.diff(sorted(places)), default=high - low)
    apart = closest * across / (high - low)  # inches
    if max(map(breadth, names)) < apart - 0.05:
        pane.set_xticks(places, names)
        return
    short = [fit(name, LEANING) for name in names]
    pane.set_xticks(places, short, rotation=40, ha="right", rotation_mode="anchor")
    canvas = canvas_of(pane)
    box = pane.get_position()
    height = canvas.get_figheight()
    whole = height + 0.65 * max(map(breadth, short))  # 0.65: the sine of the angle
    canvas.set_figheight(whole)
    bottom = 1 - (1 - box.y0) * height / whole
    pane.set_position((box.x0, bottom, box.width, box.height * height / whole))


def log_scale(axes: Axes, name: Literal["x", "y"]) -> None:
    """Make an axis of a drawn figure logarithmic, with three ticks or more, written short: 0.5, 1e-4."""
    from matplotlib.ticker import FixedLocator

    across, up = size_of(axes)
    axis: Any
    if name == "x":
        axes.set(xscale="log")
        axis, room = axes.xaxis, across / WORD
    else:
        axes.set(yscale="log")
        axis, room = axes.yaxis, up / LINE
    axes.minorticks_off()
    low, high = sorted(axis.get_view_interval())
    ticks = log_ticks(low, high, most=max(3, int(room)))
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(lambda x, _: brief(x))


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return the ticks of a logarithmic axis: three or more, of the roundest numbers that it shows."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    locators = [
        LogLocator(subs=(1.0,), numticks=most),
        LogLocator(subs=(1.0, 3.0), numticks=most),
        LogLocator(subs=(1.0, 2.0, 5.0), numticks=most),
        MaxNLocator(4, min_n_ticks=3),
    ]
    ticks = list[float]()
    for locator in locators:
        values = np.asarray(locator.tick_values(low, high))
        ticks = [float(tick) for tick in values if low <= tick <= high]
        if len(ticks) > 2:
            break
    while len(ticks) > most:
        ticks = ticks[::2]
    return ticks


def brief(x: float) -> str:
    """Write a number of a logarithmic axis: 0.5, 1000, 1e-4, 2e5."""
    if 1e-3 <= x < 1e5:
        return f"{x:g}"
    return re.sub(r"\.?0*e\+?(-?)0*", r"e\1", f"{x:.2e}")
