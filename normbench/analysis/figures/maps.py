"""Maps: how arms end over the grid of two settings that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pandas as pd

from normbench.analysis.designs import ending
from normbench.analysis.figures import style as grid
from normbench.analysis.figures.style import Drawing, Figure, brief, described, first
from normbench.analysis.measures import Metric, known
from normbench.analysis.records import Arm, Study
from normbench.analysis.sensitivity import Area, areas, is_lost

COLORS = "viridis"  # from dark to bright, in grey and for the colour-blind too
CELL = 0.22  # inches of a cell's height
BELOW = 0.75  # inches for numbers that stand upright


def maps(study: Study, metric: Metric) -> list[Figure]:
    """Draw for each two settings that are crossed a figure of each arm."""
    by_keys = groupby(areas(study), key=lambda one: one.keys)
    return [figure for keys, own in by_keys for figure in draw_maps(keys, [*own], study.arms, metric)]


def draw_maps(keys: tuple[str, str], mapped: Sequence[Area], arms: Sequence[Arm], metric: Metric) -> list[Figure]:
    """Draw the mean final metric in colours that all maps share; runs that diverged count as a constant predictor.

    arms: all of the study.
    """
    drawn, more = first(mapped, grid.MOST_PANELS, "panels")
    y, x = (key.rpartition(".")[2] for key in keys)
    cells = [cells_of(one, metric) for one in drawn]
    whole = pd.concat(cells, ignore_index=True)
    more += grid.absent(arms, whole, [one.arm.name for one in mapped[len(drawn) :]], "not trained at every pair")
    limits = whole["mean"].min(), whole["mean"].max()
    drawings = [draw_map(one, own, metric, limits) for one, own in zip(drawn, cells, strict=True)]
    facts = {"metric": metric, "x": x, "y": y, "arms": [one.arm.name for one in drawn]}
    return described(f"map-{y}-{x}", "map", drawings, more, **facts)


def draw_map(one: Area, cells: pd.DataFrame, metric: Metric, limits: tuple[float, float]) -> Drawing:
    """Draw the map of an arm, with numbers where they have room. limits: the values at the ends of the colours."""
    (rows, columns), (y, x) = one.levels, (key.rpartition(".")[2] for key in one.keys)
    pane = grid.draw_pane(CELL * len(rows), x, y, bottom=BELOW, right=grid.BESIDE)
    colors = COLORS if metric.lower_is_better else f"{COLORS}_r"
    gid = grid.gid_of(one.arm, "")
    values = cells["mean"].to_numpy().reshape(len(rows), len(columns))
    mesh = pane.pcolormesh(
        values, cmap=colors, edgecolors="white", linewidth=0.4, vmin=limits[0], vmax=limits[1], gid=gid
    )
    digits = 2 if metric.decimals > 2 else 0
    numbers = [f"{mean:.{digits}f}" for mean in cells["mean"]]
    across, _ = grid.size_of(pane)
    has_room = max(map(grid.breadth, numbers)) < across / len(columns)
    for number, (cell, written) in enumerate(zip(cells.itertuples(), numbers, strict=True)):
        words = "×" if cell.diverged else "–" if 2 * cell.train < cell.runs else written if has_room else ""
        light = sum(mesh.to_rgba(cell.mean)[:3]) > 1.5
        at = number % len(columns) + 0.5, number // len(columns) + 0.47
        pane.text(*at, words, ha="center", va="center", color="#000000" if light else "#ffffff")
    pane.grid(visible=False)
    pane.set_xticks(np.arange(len(columns)) + 0.5, [brief(level) for level in columns], rotation=90)
    pane.set_yticks(np.arange(len(rows)) + 0.5, [brief(level) for level in rows])
    grid.add_color_bar(pane, mesh, metric.symbol)
    best = cells.loc[cells["mean"].idxmin() if metric.lower_is_better else cells["mean"].idxmax()]
    told = f"{best['mean']:.{metric.decimals}f}, at {y} {brief(best[y])} and {x} {brief(best[x])}"
    return Drawing(pane, grid.words(one.arm, [*one.arm.settings]), f"The best cell: {told}.", cells)


def cells_of(one: Area, metric: Metric) -> pd.DataFrame:
    """Return a row for each cell, row by row from the lowest: the mean of its runs, and how many train."""
    y, x = (key.rpartition(".")[2] for key in one.keys)
    rows = []
    for pair, arm in sorted(one.cells.items()):
        ended = [run for run in arm.runs if run.ended]
        counts = {"runs": len(ended), "train": sum(not is_lost(run) for run in ended)}
        mean = np.mean(known(ending(run, metric) for run in ended) or [np.nan])
        row = {"arm": one.arm.name, y: pair[0], x: pair[1], "mean": mean, **counts}
        rows.append({**row, "diverged": sum(run.status == "diverged" for run in ended)})
    return pd.DataFrame(rows)
