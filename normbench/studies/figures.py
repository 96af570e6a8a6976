"""How studies draw rows: lines with bands over the seeds, and drawings of their own in a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.evidence.labels import label_of
from normbench.results.rows import Column, arms_of, is_arm, keys_of
from normbench.show.figures import panes, style
from normbench.show.figures.figure import Drawing, Figure, make_figures, write_values
from normbench.show.figures.lines import draw_band
from normbench.show.figures.style import Entry
from normbench.studies.writing import number, show_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[[pd.DataFrame], tuple["Axes", str]]  # draws rows in a pane; returns it, and a sentence on what it shows


@dataclass(frozen=True)
class CurvePanel(style.Panel):
    """What a panel of curves shows.

    Attributes:
        lines: the line of each arm, by its name, from left to right; empty for one without rows.
    """

    lines: Mapping[str, pd.DataFrame]

    @property
    def drawn(self) -> list[Entry]:
        """Return the arms that have a line."""
        return [entry for entry in self.entries if len(self.lines[entry.arm.name])]

    def finish(self, pane: Axes) -> Drawing:
        """Name the lines that are drawn, and tell where they end."""
        ends = []
        texts = {}
        for entry in self.drawn:
            means = self.lines[entry.arm.name]["mean"]
            end = float(means.iloc[-1])
            ends.append((end, entry))
            texts[entry.label] = number(end)
        panes.label_ends(pane, ends)
        told = write_values(texts)
        data = pd.concat(self.lines.values(), ignore_index=True)
        return Drawing(pane, self.title, f"At the right end: {told}", data)


def draw_curves(
    name: str,
    rows: pd.DataFrame,
    *,
    x: str,
    y: str,
    columns: Mapping[str, Column],
    title: str,
    caption: str,
    panel: str | None = None,
    log: str = "",
    band: tuple[str, str] | None = None,
) -> list[Figure]:
    """Draw a line for each arm: the mean over seeds, with a band from the lowest to the highest.

    Args:
        name: the name of the figure's files.
        rows: of a study.
        x: the column along the axis.
        y: the column of the numbers.
        columns: words, units and scales of the columns.
        title: of the figure.
        caption: what it shows, in sentences.
        panel: a coordinate that has a panel for each value.
        log: axes with a logarithmic scale, "x", "y" or "xy", beside those whose column says so.
        band: columns of the band's ends in place of the seeds' range.
    """
    rows = rows.replace([np.inf, -np.inf], np.nan).dropna(subset=[x, y])
    if rows.empty:
        return [Figure(name, title, f"{caption} Nothing was finite.", title, panes.blank(1.0), rows)]
    for axis, column in (("x", x), ("y", y)):
        if columns[column].scale == "log":
            log += axis
    arms = arms_of(rows, leave_out=[x])
    data = mean_lines(rows, x, y, panel, band)
    panels = make_panels(rows, data, arms, x, panel, columns)
    shown, more = style.take_first(panels, style.MOST_PANELS, "panels")
    with style.use_our_style():
        drawings = draw_panels(shown, data, columns, x, y, log)
    seeds = int(data["seeds"].max())
    if seeds > 1 and not band:
        caption += f" Line: mean of {seeds} seeds; band: from the lowest to the highest."
    names = ", ".join(label_of(arm) for arm in arms)
    alt = f"{columns[y].words} against {columns[x].words} for {names}."
    return make_figures(name, title[0].upper() + title[1:], caption + more, alt, drawings)


def mean_lines(rows: pd.DataFrame, x: str, y: str, panel: str | None, band: tuple[str, str] | None) -> pd.DataFrame:
    """Return the mean over seeds at each place of each arm, with the lowest and the highest, or the ends of a band."""
    places = [key for key in keys_of(rows) if key != x]
    if panel:
        places.append(panel)
    places.append(x)
    groups = rows.groupby(places, dropna=False, sort=False)
    if band:
        low, high = band
        data = groups.agg(mean=(y, "mean"), low=(low, "mean"), high=(high, "mean"), seeds=("seed", "nunique"))
    else:
        data = groups.agg(mean=(y, "mean"), low=(y, "min"), high=(y, "max"), seeds=("seed", "nunique"))
    return data.reset_index()


def make_panels(
    rows: pd.DataFrame,
    data: pd.DataFrame,
    arms: Sequence[Arm],
    x: str,
    panel: str | None,
    columns: Mapping[str, Column],
) -> list[CurvePanel]:
    """Return the panels that have a line: for each value of the coordinate `panel`, one or more."""
    values = list(dict.fromkeys(rows[panel])) if panel else [None]
    found = []
    for value, together in product(values, style.panels_of(arms)):
        own = data[data[panel] == value] if panel else data
        lines = {}
        for entry in together.entries:
            of_arm = own[is_arm(own, entry.arm.settings)]
            lines[entry.arm.name] = of_arm.sort_values(x)
        of_value = ""
        if panel:
            head = columns[panel].words if panel in columns else panel
            of_value = f"{head} {show_value(value)}".strip()
        parts = [part for part in (together.title, of_value) if part]
        title = " · ".join(parts)
        one = CurvePanel(title, together.entries, lines)
        if one.drawn:
            found.append(one)
    return found


def draw_panels(
    panels: Sequence[CurvePanel], data: pd.DataFrame, columns: Mapping[str, Column], x: str, y: str, log: str
) -> list[Drawing]:
    """Draw panels side by side. data: the points of all lines."""
    drawn = panes.draw_panels(panels, columns[x].label, columns[y].label)
    for one, pane in zip(panels, drawn, strict=True):
        for index, entry in enumerate(one.entries):
            line = one.lines[entry.arm.name]
            if len(line):
                draw_band(pane, line.assign(x=line[x]), entry, index / len(one.entries))
    is_whole = (data[x] % 1 == 0).all()
    if is_whole and "x" not in log:
        drawn[0].locator_params(axis="x", integer=True, min_n_ticks=2)
    if "x" in log:
        panes.log_scale(drawn[0], "x")
    if "y" in log:
        panes.log_scale(drawn[0], "y")
    return [one.finish(pane) for one, pane in zip(panels, drawn, strict=True)]


def draw_each(
    name: str, parts: Sequence[tuple[str, pd.DataFrame]], draw: Draw, title: str, caption: str
) -> list[Figure]:
    """Return figures with a panel for each part, which has a title and rows.

    Args:
        name: of the figures' files.
        parts: the title and the rows of each panel.
        draw: draws the rows of a panel, and says what they show.
        title: of the figures.
        caption: what they show, in sentences.
    """
    shown, more = style.take_first(parts, style.MOST_PANELS, "panels")
    drawings = []
    with style.use_our_style():
        for words, rows in shown:
            pane, told = draw(rows)
            drawings.append(Drawing(pane, words, told, rows))
    return make_figures(name, title, caption + more, caption, drawings)
