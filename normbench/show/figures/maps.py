"""Maps: how arms end over the grid of two settings that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.evidence.labels import name_settings
from normbench.evidence.measures import Metric, finite_numbers
from normbench.evidence.study import RecordedStudy
from normbench.results.designs import ending
from normbench.results.sensitivity import Area, areas, count_trained
from normbench.show.figures import captions
from normbench.show.figures.figure import Drawing, Figure, make_figures
from normbench.show.figures.panes import BESIDE, add_color_bar, breadth, brief, draw_pane, gid_of, size_of
from normbench.show.figures.style import MOST_PANELS, take_first, tell_absent

COLORS = "viridis"  # from dark to bright, in grey and for the colour-blind too
CELL = 0.22  # inches of a cell's height
BELOW = 0.75  # inches for numbers that stand upright
BRIGHT = 1.5  # sum of red, green and blue from which on words on a colour are black


def draw_maps(study: RecordedStudy, metric: Metric) -> list[Figure]:
    """Draw a map of each arm over each two settings that are crossed."""
    figures: list[Figure] = []
    for _, mapped in groupby(areas(study), key=lambda one: one.keys):
        figures += draw_grid(list(mapped), study.arms, metric)
    return figures


def draw_grid(mapped: Sequence[Area], arms: Sequence[Arm], metric: Metric) -> list[Figure]:
    """Draw the maps of arms over two settings, in colours that all of them share.

    A run that diverged counts as a constant predictor. mapped: the arms over these settings. arms: all of the study.
    """
    drawn, more = take_first(mapped, MOST_PANELS, "panels")
    cells = [cells_of(one, metric) for one in drawn]
    whole = pd.concat(cells, ignore_index=True)
    left_out = mapped[len(drawn) :]
    cut = [one.arm.name for one in left_out]
    more += tell_absent(arms, whole, cut, "not trained at every pair")
    lowest, highest = whole["mean"].min(), whole["mean"].max()
    drawings = []
    for one, own in zip(drawn, cells, strict=True):
        drawings.append(draw_map(one, own, metric, lowest, highest))
    y, x = mapped[0].names
    names = [one.arm.name for one in drawn]
    words = captions.map_of(metric, x=x, y=y, arms=names)
    return make_figures(f"map-{y}-{x}", words.title, words.caption + more, words.alt, drawings)


def cells_of(one: Area, metric: Metric) -> pd.DataFrame:
    """Return a row for each cell, row by row from the lowest: the mean of its runs, and how many train."""
    y, x = one.names
    rows = []
    for (level, other), arm in sorted(one.cells.items()):
        ended = [run for run in arm.runs if run.ended]
        diverged = [run for run in ended if run.status == "diverged"]
        ends = finite_numbers(ending(run, metric) for run in ended)
        row = {
            "arm": one.arm.name,
            y: level,
            x: other,
            "mean": np.mean(ends) if ends else np.nan,
            "runs": len(ended),
            "train": count_trained(ended),
            "diverged": len(diverged),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def draw_map(one: Area, cells: pd.DataFrame, metric: Metric, lowest: float, highest: float) -> Drawing:
    """Draw the map of an arm, with numbers where they have room.

    lowest, highest: the values at the ends of the colours.
    """
    rows, columns = one.levels
    y, x = one.names
    pane = draw_pane(CELL * len(rows), x, y, bottom=BELOW, right=BESIDE)
    values = cells["mean"].to_numpy().reshape(len(rows), len(columns))
    look: dict[str, Any] = {"edgecolors": "white", "linewidth": 0.4, "gid": gid_of(one.arm, "")}
    look["cmap"] = COLORS if metric.lower_is_better else f"{COLORS}_r"
    mesh = pane.pcolormesh(values, vmin=lowest, vmax=highest, **look)
    across, _ = size_of(pane)
    words = words_in(cells, metric, across / len(columns))
    for number, (word, mean) in enumerate(zip(words, cells["mean"], strict=True)):
        row, column = divmod(number, len(columns))
        red, green, blue, _ = mesh.to_rgba(mean)
        color = "#000000" if red + green + blue > BRIGHT else "#ffffff"
        pane.text(column + 0.5, row + 0.47, word, ha="center", va="center", color=color)
    pane.grid(visible=False)
    pane.set_xticks(middles_of(columns), list(map(brief, columns)), rotation=90)
    pane.set_yticks(middles_of(rows), list(map(brief, rows)))
    add_color_bar(pane, mesh, metric.symbol)
    title = name_settings(one.arm, list(one.arm.settings))
    return Drawing(pane, title, f"The best cell: {write_best(one, cells, metric)}.", cells)


def middles_of(levels: Sequence[float]) -> np.ndarray:
    """Return where the cells of levels have their middles along an axis."""
    return np.arange(len(levels)) + 0.5


def words_in(cells: pd.DataFrame, metric: Metric, inches: float) -> list[str]:
    """Return what to write in each cell: a sign where runs were lost, else the mean if it fits. inches: its width."""
    digits = 2 if metric.decimals > 2 else 0
    numbers = [f"{mean:.{digits}f}" for mean in cells["mean"]]
    has_room = max(map(breadth, numbers)) < inches
    words = []
    for cell, number in zip(cells.itertuples(), numbers, strict=True):
        if cell.diverged:
            words.append("×")
        elif 2 * cell.train < cell.runs:
            words.append("–")
        else:
            words.append(number if has_room else "")
    return words


def write_best(one: Area, cells: pd.DataFrame, metric: Metric) -> str:
    """Write the best mean, and where it is."""
    y, x = one.names
    means = cells["mean"]
    place = means.idxmin() if metric.lower_is_better else means.idxmax()
    best = cells.loc[place]
    mean = f"{best['mean']:.{metric.decimals}f}"
    return f"{mean}, at {y} {brief(best[y])} and {x} {brief(best[x])}"
