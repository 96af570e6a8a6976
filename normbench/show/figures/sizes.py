"""How differences from the baseline change with the number of parameters of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm, without_settings
from normbench.results.result import DifferenceAtSize, Scaling
from normbench.results.scaling import height_at
from normbench.results.statistics import Sample
from normbench.show.figures import captions
from normbench.show.figures.figure import Figure
from normbench.show.figures.plots import ROOM, Axis, Series, Subplot, draw_line, points
from normbench.show.figures.style import INK, MOST_PANELS, Entry, panels_of, take_first, tell_absent
from normbench.wording import fixed, precision, rounded_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 12  # of the edge of a band, on either side of the largest size
BESIDE = 1.25  # times the fewest and the most parameters: where the axis ends
TOO_FEW = "trained beside its baseline at fewer than three sizes"
WHOLE, DASHES = (0, ()), (0, (4, 2))  # of what was measured, and of what is extrapolated


def draw_sizes(ladders: Sequence[Scaling], arms: Sequence[Arm], notes: Sequence[str] = ()) -> list[Figure]:
    """Draw the difference of each arm at each size, its line, and where the line leads; nothing without ladders.

    arms: those that are compared; the caption names those that have no ladder. notes: sentences of the caption.
    """
    if not ladders:
        return []
    by_name = {ladder.arm: ladder for ladder in ladders}
    every = panels_of([arm_of(ladder, arms) for ladder in ladders])
    panels, more = take_first(every, MOST_PANELS, "panels")
    metric = ladders[0].metric
    data = data_of(ladders)
    absent = tell_absent(arms, data, lacks=TOO_FEW)
    subplots = []
    for panel in panels:
        series = []
        for place, entry in enumerate(panel.entries):
            shift = 1 + 0.04 * (place - (len(panel.entries) - 1) / 2)
            series.append(points_of(by_name[entry.arm.name], entry, shift))
        subplots.append(Subplot(panel.title, series))
    fewest = min(ladder.at_smallest.parameters for ladder in ladders)
    most = max(ladder.extrapolated.parameters for ladder in ladders)
    canvas = points(
        subplots,
        Axis("parameters of the model", "log", (fewest / BESIDE, most * BESIDE)),
        Axis(f"difference of the {metric.final_words} ({metric.unit})", limits=limits_of(data)),
        joined=False,
    )
    for panel, pane in zip(panels, canvas.axes, strict=True):
        pane.axhline(0, color=INK, linewidth=0.8)
        for entry in panel.entries:
            draw_ladder(pane, by_name[entry.arm.name], entry)
        mark_extrapolated(pane, max(by_name[name].at_largest.parameters for name in panel.names))
    lines = [f"{ladder.arm} {write_ends(ladder)}" for ladder in ladders]
    baselines = list(dict.fromkeys(ladder.baseline for ladder in ladders))
    words = captions.sizes(metric, baselines=baselines, lines=lines)
    return [Figure("sizes", words.title, [*words.sentences, *notes, *more, *absent], words.alt, canvas, data)]


def arm_of(ladder: Scaling, arms: Sequence[Arm]) -> Arm:
    """Return the arm of a ladder, named without the settings that make the sizes."""
    keys = ladder.sizes[0].settings
    of_all_sizes = [without_settings(arm, *keys) for arm in arms]
    return next(arm for arm in of_all_sizes if arm.name == ladder.arm)


def write_ends(ladder: Scaling) -> str:
    """Write where a line begins, where it ends, and where it leads."""
    numbers = []
    for place in (ladder.at_smallest, ladder.at_largest, ladder.extrapolated):
        value = fixed(place.mean, precision(place.mean, place.interval), sign=True)
        numbers.append(f"{value} at {rounded_count(place.parameters)}")
    start, end, beyond = numbers
    return f"{start} to {end}, extrapolated {beyond}"


def data_of(ladders: Sequence[Scaling]) -> pd.DataFrame:
    """Return a row for all that is drawn: each size's mean and seeds, and the points of the line."""
    rows = list[dict[str, Any]]()
    for ladder in ladders:
        both = {"arm": ladder.arm, "baseline": ladder.baseline}
        for measured in ladder.sizes:
            size = {**both, "parameters": measured.parameters}
            rows.append({**size, "kind": "mean", **summary_of(measured)})
            for seed, value in zip(ladder.seeds, measured.values, strict=True):
                rows.append({**size, "kind": "seed", "seed": seed, "difference": value})
        for kind, (first, last) in parts_of(ladder).items():
            for parameters in np.geomspace(first, last, POINTS):
                where = {**both, "parameters": round(parameters), "kind": kind}
                rows.append({**where, **summary_of(height_at(parameters, ladder.sizes, ladder.seeds))})
    return pd.DataFrame(rows)


def parts_of(ladder: Scaling) -> dict[str, tuple[float, float]]:
    """Return where the line begins and ends, and where what is extrapolated does, in parameters."""
    smallest, largest = ladder.at_smallest.parameters, ladder.at_largest.parameters
    return {"line": (smallest, largest), "extrapolated": (largest, ladder.extrapolated.parameters)}


def summary_of(place: Sample | DifferenceAtSize) -> dict[str, float]:
    """Return the mean of values and its interval; NaN where there is none."""
    low, high = place.interval or (np.nan, np.nan)
    return {"difference": place.mean, "low": low, "high": high}


def limits_of(data: pd.DataFrame) -> tuple[float, float]:
    """Return the limits of an axis that shows 0, what was measured and where the lines lead; bands may go on beyond."""
    measured = data[data["kind"] == "mean"]
    shown = pd.concat([data["difference"], measured["low"], measured["high"]]).dropna()
    low, high = min(0.0, shown.min()), max(0.0, shown.max())
    pad = ROOM * ((high - low) or 1)
    return low - pad, high + pad


def points_of(ladder: Scaling, entry: Entry, shift: float) -> Series:
    """Return the differences of an arm at each size.

    shift: what a point's place on the axis is multiplied by, so that arms do not hide each other.
    """
    rows = []
    for measured in ladder.sizes:
        low, high = measured.interval or (measured.mean, measured.mean)
        rows.append({"x": measured.parameters * shift, "mean": measured.mean, "low": low, "high": high})
    return Series(entry, pd.DataFrame(rows).assign(filled=ladder.real), write_ends(ladder))


def draw_ladder(pane: Axes, ladder: Scaling, entry: Entry) -> None:
    """Draw the line of an arm and its band, dashed where it is extrapolated."""
    for kind, (first, last) in parts_of(ladder).items():
        places = np.geomspace(first, last, POINTS)
        rows = pd.DataFrame([summary_of(height_at(place, ladder.sizes, ladder.seeds)) for place in places])
        rows = rows.rename(columns={"difference": "mean"}).assign(x=places)
        look = replace(entry, dash=DASHES if kind == "extrapolated" else WHOLE, marker="")
        draw_line(pane, Series(look, rows, write_ends(ladder)))


def mark_extrapolated(pane: Axes, largest: float) -> None:
    """Draw a line at the largest size that was trained, and say that what is beyond is extrapolated."""
    pane.axvline(largest * BESIDE**0.5, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
    how: dict[str, Any] = {"ha": "right", "va": "top"}  # words that began at the line would be cut at the edge
    pane.text(1.0, 1.0, "extrapolated", transform=pane.transAxes, **how)
