"""DyT's α and the norms' mean γ over time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from normbench.analysis.figures.bands import Line, band_of, common_steps, line_of
from normbench.analysis.figures.canvas import Drawing, finish, grid
from normbench.analysis.figures.losses import draw_band, few
from normbench.analysis.figures.selection import MOST_PANELS, Panel, members, panels_of, shown
from normbench.analysis.records import Arm, Run

COLUMNS = ("arm", "kind", "lines", "x", "mean", "low", "high")


@dataclass(frozen=True)
class Parameter:
    """A parameter of norms. pattern: of its tags, one for each norm of the network."""

    name: str
    title: str
    words: str
    pattern: re.Pattern[str]


PARAMETERS = (
    Parameter("alpha", "α", "α", re.compile(r"norm/.+/alpha")),
    Parameter("gamma", "Mean γ", "mean γ", re.compile(r"norm/.+/gamma_mean")),
)


def parameter_figures(arms: Sequence[Arm], choice: str) -> Iterator[Drawing]:
    """A figure for each parameter that norms of the study have."""
    for parameter in PARAMETERS:
        if (drawing := over_steps(arms, parameter, choice)) is not None:
            yield drawing


def lines_of(run: Run, parameter: Parameter) -> list[Line]:
    """One line for each norm of the network."""
    found = (line_of(run, tag) for tag in run.curves if parameter.pattern.fullmatch(tag))
    return [line for line in found if line is not None]


def mean_line(lines: Sequence[Line]) -> Line | None:
    """The mean over the norms of a network."""
    band = band_of(lines)
    return None if band is None else Line(common_steps(lines), band.x, band.mean)


def over_steps(arms: Sequence[Arm], parameter: Parameter, choice: str) -> Drawing | None:
    """A parameter over the steps; None where no arm has two points.

    Few arms have a panel each, with the range over the norms of the network; of many, the means are drawn.
    """
    lines = {arm.name: [lines_of(run, parameter) for run in members(arm.runs)] for arm in arms}
    every = [panel for panel in panels_of(arms)]
    entries = [e for panel in every for e in panel.entries if any(lines[e.arm.name])]
    apart = len(entries) <= MOST_PANELS
    if apart:
        panels, note = tuple(Panel(e.arm.name if arms[1:] else "", (e,)) for e in entries), ""
        bands = {name: band_of([line for run in runs for line in run]) for name, runs in lines.items()}
    else:
        panels, note = shown([panel for panel in every if any(lines[e.arm.name] for e in panel.entries)])
        bands = {name: band_of([mean_line(run) for run in runs]) for name, runs in lines.items()}
    having = [band for band in bands.values() if band is not None]
    if not any(len(band.x) > 1 for band in having):
        return None
    drawn = grid([panel.title for panel in panels])
    rows: list[Sequence[Any]] = []
    for panel, one in zip(panels, drawn.axes, strict=True):
        for e in panel.entries:
            rows += draw_band(one, e, bands[e.arm.name], marked=few(having))
    finish(panels, drawn, "optimizer steps", f"{parameter.words} (no unit)", legend=not apart)
    spread = (
        RANGE
        if apart
        else "Line: mean over the norms of the network and the seeds; band: from the lowest seed to the highest."
    )
    return Drawing(
        f"{parameter.name}-steps",
        f"{parameter.title} of the norms by step",
        f"{spread}{choice}{note}",
        f"{parameter.title} of the norms against optimizer steps for {', '.join(e.arm.name for e in entries[:12])}.",
        drawn.canvas,
        COLUMNS,
        rows,
    )


RANGE = "Line: mean over the norms of the network and the seeds; band: from the lowest norm to the highest."
