"""Loss curves: by step and by training time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normbench.analysis.evaluation import evaluations_in_words
from normbench.analysis.figures.bands import Band, Line, band_of, band_over_time, line_of, said
from normbench.analysis.figures.canvas import Drawing, finish, grid
from normbench.analysis.figures.selection import Entry, Panel, diverged, members, panels_of, shown
from normbench.analysis.records import Arm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPLITS = {"train": "training", "val": "validation"}
AXES = {"steps": "optimizer steps", "time": "training time (s)"}
COLUMNS = ("arm", "kind", "runs", "x", "mean", "low", "high")


def loss_curves(arms: Sequence[Arm], choice: str) -> Iterator[Drawing]:
    """Training and validation loss, by step and by time; choice: what the caption says of the learning rates."""
    for axis in AXES:
        for split in SPLITS:
            drawing = loss_curve(arms, split, axis, choice)
            if drawing is not None:
                yield drawing


def loss_curve(arms: Sequence[Arm], split: str, axis: str, choice: str) -> Drawing | None:
    """One of them; None where no arm has two points."""
    tag, by_time = f"loss/{split}", axis == "time"
    gathered = band_over_time if by_time else band_of
    panels, note = shown(panels_of(arms))
    found = {
        e.arm.name: gathered([line_of(run, tag, by_time=by_time) for run in members(e.arm.runs)])
        for panel in panels
        for e in panel.entries
    }
    ends = {e.arm.name: ends_of(e.arm, tag, by_time) for panel in panels for e in panel.entries}
    bands = [band for band in found.values() if band is not None]
    if not any(len(band.x) > 1 for band in bands):
        return None
    drawn = grid([panel.title for panel in panels])
    bottom, top = limits(bands)
    rows: list[Sequence[Any]] = []
    for panel, one in zip(panels, drawn.axes, strict=True):
        for e in panel.entries:
            rows += draw_band(one, e, found[e.arm.name], marked=few(bands))
            rows += draw_ends(one, e, ends[e.arm.name], top)
        one.set_ylim(bottom, top)
    finish(panels, drawn, AXES[axis], f"{SPLITS[split]} loss (nats)")
    cut = any(band.high.max() > top for band in bands)
    return Drawing(
        f"loss-{split}-{axis}",
        f"{SPLITS[split].capitalize()} loss by {'training time' if by_time else 'step'}",
        caption(bands, any(ends.values()), cut)
        + read_by(arms, split, by_time and any(band.count > 1 for band in bands))
        + choice
        + note,
        f"Curves of the {SPLITS[split]} loss against {AXES[axis]} for {counted(panels)}.",
        drawn.canvas,
        COLUMNS,
        rows,
    )


def ends_of(arm: Arm, tag: str, by_time: bool) -> list[Line]:
    """The last value of each run that diverged."""
    lines = [line_of(run, tag, by_time=by_time) for run in diverged(arm.runs)]
    return [Line(line.steps[-1:], line.x[-1:], line.y[-1:]) for line in lines if line is not None]


def limits(bands: Sequence[Band]) -> tuple[float, float]:
    """What the loss axis shows: all but the first tenth of training, where every loss falls from the same height."""
    bottom = min(float(band.low.min()) for band in bands)
    end = max(float(band.x[-1]) for band in bands)
    later = [band.high[band.x >= 0.1 * end] for band in bands]
    start = max(float(band.mean[0]) for band in bands)
    top = min(max((float(part.max()) for part in later if len(part)), default=start), start)
    pad = 0.05 * (top - bottom) or 0.05
    return bottom - pad, top + pad


def draw_band(axes: Axes, entry: Entry, band: Band | None, *, marked: bool) -> list[Sequence[Any]]:
    """The mean as a line, the seeds' range around it; the rows of what is drawn. marked: with a dot for each point."""
    if band is None:
        return []
    marker = "o" if marked or len(band.x) == 1 else "none"
    axes.plot(band.x, band.mean, color=entry.color, linestyle=entry.dash, marker=marker, markersize=3)
    if band.count > 1:
        shade(axes, band, entry.color)
    columns = zip(band.x, band.mean, band.low, band.high, strict=True)
    return [(entry.arm.name, "mean", band.count, *values) for values in columns]


def shade(axes: Axes, band: Band, color: str) -> None:
    """Fill the range of a band; its corners alone tell the axes how far it reaches, which is faster."""
    from matplotlib.collections import PolyCollection

    edge = np.stack([np.r_[band.x, band.x[::-1]], np.r_[band.low, band.high[::-1]]], axis=1)
    axes.add_collection(PolyCollection([edge], facecolor=color, alpha=0.18, linewidth=0), autolim=False)
    axes.update_datalim([(band.x[0], band.low.min()), (band.x[-1], band.high.max())])


def few(bands: Sequence[Band]) -> bool:
    """Whether the points are so few that each gets a dot."""
    return max(len(band.x) for band in bands) <= 12


def draw_ends(axes: Axes, entry: Entry, ends: Sequence[Line], top: float) -> list[Sequence[Any]]:
    """A cross where each diverged run had its last finite value, at the upper edge where that is above it."""
    rows: list[Sequence[Any]] = []
    for line in ends:
        x, y = float(line.x[0]), float(line.y[0])
        axes.plot([x], [min(y, top)], color=entry.color, marker="x", markersize=7, markeredgewidth=1.8, clip_on=False)
        rows.append((entry.arm.name, "diverged", 1, x, y, y, y))
    return rows


def caption(bands: Sequence[Band], crosses: bool, cut: bool) -> str:
    """How to read the curves."""
    words, pooled = said(bands), max(band.pooled for band in bands)
    if pooled > 1:
        words += f" Each point is the mean of up to {pooled} records."
    if crosses:
        words += " ×: the last finite loss of a run that diverged, which is in no mean unless all of its arm did."
    if cut:
        words += " The first steps, above the axis, are in the data."
    return words


def read_by(arms: Sequence[Arm], split: str, timed: bool) -> str:
    """What else a reader must know: how seeds of unlike speed are joined, and that the last validation is another."""
    words = " Means at equal times, up to where the first seed of an arm has ended." if timed else ""
    if split == "val" and (batches := evaluations_in_words(run for arm in arms for run in members(arm.runs))):
        words += f" Evaluated on {batches} on the way, and on all validation data at the last point."
    return words


def counted(panels: Sequence[Panel]) -> str:
    """Such as `rmsnorm, layernorm in 3 panels (pre, post, deep)`."""
    labels = list(dict.fromkeys(e.label for panel in panels for e in panel.entries))
    listed = ", ".join(labels[:12]) + (f" and {len(labels) - 12} more" if len(labels) > 12 else "")
    return listed + (f" in {len(panels)} panels ({', '.join(p.title for p in panels)})" if len(panels) > 1 else "")
