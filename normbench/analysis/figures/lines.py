"""Lines with bands over the seeds: losses by step and by time, activations and gradients by depth, parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from normbench.analysis.figures import style as grid
from normbench.analysis.figures.style import CAPTIONS, Drawing, Entry, Figure, Panel, described, members
from normbench.analysis.measures import by_block, evaluations_in_words, seconds_at
from normbench.analysis.records import Arm, Curve, Run, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 200  # of a band, at most; longer curves are averaged over neighbours
FEW = 12  # points of a line at most have a dot each
MOST_ROWS = 6  # of panels by depth

QUANTITIES: dict[str, list[str]] = CAPTIONS["quantities"]

Bands = Mapping[tuple[str, Any], pd.DataFrame]  # by the name of an arm, and what is drawn of it

# ---- several runs as one line with a band


def lines_of(run: Run, name: str) -> dict[int, Curve]:
    """Return a run's finite values of a figure, by step, epoch or seconds, for each block; 0: for the whole."""
    lines = {}
    for block, curve in by_block(run, QUANTITIES[name][0]).items():
        x = seconds_at(run, curve.steps) if name.endswith("time") else curve.steps
        if name.endswith("epochs"):
            x = x * run.config.get("trainer.accumulate", 1) / run.session["data"]["steps_per_epoch"]
        known = np.isfinite(x) & np.isfinite(curve.values)
        if known.any():
            lines[block] = Curve(x[known], curve.values[known])
    return lines


def at_step(blocks: Mapping[int, Curve], step: int) -> Curve:
    """Return a quantity over a run's blocks at one step."""
    found = {block: line.values[line.steps == step] for block, line in blocks.items()}
    return Curve(np.array([block for block, own in found.items() if len(own)]), np.concatenate([*found.values()]))


def band_of(lines: Sequence[Curve], between: bool = False) -> pd.DataFrame:
    """Return mean, lowest and highest of several lines where all have a value; of many places, means of neighbours.

    between: lines have values between two places, too, so that runs of unlike speed can be joined.
    """
    x, having = np.unique(np.concatenate([line.steps for line in lines]), return_counts=True)
    x = x if between else x[having == len(lines)]
    table = np.array([x, *(np.interp(x, *line, left=np.nan, right=np.nan) for line in lines)])
    table = table.compress(np.isfinite(table).all(axis=0), axis=1)
    x, y = table[0].astype(x.dtype), table[1:]
    if (size := -(-len(x) // POINTS)) > 1:
        x, *y = pd.DataFrame(table.T).groupby(np.arange(len(x)) // size).mean().to_numpy().T
    mean, low, high = (how(y, axis=0) for how in (np.mean, np.min, np.max))
    return pd.DataFrame({"runs": len(lines), "x": x, "mean": mean, "low": low, "high": high})


def ends_of_diverged(name: str, arm: Arm) -> pd.DataFrame:
    """Return the last finite points of the runs that diverged, with the columns of a band."""
    lines = [lines_of(run, name).get(0) for run in arm.runs if run.status == "diverged"]
    ends = [(1, line.steps[-1], *[line.values[-1]] * 3) for line in lines if line is not None]
    return pd.DataFrame(ends, columns=["runs", "x", "mean", "low", "high"])


# ---- a figure


def draw_lines(name: str, arms: Sequence[Arm], note: str) -> list[Figure]:
    """Draw a figure of each panel of one of the `QUANTITIES`; none where no line has two points."""
    axis = name.rpartition("-")[2]
    found = {arm.name: [blocks for run in members(arm) if (blocks := lines_of(run, name))] for arm in arms}
    having = grid.panels_of(arms, [arm for arm, runs in found.items() if runs])
    panels, more = grid.first(having, MOST_ROWS if axis == "depth" else grid.MOST_PANELS, "panels")
    kinds: list[Any] = three_steps(found.values()) if axis == "depth" else ["mean"]
    bands = {}
    for (_, entries), kind in product(panels, kinds):
        for arm in [entry.arm.name for entry in entries]:
            lines = [at_step(run, kind) if axis == "depth" else run[max(run)] for run in found[arm]]
            if lines := [line for line in lines if len(line.steps)]:
                bands[arm, kind] = band_of(lines, between=axis == "time")
    if not any(len(band) > 1 for band in bands.values()):
        return []
    if name.startswith("loss"):
        drawn = [entry.arm for _, entries in panels for entry in entries]
        bands |= {(arm.name, "diverged"): ends for arm in drawn if len(ends := ends_of_diverged(name, arm))}
    longest = max(len(line.steps) for runs in found.values() for run in runs for line in run.values())
    some = name.startswith(("loss-val", "bleu-val"))
    batches = evaluations_in_words(run for arm in arms for run in members(arm)) if some else ""
    facts = {"records": -(-longest // POINTS), "batches": batches, "arms": shortened([arm.name for arm in arms])}
    means = pd.DataFrame([{"arm": arm, "mean": band["mean"].max()} for (arm, _), band in bands.items()])
    how = {"lacks": "there is no time that all of its seeds have passed"} if axis == "time" else {}
    more += grid.absent(arms, means, grid.names_in(having[len(panels) :]), **how)
    return draw_bands(name, panels, bands, kinds, note=note + more, **facts)


def three_steps(found: Iterable[Sequence[Mapping[int, Curve]]]) -> list[int]:
    """Return the first, the middle and the last step at which some block has a value."""
    recorded = [line.steps for runs in found for run in runs for line in run.values()]
    steps = np.unique(np.concatenate(recorded)) if recorded else np.array([])
    wanted = [steps[0], steps[[0, -1]].mean(), steps[-1]] if recorded else []
    return list(dict.fromkeys(int(steps[np.abs(steps - place).argmin()]) for place in wanted))


def draw_bands(name: str, panels: Sequence[Panel], bands: Bands, kinds: Sequence[Any], **facts: Any) -> list[Figure]:
    """Draw means as lines and the seeds' ranges around them; of losses, crosses where runs diverged."""
    _, word, unit, scale, about = QUANTITIES[name]
    by, x = CAPTIONS["axes"][name.rpartition("-")[2]]
    by_depth = by == "depth"
    cells = [
        (f"{title} · step {kind:,}".removeprefix(" · ") if by_depth else title, entries, kind)
        for (title, entries), kind in product(panels, kinds)
    ]
    panes = grid.draw_panels([cell[:2] for cell in cells], x, word + f" ({unit})" * bool(unit))
    data = pd.concat(bands, names=["arm", "step" if by_depth else "kind"]).droplevel(2).reset_index()
    diverged, top = data.iloc[:, 1] == "diverged", np.inf
    means = data[~diverged]
    ends = means.groupby("arm")["mean"].last()
    if name.startswith("loss"):
        _, top = panes[0].set_ylim(loss_limits(means, ends))
    for (_, entries, kind), pane in zip(cells, panes, strict=True):
        for entry in entries:
            if (band := bands.get((entry.arm.name, kind))) is not None and len(band):
                draw_band(pane, band, entry, entries.index(entry) / len(entries))
            if (lost := bands.get((entry.arm.name, "diverged"))) is not None:
                cross: dict[str, Any] = {"markersize": 6, "markeredgewidth": 1.5, "clip_on": False}
                cross["gid"] = grid.gid_of(entry.arm, "diverged")
                pane.plot(lost["x"], lost["mean"].clip(upper=top), "x", color=entry.color, **cross)
    if scale == "log":
        grid.log_scale(panes[0], "y")
    if scale == "percent":
        panes[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
    if by_depth:
        panes[0].locator_params(axis="x", integer=True, min_n_ticks=2)
        data = data.rename(columns={"x": "block"})
    drawings = []
    for (title, entries, kind), pane in zip(cells, panes, strict=True):
        own = data[data["arm"].isin([entry.arm.name for entry in entries])]
        if by_depth:
            own = own[own["step"] == kind]
        last = own[own.iloc[:, 1] != "diverged"].groupby("arm")["mean"].last()
        drawn = [entry for entry in entries if entry.arm.name in last]
        grid.label_ends(pane, [(last[entry.arm.name], entry) for entry in drawn])
        told = grid.values_told({entry.label: f"{last[entry.arm.name]:.4g}" for entry in drawn})
        drawings.append(Drawing(pane, title, f"At the right end: {told}", own))
    facts |= {"word": word, "about": about, "by": by, "x": x, "steps": kinds if by_depth else []}
    facts |= {"seeds": (means["runs"].min(), means["runs"].max()), "crosses": diverged.any()}
    facts |= {"cut": means["high"].max() > top, "far": [*ends.index[ends > top]]}
    return described(name, "lines", drawings, **facts)


def draw_band(pane: Axes, band: pd.DataFrame, entry: Entry, shift: float) -> None:
    """Draw an arm's mean as a line and the seeds' range around it; shift: of its markers, a share of their distance."""
    last = band.iloc[-1]
    gid = grid.gid_of(entry.arm, f"{last['mean']:.4g} ({last['low']:.4g} to {last['high']:.4g}) at the end")
    some = None if len(band) <= FEW else (0.3 * shift, 0.3)
    line: dict[str, Any] = {"linestyle": entry.dash, "marker": entry.marker, "mfc": "none", "markevery": some}
    pane.plot(band["x"], band["mean"], color=entry.color, gid=gid, **line)
    pane.fill_between(band["x"], band["low"], band["high"], color=entry.color, alpha=0.18, linewidth=0, gid=gid)


def loss_limits(means: pd.DataFrame, ends: pd.Series) -> tuple[float, float]:
    """Return what the axis shows: not the first tenth of training, where all fall, nor arms that end far above."""
    close = means[means["arm"].isin(ends.index[ends <= grid.near(ends)[1]])]
    late = close[close["x"] >= 0.1 * means["x"].max()]
    late = late if len(late) else close  # all of them ended before, as they diverged
    bottom, top = means["low"].min(), min(late["high"].max(), means.groupby("arm")["mean"].first().max())
    pad = 0.05 * (top - bottom) or 0.05 * abs(top) or 0.05
    return bottom - pad, top + pad
