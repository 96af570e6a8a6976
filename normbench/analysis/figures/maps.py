"""Maps: how arms end over the grid of two settings that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from normbench.analysis.designs import ending
from normbench.analysis.figures import captions
from normbench.analysis.figures import style as grid
from normbench.analysis.figures.style import Drawing, Figure, brief, first, in_figures
from normbench.analysis.measures import Metric, known
from normbench.analysis.records import Arm, RecordedStudy
from normbench.analysis.sensitivity import Area, areas, is_lost

COLORS = "viridis"  # from dark to bright, in grey and for the colour-blind too
CELL = 0.22  # inches of a cell's height
BELOW = 0.75  # inches for numbers that stand upright
BRIGHT = 1.5  # sum of red, green and blue from which on words on a colour are black


def maps(study: RecordedStudy, metric: Metric) -> list[Figure]:
    """Draw for each two settings that are crossed a figure of each arm."""
    figures: list[Figure] = []
    for _, mapped in groupby(areas(study), key=lambda one: one.keys):
        figures += draw_maps([*mapped], study.arms, metric)
    return figures


def axes_of(one: Area) -> tuple[str, str]:
    """Return the short names of what is along y and along x."""
    y, x = one.keys
    return y.rpartition(".")[2], x.rpartition(".")[2]


def draw_maps(mapped: Sequence[Area], arms: Sequence[Arm], metric: Metric) -> list[Figure]:
    """Draw the mean final metric in colours that all maps share; runs that diverged count as a constant predictor.

    mapped: all of the same two settings. arms: all of the study.
    """
    drawn, more = first(mapped, grid.MOST_PANELS, "panels")
    cells = [cells_of(one, metric) for one in drawn]
    whole = pd.concat(cells, ignore_index=True)
    cut = [one.arm.name for one in mapped[len(drawn) :]]
    more += grid.absent(arms, whole, cut, "not trained at every pair")
    limits = whole["mean"].min(), whole["mean"].max()
    drawings = [draw_map(one, own, metric, limits) for one, own in zip(drawn, cells, strict=True)]
    y, x = axes_of(mapped[0])
    words = captions.map_of(metric, x=x, y=y, arms=[one.arm.name for one in drawn])
    return in_figures(f"map-{y}-{x}", words.title, words.caption + more, words.alt, drawings)


def draw_map(one: Area, cells: pd.DataFrame, metric: Metric, limits: tuple[float, float]) -> Drawing:
    """Draw the map of an arm, with numbers where they have room. limits: the values at the ends of the colours."""
    rows, columns = one.levels
    y, x = axes_of(one)
    pane = grid.draw_pane(CELL * len(rows), x, y, bottom=BELOW, right=grid.BESIDE)
    means = cells["mean"]
    values = means.to_numpy().reshape(len(rows), len(columns))
    low, high = limits
    look: dict[str, Any] = {"edgecolors": "white", "linewidth": 0.4, "gid": grid.gid_of(one.arm, "")}
    look["cmap"] = COLORS if metric.lower_is_better else f"{COLORS}_r"
    mesh = pane.pcolormesh(values, vmin=low, vmax=high, **look)
    across, _ = grid.size_of(pane)
    words = words_in(cells, metric, across / len(columns))
    for number, (word, mean) in enumerate(zip(words, means, strict=True)):
        row, column = divmod(number, len(columns))
        red, green, blue, _ = mesh.to_rgba(mean)
        color = "#000000" if red + green + blue > BRIGHT else "#ffffff"
        pane.text(column + 0.5, row + 0.47, word, ha="center", va="center", color=color)
    pane.grid(visible=False)
    pane.set_xticks(np.arange(len(columns)) + 0.5, [brief(level) for level in columns], rotation=90)
    pane.set_yticks(np.arange(len(rows)) + 0.5, [brief(level) for level in rows])
    grid.add_color_bar(pane, mesh, metric.symbol)
    title = grid.words(one.arm, [*one.arm.settings])
    return Drawing(pane, title, f"The best cell: {write_best(cells, x, y, metric)}.", cells)


def write_best(cells: pd.DataFrame, x: str, y: str, metric: Metric) -> str:
    """Write the best mean, and where it is."""
    means = cells["mean"]
    place = means.idxmin() if metric.lower_is_better else means.idxmax()
    best = cells.loc[place]
    return f"{best['mean']:.{metric.decimals}f}, at {y} {brief(best[y])} and {x} {brief(best[x])}"


def words_in(cells: pd.DataFrame, metric: Metric, inches: float) -> list[str]:
    """Return what stands in each cell, which is so many inches wide: a sign where runs were lost, else the mean."""
    digits = 2 if metric.decimals > 2 else 0
    numbers = [f"{mean:.{digits}f}" for mean in cells["mean"]]
    has_room = max(map(grid.breadth, numbers)) < inches
    words = []
    for cell, number in zip(cells.itertuples(), numbers, strict=True):
        if cell.diverged:
            words.append("×")
        elif 2 * cell.train < cell.runs:
            words.append("–")
        else:
            words.append(number if has_room else "")
    return words


def cells_of(one: Area, metric: Metric) -> pd.DataFrame:
    """Return a row for each cell, row by row from the lowest: the mean of its runs, and how many train."""
    y, x = axes_of(one)
    rows = []
    for (level, other), arm in sorted(one.cells.items()):
        ended = [run for run in arm.runs if run.ended]
        row = {
            "arm": one.arm.name,
            y: level,
            x: other,
            "mean": np.mean(known(ending(run, metric) for run in ended) or [np.nan]),
            "runs": len(ended),
            "train": sum(not is_lost(run) for run in ended),
            "diverged": sum(run.status == "diverged" for run in ended),
        }
        rows.append(row)
    return pd.DataFrame(rows)
