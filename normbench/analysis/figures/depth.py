"""Activations and gradients by depth at a few steps, and by step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normbench.analysis.figures.bands import Array, Band, Line, band_of, common_steps, line_of, said
from normbench.analysis.figures.canvas import Drawing, Grid, finish, grid
from normbench.analysis.figures.lettering import log_ticks
from normbench.analysis.figures.losses import counted, draw_band, few
from normbench.analysis.figures.selection import Panel, members, panels_of, shown
from normbench.analysis.records import Arm, Run

MOST_ROWS = 6  # of panels with three steps each
COLUMNS = ("arm", "step", "runs", "block", "mean", "low", "high")
OVER_STEPS = ("arm", "kind", "runs", "x", "mean", "low", "high")


@dataclass(frozen=True)
class Quantity:
    """Something that every block has. pattern: of its tags, with the block's number. joined: tags of one block as one.

    about: what the caption says of it.
    """

    name: str
    words: str
    unit: str
    pattern: re.Pattern[str]
    joined: Callable[[Array], Array]
    about: str


def mean_of(values: Array) -> Array:
    """Of several tags (tags, steps) their mean."""
    return np.asarray(values.mean(0))


def norm_of(values: Array) -> Array:
    """Of several tags (tags, steps), norms of parts of a block's gradient, that of the whole."""
    return np.asarray(np.sqrt((values**2).sum(0)))


QUANTITIES = (
    Quantity(
        "stream-rms", "RMS of the residual stream", "no unit", re.compile(r"act/stream(\d+)/rms"), mean_of,
        "Root mean square of the residual stream behind each block.",
    ),
    Quantity(
        "norm-output-rms", "RMS of the norms' outputs", "no unit", re.compile(r"act/block(\d+)(?:\.[^/]*)?/rms_out"),
        mean_of, "Root mean square of what the norms of a block give, their mean where it has several.",
    ),
    Quantity(
        "gradient-norm", "gradient norm", "nats per unit of weight", re.compile(r"grad/block(\d+)(?:\.[^/]*)?/norm"),
        norm_of, "Norm of the gradient of all weights of a block, before clipping.",
    ),
)  # fmt: skip


def depth_figures(arms: Sequence[Arm], choice: str) -> Iterator[Drawing]:
    """For each quantity a figure by depth; the stream and the gradients also by step."""
    for quantity in QUANTITIES:
        if (drawing := by_depth(arms, quantity, choice)) is not None:
            yield drawing
    over_steps = (
        by_step(arms, "stream-rms-steps", "RMS behind the last block", "no unit", last_stream, choice),
        by_step(arms, "gradient-norm-steps", "gradient norm", "nats per unit of weight", total_gradient, choice),
    )
    yield from (drawing for drawing in over_steps if drawing is not None)


# ---- by depth


def by_block(run: Run, quantity: Quantity) -> dict[int, Line]:
    """A run's values of a quantity over the steps, by block."""
    tags: dict[int, list[str]] = {}
    for tag in run.curves:
        if match := quantity.pattern.fullmatch(tag):
            tags.setdefault(int(match[1]), []).append(tag)
    return {block: joined_line(run, own, quantity) for block, own in sorted(tags.items())}


def joined_line(run: Run, tags: Sequence[str], quantity: Quantity) -> Line:
    """Tags of one block as one line, at the steps at which all were finite."""
    lines = [line for tag in tags if (line := line_of(run, tag)) is not None]
    steps = common_steps(lines)
    values = [line.y[np.searchsorted(line.steps, steps)] for line in lines]
    return Line(steps, steps.astype(float), quantity.joined(np.stack(values)) if values else np.array([]))


def by_depth(arms: Sequence[Arm], quantity: Quantity, choice: str) -> Drawing | None:
    """Blocks along the axis, a column of panels for each of three steps; None without two blocks that were probed."""
    panels, note = shown(panels_of(arms), MOST_ROWS)
    lines = {
        e.arm.name: [by_block(run, quantity) for run in members(e.arm.runs)] for panel in panels for e in panel.entries
    }
    steps = few_steps([line.steps for runs in lines.values() for run in runs for line in run.values()])
    steps = steps if len(panels) <= 3 else steps[:: len(steps) - 1 or 1]
    bands = {(name, step): profile(runs, step) for name, runs in lines.items() for step in steps}
    if not any(band is not None and len(band.x) > 1 for band in bands.values()):
        return None
    cells = [(panel, step) for panel in panels for step in steps]
    titles = [f"{panel.title} · step {step:,}" if panel.title else f"step {step:,}" for panel, step in cells]
    drawn = grid(titles, columns=len(steps), height=3.0 if len(panels) == 1 else 1.3)
    rows: list[Sequence[Any]] = []
    marked = few([band for band in bands.values() if band is not None])
    for (panel, step), one in zip(cells, drawn.axes, strict=True):
        one.locator_params(axis="x", integer=True)
        for e in panel.entries:
            found = draw_band(one, e, bands[e.arm.name, step], marked=marked)
            rows += [(arm, step, runs, int(x), *values) for arm, _, runs, x, *values in found]
    finish_log(panels, drawn, "block (0 is the first)", f"{quantity.words} ({quantity.unit})")
    return Drawing(
        f"{quantity.name}-depth",
        f"{capital(quantity.words)} by depth",
        f"{quantity.about} {said(list(bands.values()))}{choice}{note}",
        f"{capital(quantity.words)} against depth for {counted(panels)}, at steps {', '.join(map(str, steps))}.",
        drawn.canvas,
        COLUMNS,
        rows,
    )


def few_steps(recorded: Sequence[Any]) -> list[int]:
    """The first, the middle and the last of all steps."""
    steps = sorted(set(np.concatenate(recorded).tolist())) if recorded else []
    if len(steps) < 3:
        return steps
    middle = min(steps, key=lambda step: (abs(step - (steps[0] + steps[-1]) / 2), step))
    return sorted({steps[0], middle, steps[-1]})


def profile(runs: Sequence[dict[int, Line]], step: int) -> Band | None:
    """A quantity over the blocks at one step, over the seeds that have it."""
    lines = []
    for run in runs:
        found = [(block, line.y[line.steps == step].item()) for block, line in run.items() if step in line.steps]
        if found:
            blocks, values = np.array([block for block, _ in found]), np.array([value for _, value in found])
            lines.append(Line(blocks, blocks.astype(float), values))
    return band_of(lines)


# ---- by step


def last_stream(run: Run) -> Line | None:
    """The residual stream behind the last block."""
    blocks = by_block(run, QUANTITIES[0])
    return blocks[max(blocks)] if blocks else None


def total_gradient(run: Run) -> Line | None:
    """The norm of the whole gradient."""
    return line_of(run, "grad/norm")


def by_step(
    arms: Sequence[Arm], name: str, words: str, unit: str, read: Callable[[Run], Line | None], choice: str
) -> Drawing | None:
    """A quantity of the whole model over the steps; None where no arm has two points."""
    panels, note = shown(panels_of(arms))
    found = {e.arm.name: band_of([read(run) for run in members(e.arm.runs)]) for p in panels for e in p.entries}
    bands = [band for band in found.values() if band is not None]
    if not any(len(band.x) > 1 for band in bands):
        return None
    drawn = grid([panel.title for panel in panels])
    rows: list[Sequence[Any]] = []
    for panel, one in zip(panels, drawn.axes, strict=True):
        for e in panel.entries:
            rows += draw_band(one, e, found[e.arm.name], marked=few(bands))
    finish_log(panels, drawn, "optimizer steps", f"{words} ({unit})")
    return Drawing(
        name,
        f"{capital(words)} by step",
        f"{said(bands)}{choice}{note}",
        f"{capital(words)} against optimizer steps for {counted(panels)}.",
        drawn.canvas,
        OVER_STEPS,
        rows,
    )


def finish_log(panels: Sequence[Panel], drawn: Grid, x: str, y: str) -> None:
    """Finish a grid with a logarithmic value axis."""
    drawn.axes[0].set_yscale("log")
    log_ticks(drawn.axes[0].yaxis)
    finish(panels, drawn, x, y)


def capital(words: str) -> str:
    """With a capital letter in front."""
    return words[:1].upper() + words[1:]
