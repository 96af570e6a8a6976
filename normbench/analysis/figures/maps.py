"""Maps: how arms end over the grid of two settings that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pandas as pd

from normbench.analysis.designs import ending
from normbench.analysis.figures import style as grid
from normbench.analysis.figures.style import Figure, brief, described, first, plain
from normbench.analysis.measures import Metric, known
from normbench.analysis.records import Arm, Study
from normbench.analysis.sensitivity import Area, areas, is_lost

COLORS = "viridis"  # from dark to bright, in grey and for the colour-blind too
CELL = 0.2  # inches of a cell's height
BELOW, BESIDE = 0.6, 0.75  # inches for numbers that stand upright, and for the bar of colours


def maps(study: Study, metric: Metric) -> list[Figure]:
    """Draw a figure for each two settings that are crossed, with a panel for each arm."""
    by_keys = groupby(areas(study), key=lambda one: one.keys)
    return [draw_map(keys, [*own], study.arms, metric) for keys, own in by_keys]


def draw_map(keys: tuple[str, str], mapped: Sequence[Area], arms: Sequence[Arm], metric: Metric) -> Figure:
    """Draw the mean final metric in colours that all panels share; runs that diverged count as a constant predictor.

    arms: all of the study.
    """
    drawn, more = first(mapped, grid.MOST_PANELS, "panels")
    digits = 2 if metric.decimals > 2 else 0
    data = pd.concat([cells_of(one, metric) for one in drawn], ignore_index=True)
    more += grid.absent(arms, data, [one.arm.name for one in mapped[len(drawn) :]], "not trained at every pair")
    (rows, columns), (y, x) = drawn[0].levels, (key.rpartition(".")[2] for key in keys)
    width = grid.blank(1.0).get_figwidth()
    across = min(len(drawn), 2 if width <= (grid.COLUMN + grid.PAGE) / 2 else 3)
    down = -(-len(drawn) // across)
    height = CELL * len(rows) * down + grid.TITLE * (down - 1)
    whole = grid.ABOVE + height + BELOW
    canvas = grid.blank(whole)
    sides = {"left": grid.LEFT / width, "right": 1 - BESIDE / width, "wspace": 0.1}
    ends = {"bottom": BELOW / whole, "top": 1 - grid.ABOVE / whole, "hspace": grid.TITLE / (CELL * len(rows))}
    room = {**sides, **ends}
    panes = canvas.subplots(down, across, sharex=True, sharey=True, squeeze=False, gridspec_kw=room).ravel().tolist()
    for spare in panes[len(drawn) :]:
        spare.remove()
    look = {"cmap": COLORS if metric.lower_is_better else f"{COLORS}_r", "edgecolors": "white", "linewidth": 0.4}
    for place, (one, pane) in enumerate(zip(drawn, panes, strict=False)):
        own = data[data["arm"] == one.arm.name]
        colors = own["mean"].to_numpy().reshape(len(rows), len(columns))
        limits = {"vmin": data["mean"].min(), "vmax": data["mean"].max(), "gid": grid.gid_of(one.arm, "")}
        mesh = pane.pcolormesh(colors, **look, **limits)
        for number, cell in enumerate(own.itertuples()):
            words = "×" if cell.diverged else "–" if 2 * cell.train < cell.runs else f"{cell.mean:.{digits}f}"
            light = sum(mesh.to_rgba(cell.mean)[:3]) > 1.5
            at = number % len(columns) + 0.5, number // len(columns) + 0.47
            pane.text(*at, words, ha="center", va="center", fontsize=5.5, color="#000000" if light else "#ffffff")
        pane.set_title(plain(grid.words(one.arm, [*one.arm.settings]), int(5 + width / across / grid.LETTER)))
        pane.grid(visible=False)
        pane.set_xticks(np.arange(len(columns)) + 0.5, [brief(level) for level in columns], rotation=90)
        pane.set_yticks(np.arange(len(rows)) + 0.5, [brief(level) for level in rows])
        pane.tick_params(labelbottom=place + across >= len(drawn))
    canvas.supxlabel(x, fontsize=8, y=0.01, x=(grid.LEFT + width - BESIDE) / 2 / width)
    canvas.supylabel(y, fontsize=8, x=0.01)
    bar = canvas.add_axes((1 - 0.6 / width, BELOW / whole, 0.1 / width, height / whole))
    canvas.colorbar(mesh, cax=bar)
    bar.set_title(metric.symbol, fontsize=7.5)
    facts = {"metric": metric, "x": x, "y": y, "arms": [one.arm.name for one in drawn]}
    return described(f"map-{y}-{x}", "map", canvas, data, more, **facts)


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
