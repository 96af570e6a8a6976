"""Which arms a figure shows, in which panel each stands and how it looks there; panels in a grid with a legend."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from normbench.analysis.figures.style import DASHES, PLACEMENTS, Dash, colors_of
from normbench.analysis.measures import Metric
from normbench.analysis.records import Arm, Run, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

TOGETHER = 6  # so many lines can be told apart in one panel by colour and dashes alone
MOST_PANELS = 12  # are drawn; a caption says where there would have been more
UNDER_WAY = ("running", "interrupted")

WIDTH = 7.0  # inches: 700 pixels of a page, 1,400 of a PNG
TALLEST = 8.0  # inches of all panels
ABOVE, BELOW, LEFT, RIGHT, TITLE = 0.37, 0.55, 0.9, 0.2, 0.35  # inches around and between them, for words
LEGEND_LETTERS = 92  # of a line above the panels

FAR = 10  # median absolute deviations from the median: what is worse may stand outside of the axes
ROOM = 0.06  # of what an axis shows, at its ends
SQUEEZED = 5  # times the range of the others: where the range of all is more than that

# ---- arms


@dataclass(frozen=True)
class Entry:
    """An arm in a panel. label: its words there. color: on a light page."""

    arm: Arm
    label: str
    color: str
    dash: Dash
    marker: str


# Arms that are drawn over each other, behind what they have in common: empty where there is only one panel.
Panel = tuple[str, Sequence[Entry]]


def panels_of(arms: Sequence[Arm], drawn: Container[str] | None = None) -> list[Panel]:
    """Return arms by what they have in common but for the colour: norms share a panel, placements where arms are few.

    There, dashes and markers tell what colours do not. drawn: the names of the arms that are drawn, where not all are;
    the others count for colours, which are the same in all figures.
    """
    varied = varied_among(arms)
    color_key = "norm" if "norm" in varied else next(iter(varied), "norm")
    rest = [key for key in varied if key != color_key]
    together = len(arms) <= TOGETHER or not rest
    values = [arm.settings.get(color_key, arm.runs[0].choices.get(color_key)) for arm in arms]
    colors = colors_of(color_key, values)
    titles = list(dict.fromkeys(words(arm, rest) for arm in arms))
    panels: dict[str, list[Entry]] = {}
    for arm, value in zip(arms, values, strict=True):
        title = words(arm, rest)
        look = PLACEMENTS.get(title, DASHES[titles.index(title) % len(DASHES)]) if together else DASHES[0]
        if drawn is None or arm.name in drawn:
            label = arm.name if together else words(arm, [color_key])
            panels.setdefault("" if together else title, []).append(Entry(arm, label, colors[value], *look))
    return list(panels.items())


def first(found: Sequence[Any], most: int, words: str) -> tuple[Sequence[Any], str]:
    """Return the first ones, which are drawn, and a sentence for the caption where there are more."""
    return found[:most], f" The first {most} of {len(found)} {words}." if len(found) > most else ""


def varied_among(arms: Sequence[Arm]) -> list[str]:
    """Return the settings in which some arms differ, in the study's order."""
    return [key for key in (arms[0].settings if arms else ()) if len({arm.settings.get(key) for arm in arms}) > 1]


def words(arm: Arm, keys: Sequence[str]) -> str:
    """Return some of an arm's settings as its name has them."""
    return Arm({key: arm.settings[key] for key in keys}).name if keys else ""


def members(arm: Arm) -> list[Run]:
    """Return the runs that stand for an arm: those that finished; else those under way; else those that diverged."""
    found = ([run for run in arm.runs if run.status in some] for some in (("finished",), UNDER_WAY, ("diverged",)))
    return next(filter(None, found), [])


def names_of(arms: Sequence[Arm]) -> str:
    """Name arms for the alternative text."""
    return shortened([arm.name for arm in arms])


# ---- matplotlib, which is imported when it is used


def blank(height: float) -> Canvas:
    """Return an empty figure."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(WIDTH, height))


def draw_grid(
    panels: Sequence[Panel], x: str, y: str, columns: int = 0, *, markers: bool = False
) -> tuple[Canvas, list[Axes]]:
    """Return a figure and its panels, all of one size with common axes: three in a row, or two where that fills rows.

    x, y: words of the axes. The legend above has each label once; markers: with its marker. Places are given in inches:
    to find them from the size of all words takes as long as to draw the figure.
    """
    from matplotlib.lines import Line2D

    columns = columns or (2 if len(panels) == 4 else min(len(panels), 3))
    rows = -(-len(panels) // columns)
    looks = {plain(entry.label): entry for _, entries in panels for entry in entries}
    across = max(1, LEGEND_LETTERS // (max(map(len, looks)) + 7))
    top = ABOVE + 0.2 * -(-len(looks) // across)
    height = min((3.4, 2.5, 2.1)[columns - 1] * rows, TALLEST)
    canvas = blank(top + height + BELOW)
    edges = {"left": LEFT / WIDTH, "right": 1 - RIGHT / WIDTH, "bottom": BELOW / (top + height + BELOW)}
    grid = edges | {"top": 1 - top / (top + height + BELOW), "wspace": 0.12, "hspace": TITLE * rows / height}
    panes = canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False, gridspec_kw=grid).ravel().tolist()
    for spare in panes[len(panels) :]:
        spare.remove()
    for place, ((title, _), pane) in enumerate(zip(panels, panes, strict=False)):
        pane.set_title(plain(title))
        pane.locator_params(nbins=8 if columns == 1 else 4)
        pane.tick_params(labelbottom=place + columns >= len(panels))
    canvas.supxlabel(x, fontsize=10)
    canvas.supylabel(y, fontsize=10)
    lines = [
        Line2D([], [], color=e.color, linestyle=e.dash, marker=e.marker if markers else "", markerfacecolor="none")
        for e in looks.values()
    ]
    canvas.legend(lines, list(looks), loc="upper center", ncols=across)
    return canvas, panes[: len(panels)]


def near(values: Sequence[float], lower_is_better: bool = True) -> tuple[float, float]:
    """Return from where to where values lie, without those so much worse that they would squeeze the others."""
    badness = np.array(values) if lower_is_better else -np.array(values)
    reach = FAR * np.median(np.abs(badness - np.median(badness)))
    close = badness[badness <= np.median(badness) + reach]
    if reach > 0 and np.ptp(badness) > SQUEEZED * np.ptp(close):
        badness = close
    best, worst = float(badness.min()), float(badness.max())
    return (best, worst) if lower_is_better else (-worst, -best)


def limit(axes: Axes, axis: Literal["x", "y"], drawn: pd.DataFrame, metric: Metric, lines: int = 0) -> str:
    """Let an axis show what is near, with room for some lines at its end; return a sentence about what is beyond it.

    drawn: an arm's value, which tells where it is, and from where to where it reaches, in columns, by the arm's name.
    """
    low, high = near(drawn.stack().dropna().astype(float), metric.lower_is_better)
    line = ROOM * ((high - low) or 1)
    axes.set(**{f"{axis}lim": (low - line, high + (lines + 1) * line)})
    value = drawn.iloc[:, 0]
    beyond = list(dict.fromkeys(drawn.index[(value < low) | (value > high)]))
    return f" Beyond the axis: {shortened(beyond)}." if beyond else ""


def plain(text: str, most: int = 44) -> str:
    """Return words without the middle of long ones."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[1 - most // 2 :]}"


def log_scale(axes: Axes, name: Literal["x", "y"]) -> None:
    """Make an axis of a drawn figure logarithmic, with ticks in plain words (0.5, not 5 × 10⁻¹), two or more."""
    from matplotlib.ticker import LogLocator

    axes.set(**{f"{name}scale": "log"})
    axes.minorticks_off()
    axis = axes.xaxis if name == "x" else axes.yaxis
    decades = np.ptp(np.log10(axis.get_view_interval()))
    subs = (1.0,) if decades >= 2 else (1.0, 3.0) if decades >= 1 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
