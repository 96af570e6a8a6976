"""By what the runs of a study are judged: its metrics, the losses to which times are measured, and one equal time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from normbench.errors import ArgumentError
from normbench.evidence.arms import Arm
from normbench.evidence.measures import (
    BEST,
    METRICS_OF_KINDS,
    NAN,
    TRAINING_LOSS,
    VALIDATION_LOSS,
    Metric,
    accuracy_on,
    bleu_on,
    comparable,
    finite_numbers,
    finite_points,
    largest_rate,
    last_seconds,
    loss_on,
    metric_of,
    value_at,
)
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import RecordedStudy
from normbench.settings import either
from normbench.wording import rounded_up


def metrics_of(study: RecordedStudy, primary: str | None = None) -> tuple[Metric, ...]:
    """Return the metrics by which a study is judged, the primary one first.

    They are of the test data where every run that finished has them; BLEU or accuracy comes before the loss. Runs whose
    learning rate grew until they no longer learned are judged by how large it was.

    primary: the tag that a person puts first, or `best`.

    Raises:
        ArgumentError: no run has logged it.
    """
    finished = study.finished
    has_test = bool(finished) and all("loss/test" in run.metrics for run in finished)
    split = "test" if has_test else "val"
    usual = [loss_on(split)]
    if finished and all(run.ramp for run in finished):
        usual = [largest_rate()]
    elif study.runs[0].task.endswith("classification"):
        usual.insert(0, accuracy_on(split))
    if any(f"bleu/{split}" in run.metrics for run in finished):
        usual.insert(0, bleu_on(split))
    if primary is None:
        return tuple(usual)
    check_logged(primary, finished, usual)
    others = [metric for metric in usual if metric.tag != primary]
    return (metric_of(primary), *others)


def check_logged(primary: str, finished: Sequence[RecordedRun], usual: Sequence[Metric]) -> None:
    """Refuse a metric that runs have not logged.

    Raises:
        ArgumentError: no run has it.
    """
    tags = {BEST}
    for run in finished:
        tags.update(run.metrics, run.curves)
    if primary not in tags:
        near = sorted(tag for tag in tags if primary in tag)[:3]
        if not near:
            near = get_close_matches(primary, tags)
        if not near:
            near = [metric.tag for metric in usual]
            near.append(BEST)
        raise ArgumentError("metric", primary, f"is not logged by these runs: give one such as {either(near)}")
    if primary == BEST and finished:
        has_several = any(has_comparable_evaluations(run) for run in finished)
        if not has_several:
            why = "needs evaluations on the way, and these runs have the last one alone: leave it out"
            raise ArgumentError("metric", BEST, why)


def has_comparable_evaluations(run: RecordedRun) -> bool:
    """Tell whether a run has evaluations of the validation data that `comparable` keeps."""
    return len(finite_points(comparable(run, VALIDATION_LOSS)).steps) > 0


@dataclass(frozen=True)
class Yardstick:
    """By what the runs of a study are judged.

    Attributes:
        metrics: the primary one first.
        targets: the validation loss (nats) to which each arm's time is measured, by the arm's name.
        given: whether a person set the target.
        timed: the tag of the loss that is compared at equal times of training.
        seconds: that time; NaN where no run has one.
    """

    metrics: tuple[Metric, ...]
    targets: Mapping[str, float]
    given: bool
    timed: str
    seconds: float

    @property
    def primary(self) -> Metric:
        """Return the metric of the verdict."""
        return self.metrics[0]

    @property
    def during_training(self) -> Metric:
        """Return the metric of the primary one's kind that is evaluated during training."""
        on = METRICS_OF_KINDS.get(self.primary.kind, loss_on)
        return on("val")


def choose_yardstick(
    study: RecordedStudy, partners: Mapping[str, Arm], target: float | None = None, metric: str | None = None
) -> Yardstick:
    """Return by what to judge a study.

    Args:
        study: the runs.
        partners: the arm that each arm is compared with, by its name.
        target: the validation loss (nats) to which times are measured; by default the mean at which the partner ends.
        metric: the tag of the primary metric; by default what suits the task.
    """
    metrics = metrics_of(study, metric)
    if metrics[0].in_doublings and target is None:  # losses at rates that grow are of no interest
        return Yardstick(metrics, {}, False, TRAINING_LOSS, NAN)
    timed = VALIDATION_LOSS
    seconds = seconds_of_fastest(study.finished, timed)
    losses = [value_at(run, timed, seconds) for run in study.finished]
    if not np.isfinite(losses).all():
        timed = TRAINING_LOSS
        seconds = seconds_of_fastest(study.finished, timed)
    targets = usual_targets(partners)
    if target is not None:
        targets = {arm.name: target for arm in study.arms}
    return Yardstick(metrics, targets, target is not None, timed, seconds)


def usual_targets(partners: Mapping[str, Arm]) -> dict[str, float]:
    """Return the mean loss at which the partner of each arm ends, where that trained."""
    targets = {}
    for name, arm in partners.items():
        ends = finite_numbers(map(last_comparable_loss, arm.runs))
        if ends and arm.trained:
            targets[name] = rounded_up(sum(ends) / len(ends), 3)
    return targets


def seconds_of_fastest(runs: Iterable[RecordedRun], tag: str) -> float:
    """Return the seconds of training of the fastest run's last value under a tag; NaN where no run has one."""
    seconds = finite_numbers(last_seconds(run, tag) for run in runs)
    return min(seconds, default=NAN)


def last_comparable_loss(run: RecordedRun) -> float:
    """Return the last validation loss (nats) of a finished run that `comparable` keeps; NaN where there is none."""
    values = finite_points(comparable(run, VALIDATION_LOSS)).values
    if run.status != "finished" or not len(values):
        return NAN
    return float(values[-1])
