"""What is measured of a run: how well it ended, how fast it got there, what it cost, and how calm it was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from normbench.analysis.curves import Curve
from normbench.analysis.records import Arm, Run, Study
from normbench.analysis.statistics import spike_score

NAN = float("nan")
TRAINING_LOSS, VALIDATION_LOSS = "loss/train", "loss/val"
STEP_TIME = "time/step_ms"
SPLITS = {"test": "test", "val": "validation", "train": "training"}


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
        """Such as `validation loss`."""
        kind, _, split = self.tag.partition("/")
        return f"{SPLITS[split]} {kind}"

    @property
    def bounds(self) -> tuple[float, float]:
        """Between what its values lie."""
        return 0.0, self.scale if self.scale == 100 else math.inf

    @property
    def symbol(self) -> str:
        """What stands behind a value; a difference of two shares is in points."""
        return "%" if self.scale == 100 else self.unit


def loss_on(split: str) -> Metric:
    """The loss of a split, in nats."""
    return Metric(f"loss/{split}", "nats", 1.0, True)


def accuracy_on(split: str) -> Metric:
    """The accuracy of a split, in percent; differences are percentage points."""
    return Metric(f"accuracy/{split}", "percentage points", 100.0, False)


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
        """What the verdict speaks of."""
        return self.metrics[0]


def final(run: Run, metric: Metric) -> float:
    """The run's last value in the metric's unit; NaN for a run that did not finish."""
    value = run.summary.get("metrics", {}).get(metric.tag) if run.status == "finished" else None
    return NAN if value is None else metric.scale * float(value)


def metrics_of(study: Study) -> tuple[Metric, ...]:
    """By what a study is judged: test data where every run that finished has them; accuracy first where classes are."""
    finished = [run for run in study.runs if run.status == "finished"]
    split = "test" if finished and all(math.isfinite(final(run, loss_on("test"))) for run in finished) else "val"
    loss = loss_on(split)
    return (accuracy_on(split), loss) if study.task.endswith("classification") else (loss,)


# ---- time


def training_time(run: Run) -> Curve:
    """The seconds of training before each logged step: step times of the intervals × their steps.

    Evaluation, probing, checkpoints and what the first steps take longer are not in them. The steps before the first
    recorded time count as those behind it.
    """
    recorded = run.curves.get(STEP_TIME)
    if recorded is None or not len(recorded.steps):
        return Curve(np.array([0]), np.array([0.0]))
    steps = np.concatenate([[0], recorded.steps])
    known = np.isfinite(recorded.values)
    if not known.any():
        return Curve(np.array([0]), np.array([0.0]))
    milliseconds = np.interp(recorded.steps, recorded.steps[known], recorded.values[known])
    return Curve(steps, np.concatenate([[0.0], np.cumsum(milliseconds * np.diff(steps)) / 1e3]))


def seconds_at(run: Run, steps: np.ndarray) -> np.ndarray:
    """The seconds of training (n,) before some steps (n,); behind the last recorded time, as long a step as there."""
    time = training_time(run)
    if len(time.steps) < 2:
        return np.full(len(steps), NAN)
    pace = (time.values[-1] - time.values[-2]) / (time.steps[-1] - time.steps[-2])
    return np.interp(steps, time.steps, time.values) + pace * np.maximum(steps - time.steps[-1], 0)


def finite(curve: Curve | None) -> Curve:
    """A curve without what was not finite."""
    if curve is None:
        return Curve(np.array([], int), np.array([]))
    known = np.isfinite(curve.values)
    return Curve(curve.steps[known], curve.values[known])


def total_seconds(run: Run) -> float:
    """The training time of the whole run."""
    return float(seconds_at(run, np.array([run.step]))[0])


def time_to(run: Run, tag: str, target: float) -> float:
    """The training time (s) of the first record at or below a loss; NaN where there is none."""
    curve = finite(run.curves.get(tag))
    reached = np.flatnonzero(curve.values <= target)
    return float(seconds_at(run, curve.steps[reached[:1]])[0]) if len(reached) else NAN


def value_at(run: Run, tag: str, seconds: float | None) -> float:
    """A loss at a training time, between two records on the line between them; NaN outside of what is recorded."""
    curve = finite(run.curves.get(tag))
    if seconds is None or not len(curve.steps):
        return NAN
    times = seconds_at(run, curve.steps)
    within = times[0] <= seconds <= times[-1] * (1 + 1e-9)
    return float(np.interp(seconds, times, curve.values)) if within else NAN


# ---- a study's yardstick


def yardstick(study: Study, baseline: Sequence[Arm], target: float | None = None) -> Yardstick:
    """By what to judge; without a given target, the loss at which the baseline ends.

    baseline: the arms that others are compared with.
    """
    finished = [run for run in study.runs if run.status == "finished"]
    times = [time for run in finished if math.isfinite(time := total_seconds(run))]
    seconds = min(times, default=None)
    often = all(math.isfinite(value_at(run, VALIDATION_LOSS, seconds)) for run in finished)
    timed = VALIDATION_LOSS if often else TRAINING_LOSS
    if target is None:
        ends = [last_value(run, timed) for arm in baseline for run in arm.runs if run.status == "finished"]
        known = [value for value in ends if math.isfinite(value)]
        chosen = rounded_up(sum(known) / len(known), 3) if known else NAN
    return Yardstick(metrics_of(study), target if target is not None else chosen, target is not None, timed, seconds)


def last_value(run: Run, tag: str) -> float:
    """The last finite value under a tag."""
    values = finite(run.curves.get(tag)).values
    return float(values[-1]) if len(values) else NAN


def rounded_up(value: float, digits: int) -> float:
    """To so many significant digits, away from zero."""
    if not math.isfinite(value) or value == 0:
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return float(f"{math.copysign(math.ceil(round(abs(value) / unit, 6)) * unit, value):.{digits}g}")


# ---- a run


@dataclass(frozen=True)
class Measures:
    """What is measured of one run; NaN where it has none. Found when they are asked for."""

    run: Run
    arm: Arm
    by: Yardstick

    def final(self, metric: Metric) -> float:
        """The last value in the metric's unit."""
        return final(self.run, metric)

    @cached_property
    def best(self) -> tuple[float, int]:
        """The best validation loss (or accuracy, %) on the way and its step: chosen on the validation data."""
        metric = self.by.primary
        curve = finite(self.run.curves.get(f"{metric.tag.partition('/')[0]}/val"))
        if not len(curve.values):
            return NAN, 0
        place = int(np.argmin(curve.values) if metric.lower_is_better else np.argmax(curve.values))
        return metric.scale * float(curve.values[place]), int(curve.steps[place])

    @cached_property
    def gap(self) -> float:
        """Last validation loss less last training loss (nats), the latter in eval mode where it was recorded."""
        metrics = self.run.summary.get("metrics", {}) if self.run.status == "finished" else {}
        training = metrics.get("loss/train_eval", metrics.get(TRAINING_LOSS))
        validation = metrics.get(VALIDATION_LOSS)
        return NAN if training is None or validation is None else float(validation) - float(training)

    @cached_property
    def seconds(self) -> float:
        """Training time."""
        return total_seconds(self.run)

    @cached_property
    def target_seconds(self) -> float:
        """Training time to the target loss."""
        return time_to(self.run, self.by.timed, self.by.target)

    @cached_property
    def timed_loss(self) -> float:
        """The loss at the time that every finished run had."""
        return value_at(self.run, self.by.timed, self.by.seconds) if self.run.status == "finished" else NAN

    @cached_property
    def step_time(self) -> Mapping[str, Any]:
        """`median_ms`, `p90_ms` and `n`."""
        return self.run.summary.get("step_time") or {}

    @property
    def memory(self) -> float:
        """Peak memory in bytes."""
        value = self.run.summary.get("peak_memory_bytes")
        return NAN if value is None else float(value)

    @cached_property
    def spikes(self) -> float:
        """The share of logged training losses that are spikes."""
        share = spike_score(finite(self.run.curves.get(TRAINING_LOSS)).values).share
        return NAN if share is None else share


def measured(study: Study, by: Yardstick) -> dict[str, tuple[Measures, ...]]:
    """The measures of every run, by the arm's name."""
    return {arm.name: tuple(Measures(run, arm, by) for run in arm.runs) for arm in study.arms}


def known(values: Iterable[float | None]) -> list[float]:
    """Those that are finite numbers."""
    return [float(value) for value in values if value is not None and math.isfinite(value)]
