"""The five plots of which every figure is one: lines, points, forest, grid and steps.

Each returns a figure of matplotlib, as wide as the style says, of one subplot or several of one size with the same axes
and one legend. matplotlib's constrained layout gives words their room; it runs once, for all formats in which a figure
is written. What is chosen here is how many subplots stand side by side, how high they are, and whether names stand at
the ends of lines or in a legend below. Words have the same size in every figure, also on a phone, where a figure of
3.5 inches is as large as on a desk. matplotlib is imported only when it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.show.figures.fitting import LINE, breadth, cut_middle, fit, set_log, wrap
from normbench.show.figures.style import FAINT, INK, MOST_TOGETHER, Entry
from normbench.wording import brief

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Inches.
BESIDE = 0.65  # the words of an axis at the left
LEGEND_SAMPLE = 0.42  # a sample in a legend, and the gap to the next column
NARROW, LOW = 1.35, 1.0  # the least width of a subplot among several, and the least height
CELL, THIN = 0.23, 0.16  # the height of a grid's cell, and the least width of one without words
ROW = 0.23  # a row of a forest whose names stand beside it

Scale = Literal["linear", "log", "percent"]

FLAT = 0.6  # the height of a subplot is this share of its width
AT_ENDS = 0.25  # the share of a figure's width that a name at the end of a line may have
FEW = 12  # points of a line at most have a marker each
TICKS = (1, 2, 3, 4, 5, 10)  # the steps between ticks, by whatever power of ten
ROOM = 0.06  # the share of an axis that a row of marks or words at its edge has
LEANING = 0.9  # inches of names below an axis that lean
MOST_CELLS = 2000  # of a map that are drawn one by one
BRIGHT = 1.5  # the sum of red, green and blue from which on words on a colour are black
MAP_COLORS = "viridis"  # from dark to bright, in grey and for the colour-blind too
FAR = 10  # median absolute deviations from the median: what is worse may lie beyond the axes
SQUEEZED = 5  # where the range of all values is this many times that of the near ones, the others lie beyond


@dataclass(frozen=True)
class Axis:
    """An axis of a figure.

    Attributes:
        words: what it shows, with the unit.
        scale: of its ticks.
        limits: what it shows at least; None for what is drawn.
        names: of places that have names in place of numbers.
        whole: whether only whole numbers are places on it.
    """

    words: str
    scale: Scale = "linear"
    limits: tuple[float, float] | None = None
    names: Mapping[float, str] = field(default_factory=dict)
    whole: bool = False


@dataclass(frozen=True)
class Series:
    """What is drawn of an arm in a subplot.

    Attributes:
        entry: how the arm looks and is called.
        rows: a row for each point, with `x`, `mean`, `low` and `high`. Of `points` also, where they are told:
            `x_low` and `x_high`; whether a marker is `filled`; how many runs were `lost` there; and `beyond`, what is
            written at the edge in place of a point that lies beyond the axis.
        value: what a page shows of it under the pointer.
        lost: the `x` and `mean` of what diverged, a cross each; of `lines` alone.
    """

    entry: Entry
    rows: pd.DataFrame
    value: str = ""
    lost: pd.DataFrame | None = None

    @property
    def gid(self) -> str:
        """Return the name of what is drawn."""
        return gid_of(self.entry.arm, self.value)


@dataclass(frozen=True)
class Subplot:
    """A part of a figure with axes of its own.

    Attributes:
        title: what it shows that others do not; empty for the only one.
        series: what is drawn in it.
        dots: small dots behind that, with `x`, `y` and `color`, a number.
    """

    title: str
    series: Sequence[Series]
    dots: pd.DataFrame | None = None

    @property
    def entries(self) -> list[Entry]:
        """Return the arms that have a name."""
        return [series.entry for series in self.series if series.entry.label]


def gid_of(arm: Arm, value: str) -> str:
    """Return the name of what is drawn of an arm, of which `Figure.svg` makes a title: the arm, and a value of it."""
    return f"arm {quote(arm.name, safe=' ')} | {quote(value, safe=' ')}"


# ---- lines


def lines(subplots: Sequence[Subplot], x: Axis, y: Axis, *, columns: int = 0, note: str = "") -> Canvas:
    """Draw lines with bands from low to high, and crosses where runs diverged.

    columns: how many subplots stand side by side; by default as many as have room. note: words above all.
    """
    frame = open_figure(subplots, x, y, columns, note, joined=True, at_ends=not note)
    for subplot, pane in zip(subplots, frame.panes, strict=True):
        if subplot.dots is not None:
            dots = subplot.dots
            pane.scatter(dots["x"], dots["y"], 2, dots["color"], cmap=MAP_COLORS, rasterized=True)
        for place, series in enumerate(subplot.series):
            draw_line(pane, series, place / len(subplot.series))
    finish_axes(frame, x, y)
    for subplot, pane in zip(subplots, frame.panes, strict=True):
        _, top = pane.get_ylim()
        for series in subplot.series:
            if series.lost is not None:
                heights = series.lost["mean"].clip(upper=top)
                look: dict[str, Any] = {"color": series.entry.color, "gid": gid_of(series.entry.arm, "diverged")}
                pane.plot(series.lost["x"], heights, "x", markersize=6, markeredgewidth=1.5, clip_on=False, **look)
        if frame.named_at_ends:
            name_ends(pane, subplot.series, frame)
    return lay_out(frame.canvas)


def draw_line(pane: Axes, one: Series, shift: float = 0.0) -> None:
    """Draw the mean of an arm as a line in its band. shift: of its markers, as a share of their distance."""
    rows, entry = one.rows, one.entry
    look: dict[str, Any] = {"color": entry.color, "gid": one.gid}
    marked = None if len(rows) <= FEW else (0.3 * shift, 0.3)
    pane.plot(rows["x"], rows["mean"], linestyle=entry.dash, marker=entry.marker, mfc="none", markevery=marked, **look)
    if "low" in rows:
        pane.fill_between(rows["x"], rows["low"], rows["high"], alpha=0.15, linewidth=0, **look)


# ---- points


def points(
    subplots: Sequence[Subplot], x: Axis, y: Axis, *, joined: bool = True, below: bool = False, note: str = ""
) -> Canvas:
    """Draw points with bars from low to high; what lies beyond the axis is written at its edge.

    joined: whether lines join the points of an arm. below: whether that edge is the lower one. note: words above all.
    """
    frame = open_figure(subplots, x, y, 0, note, joined=joined)
    for subplot, pane in zip(subplots, frame.panes, strict=True):
        for place, series in enumerate(subplot.series):
            for artist in draw_points(pane, series, place, joined, below):
                artist.set_gid(series.gid)
    finish_axes(frame, x, y)
    return lay_out(frame.canvas)


def draw_points(pane: Axes, one: Series, place: int, joined: bool, below: bool) -> list[Any]:
    """Draw the points of an arm; return what was drawn. place: its row at the edges of the axes."""
    rows, entry = one.rows, one.entry
    at, means = rows["x"], rows["mean"]
    left = at - rows.get("x_low", at)
    right = rows.get("x_high", at) - at
    under = (means - rows["low"]).clip(0)  # a mean is rounded
    over = (rows["high"] - means).clip(0)
    look: dict[str, Any] = {"color": entry.color, "marker": entry.marker}
    how: dict[str, Any] = {"linestyle": entry.dash if joined else "", "mfc": "none", "elinewidth": 0.8}
    bars = pane.errorbar(at, means, [under, over], [left, right], **how, **look)
    drawn = list[Any](bars.get_children())
    if "filled" in rows:
        is_filled = rows["filled"]
        drawn += pane.plot(at[is_filled], means[is_filled], markersize=5, linestyle="", **look)
    edge = pane.get_xaxis_transform()
    if "lost" in rows:
        lost = at[rows["lost"] > 0]
        heights = [0.97 - place * ROOM] * len(lost)
        drawn += pane.plot(lost, heights, "x", color=entry.color, transform=edge)
    if "beyond" in rows:
        height = 0.03 + place * ROOM if below else 0.97 - place * ROOM
        for beside, words in zip(at, rows["beyond"], strict=True):
            if words:
                aside = "center"  # or away from the edges at the left and at the right
                if len(rows) > 1 and beside in (at.min(), at.max()):
                    aside = "left" if beside == at.min() else "right"
                look = {"transform": edge, "color": entry.color, "ha": aside, "va": "center"}
                drawn.append(pane.text(beside, height, words, **look))
    return drawn


# ---- forest


@dataclass(frozen=True)
class Mark:
    """How what is drawn in a row of a forest looks. kind: what the legend calls it; empty for none."""

    color: str
    marker: str
    filled: bool
    kind: str = ""


@dataclass(frozen=True)
class ForestRow:
    """A row of a forest.

    Attributes:
        name: what it is of.
        mark: how it looks.
        mean: NaN where there is none.
        intervals: around the mean, the widest first; those after it are drawn thicker.
        words: the numbers, which stand at the right; empty for none.
        dots: single values, below the mean.
        other: a value to compare the mean with, a diamond; NaN for none.
        gid: the name of what is drawn.
    """

    name: str
    mark: Mark
    mean: float
    intervals: Sequence[tuple[float, float]]
    words: str = ""
    dots: Sequence[float] = ()
    other: float = math.nan
    gid: str | None = None


def forest(
    rows: Sequence[ForestRow],
    words: str,
    ranges: Mapping[str, tuple[float, float]],
    *,
    ends: tuple[str, str] = ("", ""),
    lines_at: Sequence[float] = (0.0,),
    band: tuple[float, float] | None = None,
) -> Canvas:
    """Draw a row for each effect: its mean and intervals, an arrow to what lies beyond, and its single values below.

    Names stand above their rows if numbers stand there too, and else beside them.

    Args:
        rows: from the top.
        words: of the axis.
        ranges: what the axis shows; of several, each by its title, side by side.
        ends: what it means to lie at the left and at the right; empty for nothing.
        lines_at: values at which there is a line; the first is drawn, the others are dashed.
        band: of values that do not matter, which is grey.
    """
    from matplotlib import rcParams

    width, _ = rcParams["figure.figsize"]
    are_above = any(row.words for row in rows)
    names = [cut_middle(row.name, 24) for row in rows]
    apart = ROW
    if are_above:
        room = width / len(ranges) - 0.15
        if len(ranges) == 1:
            room -= max(breadth(row.words) for row in rows) + 0.15
        names = ["\n".join(wrap(row.name, room)) for row in rows]
        most = max(name.count("\n") for name in names)
        apart = 0.42 + LINE * most
    beside = 0.0 if are_above else max(map(breadth, names))
    about = wrap(words, width - 0.3 - beside)
    if any(ends):
        about.append("      ".join(ends))
    marks = dict.fromkeys(row.mark for row in rows if row.mark.kind)
    across, legend_rows = legend_columns([mark.kind for mark in marks], width)
    titles = LINE if any(ranges) else 0.0
    height = apart * len(rows) + titles + 0.35 + LINE * (len(about) + legend_rows)
    canvas = blank(height)
    panes = list(canvas.subplots(1, len(ranges), sharey=True, squeeze=False)[0])
    if are_above:
        write_above(panes, rows, names, apart)
    else:
        write_beside(panes[0], names)
    for pane, (title, limits) in zip(panes, ranges.items(), strict=True):
        show_range(pane, title, limits, most_ticks=6 // len(ranges) + 1)
        if band:
            pane.axvspan(*band, color=FAINT, alpha=0.45, linewidth=0)
        up, down = (0.05 / apart, 0.19 / apart) if are_above else (0.5, 0.5)  # a line does not cross words
        for place, row in enumerate(rows):
            for number, at in enumerate(lines_at):
                dash: Any = (0, (4, 3)) if number else "-"
                pane.vlines(at, place - up, place + down, INK, linewidth=0.8, linestyle=dash)
            draw_row(pane, place, row, 0.08 / apart)
    name_below(panes, "\n".join(about), len(ranges))
    if marks:
        samples = [make_sample(mark.color, mark.marker, filled=mark.filled) for mark in marks]
        names = [mark.kind for mark in marks]
        canvas.legend(samples, names, loc="outside lower center", ncols=across)
    return lay_out(canvas)


def show_range(pane: Axes, title: str, limits: tuple[float, float], most_ticks: int) -> None:
    """Let the axes of a forest show a range, and a little more."""
    low, high = limits
    pad = ROOM * ((high - low) or 1)
    pane.set_xlim(low - pad, high + pad)
    pane.set_title(title)
    pane.spines["left"].set_visible(False)
    pane.locator_params(axis="x", nbins=most_ticks, min_n_ticks=3)
    pane.grid(visible=False, axis="y")


def write_above(panes: Sequence[Axes], rows: Sequence[ForestRow], names: Sequence[str], apart: float) -> None:
    """Write the name of each row above it at the left, and its numbers at the right. apart: two rows, in inches."""
    left, right = panes[0], panes[-1]
    left.set(ylim=(len(rows) - 1 + 0.22 / apart, 0.2 / apart - 1), yticks=[])
    for place, (name, row) in enumerate(zip(names, rows, strict=True)):
        above = place - 0.07 / apart
        how: dict[str, Any] = {"va": "bottom", "linespacing": 1.0, "gid": row.gid}
        left.text(0, above, name, transform=left.get_yaxis_transform(), **how)
        right.text(1, above, row.words, transform=right.get_yaxis_transform(), ha="right", **how)


def write_beside(pane: Axes, names: Sequence[str]) -> None:
    """Write the name of each row left of it."""
    pane.set(ylim=(len(names) - 0.4, -0.6))
    pane.set_yticks(range(len(names)), names)
    pane.tick_params(axis="y", length=0)


def draw_row(pane: Axes, place: int, row: ForestRow, apart: float) -> None:
    """Draw a row of a forest: intervals and mean at its height, single values below it, arrows at the edges.

    apart: between two single values, so that none hides another.
    """
    mark = row.mark
    look: dict[str, Any] = {"color": mark.color, "gid": row.gid}
    low, high = pane.get_xlim()
    heights = place + 0.2 + min(apart, 0.24 / max(len(row.dots), 1)) * np.arange(len(row.dots))
    pane.plot(row.dots, heights, ".", markersize=3, markeredgewidth=0, **look)
    for number, interval in enumerate(row.intervals, 1):
        thick = 2.2 if number > 1 else 0.9 if len(row.intervals) > 1 else 1.6
        pane.plot(interval, [place, place], linewidth=thick, solid_capstyle="butt", **look)
    edge: dict[str, Any] = {"transform": pane.get_yaxis_transform(), "clip_on": False, "markersize": 6}
    farthest = [row.mean, *(end for interval in row.intervals for end in interval)]
    is_compared = bool(mark.kind)  # then what an interval reaches counts, too
    reached = farthest if is_compared else [row.mean]
    if np.nanmax([*reached, -math.inf]) > high:
        pane.plot(1, place, ">", **edge, **look)
    if np.nanmin([*reached, math.inf]) < low:
        pane.plot(0, place, "<", **edge, **look)
    if low <= row.mean <= high:
        filling = mark.color if mark.filled else "none"
        pane.plot(row.mean, place, mark.marker, markersize=5.5, mfc=filling, **look)
    if low <= row.other <= high:
        pane.plot(row.other, place, "D", color=INK, markersize=4, mfc="none")


# ---- grid


@dataclass(frozen=True)
class Cells:
    """A map of a grid.

    Attributes:
        title: what it is of.
        values: a row for each place on the axis at the left, from the lowest, and a column for each on the one below.
        words: what stands in the cells, row by row; empty for none.
        gid: the name of what is drawn.
    """

    title: str
    values: pd.DataFrame
    words: Sequence[str] = ()
    gid: str | None = None


def grid(
    maps: Sequence[Cells], x: str, y: str, scale: str, limits: tuple[float, float], *, colors: str = MAP_COLORS
) -> Canvas:
    """Draw maps, in colours that all of them share.

    x, y: words of the axes. scale: words of the colours. limits: the values at the ends of the colours. colors: their
    name in matplotlib.
    """
    from matplotlib import rcParams

    width, _ = rcParams["figure.figsize"]
    rows = max(len(cells.values) for cells in maps)
    across = max(cells.values.shape[1] for cells in maps)
    words = [word for cells in maps for word in cells.words]
    cell = max([THIN, *(breadth(word) + 0.06 for word in words)])
    columns = int((width - BESIDE - 0.7) / (cell * across))
    columns = min(max(columns, 1), len(maps))
    lines_of = -(-len(maps) // columns)
    high = min(max(CELL * rows, 0.7), 2.2)
    below, beside = wrap(x, width), wrap(y, lines_of * high)
    canvas = blank(lines_of * (high + LINE + 0.1) + 0.5 + LINE * len(below))
    panes = open_panes(canvas, len(maps), columns)
    for cells, pane in zip(maps, panes, strict=True):
        draw_cells(pane, cells, limits, colors, (width - BESIDE - 0.7) / columns / across)
        pane.set_title(cells.title)
    mesh = panes[0].collections[0]
    bar = canvas.colorbar(mesh, ax=panes, aspect=8 * lines_of, fraction=0.08)
    bar.set_label(scale)
    name_below(panes, "\n".join(below), columns)
    canvas.supylabel("\n".join(beside))
    return lay_out(canvas)


def draw_cells(pane: Axes, one: Cells, limits: tuple[float, float], colors: str, inches: float) -> None:
    """Draw a map, with its words if the widest fits a cell, or else with signs alone. inches: the width of a cell."""
    values = one.values.to_numpy(dtype=float)
    low, high = limits
    look: dict[str, Any] = {"cmap": colors, "vmin": low, "vmax": high, "gid": one.gid}
    if values.size > MOST_CELLS:
        mesh = pane.pcolormesh(values, rasterized=True, **look)
    else:
        mesh = pane.pcolormesh(values, edgecolors="white", linewidth=0.4, **look)
    has_room = max(map(breadth, one.words), default=0.0) < inches
    for number, (word, value) in enumerate(zip(one.words, values.flat, strict=False)):
        row, column = divmod(number, values.shape[1])
        red, green, blue, _ = mesh.to_rgba(value)
        color = "#000000" if red + green + blue > BRIGHT else "#ffffff"
        if np.isnan(value):  # such a cell shows the page, which may be dark
            color = INK
        if has_room or len(word) == 1:
            pane.text(column + 0.5, row + 0.47, word, ha="center", va="center", color=color)
    pane.grid(visible=False)
    for axis, levels, room in (
        (pane.xaxis, one.values.columns, inches * values.shape[1]),
        (pane.yaxis, one.values.index, 2.0),
    ):
        every = math.ceil(len(levels) * LINE / max(room, LINE))
        places = np.arange(len(levels))[::every]
        axis.set_ticks(places + 0.5, [brief(levels[place]) for place in places])
    if max(breadth(brief(level)) for level in one.values.columns) > inches - 0.05:
        pane.tick_params(axis="x", labelrotation=90)


# ---- steps


def steps(subplots: Sequence[Subplot], x: Axis, y: Axis) -> Canvas:
    """Draw how values are spread, as stairs: the first of a subplot is filled, the others are outlines.

    subplots: of series whose `x` are the edges of bins, and whose `mean` is the height right of each.
    """
    frame = open_figure(subplots, x, y, 0, "", joined=True)
    for subplot, pane in zip(subplots, frame.panes, strict=True):
        for place, series in enumerate(subplot.series):
            heights = series.rows["mean"].to_numpy()[:-1]
            pane.stairs(heights, series.rows["x"].to_numpy(), fill=place == 0, color=series.entry.color)
    finish_axes(frame, x, y)
    return lay_out(frame.canvas)


# ---- figures, their axes, and legends


def blank(height: float) -> Canvas:
    """Return an empty figure, as wide as the style says."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure as Canvas

    width, _ = rcParams["figure.figsize"]
    return Canvas(figsize=(width, height))


def lay_out(canvas: Canvas) -> Canvas:
    """Give all words their room, once: a figure that lays itself out is drawn twice for each format."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    ConstrainedLayoutEngine().execute(canvas)
    return canvas


def open_panes(canvas: Canvas, number: int, columns: int) -> list[Axes]:
    """Return the axes of subplots, which share both axes; of each column the lowest has the numbers."""
    grid = canvas.subplots(-(-number // columns), columns, sharex=True, sharey=True, squeeze=False)
    panes = list(grid.flat)
    for pane in panes[number:]:
        pane.remove()
    for pane in panes[:number][-columns:]:
        pane.tick_params(labelbottom=True)
    return panes[:number]


def name_below(panes: Sequence[Axes], words: str, columns: int) -> None:
    """Write the words of the axis below the middle of all subplots: matplotlib would write a legend over its own."""
    lowest = panes[(len(panes) - 1) // columns * columns :]
    middle = lowest[min((columns - 1) // 2, len(lowest) - 1)]
    middle.set_xlabel(words, x=0.5 if columns % 2 else 1.05)


@dataclass(frozen=True)
class Frame:
    """A figure with the axes of its subplots, before they are drawn.

    Attributes:
        canvas: the figure.
        panes: the axes.
        across, up: about how wide and high each is, in inches.
        named_at_ends: whether there is no legend, as names stand at the ends of lines.
    """

    canvas: Canvas
    panes: list[Axes]
    across: float
    up: float
    named_at_ends: bool


def open_figure(
    subplots: Sequence[Subplot],
    x: Axis,
    y: Axis,
    columns: int,
    note: str,
    *,
    joined: bool,
    at_ends: bool = False,
) -> Frame:
    """Return a figure with axes for each subplot, their words, and a legend; nothing is drawn in it.

    Arms that are few stand in one legend below all, or at the ends of their lines where their names are short; those of
    subplots that share few arms stand above each.

    joined: whether the sample of an arm is a line. at_ends: whether there are ends of lines for names.
    """
    from matplotlib import rcParams

    width, _ = rcParams["figure.figsize"]
    entries = distinct_entries(subplots)
    is_shared = len(subplots) == 1 or columns > 0 or len(entries) <= MOST_TOGETHER
    if not is_shared:
        columns = max(1, int(width / 3.4))
    elif not columns:
        columns = max(1, min(len(subplots), int((width - BESIDE) / NARROW)))
    across = (width - BESIDE) / columns - 0.1
    up = max(LOW, FLAT * across)
    rows = -(-len(subplots) // columns)
    titles = [wrap_title(subplot.title, across) for subplot in subplots]
    about, beside = wrap(x.words, width - BESIDE), wrap(y.words, rows * up)
    note_lines = wrap(note, width - 0.1)
    title_lines = max(title.count("\n") + 1 if title else 0 for title in titles)
    height = rows * (up + LINE * title_lines + 0.1) + 0.35 + LINE * (len(about) + len(note_lines))
    leaning = leaning_names(x, across)
    if leaning:
        height += 0.65 * max(map(breadth, leaning))  # 0.65: the sine of their angle
    longest = max((breadth(entry.label) for entry in entries), default=0.0)
    named_at_ends = at_ends and len(subplots) == 1 and len(entries) <= MOST_TOGETHER and longest <= AT_ENDS * width
    legends = [] if named_at_ends else [entries] if is_shared else [distinct_entries([subplot]) for subplot in subplots]
    room = width if is_shared else width - BESIDE
    shapes = [legend_columns([entry.label for entry in entries_of_legend], room) for entries_of_legend in legends]
    height += LINE * sum(legend_rows for _, legend_rows in shapes)
    canvas = blank(height)
    panes = open_panes(canvas, len(subplots), columns)
    for pane, title in zip(panes, titles, strict=True):
        pane.set_title(title if is_shared else "")
        pane.locator_params(axis="x", nbins=5 if columns == 1 else 3, min_n_ticks=2, steps=TICKS)
        pane.locator_params(axis="y", nbins=5, min_n_ticks=3, steps=TICKS)
    name_below(panes, "\n".join(about), columns)
    canvas.supylabel("\n".join(beside))
    if note:
        canvas.suptitle("\n".join(note_lines), x=0.02, ha="left")
    for pane, title, entries_of_legend, (ncols, _) in zip(panes, titles, legends, shapes, strict=False):
        names = ["\n".join(wrap(entry.label, room - LEGEND_SAMPLE)) for entry in entries_of_legend]
        samples = [make_sample(entry.color, entry.marker, entry.dash if joined else "") for entry in entries_of_legend]
        if is_shared:
            canvas.legend(samples, names, loc="outside lower center", ncols=ncols)
        else:
            how: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "alignment": "left", "borderpad": 0}
            pane.legend(samples, names, title=title, ncols=ncols, **how)
    return Frame(canvas, panes, across, up, named_at_ends)


def distinct_entries(subplots: Sequence[Subplot]) -> list[Entry]:
    """Return the arms of subplots that differ in name or looks, each once."""
    distinct: dict[Any, Entry] = {}
    for subplot in subplots:
        for entry in subplot.entries:
            distinct.setdefault((entry.label, entry.color, entry.dash, entry.marker), entry)
    return list(distinct.values())


def wrap_title(title: str, inches: float) -> str:
    """Return a title in lines that are no wider."""
    lines = []
    for line in title.split("\n"):
        lines += wrap(line, inches)
    return "\n".join(lines)


def legend_columns(labels: Sequence[str], width: float) -> tuple[int, int]:
    """Return how many columns a legend has, and how many rows of words. width: of the figure."""
    if not labels:
        return 1, 0
    longest, deepest = 0.0, 1
    for label in labels:
        parts = wrap(label, width - LEGEND_SAMPLE)
        longest = max(longest, *map(breadth, parts))
        deepest = max(deepest, len(parts))
    columns = max(1, min(len(labels), int(width / (longest + LEGEND_SAMPLE))))
    return columns, deepest * -(-len(labels) // columns)


def make_sample(
    color: str, marker: str, dash: Any = "", *, filled: bool = False, xdata: Any = (), ydata: Any = ()
) -> Artist:
    """Return a marker, or a short line with it, as it stands in a legend."""
    from matplotlib.lines import Line2D

    filling = color if filled else "none"
    return Line2D(xdata, ydata, color=color, linestyle=dash, marker=marker, mfc=filling)


def finish_axes(frame: Frame, x: Axis, y: Axis) -> None:
    """Give the axes of drawn subplots their limits, scales and ticks, which all of them share."""
    first = frame.panes[0]
    if x.limits:
        first.set_xlim(x.limits)
    if y.limits:
        first.set_ylim(y.limits)
    if x.whole:
        first.locator_params(axis="x", integer=True, min_n_ticks=2)
    if x.scale == "log":
        set_log(first.xaxis, frame.across)
    if y.scale == "log":
        set_log(first.yaxis, frame.up)
    elif y.scale == "percent":
        first.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
    if x.names:
        leaning = leaning_names(x, frame.across)
        for pane in frame.panes:
            if leaning:
                pane.set_xticks(list(x.names), leaning, rotation=40, ha="right", rotation_mode="anchor")
            else:
                pane.set_xticks(list(x.names), list(x.names.values()))


def leaning_names(x: Axis, inches: float) -> list[str]:
    """Return the names of places, cut short, where they would stand on each other unless they lean; else nothing.

    inches: how long the axis is.
    """
    places = sorted(x.names)
    if len(places) < 2:
        return []
    apart = min(np.diff(places)) / (places[-1] - places[0]) * inches * 0.9
    if max(map(breadth, x.names.values())) < apart - 0.05:
        return []
    return [fit(name, LEANING) for name in x.names.values()]


def name_ends(pane: Axes, series: Sequence[Series], frame: Frame) -> None:
    """Write names right of where lines end, or with an arrow beyond: in their order, and not over each other."""
    ends = [(line.entry, float(line.rows["mean"].iloc[-1])) for line in series if len(line.rows)]
    if not ends:
        return
    ordered = sorted(ends, key=lambda end: end[1])
    low, high = pane.get_ylim()
    on_screen = pane.transData.transform([(0, end) for _, end in ordered])
    heights = pane.transAxes.inverted().transform(on_screen)[:, 1]
    longest = max(breadth(entry.label) for entry, _ in ends)
    inch = 1 / (frame.across - longest - 0.4)  # of the width of the axes, which names make narrower
    for place, (entry, end) in zip(spread_out(heights, LINE / frame.up), ordered, strict=True):
        arrow = " ↑" if end > high else " ↓" if end < low else ""
        how: dict[str, Any] = {"transform": pane.transAxes, "gid": gid_of(entry.arm, "")}
        beside = [1 + 0.06 * inch, 1 + 0.26 * inch]
        sample = make_sample(entry.color, entry.marker, entry.dash, xdata=beside, ydata=[place] * 2)
        sample.set(**how, clip_on=False, markevery=[1])
        pane.add_artist(sample)
        pane.text(1 + 0.33 * inch, place, entry.label + arrow, va="center", **how)


def spread_out(heights: np.ndarray, gap: float) -> np.ndarray:
    """Return places for labels that would stand at sorted heights: with a gap between two, and none above 1."""
    gaps = gap * np.arange(len(heights))
    places = np.maximum.accumulate(heights.clip(0, 1) - gaps) + gaps
    above = max(places[-1] - 1, 0)
    return np.asarray(places - above)


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
