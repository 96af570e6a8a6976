"""Maps: how arms end over the grid of two settings that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.evidence.labels import name_settings
from normbench.evidence.measures import Metric, finite_numbers
from normbench.evidence.study import RecordedStudy
from normbench.results.designs import ending
from normbench.results.sensitivity import Area, areas, count_trained
from normbench.show.figures import captions
from normbench.show.figures.figure import Figure
from normbench.show.figures.plots import MAP_COLORS, Cells, gid_of, grid
from normbench.show.figures.style import MOST_PANELS, take_first, tell_absent
from normbench.wording import brief, fixed


def draw_maps(study: RecordedStudy, metric: Metric) -> list[Figure]:
    """Draw a map of each arm over each two settings that are crossed, those over the same in one figure.

    An arm of which no run has a result yet has none.
    """
    with_results = [area for area in areas(study) if cells_of(area, metric)["mean"].notna().any()]
    figures: list[Figure] = []
    for _, mapped in groupby(with_results, key=lambda one: one.keys):
        figures.append(draw_grid(list(mapped), study.arms, metric))
    return figures


def draw_grid(mapped: Sequence[Area], arms: Sequence[Arm], metric: Metric) -> Figure:
    """Draw the maps of arms over two settings, in colours that all of them share.

    A run that diverged counts as a constant predictor. mapped: the arms over these settings. arms: all of the study.
    """
    drawn, more = take_first(mapped, MOST_PANELS, "panels")
    cells = [cells_of(area, metric) for area in drawn]
    whole = pd.concat(cells, ignore_index=True)
    left_out = mapped[len(drawn) :]
    cut = [area.arm.name for area in left_out]
    absent = tell_absent(arms, whole, cut, "not trained at every pair")
    y, x = mapped[0].names
    maps = []
    for area, cells_of_area in zip(drawn, cells, strict=True):
        levels, others = area.levels
        values = cells_of_area["mean"].to_numpy().reshape(len(levels), len(others))
        title = name_settings(area.arm, list(area.arm.settings))
        frame = pd.DataFrame(values, index=list(levels), columns=list(others))
        maps.append(Cells(title, frame, words_in(cells_of_area, metric), gid_of(area.arm, "")))
    limits = (whole["mean"].min(), whole["mean"].max())
    colors = MAP_COLORS if metric.lower_is_better else f"{MAP_COLORS}_r"
    canvas = grid(maps, x, y, metric.symbol, limits, colors=colors)
    best = [
        f"{area.arm.name} {write_best(area, cells_of_area, metric)}"
        for area, cells_of_area in zip(drawn, cells, strict=True)
    ]
    words = captions.map_of(metric, x=x, y=y, best=best)
    return Figure(f"map-{y}-{x}", words.title, [*words.sentences, *more, *absent], words.alt, canvas, whole)


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


def words_in(cells: pd.DataFrame, metric: Metric) -> list[str]:
    """Return what to write in each cell: a sign where runs were lost, else the mean; nothing where there is none."""
    digits = 2 if metric.decimals > 2 else 0
    words = []
    for cell in cells.itertuples():
        if cell.diverged:
            words.append("×")
        elif 2 * cell.train < cell.runs:
            words.append("–")
        elif np.isnan(cell.mean):  # its runs go on
            words.append("")
        else:
            words.append(f"{cell.mean:.{digits}f}")
    return words


def write_best(one: Area, cells: pd.DataFrame, metric: Metric) -> str:
    """Write the best mean, and where it is."""
    y, x = one.names
    means = cells["mean"]
    place = means.idxmin() if metric.lower_is_better else means.idxmax()
    best = cells.loc[place]
    mean = fixed(best["mean"], metric.decimals)
    return f"{mean}, at {y} {brief(best[y])} and {x} {brief(best[x])}"
