"""How studies draw rows: lines with bands over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.results.rows import Column, arms_of, is_arm, keys_of
from normbench.show.figures import plots, style
from normbench.show.figures.captions import at_most, capitalized
from normbench.show.figures.figure import Figure
from normbench.show.figures.plots import Axis, Series, Subplot
from normbench.show.study_tables import show_value
from normbench.wording import compact


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
        panel: a coordinate that has a subplot for each value.
        log: axes with a logarithmic scale, "x", "y" or "xy", beside those whose column says so.
        band: columns of the band's ends in place of the seeds' range.
    """
    rows = rows.replace([np.inf, -np.inf], np.nan).dropna(subset=[x, y])
    if rows.empty:
        return [Figure(name, title, [caption, "Nothing was finite."], title, plots.blank(1.0), rows)]
    arms = arms_of(rows, leave_out=[x])
    data = mean_lines(rows, x, y, panel, band)
    shown, more = style.take_first(make_subplots(rows, data, arms, x, panel, columns), style.MOST_PANELS, "panels")
    is_whole = bool((data[x] % 1 == 0).all())
    with style.use_our_style():
        canvas = plots.lines(
            shown,
            Axis(columns[x].label, scale_of(columns[x], "x", log), whole=is_whole and "x" not in log),
            Axis(columns[y].label, scale_of(columns[y], "y", log)),
        )
    seeds = int(data["seeds"].max())
    sentences = [caption, *more]
    if seeds > 1 and not band:
        sentences.append(f"Line: mean of {seeds} seeds; band: from the lowest to the highest.")
    ends = []
    for subplot in shown:
        for series in subplot.series:
            parts = (subplot.title, series.entry.label, series.value)
            ends.append(" ".join(part for part in parts if part))
    alt = f"{columns[y].words} against {columns[x].words}; at the right end: {at_most(ends)}."
    return [Figure(name, capitalized(title), sentences, alt, canvas, data)]


def scale_of(column: Column, axis: str, log: str) -> plots.Scale:
    """Return the scale of an axis. log: the axes that are logarithmic whatever their columns say."""
    return "log" if axis in log or column.scale == "log" else "linear"


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


def make_subplots(
    rows: pd.DataFrame,
    data: pd.DataFrame,
    arms: Sequence[Arm],
    x: str,
    panel: str | None,
    columns: Mapping[str, Column],
) -> list[Subplot]:
    """Return the subplots that have a line: for each value of the coordinate `panel`, one or more."""
    values = list(dict.fromkeys(rows[panel])) if panel else [None]
    subplots = []
    for value, together in product(values, style.panels_of(arms)):
        panel_data = data[data[panel] == value] if panel else data
        series = []
        for entry in together.entries:
            line = panel_data[is_arm(panel_data, entry.arm.settings)].sort_values(x)
            if len(line):
                end = compact(float(line["mean"].iloc[-1]))
                series.append(Series(entry, line.assign(x=line[x]), end))
        of_value = ""
        if panel:
            head = columns[panel].words if panel in columns else panel
            of_value = f"{head} {show_value(value)}".strip()
        title = " · ".join(part for part in (together.title, of_value) if part)
        if series:
            subplots.append(Subplot(title, series))
    return subplots
