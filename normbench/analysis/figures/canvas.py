"""What all figures share: the look, panels in a grid, a legend below them. Matplotlib is imported when it is used."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from normbench.analysis.figures.lettering import plain
from normbench.analysis.figures.palette import FAINT, INK
from normbench.analysis.figures.selection import Entry, Panel

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

WIDTH = 7.0  # inches: 700 pixels of a page, 1,400 of a PNG
LEFT = 0.78  # beside the panels, for the values and words of the axis
TITLE = 0.27  # above each row of panels
LABEL = 0.27  # below the panels, where the words of the axis begin
FAR = 10  # median absolute deviations from the median: what is further away may stand outside of the axes
SQUEEZED = 5  # times the range of the others: where the range of all is more than that
LEGEND_LETTERS = 92  # of a line below the panels

LOOK: dict[Any, Any] = {
    "svg.fonttype": "path",  # words look the same wherever the file is opened
    "svg.hashsalt": "normbench",  # the same data give the same bytes
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "axes.unicode_minus": True,
}


@dataclass(frozen=True)
class Drawing:
    """A figure that is not written yet. columns, rows: exactly the data drawn."""

    name: str
    title: str
    caption: str
    alt: str
    canvas: Canvas
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]


@contextmanager
def look() -> Iterator[None]:
    """Matplotlib with our look, whatever a person's own settings are; they are as before behind it."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)  # it would tell where it keeps its fonts
    try:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(LOOK)
            yield
    finally:
        log.setLevel(level)


def blank(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Canvas:
    """An empty figure, in inches."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height), layout=layout)


@dataclass(frozen=True)
class Grid:
    """Panels of one size with common axes. rows, columns: of the grid. height: of a panel, in inches."""

    canvas: Canvas
    axes: Sequence[Axes]
    rows: int
    columns: int
    height: float

    def finish(self, x: str, y: str, handles: Sequence[Artist], labels: Sequence[str]) -> None:
        """Words at the left and lower edges, a legend below, and everything in its place.

        Places are given in inches: to find them from the size of all words takes longer than to draw the figure.
        """
        for one in self.axes:
            if one.xaxis.get_tick_params()["labelbottom"]:
                one.set_xlabel(x)
            one.xaxis.set_label_coords(0.5, -LABEL / self.height)
            one.yaxis.set_label_coords(0, 0.5)  # it has none, whose place would be sought
        lines = self.legend(handles, labels) if handles else 0
        below, above = 0.5 + 0.2 * lines, TITLE if any(one.get_title(loc="left") for one in self.axes) else 0.1
        between = 0.32 if self.rows > 1 else 0.0
        total = above + self.rows * self.height + (self.rows - 1) * between + below
        self.canvas.set_size_inches(WIDTH, total)
        self.canvas.subplots_adjust(
            left=LEFT / WIDTH, right=1 - 0.2 / WIDTH, top=1 - above / total, bottom=below / total,
            wspace=0.15 * self.columns / (WIDTH - LEFT - 0.2), hspace=between / self.height,
        )  # fmt: skip
        middle = (below + (total - above - below) / 2) / total
        self.canvas.supylabel(y, fontsize=10, x=0.02, y=middle, ha="center", va="center")

    def legend(self, handles: Sequence[Artist], labels: Sequence[str]) -> int:
        """A legend in as many columns as the words leave room for; returns its lines."""
        words = [plain(label) for label in labels]
        columns = max(1, min(len(words), LEGEND_LETTERS // (max(map(len, words)) + 7)))
        lines = -(-len(words) // columns)
        columns = -(-len(words) // lines)  # lines of one length
        self.canvas.legend(handles, words, loc="lower center", ncols=columns, borderaxespad=0)
        return lines


def grid(titles: Sequence[str], *, columns: int | None = None, height: float | None = None) -> Grid:
    """Panels that are yet to be drawn: three in a row, or two where that fills the rows; height: in inches."""
    columns = columns or (min(len(titles), 3) if len(titles) != 4 else 2)
    rows = -(-len(titles) // columns)
    canvas = blank(WIDTH, 4, layout=None)
    axes = canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel().tolist()
    for spare in axes[len(titles) :]:
        spare.remove()
    for place, (one, title) in enumerate(zip(axes, titles, strict=False)):
        one.set_title(plain(title), loc="left", y=1.0, pad=4)
        one.tick_params(labelbottom=place + columns >= len(titles), length=3)
        one.locator_params(nbins=8 if columns == 1 else 4)
    return Grid(
        canvas, axes[: len(titles)], rows, columns, height or (3.4 if columns == 1 else 2.3 if columns == 2 else 1.8)
    )


def finish(panels: Sequence[Panel], drawn: Grid, x: str, y: str, *, markers: bool = False, legend: bool = True) -> None:
    """Finish a grid with a legend of the panels' colours, dashes and markers, each once."""
    unique = {(e.label, e.color, e.dash, e.marker if markers else ""): e for panel in panels for e in panel.entries}
    entries = list(unique.values()) if legend else []
    drawn.finish(x, y, [handle(e, lines=True, marker=markers) for e in entries], [e.label for e in entries])


def handle(entry: Entry, *, lines: bool, marker: bool) -> Line2D:
    """What stands for an arm in the legend."""
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        color=entry.color,
        linestyle=entry.dash if lines else "none",
        marker=entry.marker if marker else "none",
        markerfacecolor="none",
        linewidth=2,
    )


def near(values: Sequence[float]) -> tuple[float, float]:
    """From where to where values lie: all of them, but for those far off that would squeeze the others together."""
    low, middle, high = min(values), float(np.median(values)), max(values)
    reach = FAR * float(np.median(np.abs(np.array(values) - middle)))
    found = [value for value in values if abs(value - middle) <= reach]
    return (min(found), max(found)) if reach > 0 and high - low > SQUEEZED * (max(found) - min(found)) else (low, high)
