"""How differences from the baseline change with the number of parameters of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.results.scaling import Ladder
from normbench.results.statistics import Sample
from normbench.show.figures import captions
from normbench.show.figures.figure import Drawing, Figure, make_figures, write_values
from normbench.show.figures.panes import ROOM, draw_panels, gid_of, log_scale
from normbench.show.figures.style import INK, MOST_PANELS, Entry, panels_of, take_first, tell_absent
from normbench.wording import fixed, precision, rounded_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 12  # of the edge of a band, on either side of the largest size
BESIDE = 1.25  # times the fewest and the most parameters: where the axis ends
TOO_FEW = "trained beside its baseline at fewer than three sizes"
DASHES = (0, (4, 2))  # of what is extrapolated


def draw_sizes(ladders: Sequence[Ladder], arms: Sequence[Arm], note: str) -> list[Figure]:
    """Draw the difference of each arm at each size, its line, and where the line leads; nothing without ladders.

    arms: those that are compared; the caption names those that have no ladder.
    """
    if not ladders:
        return []
    by_name = {ladder.arm.name: ladder for ladder in ladders}
    every = panels_of([ladder.arm for ladder in ladders])
    panels, more = take_first(every, MOST_PANELS, "panels")
    metric = ladders[0].metric
    data = data_of(ladders)
    more += tell_absent(arms, data, lacks=TOO_FEW)
    panes = draw_panels(panels, "parameters of the model", f"difference of the {metric.final_words} ({metric.unit})",
                        named="points")  # fmt: skip
    set_limits(panes[0], data, ladders)
    drawings = []
    for panel, pane in zip(panels, panes, strict=True):
        pane.axhline(0, color=INK, linewidth=0.8)
        told = {}
        for place, entry in enumerate(panel.entries):
            ladder = by_name[entry.arm.name]
            shift = 1 + 0.04 * (place - (len(panel.entries) - 1) / 2)
            draw_ladder(pane, ladder, entry, shift)
            told[entry.label] = write_ends(ladder)
        mark_extrapolated(pane, max(by_name[name].largest for name in panel.names))
        own = data[data["arm"].isin(panel.names)]
        drawings.append(Drawing(pane, panel.title, f"On the lines: {write_values(told)}", own))
    log_scale(panes[0], "x")
    lines = [f"{ladder.arm.name} {write_ends(ladder)}" for ladder in ladders]
    baselines = list(dict.fromkeys(ladder.baseline.name for ladder in ladders))
    words = captions.sizes(metric, baselines=baselines, lines=lines)
    return make_figures("sizes", words.title, words.caption + note + more, words.alt, drawings)


def write_ends(ladder: Ladder) -> str:
    """Write where a line begins, where it ends, and where it leads."""
    numbers = []
    for parameters in (ladder.smallest, ladder.largest, ladder.further):
        sample = ladder.at(parameters)
        value = fixed(sample.mean, precision(sample.mean, sample.interval), sign=True)
        numbers.append(f"{value} at {rounded_count(parameters)}")
    start, end, beyond = numbers
    return f"{start} to {end}, extrapolated {beyond}"


def data_of(ladders: Sequence[Ladder]) -> pd.DataFrame:
    """Return a row for all that is drawn: each size's mean and seeds, and the points of the line."""
    rows = list[dict[str, Any]]()
    for ladder in ladders:
        both = {"arm": ladder.arm.name, "baseline": ladder.baseline.name}
        for rung in ladder.rungs:
            size = {**both, "parameters": rung.parameters}
            rows.append({**size, "kind": "mean", **summary_of(rung.sample)})
            for seed, value in zip(rung.sample.seeds, rung.sample.values, strict=True):
                rows.append({**size, "kind": "seed", "seed": seed, "difference": value})
        for kind, (first, last) in parts_of(ladder).items():
            for parameters in np.geomspace(first, last, POINTS):
                where = {**both, "parameters": round(parameters), "kind": kind}
                rows.append({**where, **summary_of(ladder.at(parameters))})
    return pd.DataFrame(rows)


def parts_of(ladder: Ladder) -> dict[str, tuple[float, float]]:
    """Return where the line begins and ends, and where what is extrapolated does, in parameters."""
    return {"line": (ladder.smallest, ladder.largest), "extrapolated": (ladder.largest, ladder.further)}


def summary_of(sample: Sample) -> dict[str, float]:
    """Return the mean of values and its interval; NaN where there is none."""
    low, high = sample.interval or (np.nan, np.nan)
    return {"difference": sample.mean, "low": low, "high": high}


def set_limits(pane: Axes, data: pd.DataFrame, ladders: Sequence[Ladder]) -> None:
    """Let axes show 0, what was measured and where the lines lead; bands may go on beyond."""
    measured = data[data["kind"] == "mean"]
    shown = pd.concat([data["difference"], measured["low"], measured["high"]]).dropna()
    low, high = min(0.0, shown.min()), max(0.0, shown.max())
    pad = ROOM * ((high - low) or 1)
    pane.set_ylim(low - pad, high + pad)
    fewest = min(ladder.smallest for ladder in ladders)
    most = max(ladder.further for ladder in ladders)
    pane.set_xlim(fewest / BESIDE, most * BESIDE)


def draw_ladder(pane: Axes, ladder: Ladder, entry: Entry, shift: float) -> None:
    """Draw the differences at each size, the line, dashed where it is extrapolated, and its band.

    shift: what a point's place on the axis is multiplied by, so that arms do not hide each other.
    """
    look: dict[str, Any] = {"color": entry.color, "gid": gid_of(entry.arm, write_ends(ladder))}
    for kind, (first, last) in parts_of(ladder).items():
        places = np.geomspace(first, last, POINTS)
        points = pd.DataFrame([summary_of(ladder.at(place)) for place in places])
        dashes: Any = DASHES if kind == "extrapolated" else "-"
        pane.plot(places, points["difference"], linestyle=dashes, **look)
        pane.fill_between(places, points["low"], points["high"], alpha=0.12, linewidth=0, **look)
    for rung in ladder.rungs:
        at = rung.parameters * shift
        sample = rung.sample
        if sample.interval:
            pane.plot([at, at], sample.interval, linewidth=0.8, **look)
        pane.plot(at, sample.mean, entry.marker, markersize=5, mfc=entry.color if ladder.real else "none", **look)


def mark_extrapolated(pane: Axes, largest: float) -> None:
    """Draw a line at the largest size that was trained, and say that what is beyond is extrapolated."""
    pane.axvline(largest * BESIDE**0.5, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
    how: dict[str, Any] = {"transform": pane.get_xaxis_transform(), "va": "bottom"}
    pane.text(largest * BESIDE, 1.01, "extrapolated", **how)
