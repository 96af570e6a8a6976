"""Lines with bands over the seeds: losses by step and by time, activations and gradients by depth, parameters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from normbench.analysis.figures import panels as grid
from normbench.analysis.figures.panels import Panel, members
from normbench.analysis.figures.style import CAPTIONS, Drawing, described
from normbench.analysis.measures import evaluations_in_words, finite, seconds_at
from normbench.analysis.records import Arm, Run

POINTS = 200  # of a band, at most; longer curves are averaged over neighbours
FEW = 12  # points of a line at most have a dot each
MOST_ROWS = 6  # of panels by depth

QUANTITIES: dict[str, list[str]] = CAPTIONS["quantities"]

# ---- several runs as one line with a band


class Line(NamedTuple):
    """A curve: places (n,) on the x axis, increasing, and values (n,) or, of several lines, (lines, n)."""

    x: np.ndarray
    y: np.ndarray


class Band(NamedTuple):
    """Several lines as one. x, mean, low, high: (n,). size: number of lines. records: of a line, in one point."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    size: int
    records: int


def at_common(lines: Sequence[Line]) -> Line:
    """Return the places that all lines have, and their values there (lines, n)."""
    x = reduce(np.intersect1d, [line.x for line in lines])
    return Line(x, np.stack([line.y[np.searchsorted(line.x, x)] for line in lines]))


def at_equal_times(lines: Sequence[Line]) -> Line:
    """Return the times that every line covers, and the lines' values there (lines, n), between their records too.

    Where one has ended, a mean of the others would jump.
    """
    lines = [Line(pooled(line.x), pooled(line.y)) for line in lines]
    times = np.unique(np.concatenate([line.x for line in lines]))
    times = times[(times >= max(line.x[0] for line in lines)) & (times <= min(line.x[-1] for line in lines))]
    return Line(times, np.stack([np.interp(times, line.x, line.y) for line in lines]))


def band_of(lines: Iterable[Line], join: Callable[[Sequence[Line]], Line] = at_common) -> Band | None:
    """Return mean, lowest and highest of several lines where they are joined; None where they cannot be."""
    lines = [line for line in lines if len(line.x)]
    x, y = map(pooled, join(lines)) if lines else Line(np.array([]), np.array([]))
    if not len(x):
        return None
    return Band(x, y.mean(0), y.min(0), y.max(0), len(lines), -(-max(len(line.x) for line in lines) // POINTS))


def pooled(values: np.ndarray) -> np.ndarray:
    """Return means of neighbours along the last axis, so that at most `POINTS` are left."""
    size = -(-values.shape[-1] // POINTS)
    if size <= 1:
        return values
    starts = np.arange(0, values.shape[-1], size)
    means: np.ndarray = np.add.reduceat(values, starts, axis=-1) / np.diff([*starts, values.shape[-1]])
    return means


# ---- a figure


class Cell(NamedTuple):
    """A panel and the bands of its entries. key: the second column of the data."""

    panel: Panel
    key: str | int
    bands: Sequence[Band | None]


def draw_lines(name: str, arms: Sequence[Arm], note: str) -> Drawing | None:
    """Draw one of the figures of `QUANTITIES`; None where no line has two points."""
    axis = name.rpartition("-")[2]
    blocks = {arm.name: [by_block(run, name) for run in members(arm)] for arm in arms}
    having = grid.panels_of(arms, [arm for arm, found in blocks.items() if any(found)])
    panels, more = grid.first(having, MOST_ROWS if axis == "depth" else grid.MOST_PANELS, "panels")
    if axis == "depth":
        cells = depth_cells(panels, blocks)
    else:
        join = at_equal_times if axis == "time" else at_common
        bands = {arm: band_of([run[max(run)] for run in own if run], join) for arm, own in blocks.items()}
        cells = [Cell(panel, "mean", [bands[entry.arm.name] for entry in panel.entries]) for panel in panels]
    if not any(len(band.x) > 1 for cell in cells for band in cell.bands if band):
        return None
    batches = evaluations_in_words(run for arm in arms for run in members(arm)) if "loss-val" in name else ""
    return draw_cells(name, cells, note + more, arms=grid.counted(panels), batches=batches)


def by_block(run: Run, name: str) -> dict[int, Line]:
    """Return a run's finite values of a figure, by step or by seconds of training, for each block; 0: for the whole."""
    tags, by_time = QUANTITIES[name][0], name.endswith("time")
    lines: dict[int, list[Line]] = defaultdict(list)
    for tag, recorded in run.curves.items():
        if match := re.fullmatch(tags, tag):
            curve = finite(recorded)
            x = seconds_at(run, curve.steps) if by_time else curve.steps
            if len(x) and np.isfinite(x).all():
                lines[int(match[1]) if match.groups() else 0].append(Line(x, curve.values))
    joined = {block: at_common(own) for block, own in sorted(lines.items())}
    mean: Callable[..., Any] = np.linalg.norm if tags.startswith("grad/") else np.mean
    return {block: Line(x, mean(y, axis=0)) for block, (x, y) in joined.items()}


def depth_cells(panels: Sequence[Panel], blocks: Mapping[str, Sequence[Mapping[int, Line]]]) -> list[Cell]:
    """Return for each panel one at the first, the middle and the last step; blocks: of each run, by the arm's name."""
    recorded = [line.x for own in blocks.values() for run in own for line in run.values()]
    all_steps = np.unique(np.concatenate(recorded)) if recorded else np.array([])
    wanted = [all_steps[0], all_steps[[0, -1]].mean(), all_steps[-1]] if recorded else []
    cells = []
    for panel in panels:
        for step in dict.fromkeys(int(all_steps[np.abs(all_steps - place).argmin()]) for place in wanted):
            title = " · ".join(filter(None, (panel.title, f"step {step:,}")))
            bands = [band_of(at_step(run, step) for run in blocks[entry.arm.name]) for entry in panel.entries]
            cells.append(Cell(Panel(title, panel.entries), step, bands))
    return cells


def at_step(blocks: Mapping[int, Line], step: int) -> Line:
    """Return a quantity over a run's blocks at one step."""
    found = {block: line.y[line.x == step].item() for block, line in blocks.items() if step in line.x}
    return Line(np.array(list(found)), np.array(list(found.values())))


def draw_cells(name: str, cells: Sequence[Cell], note: str, **facts: object) -> Drawing:
    """Draw means as lines and the seeds' ranges around them; of losses, crosses where runs diverged."""
    _, word, unit, scale, about = QUANTITIES[name]
    by, x = CAPTIONS["axes"][name.rpartition("-")[2]]
    steps = list(dict.fromkeys(cell.key for cell in cells)) if by == "depth" else []
    canvas, panes = grid.draw_grid([cell.panel for cell in cells], x, f"{word} ({unit})", len(steps))
    bands = [band for cell in cells for band in cell.bands if band]
    losses = name.startswith("loss")
    bottom, top = loss_limits(bands) if losses else (0.0, np.inf)
    rows, crosses = [], []
    for cell, pane in zip(cells, panes, strict=True):
        for entry, band in zip(cell.panel.entries, cell.bands, strict=True):
            if band:
                marker = "o" if len(band.x) <= FEW else ""
                pane.plot(band.x, band.mean, color=entry.color, linestyle=entry.dash, marker=marker, markersize=3)
                around = np.r_[band.x, band.x[::-1]], np.r_[band.low, band.high[::-1]]
                pane.fill(*around, color=entry.color, alpha=0.18, linewidth=0)
                rows += [(entry.arm.name, cell.key, band.size, *point) for point in zip(*band[:4], strict=True)]
            for at, last in ends_of_diverged(name, entry.arm) if losses else ():
                pane.plot(at, min(last, top), "x", color=entry.color, markersize=7, markeredgewidth=2, clip_on=False)
                crosses.append((entry.arm.name, "diverged", 1, at, last, last, last))
    if losses:
        panes[0].set_ylim(bottom, top)
    if scale == "log":
        grid.log_scale(panes[0], "y")
    if steps:
        panes[0].locator_params(axis="x", integer=True)
    sizes = [band.size for band in bands]
    facts |= {"word": word, "about": about, "by": by, "x": x, "steps": steps, "crosses": crosses}
    facts |= {"seeds": (min(sizes), max(sizes)), "records": max(band.records for band in bands)}
    facts["cut"] = any(band.high.max() > top for band in bands)
    columns = ("arm", "step" if steps else "kind", "runs", "block" if steps else "x", "mean", "low", "high")
    return described(name, "lines", canvas, columns, [*rows, *crosses], note, **facts)


def ends_of_diverged(name: str, arm: Arm) -> list[tuple[float, float]]:
    """Return the last finite points of the runs that diverged."""
    found = [by_block(run, name) for run in arm.runs if run.status == "diverged"]
    return [(run[0].x[-1], run[0].y[-1]) for run in found if run]


def loss_limits(bands: Sequence[Band]) -> tuple[float, float]:
    """Return what the axis shows: all but the first tenth of training, where every loss falls from the same height."""
    bottom = min(float(band.low.min()) for band in bands)
    tenth = 0.1 * max(float(band.x[-1]) for band in bands)
    start = max(float(band.mean[0]) for band in bands)
    top = min(max((value for band in bands for value in band.high[band.x >= tenth]), default=start), start)
    pad = 0.05 * (top - bottom) or 0.05
    return bottom - pad, top + pad
