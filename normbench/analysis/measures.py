"""What is measured of runs: how well they ended, how fast they got there, what they cost, and how calm they were."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from normbench.analysis.curves import Curve
from normbench.analysis.records import Arm, Run, Study
from normbench.analysis.statistics import count_spikes

NAN = float("nan")
TRAINING_LOSS, VALIDATION_LOSS = "loss/train", "loss/val"
STEP_TIME = "time/step_ms"
SPLITS = {"test": "test", "val": "validation", "train": "training"}

# What probes measure in each block, by the tags that they log; the last one of a block is its number.
IN_BLOCKS = {
    "stream RMS": re.compile(r"act/stream(\d+)/rms"),
    "gradient norm": re.compile(r"grad/block(\d+)(?:\.[^/]*)?/norm"),
    "saturated": re.compile(r"act/block(\d+)(?:\.[^/]*)?/saturated_out"),
    "mean γ": re.compile(r"norm/block(\d+)(?:\.[^/]*)?/gamma_mean"),
}


@dataclass(frozen=True)
class Metric:
    """A figure by which runs are judged.

    tag: as it is recorded. unit: of a difference. scale: from what is recorded to the unit.
    """

    tag: str
    unit: str
    scale: float
    lower_is_better: bool

    @property
    def words(self) -> str:
        """Name it, such as `validation loss`."""
        kind, _, split = self.tag.partition("/")
        return f"{SPLITS[split]} {kind}"

    @property
    def bounds(self) -> tuple[float, float]:
        """Return between what its values lie."""
        return 0.0, self.scale if self.scale == 100 else math.inf

    @property
    def symbol(self) -> str:
        """Return what stands behind a value; a difference of two shares is in points."""
        return "%" if self.scale == 100 else self.unit

    @property
    def decimals(self) -> int:
        """Return how many decimals its values are written with."""
        return 2 if self.scale == 100 else 4


def loss_on(split: str) -> Metric:
    """Return the loss of a split, in nats."""
    return Metric(f"loss/{split}", "nats", 1.0, True)


def accuracy_on(split: str) -> Metric:
    """Return the accuracy of a split, in percent; differences are percentage points."""
    return Metric(f"accuracy/{split}", "percentage points", 100.0, False)


def known(values: Iterable[float | None]) -> list[float]:
    """Return those that are finite numbers."""
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def final(run: Run, metric: Metric) -> float:
    """Return the run's last value in the metric's unit; NaN for a run that did not finish."""
    value = run.metrics.get(metric.tag)
    return NAN if value is None else metric.scale * float(value)


def metrics_of(study: Study) -> tuple[Metric, ...]:
    """Choose by what a study is judged: test data where every run that finished has them; accuracy first of classes."""
    finished = [run for run in study.runs if run.status == "finished"]
    split = "test" if finished and all(math.isfinite(final(run, loss_on("test"))) for run in finished) else "val"
    loss = loss_on(split)
    return (accuracy_on(split), loss) if study.task.endswith("classification") else (loss,)


def evaluations_in_words(runs: Iterable[Run]) -> str:
    """Say on how much runs were evaluated on the way, such as `20 batches`; nothing where it was on all data."""
    counts = set()
    for run in runs:
        limit, size = run.config.get("trainer.eval_batches"), run.config.get("data.eval_batch_size")
        total = run.data.get("val_images", run.data.get("val_texts"))
        if limit is not None and (total is None or size is None or limit * size < total):
            counts.add(int(limit))
    if not counts:
        return ""
    few, most = min(counts), max(counts)
    return f"{few:,}{f' to {most:,}' if few < most else ''} batch{'es' if most > 1 else ''}"


# ---- time


def finite(curve: Curve | None) -> Curve:
    """Return a curve without what was not finite."""
    if curve is None:
        return Curve(np.array([], int), np.array([]))
    known = np.isfinite(curve.values)
    return Curve(curve.steps[known], curve.values[known])


def training_time(run: Run) -> Curve:
    """Return the seconds of training before each logged step: step times of the intervals × their steps.

    Evaluation, probing, checkpoints and what the first steps take longer are not in them. The steps before the first
    recorded time count as those behind it.
    """
    recorded, timed = run.curves.get(STEP_TIME), finite(run.curves.get(STEP_TIME))
    if recorded is None or not len(timed.steps):
        return Curve(np.array([0]), np.array([0.0]))
    steps = np.concatenate([[0], recorded.steps])
    milliseconds = np.interp(recorded.steps, timed.steps, timed.values)
    return Curve(steps, np.concatenate([[0.0], np.cumsum(milliseconds * np.diff(steps)) / 1e3]))


def seconds_at(run: Run, steps: np.ndarray) -> np.ndarray:
    """Return the seconds of training (n,) before some steps (n,); behind the last time, as long a step as there."""
    time = training_time(run)
    if len(time.steps) < 2:
        return np.full(len(steps), NAN)
    pace = (time.values[-1] - time.values[-2]) / (time.steps[-1] - time.steps[-2])
    return np.interp(steps, time.steps, time.values) + pace * np.maximum(steps - time.steps[-1], 0)


def total_seconds(run: Run) -> float:
    """Return the training time of the whole run."""
    return float(seconds_at(run, np.array([run.step]))[0])


def time_to(run: Run, tag: str, target: float) -> float:
    """Return the training time (s) of the first record at or below a loss; NaN where there is none."""
    curve = finite(run.curves.get(tag))
    reached = np.flatnonzero(curve.values <= target)
    return float(seconds_at(run, curve.steps[reached[:1]])[0]) if len(reached) else NAN


def value_at(run: Run, tag: str, seconds: float | None) -> float:
    """Return a loss at a training time, between two records on the line between them; NaN outside of the records."""
    curve = finite(run.curves.get(tag))
    if seconds is None or not len(curve.steps):
        return NAN
    times = seconds_at(run, curve.steps)
    within = times[0] <= seconds <= times[-1] * (1 + 1e-9)
    return float(np.interp(seconds, times, curve.values)) if within else NAN


# ---- by what a study is judged


@dataclass(frozen=True)
class Yardstick:
    """By what the runs of a study are judged.

    metrics: the primary one first. target: the loss (nats) whose time is asked. given: whether a person set it.
    timed: the tag of the loss that is compared at equal times. seconds: that time, None where no run has one.
    """

    metrics: tuple[Metric, ...]
    target: float
    given: bool
    timed: str
    seconds: float | None

    @property
    def primary(self) -> Metric:
        """Return what the verdict speaks of."""
        return self.metrics[0]


def yardstick(study: Study, baseline: Sequence[Arm], target: float | None = None) -> Yardstick:
    """Choose by what to judge; without a given target, the loss at which the baseline ends.

    baseline: the arms that others are compared with.
    """
    finished = [run for run in study.runs if run.status == "finished"]
    seconds = min(known(total_seconds(run) for run in finished), default=None)
    often = all(math.isfinite(value_at(run, VALIDATION_LOSS, seconds)) for run in finished)
    timed = VALIDATION_LOSS if often else TRAINING_LOSS
    given = target is not None
    if target is None:
        curves = [finite(run.curves.get(timed)) for arm in baseline for run in arm.runs if run.status == "finished"]
        ends = [float(curve.values[-1]) for curve in curves if len(curve.values)]
        target = rounded_up(sum(ends) / len(ends), 3) if ends else NAN
    return Yardstick(metrics_of(study), target, given, timed, seconds)


def rounded_up(value: float, digits: int) -> float:
    """Round to so many significant digits, away from zero."""
    if not math.isfinite(value) or value == 0:
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return float(f"{math.copysign(math.ceil(round(abs(value) / unit, 6)) * unit, value):.{digits}g}")


# ---- all runs


def runs_frame(study: Study, by: Yardstick) -> pd.DataFrame:
    """Return a row for each run: what it is, and all that is measured of it; NaN where it has none."""
    rows = [run_row(run, arm, by) for arm in study.arms for run in arm.runs]
    for setting in study.varied:
        if len({type(row[setting]) for row in rows} - {type(None)}) > 1:  # a number here and a word there
            for row in rows:
                row[setting] = None if row[setting] is None else str(row[setting])
    return pd.DataFrame(rows)


def run_row(run: Run, arm: Arm, by: Yardstick) -> dict[str, Any]:
    """Measure one run."""
    logged, times = run.summary.get("metrics", {}), run.summary.get("step_time") or {}
    best, best_step = best_of(run, by.primary)
    spikes, judged = count_spikes(finite(run.curves.get(TRAINING_LOSS)).values)
    return {
        "run": run.name,
        "arm": arm.name,
        **arm.settings,
        "seed": run.seed,
        "status": run.status,
        "step": run.step,
        "steps": run.steps,
        **{tag: value for tag, value in logged.items() if tag.partition("/")[0] in ("loss", "accuracy")},
        "best": best,
        "best_step": best_step,
        "gap": gap(run),
        "training_seconds": total_seconds(run),
        "target": by.target,
        "target_seconds": time_to(run, by.timed, by.target),
        f"{by.timed}_at_equal_time": value_at(run, by.timed, by.seconds) if run.status == "finished" else NAN,
        "step_median_ms": times.get("median_ms") or NAN,
        "step_p90_ms": times.get("p90_ms") or NAN,
        "steps_timed": times.get("n", NAN),
        "peak_memory_bytes": float(run.summary.get("peak_memory_bytes") or NAN),
        "spikes": spikes / judged if judged else NAN,
        "message": run.message,
        "path": str(run.path),
    }


def best_of(run: Run, metric: Metric) -> tuple[float, int]:
    """Return the best validation loss (or accuracy, %) on the way and its step: chosen on the validation data."""
    curve = finite(run.curves.get(f"{metric.tag.partition('/')[0]}/val"))
    if not len(curve.values):
        return NAN, 0
    place = int(np.argmin(curve.values) if metric.lower_is_better else np.argmax(curve.values))
    return metric.scale * float(curve.values[place]), int(curve.steps[place])


def gap(run: Run) -> float:
    """Return last validation loss less last training loss (nats), the latter in eval mode where it was recorded."""
    training = run.metrics.get("loss/train_eval", run.metrics.get(TRAINING_LOSS))
    validation = run.metrics.get(VALIDATION_LOSS)
    return NAN if training is None or validation is None else float(validation) - float(training)


def activations_frame(study: Study) -> pd.DataFrame:
    """Return what probes measured last in each block of each arm: the mean over the seeds that finished."""
    rows = [
        {"arm": arm.name, "block": block, **measured}
        for arm in study.arms
        for run in arm.runs
        if run.status == "finished"
        for block, measured in sorted(last_in_blocks(run).items())
    ]
    frame = pd.DataFrame(rows, columns=["arm", "block", *IN_BLOCKS]).astype(dict.fromkeys(IN_BLOCKS, float))
    groups = frame.groupby(["arm", "block"], sort=False)
    means = groups.mean()
    means.insert(0, "seeds", groups.size())
    return means.reset_index()


def last_in_blocks(run: Run) -> dict[int, dict[str, float]]:
    """Return what probes measured last, by block: the norm of its whole gradient, of all else the mean of its parts."""
    parts: dict[tuple[int, str], list[float]] = defaultdict(list)
    for tag, curve in run.curves.items():
        for name, pattern in IN_BLOCKS.items():
            if (found := pattern.fullmatch(tag)) and len(curve.values):
                parts[int(found[1]), name].append(float(curve.values[-1]))
    blocks: dict[int, dict[str, float]] = defaultdict(dict)
    for (block, name), values in parts.items():
        blocks[block][name] = math.hypot(*values) if name == "gradient norm" else sum(values) / len(values)
    return blocks
