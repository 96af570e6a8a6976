"""Which arms a figure shows, in which panel each stands and how it looks there; panels in a grid with a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from normbench.analysis.figures.style import DASHES, Dash, colors_of, dashes_of
from normbench.analysis.records import Arm, Run, setting

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

TOGETHER = 6  # so many lines can be told apart in one panel by colour and dashes alone
MOST_PANELS = 12  # are drawn; a caption says where there would have been more
UNDER_WAY = ("running", "interrupted")

WIDTH = 7.0  # inches: 700 pixels of a page, 1,400 of a PNG
LEFT = 0.78  # inches beside the panels, for the values and words of the axis
LEGEND_LETTERS = 92  # of a line below the panels

FAR = 10  # median absolute deviations from the median: what is further away may stand outside of the axes
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


@dataclass(frozen=True)
class Panel:
    """Arms that are drawn over each other; title: what they have in common, empty where there is only one panel."""

    title: str
    entries: Sequence[Entry]


def panels_of(arms: Sequence[Arm], together: int = TOGETHER) -> list[Panel]:
    """Return arms by what they have in common but for the colour: norms share a panel, placements where arms are few.

    Dashes and markers tell placements, or in turn whatever else colours do not. together: so many arms share a panel.
    """
    varied = varied_among(arms)
    color_key = "norm" if "norm" in varied else next(iter(varied), "norm")
    rest = [key for key in varied if key != color_key]
    alone = len(arms) <= together or not rest
    colors = colors_of(color_key, [value_of(arm, color_key) for arm in arms])
    titles = list(dict.fromkeys(words(arm, rest) for arm in arms))
    panels: dict[str, list[Entry]] = {}
    for arm in arms:
        title = words(arm, rest)
        if rest in ([], ["placement"]):
            dash, marker = dashes_of(str(value_of(arm, "placement")))
        else:
            dash, marker = DASHES[titles.index(title) % len(DASHES)]
        label, dash = (arm.name, dash if rest else "solid") if alone else (words(arm, [color_key]), "solid")
        entry = Entry(arm, label, colors[value_of(arm, color_key)], dash, marker)
        panels.setdefault("" if alone else title, []).append(entry)
    return [Panel(title, entries) for title, entries in panels.items()]


def first_panels(panels: Sequence[Panel], most: int = MOST_PANELS) -> tuple[Sequence[Panel], str]:
    """Return the panels that are drawn, and a sentence for the caption where there are more."""
    return panels[:most], f" The first {most} of {len(panels)} panels." if len(panels) > most else ""


def varied_among(arms: Sequence[Arm]) -> list[str]:
    """Return the settings in which some arms differ, in the study's order."""
    return [key for key in (arms[0].settings if arms else ()) if len({arm.settings.get(key) for arm in arms}) > 1]


def value_of(arm: Arm, key: str) -> Any:
    """Return what an arm has for a setting, also for one that does not vary."""
    return arm.settings[key] if key in arm.settings else setting(arm.runs[0], key)


def words(arm: Arm, keys: Sequence[str]) -> str:
    """Return some of an arm's settings as its name has them."""
    return Arm({key: value_of(arm, key) for key in keys}, ()).name if keys else ""


def members(arm: Arm) -> list[Run]:
    """Return the runs that stand for an arm: those that finished; else those under way; else those that diverged."""
    for statuses in (("finished",), UNDER_WAY, ("diverged",)):
        if found := [run for run in arm.runs if run.status in statuses]:
            return found
    return []


def diverged(arm: Arm) -> list[Run]:
    """Return an arm's runs that diverged."""
    return [run for run in arm.runs if run.status == "diverged"]


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return names in a row, the first ones where there are many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(panels: Sequence[Panel]) -> str:
    """Return such as `rmsnorm, layernorm in 3 panels (pre, post, deep)`."""
    labels = listed(list(dict.fromkeys(entry.label for panel in panels for entry in panel.entries)))
    titles = ", ".join(panel.title for panel in panels)
    return f"{labels} in {len(panels)} panels ({titles})" if len(panels) > 1 else labels


# ---- matplotlib, which is imported when it is used


def draw_grid(
    titles: Sequence[str], x: str, y: str, legend: Mapping[str, Artist], columns: int = 0, height: float = 0
) -> tuple[Canvas, list[Axes]]:
    """Return a figure and its panels, all of one size with common axes: three in a row, or two where that fills rows.

    x, y: words of the axes. legend: what stands below, by its words. height: of a panel. All places are given in
    inches: to have them found from the size of every word (layout="constrained") takes half as long as to draw.
    """
    from matplotlib.figure import Figure as Canvas

    columns = columns or (2 if len(titles) == 4 else min(len(titles), 3))
    rows = -(-len(titles) // columns)
    height = height or {1: 3.4, 2: 2.3}.get(columns, 2.0 if rows == 1 else 1.8)
    labels = [plain(label) for label in legend]
    lines = -(-len(labels) // max(1, LEGEND_LETTERS // (max(map(len, labels), default=0) + 7)))
    above, between, below = 0.27 if any(titles) else 0.1, 0.32, 0.5 + 0.2 * lines
    total = above + rows * height + (rows - 1) * between + below
    canvas = Canvas(figsize=(WIDTH, total))
    if legend:
        ncols = -(-len(labels) // lines)
        canvas.legend(list(legend.values()), labels, loc="lower center", ncols=ncols, borderaxespad=0)
    half = 0.037 * len(y)  # of its length
    canvas.supylabel(
        y, fontsize=10, x=0.02, y=max(min(below + (total - above - below) / 2, total - half), half) / total
    )
    canvas.subplots_adjust(
        left=LEFT / WIDTH, right=1 - 0.2 / WIDTH, top=1 - above / total, bottom=below / total,
        wspace=0.15 * columns / (WIDTH - LEFT - 0.2), hspace=between / height,
    )  # fmt: skip
    panes = canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel().tolist()
    for spare in panes[len(titles) :]:
        spare.remove()
    for place, (pane, title) in enumerate(zip(panes, titles, strict=False)):
        pane.set_title(plain(title), y=1.0)
        pane.locator_params(nbins=8 if columns == 1 else 4)
        pane.yaxis.set_label_coords(0, 0.5)  # it has none, whose place would be sought
        if place + columns >= len(titles):
            pane.tick_params(labelbottom=True)
            pane.set_xlabel(x)
            pane.xaxis.set_label_coords(0.5, -0.27 / height)
    return canvas, panes[: len(titles)]


def legend_of(panels: Sequence[Panel], *, markers: bool = False) -> dict[str, Artist]:
    """Return the legend of panels: each colour, dash and marker once."""
    return {
        entry.label: sample(entry.color, entry.dash, entry.marker if markers else "")
        for panel in panels
        for entry in panel.entries
    }


def sample(color: str, dash: Dash = "none", marker: str = "") -> Line2D:
    """Return the line or marker that stands in a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, linestyle=dash, marker=marker, markerfacecolor="none", linewidth=2)


def near(values: Sequence[float]) -> tuple[float, float]:
    """Return from where to where values lie, without those far off where they would squeeze the others together."""
    low, middle, high = min(values), float(np.median(values)), max(values)
    reach = FAR * float(np.median(np.abs(np.array(values) - middle)))
    found = [value for value in values if abs(value - middle) <= reach]
    return (min(found), max(found)) if reach > 0 and high - low > SQUEEZED * (max(found) - min(found)) else (low, high)


def plain(text: str, most: int = 44) -> str:
    """Return words as they are written: no mathematics, no letters that the font lacks, the middle of long ones cut."""
    text = "".join(letter if ord(letter) in letters() else "?" for letter in text)
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[len(text) - most // 2 + 1 :]}"
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")  # a leading _ would hide it from a legend


@cache
def letters() -> frozenset[int]:
    """Return the letters that the font has."""
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def log_ticks(axis: Axis, values: Sequence[float] = (), *, narrow: bool = False) -> None:
    """Set the ticks of a logarithmic axis in plain words (0.5, not 5 × 10⁻¹), two or more; values: where they stand."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    decades = np.log10(high / low) * (2 if narrow else 1) if low > 0 else 1
    subs = (1.0,) if decades >= 3 else (1.0, 3.0) if decades >= 1.6 else (1.0, 2.0, 5.0)
    axis.set_major_locator(FixedLocator(values) if values else LogLocator(base=10, subs=subs, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")
