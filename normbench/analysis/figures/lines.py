"""Lines with bands over the seeds: losses by step and by time, activations and gradients by depth, parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from normbench.analysis.figures import captions
from normbench.analysis.figures.figure import Drawing, Figure, in_figures, values_told
from normbench.analysis.figures.panes import draw_panels, gid_of, label_ends, log_scale, near
from normbench.analysis.figures.style import (
    MOST_PANELS,
    NOT_RECORDED,
    Entry,
    Panel,
    members,
    names_in,
    panels_of,
    take_first,
    tell_absent,
)
from normbench.analysis.measures import by_block, evaluations_in_words, seconds_at
from normbench.analysis.records import Arm, Curve, RecordedRun, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 200  # of a band, at most; longer curves are averaged over neighbours
FEW = 12  # points of a line at most have a dot each
MOST_ROWS = 6  # of panels by depth
NEVER_ALL = "there is no time that all of its seeds have passed"
MEAN, DIVERGED = "mean", "diverged"  # what is drawn of an arm

Lines = Mapping[int, Curve]  # of one run, by block; 0: of the whole network

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


@dataclass(frozen=True)
class Axis:
    """What lines are drawn over. title: what a title calls it. words: its own."""

    title: str
    words: str


# By the last word of a figure's name.
AXES = {
    "steps": Axis("step", "optimizer steps"),
    "epochs": Axis("epoch", "epochs"),
    "time": Axis("training time", "training time (s)"),
    "depth": Axis("depth", "block (0 is the first)"),
}


def axis_of(name: str) -> str:
    """Return the key in AXES of a figure's axis."""
    return name.rpartition("-")[2]


def is_by_depth(name: str) -> bool:
    """Say whether a figure has lines over the blocks, at some steps."""
    return axis_of(name) == "depth"


def is_of_loss(name: str) -> bool:
    """Say whether a figure has lines of a loss."""
    return name.startswith("loss")


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
        is_finite = np.isfinite(x) & np.isfinite(curve.values)
        if is_finite.any():
            lines[block] = Curve(x[is_finite], curve.values[is_finite])
    return lines


def at_step(blocks: Lines, step: int) -> Curve:
    """Return a quantity over a run's blocks at one step."""
    numbers = list[int]()
    values = list[float]()
    for block, line in blocks.items():
        own = line.values[line.steps == step]
        if len(own):
            numbers.append(block)
            values.append(own[0])
    return Curve(np.array(numbers), np.array(values))


def band_of(lines: Sequence[Curve], between: bool = False) -> pd.DataFrame:
    """Return mean, lowest and highest of several lines where all have a value; of many places, means of neighbours.

    between: lines have values between two places, too, so that runs of unlike speed can be joined.
    """
    places = np.concatenate([line.steps for line in lines])
    x, having = np.unique(places, return_counts=True)
    if not between:
        x = x[having == len(lines)]
    values = np.array([np.interp(x, line.steps, line.values, left=np.nan, right=np.nan) for line in lines])
    is_known = np.isfinite(values).all(axis=0)
    x, values = x[is_known], values.compress(is_known, axis=1)
    together = -(-len(x) // POINTS)
    if together > 1:
        groups = np.arange(len(x)) // together
        table = pd.DataFrame(np.array([x, *values]).T)
        x, *values = table.groupby(groups).mean().to_numpy().T
    return pd.DataFrame(
        {
            "runs": len(lines),
            "x": x,
            "mean": np.mean(values, axis=0),
            "low": np.min(values, axis=0),
            "high": np.max(values, axis=0),
        }
    )


def ends_of_diverged(name: str, arm: Arm) -> pd.DataFrame:
    """Return the last finite points of the runs that diverged, with the columns of a band."""
    ends = []
    for run in arm.runs:
        if run.status != "diverged":
            continue
        line = lines_of(run, name).get(0)
        if line is not None:
            value = line.values[-1]
            ends.append({"runs": 1, "x": line.steps[-1], "mean": value, "low": value, "high": value})
    return pd.DataFrame(ends)


def three_steps(found: Iterable[Sequence[Lines]]) -> list[int]:
    """Return the first, the middle and the last step at which some block has a value."""
    recorded = []
    for runs in found:
        for run in runs:
            recorded += [line.steps for line in run.values()]
    if not recorded:
        return []
    steps = np.unique(np.concatenate(recorded))
    first, last = steps[0], steps[-1]
    chosen = []
    for place in (first, (first + last) / 2, last):
        nearest = np.abs(steps - place).argmin()
        chosen.append(int(steps[nearest]))
    return list(dict.fromkeys(chosen))


# ---- a figure


@dataclass(frozen=True)
class Cell(Panel):
    """A panel of lines. kind: the step that it shows, of lines by depth. bands: of each arm that has a line."""

    kind: Any
    bands: Mapping[str, pd.DataFrame]

    @property
    def has_line(self) -> bool:
        """Say whether some band has two points."""
        return any(len(band) > 1 for band in self.bands.values())


def draw_lines(name: str, arms: Sequence[Arm], note: str) -> list[Figure]:
    """Draw a figure of each panel of one of the `QUANTITIES`; none where no line has two points."""
    found = {}
    for arm in arms:
        lines = [lines_of(run, name) for run in members(arm)]
        found[arm.name] = [own for own in lines if own]
    having = [arm for arm, runs in found.items() if runs]
    every = panels_of(arms, having)
    panels, more = take_first(every, MOST_ROWS if is_by_depth(name) else MOST_PANELS, "panels")
    cells = cells_of(name, panels, found)
    if not any(cell.has_line for cell in cells):
        return []
    lost = ends_in(name, panels) if is_of_loss(name) else {}
    data = data_of(cells, lost)
    means = data[data["kind"] != DIVERGED]
    limits = loss_limits(means) if is_of_loss(name) else None
    panes = draw_cells(name, cells, lost, limits)
    drawings = []
    for cell, pane in zip(cells, panes, strict=True):
        drawings.append(finish_panel(cell, pane, rows_of(cell, data, name)))
    cut = names_in(every[len(panels) :])
    why = NEVER_ALL if axis_of(name) == "time" else NOT_RECORDED
    more += tell_absent(arms, data[["arm", "mean"]], cut, why)
    axis = AXES[axis_of(name)]
    top = limits[1] if limits else np.inf
    ends = ends_of(means)
    words = captions.lines(
        word=QUANTITIES[name].word,
        by=axis.title,
        x=axis.words,
        about=QUANTITIES[name].about,
        arms=shortened([arm.name for arm in arms]),
        seeds=(means["runs"].min(), means["runs"].max()),
        records=records_a_point(found),
        steps=steps_of(cells) if is_by_depth(name) else [],
        crosses=bool(lost),
        cut=bool(means["high"].max() > top),
        far=list(ends.index[ends > top]),
        batches=batches_in_words(name, arms),
    )
    return in_figures(name, words.title, words.caption + note + more, words.alt, drawings)


# ---- the numbers behind it


def cells_of(name: str, panels: Sequence[Panel], found: Mapping[str, Sequence[Lines]]) -> list[Cell]:
    """Return the panels of a figure with the bands in them; by depth one for each step. found: lines of each arm."""
    cells = []
    if is_by_depth(name):
        steps = three_steps(found.values())
        for panel in panels:
            for step in steps:
                title = f"step {step:,}"
                if panel.title:
                    title = f"{panel.title} · {title}"
                lines = {}
                for arm in panel.names:
                    lines[arm] = [at_step(run, step) for run in found[arm]]
                cells.append(Cell(title, panel.entries, step, bands_of(lines)))
        return cells
    between = axis_of(name) == "time"
    for panel in panels:
        lines = {}
        for arm in panel.names:
            lines[arm] = [run[max(run)] for run in found[arm]]  # of the last block, or the whole network
        cells.append(Cell(panel.title, panel.entries, MEAN, bands_of(lines, between)))
    return cells


def steps_of(cells: Sequence[Cell]) -> list[int]:
    """Return the steps that panels show, each once."""
    return list(dict.fromkeys(cell.kind for cell in cells))


def bands_of(lines: Mapping[str, Sequence[Curve]], between: bool = False) -> dict[str, pd.DataFrame]:
    """Return the band of each arm that has one. lines: of its runs. between: as `band_of` has it."""
    bands = {}
    for arm, curves in lines.items():
        own = [curve for curve in curves if len(curve.steps)]
        band = band_of(own, between) if own else pd.DataFrame()
        if len(band):
            bands[arm] = band
    return bands


def ends_in(name: str, panels: Sequence[Panel]) -> dict[str, pd.DataFrame]:
    """Return the last points of the runs that diverged, for each arm that has any."""
    found = {}
    for panel in panels:
        for entry in panel.entries:
            ends = ends_of_diverged(name, entry.arm)
            if len(ends):
                found[entry.arm.name] = ends
    return found


def data_of(cells: Sequence[Cell], lost: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return all that is drawn: the bands of each panel, and last what diverged."""
    parts = []
    for cell in cells:
        for arm, band in cell.bands.items():
            parts.append(name_rows(band, arm, cell.kind))
    for arm, ends in lost.items():
        parts.append(name_rows(ends, arm, DIVERGED))
    return pd.concat(parts, ignore_index=True)


def name_rows(rows: pd.DataFrame, arm: str, kind: Any) -> pd.DataFrame:
    """Return rows with the name of their arm and of what they are."""
    named = rows.copy()
    named.insert(0, "arm", arm)
    named.insert(1, "kind", kind)
    return named


def rows_of(cell: Cell, data: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return what of the data is drawn in a panel, with columns that say what they are."""
    own = data[data["arm"].isin(cell.names)]
    if not is_by_depth(name):
        return own
    return own[own["kind"] == cell.kind].rename(columns={"kind": "step", "x": "block"})


def records_a_point(found: Mapping[str, Sequence[Lines]]) -> int:
    """Return of how many records a point of the longest line is the mean."""
    longest = 0
    for runs in found.values():
        for run in runs:
            for line in run.values():
                longest = max(longest, len(line.steps))
    return -(-longest // POINTS)


def batches_in_words(name: str, arms: Sequence[Arm]) -> str:
    """Say on how much runs were evaluated on the way, where that is what a figure draws."""
    if not name.startswith(("loss-val", "bleu-val")):
        return ""
    runs = list[RecordedRun]()
    for arm in arms:
        runs += members(arm)
    return evaluations_in_words(runs)


def ends_of(means: pd.DataFrame) -> pd.Series:
    """Return where the mean of each arm ends, by its name."""
    return means.groupby("arm")["mean"].last()


def loss_limits(means: pd.DataFrame) -> tuple[float, float]:
    """Return what the axis shows: not the first tenth of training, where all fall, nor arms that end far above."""
    ends = ends_of(means)
    _, worst = near(ends)
    close_arms = ends.index[ends <= worst]
    close = means[means["arm"].isin(close_arms)]
    late = close[close["x"] >= 0.1 * means["x"].max()]
    if not len(late):
        late = close  # all of them ended before, as they diverged
    bottom = means["low"].min()
    first = means.groupby("arm")["mean"].first()
    top = min(late["high"].max(), first.max())
    pad = 0.05 * (top - bottom) or 0.05 * abs(top) or 0.05
    return bottom - pad, top + pad


# ---- the drawing


def draw_cells(
    name: str, cells: Sequence[Cell], lost: Mapping[str, pd.DataFrame], limits: tuple[float, float] | None
) -> list[Axes]:
    """Draw means as lines and the seeds' ranges around them; crosses where runs diverged, at the top if above it.

    lost: the last points of the runs of an arm that diverged. limits: of the axis; None for all that is drawn.
    """
    quantity = QUANTITIES[name]
    panes = draw_panels(cells, AXES[axis_of(name)].words, quantity.label)
    top = np.inf
    if limits:
        _, top = panes[0].set_ylim(limits)
    for cell, pane in zip(cells, panes, strict=True):
        for place, entry in enumerate(cell.entries):
            arm = entry.arm.name
            if arm in cell.bands:
                draw_band(pane, cell.bands[arm], entry, place / len(cell.entries))
            if arm in lost:
                draw_crosses(pane, lost[arm], entry, top)
    if quantity.scale == "log":
        log_scale(panes[0], "y")
    elif quantity.scale == "percent":
        panes[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
    if is_by_depth(name):
        panes[0].locator_params(axis="x", integer=True, min_n_ticks=2)
    return panes


def draw_band(pane: Axes, band: pd.DataFrame, entry: Entry, shift: float) -> None:
    """Draw an arm's mean as a line and the seeds' range around it; shift: of its markers, a share of their distance."""
    x, mean, low, high = band["x"], band["mean"], band["low"], band["high"]
    last = band.iloc[-1]
    end = f"{last['mean']:.4g} ({last['low']:.4g} to {last['high']:.4g}) at the end"
    look: dict[str, Any] = {"color": entry.color, "gid": gid_of(entry.arm, end)}
    marked = None if len(band) <= FEW else (0.3 * shift, 0.3)
    pane.plot(x, mean, linestyle=entry.dash, marker=entry.marker, mfc="none", markevery=marked, **look)
    pane.fill_between(x, low, high, alpha=0.18, linewidth=0, **look)


def draw_crosses(pane: Axes, lost: pd.DataFrame, entry: Entry, top: float) -> None:
    """Draw where runs of an arm diverged, those beyond the top of the axis at the top."""
    look: dict[str, Any] = {"color": entry.color, "gid": gid_of(entry.arm, "diverged")}
    heights = lost["mean"].clip(upper=top)
    pane.plot(lost["x"], heights, "x", markersize=6, markeredgewidth=1.5, clip_on=False, **look)


def finish_panel(cell: Cell, pane: Axes, data: pd.DataFrame) -> Drawing:
    """Name the lines of a panel at their ends, and return it with its words. data: what is drawn in it."""
    ends, values = [], {}
    for entry in cell.entries:
        band = cell.bands.get(entry.arm.name)
        if band is not None:
            end = band["mean"].iloc[-1]
            ends.append((end, entry))
            values[entry.label] = f"{end:.4g}"
    label_ends(pane, ends)
    return Drawing(pane, cell.title, f"At the right end: {values_told(values)}", data)
