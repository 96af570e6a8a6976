"""Lines with bands over the seeds: losses by step and by time, activations and gradients by depth, parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.evidence.measures import by_block, evaluations_in_words, seconds_at
from normbench.evidence.run import Curve, RecordedRun
from normbench.show.figures import captions, plots
from normbench.show.figures.figure import Figure
from normbench.show.figures.plots import Axis as PlotAxis
from normbench.show.figures.plots import Series, Subplot, near_range
from normbench.show.figures.style import (
    MOST_PANELS,
    NOT_RECORDED,
    Panel,
    names_in,
    panels_of,
    runs_shown,
    take_first,
    tell_absent,
)
from normbench.wording import compact, whole

POINTS = 200  # of a band, at most; longer curves are averaged over neighbours
FEWEST_BLOCKS = 4  # that are worth a figure by depth
MOST_ROWS = 6  # of panels by depth
NEVER_ALL = "there is no time that all of its seeds have passed"
MEAN, DIVERGED = "mean", "diverged"  # what is drawn of an arm
NO_ROWS = pd.DataFrame({"x": [], "mean": [], "low": [], "high": []})

Lines = Mapping[int, Curve]  # of one run, by block; 0: of the whole network

# ---- what is drawn


@dataclass(frozen=True)
class Quantity:
    """What a figure of lines draws.

    Attributes:
        tags: the form of the tags that are drawn. Its group is the number of a block; of several tags with one number,
            or with none, the mean is drawn, of gradients the norm.
        word: what is drawn.
        unit: of its values; empty for none.
        scale: of the axis.
        about: a sentence for the caption; empty for none.
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

# The figures of what probes have recorded.
PROBED = [name for name in QUANTITIES if not name.startswith(("loss", "accuracy", "bleu"))]


@dataclass(frozen=True)
class Axis:
    """What lines are drawn over. title: what the figure's title calls it. words: those beside the axis."""

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
    """Tell whether a figure has lines over the blocks, at some steps."""
    return axis_of(name) == "depth"


def is_of_loss(name: str) -> bool:
    """Tell whether a figure has lines of a loss."""
    return name.startswith("loss")


# ---- several runs as one line with a band


def lines_of(run: RecordedRun, name: str) -> dict[int, Curve]:
    """Return a run's finite values of a figure by step, epoch or seconds, for each block; 0 is the whole network."""
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
        value_at_step = line.values[line.steps == step]
        if len(value_at_step):
            numbers.append(block)
            values.append(value_at_step[0])
    return Curve(np.array(numbers), np.array(values))


def band_of(lines: Sequence[Curve], between: bool = False) -> pd.DataFrame:
    """Return mean, lowest and highest of several lines where all have a value; of many places, means of neighbours.

    between: whether lines are interpolated between their places, so that runs of different speed can be averaged.
    """
    places = np.concatenate([line.steps for line in lines])
    x, having = np.unique(places, return_counts=True)
    if not between:
        x = x[having == len(lines)]
    rows = []
    for line in lines:
        rows.append(np.interp(x, line.steps, line.values, left=np.nan, right=np.nan))
    values = np.array(rows)
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
            for line in run.values():
                recorded.append(line.steps)
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
class LinesPanel(Panel):
    """A panel of lines.

    Attributes:
        step: the one that it shows, for lines by depth; None for lines over steps, epochs or time.
        bands: of its arms that have a line, by their names.
    """

    step: int | None
    bands: Mapping[str, pd.DataFrame]

    @property
    def kind(self) -> int | str:
        """Return what its rows have as their kind: its step, or `mean`."""
        return MEAN if self.step is None else self.step

    @property
    def has_line(self) -> bool:
        """Tell whether some band has two points."""
        return any(len(band) > 1 for band in self.bands.values())

    def with_crosses(self, lost: Mapping[str, pd.DataFrame]) -> Subplot:
        """Return what is drawn of it. lost: the last points of the runs of an arm that diverged."""
        series = []
        for entry in self.entries:
            arm = entry.arm.name
            band = self.bands.get(arm)
            if band is None and arm not in lost:
                continue
            value = "" if band is None else write_end(band)
            rows = NO_ROWS if band is None else band
            series.append(Series(entry, rows, value, lost.get(arm)))
        return Subplot(self.title, series)


def draw_lines(name: str, arms: Sequence[Arm], notes: Sequence[str] = (), on_top: str = "") -> list[Figure]:
    """Draw one of the `QUANTITIES`; nothing where no line has two points, or where blocks are few.

    notes: sentences of the caption. on_top: words in the drawing.
    """
    lines_by_arm, having = {}, []
    for arm in arms:
        lines_by_arm[arm.name] = recorded_lines(arm, name)
        if lines_by_arm[arm.name]:
            having.append(arm.name)
    if is_by_depth(name) and count_blocks(lines_by_arm.values()) < FEWEST_BLOCKS:
        return []
    every = panels_of(arms, having)
    panels, more = take_first(every, MOST_ROWS if is_by_depth(name) else MOST_PANELS, "panels")
    filled = fill_panels(name, panels, lines_by_arm)
    if not any(panel.has_line for panel in filled):
        return []
    lost = ends_in(name, panels) if is_of_loss(name) else {}
    data = data_of(filled, lost)
    means = data[data["kind"] != DIVERGED]
    limits = loss_limits(means) if is_of_loss(name) else None
    cut = names_in(every[len(panels) :])
    why = NEVER_ALL if axis_of(name) == "time" else NOT_RECORDED
    absent = tell_absent(arms, data[["arm", "mean"]], cut, why)
    quantity, axis = QUANTITIES[name], AXES[axis_of(name)]
    top = limits[1] if limits else np.inf
    ends = ends_of(means)
    steps = steps_of(filled)
    words = captions.lines(
        word=quantity.word,
        by=axis.title,
        x=axis.words,
        about=quantity.about,
        ends=[f"{arm} {compact(end, 4)}" for arm, end in ends.items()],
        seeds=(means["runs"].min(), means["runs"].max()),
        records=records_a_point(lines_by_arm),
        steps=steps,
        crosses=bool(lost),
        cut=bool(means["high"].max() > top),
        far=list(ends.index[ends > top]),
        batches=batches_in_words(name, arms),
    )
    canvas = plots.lines(
        [panel.with_crosses(lost) for panel in filled],
        PlotAxis(axis.words, whole=is_by_depth(name)),
        PlotAxis(quantity.label, quantity.scale, limits),
        columns=len(steps),
        note=on_top,
    )
    if is_by_depth(name):
        data = data.rename(columns={"kind": "step", "x": "block"})
    return [Figure(name, words.title, [*words.sentences, *notes, *more, *absent], words.alt, canvas, data)]


def write_end(band: pd.DataFrame) -> str:
    """Write the value at the end of a band."""
    last = band.iloc[-1]
    return f"{compact(last['mean'], 4)} ({compact(last['low'], 4)} to {compact(last['high'], 4)}) at the end"


# ---- the numbers behind it


def fill_panels(name: str, panels: Sequence[Panel], found: Mapping[str, Sequence[Lines]]) -> list[LinesPanel]:
    """Return panels with their bands; by depth, a panel for each step. found: the lines of each arm's runs."""
    filled = []
    if is_by_depth(name):
        steps = three_steps(found.values())
        for panel in panels:
            for step in steps:
                title = f"step {whole(step)}"
                if panel.title:
                    title = f"{panel.title}\n{title}"
                lines = {}
                for arm in panel.names:
                    lines[arm] = [at_step(run, step) for run in found[arm]]
                filled.append(LinesPanel(title, panel.entries, step, bands_of(lines)))
        return filled
    between = axis_of(name) == "time"
    for panel in panels:
        lines = {}
        for arm in panel.names:
            lines[arm] = [run[max(run)] for run in found[arm]]  # of the last block, or the whole network
        filled.append(LinesPanel(panel.title, panel.entries, None, bands_of(lines, between)))
    return filled


def recorded_lines(arm: Arm, name: str) -> list[Lines]:
    """Return the lines of each run that figures show of an arm, of those that have recorded some."""
    recorded = list[Lines]()
    for run in runs_shown(arm):
        lines = lines_of(run, name)
        if lines:
            recorded.append(lines)
    return recorded


def steps_of(filled: Sequence[LinesPanel]) -> list[int]:
    """Return the steps that panels show, each once; empty where they are not by depth."""
    steps: dict[int, None] = {}
    for panel in filled:
        if panel.step is not None:
            steps[panel.step] = None
    return list(steps)


def bands_of(lines: Mapping[str, Sequence[Curve]], between: bool = False) -> dict[str, pd.DataFrame]:
    """Return the band of each arm that has one. lines: of its runs. between: as `band_of` has it."""
    bands = {}
    for arm, curves in lines.items():
        with_points = [curve for curve in curves if len(curve.steps)]
        band = band_of(with_points, between) if with_points else pd.DataFrame()
        if len(band):
            bands[arm] = band
    return bands


def ends_in(name: str, panels: Sequence[Panel]) -> dict[str, pd.DataFrame]:
    """Return the last points of the runs that diverged, for each arm that has any."""
    ends_by_arm = {}
    for panel in panels:
        for entry in panel.entries:
            ends = ends_of_diverged(name, entry.arm)
            if len(ends):
                ends_by_arm[entry.arm.name] = ends
    return ends_by_arm


def data_of(filled: Sequence[LinesPanel], lost: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return all that is drawn: the bands of each panel, then the last points of runs that diverged."""
    parts = []
    for panel in filled:
        for arm, band in panel.bands.items():
            parts.append(name_rows(band, arm, panel.kind))
    for arm, ends in lost.items():
        parts.append(name_rows(ends, arm, DIVERGED))
    return pd.concat(parts, ignore_index=True)


def name_rows(rows: pd.DataFrame, arm: str, kind: int | str) -> pd.DataFrame:
    """Return rows with columns for their arm and for their kind."""
    named = rows.copy()
    named.insert(0, "arm", arm)
    named.insert(1, "kind", kind)
    return named


def count_blocks(found: Iterable[Sequence[Lines]]) -> int:
    """Return how many blocks have a line in some run."""
    numbers = set[int]()
    for runs in found:
        for run in runs:
            numbers.update(run)
    return len(numbers)


def records_a_point(found: Mapping[str, Sequence[Lines]]) -> int:
    """Return how many records a point of the longest line averages."""
    longest = 0
    for runs in found.values():
        for run in runs:
            for line in run.values():
                longest = max(longest, len(line.steps))
    return -(-longest // POINTS)


def batches_in_words(name: str, arms: Sequence[Arm]) -> str:
    """Write on how much runs were evaluated during training, where a figure draws evaluations; else nothing."""
    if not name.startswith(("loss-val", "bleu-val")):
        return ""
    runs = list[RecordedRun]()
    for arm in arms:
        runs += runs_shown(arm)
    return evaluations_in_words(runs)


def ends_of(means: pd.DataFrame) -> pd.Series:
    """Return where the mean of each arm ends, by its name."""
    return means.groupby("arm")["mean"].last()


def loss_limits(means: pd.DataFrame) -> tuple[float, float]:
    """Return the limits of a loss axis, which leave out the first tenth of training and arms that end far above."""
    ends = ends_of(means)
    _, worst = near_range(ends)
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
