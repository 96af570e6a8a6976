"""Lines with bands over the seeds: losses by step and by time, activations and gradients by depth, parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from normbench.analysis.figures import captions
from normbench.analysis.figures import style as grid
from normbench.analysis.figures.style import Drawing, Entry, Figure, Panel, in_figures, members
from normbench.analysis.measures import by_block, evaluations_in_words, seconds_at
from normbench.analysis.records import Arm, Curve, RecordedRun, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 200  # of a band, at most; longer curves are averaged over neighbours
FEW = 12  # points of a line at most have a dot each
MOST_ROWS = 6  # of panels by depth

Lines = Mapping[int, Curve]  # of one run, by block; 0: of the whole network
Bands = dict[tuple[str, Any], pd.DataFrame]  # by the name of an arm, and what is drawn of it

# ---- what is drawn


@dataclass(frozen=True)
class Quantity:
    """What a figure of lines draws.

    tags: of what is drawn. Tags with a number are of blocks; of several that have the same number, or none, the mean is
    drawn, of gradients the norm. word: what it is. about: what a caption explains.
    """

    tags: str
    word: str
    unit: str = ""
    scale: Literal["linear", "log", "percent"] = "linear"
    about: str = ""

    @property
    def label(self) -> str:
        """Return the words of its axis."""
        return f"{self.word} ({self.unit})" if self.unit else self.word


# By the name of a figure, in the report's order. Its last word is that of its axis.
QUANTITIES = {
    "loss-val-steps": Quantity("loss/val", "validation loss", "nats"),
    "bleu-val-epochs": Quantity(
        "bleu/val", "validation BLEU", "points", about="Of the translations that beam search finds."
    ),
    "accuracy-val-steps": Quantity("accuracy/val", "validation accuracy", "%", "percent"),
    "loss-train-steps": Quantity("loss/train", "training loss", "nats"),
    "loss-val-time": Quantity("loss/val", "validation loss", "nats"),
    "loss-train-time": Quantity("loss/train", "training loss", "nats"),
    "stream-rms-depth": Quantity(
        r"act/stream(\d+)/rms",
        "RMS of the residual stream",
        scale="log",
        about="Root mean square of the residual stream after each block.",
    ),
    "norm-output-rms-depth": Quantity(
        r"act/block(\d+)(?:\.[^/]*)?/rms_out",
        "RMS of the norms' outputs",
        scale="log",
        about="Root mean square of what the norms of a block give, their mean where it has several.",
    ),
    "gradient-norm-depth": Quantity(
        r"grad/block(\d+)(?:\.[^/]*)?/norm",
        "gradient norm",
        scale="log",
        about="Norm of the gradient of all weights of a block, before clipping, in nats per unit of weight.",
    ),
    "stream-rms-steps": Quantity(r"act/stream(\d+)/rms", "RMS after the last block", scale="log"),
    "gradient-norm-steps": Quantity(
        "grad/norm",
        "gradient norm",
        scale="log",
        about="Of all weights, before clipping, in nats per unit of weight.",
    ),
    "alpha-steps": Quantity("norm/.+/alpha", "mean α of the norms", about="Mean over the norms of the network."),
    "gamma-steps": Quantity("norm/.+/gamma_mean", "mean γ of the norms", about="Mean over the norms of the network."),
}

# By the last word of a figure's name: what a title calls its axis, and the axis's own words.
AXES = {
    "steps": ("step", "optimizer steps"),
    "epochs": ("epoch", "epochs"),
    "time": ("training time", "training time (s)"),
    "depth": ("depth", "block (0 is the first)"),
}


def axis_of(name: str) -> str:
    """Return the key in AXES of a figure's axis."""
    return name.rpartition("-")[2]


# ---- several runs as one line with a band


def lines_of(run: RecordedRun, name: str) -> dict[int, Curve]:
    """Return a run's finite values of a figure, by step, epoch or seconds, for each block; 0: for the whole."""
    lines = {}
    for block, curve in by_block(run, QUANTITIES[name].tags).items():
        x = curve.steps
        if axis_of(name) == "time":
            x = seconds_at(run, curve.steps)
        elif axis_of(name) == "epochs":
            batches = curve.steps * run.config.get("trainer.accumulate", 1)
            x = batches / run.session["data"]["steps_per_epoch"]
        known = np.isfinite(x) & np.isfinite(curve.values)
        if known.any():
            lines[block] = Curve(x[known], curve.values[known])
    return lines


def at_step(blocks: Lines, step: int) -> Curve:
    """Return a quantity over a run's blocks at one step."""
    numbers, values = [], []
    for block, line in blocks.items():
        own = line.values[line.steps == step]
        values.append(own)
        if len(own):
            numbers.append(block)
    return Curve(np.array(numbers), np.concatenate(values))


def band_of(lines: Sequence[Curve], between: bool = False) -> pd.DataFrame:
    """Return mean, lowest and highest of several lines where all have a value; of many places, means of neighbours.

    between: lines have values between two places, too, so that runs of unlike speed can be joined.
    """
    x, having = np.unique(np.concatenate([line.steps for line in lines]), return_counts=True)
    if not between:
        x = x[having == len(lines)]
    values = [np.interp(x, line.steps, line.values, left=np.nan, right=np.nan) for line in lines]
    table = np.array([x, *values])
    known = np.isfinite(table).all(axis=0)
    table = table.compress(known, axis=1)
    x, y = table[0].astype(x.dtype), table[1:]
    size = -(-len(x) // POINTS)
    if size > 1:
        groups = np.arange(len(x)) // size
        x, *y = pd.DataFrame(table.T).groupby(groups).mean().to_numpy().T
    columns = {"x": x, "mean": np.mean(y, axis=0), "low": np.min(y, axis=0), "high": np.max(y, axis=0)}
    return pd.DataFrame({"runs": len(lines), **columns})


def ends_of_diverged(name: str, arm: Arm) -> pd.DataFrame:
    """Return the last finite points of the runs that diverged, with the columns of a band."""
    ends = []
    for run in arm.runs:
        if run.status != "diverged":
            continue
        line = lines_of(run, name).get(0)
        if line is not None:
            value = line.values[-1]
            ends.append((1, line.steps[-1], value, value, value))
    return pd.DataFrame(ends, columns=["runs", "x", "mean", "low", "high"])


def three_steps(found: Iterable[Sequence[Lines]]) -> list[int]:
    """Return the first, the middle and the last step at which some block has a value."""
    recorded = [line.steps for runs in found for run in runs for line in run.values()]
    if not recorded:
        return []
    steps = np.unique(np.concatenate(recorded))
    wanted = (steps[0], (steps[0] + steps[-1]) / 2, steps[-1])
    nearest = [int(steps[np.abs(steps - place).argmin()]) for place in wanted]
    return list(dict.fromkeys(nearest))


def bands_of(name: str, found: Mapping[str, Sequence[Lines]], panels: Sequence[Panel], kinds: Sequence[Any]) -> Bands:
    """Return a band for each arm in some panels. found: the lines of its runs. kinds: steps, of lines by depth."""
    bands: Bands = {}
    for _, entries in panels:
        for kind in kinds:
            for entry in entries:
                arm = entry.arm.name
                if axis_of(name) == "depth":
                    lines = [at_step(run, kind) for run in found[arm]]
                else:
                    lines = [run[max(run)] for run in found[arm]]
                lines = [line for line in lines if len(line.steps)]
                if lines:
                    bands[arm, kind] = band_of(lines, between=axis_of(name) == "time")
    return bands


# ---- a figure


def draw_lines(name: str, arms: Sequence[Arm], note: str) -> list[Figure]:
    """Draw a figure of each panel of one of the `QUANTITIES`; none where no line has two points."""
    axis = axis_of(name)
    found = {}
    for arm in arms:
        lines = [lines_of(run, name) for run in members(arm)]
        found[arm.name] = [own for own in lines if own]
    every = grid.panels_of(arms, [arm for arm, runs in found.items() if runs])
    panels, more = grid.first(every, MOST_ROWS if axis == "depth" else grid.MOST_PANELS, "panels")
    kinds: list[Any] = three_steps(found.values()) if axis == "depth" else ["mean"]
    bands = bands_of(name, found, panels, kinds)
    if not any(len(band) > 1 for band in bands.values()):
        return []
    if name.startswith("loss"):
        for _, entries in panels:
            for entry in entries:
                ends = ends_of_diverged(name, entry.arm)
                if len(ends):
                    bands[entry.arm.name, "diverged"] = ends
    drawn = pd.DataFrame([{"arm": arm, "mean": band["mean"].max()} for (arm, _), band in bands.items()])
    cut = grid.names_in(every[len(panels) :])
    why = "there is no time that all of its seeds have passed" if axis == "time" else grid.NOT_RECORDED
    more += grid.absent(arms, drawn, cut, why)
    longest = max(len(line.steps) for runs in found.values() for run in runs for line in run.values())
    batches = ""
    if name.startswith(("loss-val", "bleu-val")):
        batches = evaluations_in_words(run for arm in arms for run in members(arm))
    facts = {"records": -(-longest // POINTS), "batches": batches, "arms": shortened([arm.name for arm in arms])}
    return draw_bands(name, panels, bands, kinds, note=note + more, **facts)


@dataclass(frozen=True)
class Cell:
    """A panel of lines. kind: the step that it shows, of lines by depth."""

    title: str
    entries: Sequence[Entry]
    kind: Any

    @property
    def names(self) -> list[str]:
        """Return the names of its arms."""
        return [entry.arm.name for entry in self.entries]


def cells_of(panels: Sequence[Panel], kinds: Sequence[Any], by_depth: bool) -> list[Cell]:
    """Return a cell for each panel and kind."""
    cells = []
    for title, entries in panels:
        for kind in kinds:
            words = [title, f"step {kind:,}"] if by_depth else [title]
            cells.append(Cell(" · ".join(filter(None, words)), entries, kind))
    return cells


def draw_bands(
    name: str, panels: Sequence[Panel], bands: Bands, kinds: Sequence[Any], *, note: str, **facts: Any
) -> list[Figure]:
    """Draw means as lines and the seeds' ranges around them; of losses, crosses where runs diverged.

    note: the caption's end. facts: what else it tells.
    """
    quantity = QUANTITIES[name]
    by, x = AXES[axis_of(name)]
    by_depth = by == "depth"
    cells = cells_of(panels, kinds, by_depth)
    panes = grid.draw_panels([(cell.title, cell.entries) for cell in cells], x, quantity.label)
    data = pd.concat(bands, names=["arm", "step" if by_depth else "kind"]).droplevel(2).reset_index()
    diverged = data.iloc[:, 1] == "diverged"
    means = data[~diverged]
    ends = means.groupby("arm")["mean"].last()
    top = np.inf
    if name.startswith("loss"):
        _, top = panes[0].set_ylim(loss_limits(means, ends))
    for cell, pane in zip(cells, panes, strict=True):
        for place, entry in enumerate(cell.entries):
            draw_arm(pane, entry, bands, cell.kind, place / len(cell.entries), top)
    if quantity.scale == "log":
        grid.log_scale(panes[0], "y")
    elif quantity.scale == "percent":
        panes[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
    if by_depth:
        panes[0].locator_params(axis="x", integer=True, min_n_ticks=2)
        data = data.rename(columns={"x": "block"})
    drawings = [finish_panel(cell, pane, data, by_depth) for cell, pane in zip(cells, panes, strict=True)]
    words = captions.lines(
        word=quantity.word,
        by=by,
        x=x,
        about=quantity.about,
        seeds=(means["runs"].min(), means["runs"].max()),
        steps=kinds if by_depth else [],
        crosses=bool(diverged.any()),
        cut=bool(means["high"].max() > top),
        far=list(ends.index[ends > top]),
        **facts,
    )
    return in_figures(name, words.title, words.caption + note, words.alt, drawings)


def draw_arm(pane: Axes, entry: Entry, bands: Bands, kind: Any, shift: float, top: float) -> None:
    """Draw an arm's band, and crosses where its runs diverged, those beyond the top of the axis at the top."""
    band = bands.get((entry.arm.name, kind))
    if band is not None and len(band):
        draw_band(pane, band, entry, shift)
    lost = bands.get((entry.arm.name, "diverged"))
    if lost is not None:
        cross: dict[str, Any] = {"markersize": 6, "markeredgewidth": 1.5, "clip_on": False}
        gid = grid.gid_of(entry.arm, "diverged")
        pane.plot(lost["x"], lost["mean"].clip(upper=top), "x", color=entry.color, gid=gid, **cross)


def draw_band(pane: Axes, band: pd.DataFrame, entry: Entry, shift: float) -> None:
    """Draw an arm's mean as a line and the seeds' range around it; shift: of its markers, a share of their distance."""
    x, mean, low, high = band["x"], band["mean"], band["low"], band["high"]
    end = f"{mean.iloc[-1]:.4g} ({low.iloc[-1]:.4g} to {high.iloc[-1]:.4g}) at the end"
    look: dict[str, Any] = {"color": entry.color, "gid": grid.gid_of(entry.arm, end)}
    marked = None if len(band) <= FEW else (0.3 * shift, 0.3)
    pane.plot(x, mean, linestyle=entry.dash, marker=entry.marker, mfc="none", markevery=marked, **look)
    pane.fill_between(x, low, high, alpha=0.18, linewidth=0, **look)


def finish_panel(cell: Cell, pane: Axes, data: pd.DataFrame, by_depth: bool) -> Drawing:
    """Name the lines of a panel at their ends, and return it with its words. data: of all panels."""
    own = data[data["arm"].isin(cell.names)]
    if by_depth:
        own = own[own["step"] == cell.kind]
    means = own[own.iloc[:, 1] != "diverged"]
    last = means.groupby("arm")["mean"].last()
    ends, values = [], {}
    for entry in cell.entries:
        name = entry.arm.name
        if name in last:
            ends.append((last[name], entry))
            values[entry.label] = f"{last[name]:.4g}"
    grid.label_ends(pane, ends)
    told = grid.values_told(values)
    return Drawing(pane, cell.title, f"At the right end: {told}", own)


def loss_limits(means: pd.DataFrame, ends: pd.Series) -> tuple[float, float]:
    """Return what the axis shows: not the first tenth of training, where all fall, nor arms that end far above."""
    _, worst = grid.near(ends)
    close = means[means["arm"].isin(ends.index[ends <= worst])]
    late = close[close["x"] >= 0.1 * means["x"].max()]
    if not len(late):
        late = close  # all of them ended before, as they diverged
    bottom = means["low"].min()
    first = means.groupby("arm")["mean"].first()
    top = min(late["high"].max(), first.max())
    pad = 0.05 * (top - bottom) or 0.05 * abs(top) or 0.05
    return bottom - pad, top + pad
