"""Lines with bands over the seeds: losses by step and by time, activations and gradients by depth, parameters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from normbench.analysis.figures import panels as grid
from normbench.analysis.figures.panels import Entry, Panel, members, panels_of
from normbench.analysis.figures.style import CAPTIONS, Drawing, describe
from normbench.analysis.measures import evaluations_in_words, finite, seconds_at
from normbench.analysis.records import Arm, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 200  # of a band, at most; longer curves are averaged over neighbours
FEW = 12  # points at most have a dot each
MOST_ROWS = 6  # of panels by depth
STEPS = "optimizer steps"

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


def line_of(run: Run, tag: str, *, by_time: bool = False) -> Line:
    """Return a run's finite values under a tag, by step or by seconds of training; empty where it has none."""
    curve = finite(run.curves.get(tag))
    x = seconds_at(run, curve.steps) if by_time else curve.steps
    return Line(x, curve.values) if np.isfinite(x).all() else Line(x[:0], x[:0])


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


# ---- drawing them


class Cell(NamedTuple):
    """What a panel shows. key: the second column of the data. crosses: ends of runs that diverged."""

    title: str
    key: str | int
    bands: Sequence[tuple[Entry, Band | None]]
    crosses: list[tuple[Entry, Line]]


def cells_of(panels: Sequence[Panel], bands: Mapping[str, Band | None]) -> list[Cell]:
    """Return a cell for each panel; bands: by the arm's name."""
    return [Cell(panel.title, "mean", [(e, bands[e.arm.name]) for e in panel.entries], []) for panel in panels]


def draw_bands(
    name: str, kind: str, cells: Sequence[Cell], x: str, word: str, *, note: str, keys: Mapping[str, str] | None = None,
    legend: bool = True, columns: int = 0, height: float = 0, **facts: object,
) -> Drawing | None:  # fmt: skip
    """Draw means as lines and the seeds' ranges around them; None where no band has two points.

    word: the key of the value's words. keys: other names of the data's columns.
    """
    bands = [band for cell in cells for _, band in cell.bands if band is not None]
    if not any(len(band.x) > 1 for band in bands):
        return None
    word, unit = CAPTIONS["words"][word]
    panels = [Panel(cell.title, [entry for entry, _ in cell.bands]) for cell in cells]
    handles = grid.legend_of(panels) if legend else {}
    canvas, panes = grid.draw_grid([cell.title for cell in cells], x, f"{word} ({unit})", handles, columns, height)
    bottom, top = loss_limits(bands) if kind == "loss" else (None, np.inf)
    rows: list[Sequence[object]] = []
    for cell, pane in zip(cells, panes, strict=True):
        shade(pane, cell)
        for entry, band in cell.bands:
            if band is None:
                continue
            marker = "o" if len(band.x) == 1 or max(len(other.x) for other in bands) <= FEW else ""
            pane.plot(band.x, band.mean, color=entry.color, linestyle=entry.dash, marker=marker, markersize=3)
            rows += [(entry.arm.name, cell.key, band.size, *point) for point in zip(*band[:4], strict=True)]
        for entry, (places, values) in cell.crosses:
            end, value = places[-1], values[-1]
            pane.plot(end, min(value, top), "x", color=entry.color, markersize=7, markeredgewidth=1.8, clip_on=False)
            rows.append((entry.arm.name, "diverged", 1, end, value, value, value))
    if kind == "loss":
        panes[0].set_ylim(bottom, top)
    elif kind != "parameter":
        panes[0].set_yscale("log")
        grid.log_ticks(panes[0].yaxis)
    fewest, most = min(band.size for band in bands), max(band.size for band in bands)
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    found = {
        "seeds": "One seed." if most == 1 else f"Line: mean of {count} seeds; band: from the lowest to the highest.",
        "cut": any(band.high.max() > top for band in bands), "records": max(band.records for band in bands),
        "crosses": any(cell.crosses for cell in cells), "arms": grid.counted(panels),
        "most": most, "x": x, "word": word,
    }  # fmt: skip
    data = [(keys or {}).get(column, column) for column in ("arm", "kind", "runs", "x", "mean", "low", "high")]
    return Drawing(name, *describe(kind, note, **found | facts), canvas, data, rows)


def shade(pane: Axes, cell: Cell) -> None:
    """Fill the bands of a panel at once: `fill_between` fits the axes anew to each, which takes ten times as long."""
    from matplotlib.collections import PolyCollection

    wide = [(entry.color, band) for entry, band in cell.bands if band is not None and band.size > 1]
    if wide:
        edges = [np.r_[np.c_[band.x, band.low], np.c_[band.x, band.high][::-1]] for _, band in wide]
        colors = [color for color, _ in wide]
        pane.add_collection(PolyCollection(edges, facecolors=colors, alpha=0.18, linewidths=0), autolim=False)
        pane.update_datalim(np.concatenate(edges))


def loss_limits(bands: Sequence[Band]) -> tuple[float, float]:
    """Return what the axis shows: all but the first tenth of training, where every loss falls from the same height."""
    bottom = min(float(band.low.min()) for band in bands)
    tenth = 0.1 * max(float(band.x[-1]) for band in bands)
    start = max(float(band.mean[0]) for band in bands)
    top = min(max((value for band in bands for value in band.high[band.x >= tenth]), default=start), start)
    pad = 0.05 * (top - bottom) or 0.05
    return bottom - pad, top + pad


def over_steps(name: str, word: str, arms: Sequence[Arm], read: Callable[[Run], Line], note: str) -> Drawing | None:
    """Draw a quantity of the whole model over the steps."""
    panels, more = grid.first_panels(panels_of(arms))
    cells = cells_of(panels, {arm.name: band_of(map(read, members(arm))) for arm in arms})
    return draw_bands(name, "steps", cells, STEPS, word, note=note + more)


# ---- losses


def loss_figures(arms: Sequence[Arm], note: str) -> Iterator[Drawing | None]:
    """Draw the training and the validation loss, by step and by training time; crosses end runs that diverged."""
    panels, more = grid.first_panels(panels_of(arms))
    batches = evaluations_in_words(run for arm in arms for run in members(arm))
    for axis, x in (("steps", STEPS), ("time", "training time (s)")):
        for word in ("loss-train", "loss-val"):
            by_time = axis == "time"
            read = partial(line_of, tag=word.replace("-", "/"), by_time=by_time)
            join = at_equal_times if by_time else at_common
            cells = cells_of(panels, {arm.name: band_of(map(read, members(arm)), join) for arm in arms})
            for panel, cell in zip(panels, cells, strict=True):
                ends = [(entry, read(run)) for entry in panel.entries for run in grid.diverged(entry.arm)]
                cell.crosses.extend((entry, end) for entry, end in ends if len(end.x))
            yield draw_bands(
                f"{word}-{axis}", "loss", cells, x, word, note=note + more, by_time=by_time,
                batches=batches if word == "loss-val" else "",
            )  # fmt: skip


# ---- blocks, by depth and by step


# Of what every block has: the tags, with the block's number, and what makes several tags of one block (tags, n) one.
QUANTITIES: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "stream-rms": (r"act/stream(\d+)/rms", partial(np.mean, axis=0)),
    "norm-output-rms": (r"act/block(\d+)(?:\.[^/]*)?/rms_out", partial(np.mean, axis=0)),
    "gradient-norm": (r"grad/block(\d+)(?:\.[^/]*)?/norm", partial(np.linalg.norm, axis=0)),
}


def by_block(run: Run, quantity: str) -> dict[int, Line]:
    """Return a run's values of a quantity over the steps, by block."""
    tags, join = QUANTITIES[quantity]
    lines: dict[int, list[Line]] = defaultdict(list)
    for tag in run.curves:
        if match := re.fullmatch(tags, tag):
            lines[int(match[1])].append(line_of(run, tag))
    joined = {block: at_common(own) for block, own in sorted(lines.items())}
    return {block: Line(x, join(y)) for block, (x, y) in joined.items()}


def last_stream(run: Run) -> Line:
    """Return the residual stream behind the last block over the steps."""
    return next(reversed(by_block(run, "stream-rms").values()), Line(np.array([]), np.array([])))


def depth_figures(arms: Sequence[Arm], note: str) -> Iterator[Drawing | None]:
    """Draw each quantity by depth; the stream and the gradients also by step."""
    for quantity in QUANTITIES:
        yield over_depth(arms, quantity, note)
    yield over_steps("stream-rms-steps", "last-stream-rms", arms, last_stream, note)
    yield over_steps("gradient-norm-steps", "gradient-norm", arms, partial(line_of, tag="grad/norm"), note)


def over_depth(arms: Sequence[Arm], quantity: str, note: str) -> Drawing | None:
    """Draw a quantity over the blocks, with a column of panels for each of three steps."""
    panels, more = grid.first_panels(panels_of(arms), MOST_ROWS)
    entries = [entry for panel in panels for entry in panel.entries]
    runs = {entry.arm.name: [by_block(run, quantity) for run in members(entry.arm)] for entry in entries}
    recorded = [line.x for own in runs.values() for blocks in own for line in blocks.values()]
    steps = first_middle_last(np.unique(np.concatenate(recorded)).tolist() if recorded else [])
    steps = steps if len(panels) <= 3 else steps[:: len(steps) - 1 or 1]
    cells = []
    for panel in panels:
        for step in steps:
            bands = [(e, band_of(at_step(blocks, step) for blocks in runs[e.arm.name])) for e in panel.entries]
            cells.append(Cell(" · ".join(filter(None, (panel.title, f"step {step:,}"))), step, bands, []))
    drawing = draw_bands(
        f"{quantity}-depth", "depth", cells, "block (0 is the first)", quantity, keys={"kind": "step", "x": "block"},
        columns=len(steps), height=3.0 if len(panels) == 1 else 1.3, note=note + more, steps=steps,
        arms=grid.counted(panels),
    )  # fmt: skip
    if drawing is not None:
        drawing.canvas.axes[0].locator_params(axis="x", integer=True)
    return drawing


def first_middle_last(steps: Sequence[int]) -> list[int]:
    """Return three of all steps, fewer where there are no more."""
    wanted = [steps[0], (steps[0] + steps[-1]) / 2, steps[-1]] if steps else []
    return sorted({min(steps, key=lambda step: abs(step - place)) for place in wanted})


def at_step(blocks: Mapping[int, Line], step: int) -> Line:
    """Return a quantity over a run's blocks at one step."""
    found = {block: line.y[line.x == step].item() for block, line in blocks.items() if step in line.x}
    return Line(np.array(list(found)), np.array(list(found.values())))


# ---- parameters of norms


def parameter_figures(arms: Sequence[Arm], note: str) -> Iterator[Drawing | None]:
    """Draw DyT's α and the norms' mean γ over the steps.

    Few arms have a panel each, with the range over the norms of the network; of many, the means are drawn.
    """
    for word, tags in (("alpha", r"norm/.+/alpha"), ("gamma", r"norm/.+/gamma_mean")):
        lines = {
            arm.name: [[line_of(run, tag) for tag in run.curves if re.fullmatch(tags, tag)] for run in members(arm)]
            for arm in arms
        }
        panels = [replace(p, entries=[e for e in p.entries if any(lines[e.arm.name])]) for p in panels_of(arms)]
        entries = [entry for panel in panels for entry in panel.entries]
        apart = len(entries) <= grid.MOST_PANELS
        if apart:
            panels = [Panel(entry.arm.name if arms[1:] else "", [entry]) for entry in entries]
            bands = {arm: band_of(line for run in runs for line in run) for arm, runs in lines.items()}
        else:
            means = {arm: [at_common(run) for run in runs if run] for arm, runs in lines.items()}
            bands = {arm: band_of(Line(line.x, line.y.mean(0)) for line in own) for arm, own in means.items()}
        shown, more = grid.first_panels([panel for panel in panels if panel.entries])
        yield draw_bands(
            f"{word}-steps", "parameter", cells_of(shown, bands), STEPS, word,
            legend=not apart, note=note + more, keys={"runs": "lines"}, apart=apart,
            arms=grid.listed([entry.arm.name for entry in entries]),
        )  # fmt: skip
