"""Why arms differ or did not train, as far as probes tell, and what to do next."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from normbench.evidence.arms import LEARNING_RATE, Arm
from normbench.evidence.measures import NAN, TRAINING_LOSS, finite_numbers, finite_points
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import RecordedStudy
from normbench.results.answer import Cause, NextStep, Reason, ReasonKind, Remedy, StepKind
from normbench.results.caveats import own_rates
from normbench.results.result import Difference
from normbench.results.rules import Verdict
from normbench.results.statistics import seeds_needed

# What the first block's norm reads and passes on, and the norm of all gradients; of several tags the first counts.
ENTERING = re.compile(r"act/block0+(\.[^/]*)?/rms_in")
PASSED = re.compile(r"act/block0+(\.[^/]*)?/rms_out")
GRADIENT = re.compile("grad/norm")

SMALL = 0.1  # root mean square of what enters a norm, below which a bounded function is linear
MOSTLY_SATURATED = 0.5  # share at the bound from which on it may keep an arm from training
SATURATED = 0.1  # share from which on it is worth telling
EXPLODED = 1000.0  # norm of all gradients from which on they explode, and no ratio of two says that some vanish
VANISHED = 0.001  # norm of the gradients of all blocks over that of all gradients
VANISHED_DOWN = 0.01  # gradient norm of the first block over that of the last one
FALLS = 0.01  # share by which the training loss falls late in training, from which on it counts as falling
APART = 1.5  # ratio from which on a measure of an arm differs from the baseline's

# Verdicts that more seeds may change.
UNDECIDED = (Verdict.POSSIBLE, Verdict.CONSTANT, Verdict.UNKNOWN, Verdict.ALIKE, Verdict.ONE_SEED)
PILOT_SEEDS = 4  # how many to add where it is not known how much seeds differ


# ---- what the probes of an arm say


@dataclass(frozen=True)
class Readings:
    """What probes read of an arm, as means over its finished runs; NaN for what was not probed.

    Attributes:
        entering: root mean square of what enters the first norm, at the first probed step.
        passed: root mean square of what leaves it there.
        gradient: norm of all gradients, at the end.
        in_blocks: norm of the gradients of all blocks, at the end.
        first_gradient: norm of the gradients of the first block, at the end.
        last_gradient: norm of the gradients of the last block, at the end.
        stream: root mean square of what leaves the last block, at the end.
        saturated: share of a norm's inputs at its bound, in the block with the most.
        fall: share by which the training loss fell from the third to the last quarter of the run.
    """

    entering: float
    passed: float
    gradient: float
    in_blocks: float
    first_gradient: float
    last_gradient: float
    stream: float
    saturated: float
    fall: float

    @property
    def explode(self) -> bool:
        """Tell whether gradients explode."""
        return self.gradient > EXPLODED

    @property
    def vanish_downward(self) -> bool:
        """Tell whether gradients vanish on their way down."""
        return self.first_gradient < VANISHED_DOWN * self.last_gradient


def read_probes(arm: Arm, blocks: pd.DataFrame) -> Readings:
    """Return what probes read of an arm. blocks: as `activations_frame` has them."""
    runs = arm.finished
    blocks_of_arm = blocks[blocks["arm"] == arm.name]
    streams = blocks_of_arm["stream RMS"].tolist() or [NAN]
    gradients = blocks_of_arm["gradient norm"].tolist() or [NAN]
    saturated = blocks_of_arm["saturated"].max()
    return Readings(
        entering=mean_probed(runs, ENTERING, 0),
        passed=mean_probed(runs, PASSED, 0),
        gradient=mean_probed(runs, GRADIENT, -1),
        in_blocks=math.hypot(*gradients),
        first_gradient=gradients[0],
        last_gradient=gradients[-1],
        stream=streams[-1],
        saturated=float(saturated),
        fall=mean(late_fall(run) for run in runs),
    )


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values that are finite; NaN where none is."""
    finite = finite_numbers(values)
    return float(np.mean(finite)) if finite else NAN


def mean_probed(runs: Iterable[RecordedRun], tag: re.Pattern[str], place: int) -> float:
    """Return the mean over runs of what `probed` reads of each."""
    return mean(probed(run, tag, place) for run in runs)


def probed(run: RecordedRun, tag: re.Pattern[str], place: int) -> float:
    """Return a value of the first of a run's curves whose tag has some form; NaN where there is none.

    place: 0 for its first finite value, -1 for its last.
    """
    for name, curve in run.curves.items():
        values = finite_points(curve).values if tag.fullmatch(name) else ()
        if len(values):
            return float(values[place])
    return NAN


def late_fall(run: RecordedRun) -> float:
    """Return the share by which a run's training loss fell from the third to the last quarter of its record."""
    losses = finite_points(run.curves.get(TRAINING_LOSS)).values
    *_, third, last = np.array_split(losses, 4)
    if not len(last):
        return NAN
    return float(1 - last.mean() / third.mean())


# ---- why


def causes_of(
    arms: Sequence[Arm], readings_of: Mapping[str, Readings], differences: Sequence[Difference]
) -> tuple[Cause, ...]:
    """Return what probes show of arms that did not train, and of arms that differ from their baselines.

    readings_of: what probes read of each arm, by its name.
    """
    causes = []
    for arm in arms:
        if not arm.trained:
            causes.append(Cause(arm.name, None, reasons_of(readings_of[arm.name])))
    for difference in differences:
        if difference.real:
            reasons = reasons_between(readings_of[difference.arm], readings_of[difference.baseline])
            if reasons:
                causes.append(Cause(difference.arm, difference.baseline, reasons))
    return tuple(causes)


def reasons_of(readings: Readings) -> tuple[Reason, ...]:
    """Return what may have kept an arm from training."""
    reasons = []
    if readings.entering < SMALL:
        evidence = {"entering": readings.entering}
        if readings.passed < SMALL:
            evidence["passed"] = readings.passed
        reasons.append(Reason(ReasonKind.SMALL_STREAM, evidence))
    if readings.saturated > MOSTLY_SATURATED:
        reasons.append(Reason(ReasonKind.SATURATED, {"saturated": readings.saturated}))
    if readings.explode:
        reasons.append(Reason(ReasonKind.EXPLODING, {"gradient": readings.gradient}))
    elif readings.in_blocks < VANISHED * readings.gradient:
        reasons.append(Reason(ReasonKind.VANISHING, {"in_blocks": readings.in_blocks, "gradient": readings.gradient}))
    elif readings.vanish_downward:
        evidence = {"last_gradient": readings.last_gradient, "first_gradient": readings.first_gradient}
        reasons.append(Reason(ReasonKind.VANISHING_DOWN, evidence))
    if readings.fall < FALLS:
        reasons.append(Reason(ReasonKind.STANDING, {"fall": readings.fall}))
    elif readings.fall >= FALLS:  # it may be NaN
        reasons.append(Reason(ReasonKind.FALLING, {"fall": readings.fall}))
    return tuple(reasons)


def reasons_between(ours: Readings, theirs: Readings) -> tuple[Reason, ...]:
    """Return in what an arm differs from its baseline."""
    measures = {
        ReasonKind.STREAM: (ours.stream, theirs.stream),
        ReasonKind.FIRST_GRADIENT: (ours.first_gradient, theirs.first_gradient),
        ReasonKind.LAST_GRADIENT: (ours.last_gradient, theirs.last_gradient),
    }
    reasons = []
    for kind, (of_arm, of_baseline) in measures.items():
        if of_arm > APART * of_baseline or of_baseline > APART * of_arm:
            reasons.append(Reason(kind, {"arm": of_arm, "baseline": of_baseline}))
    if ours.saturated > SATURATED:
        reasons.append(Reason(ReasonKind.SATURATED, {"saturated": ours.saturated}))
    return tuple(reasons)


# ---- what to do next


def next_steps(
    study: RecordedStudy,
    arms: Sequence[Arm],
    readings_of: Mapping[str, Readings],
    differences: Sequence[Difference],
    margin: float | None,
) -> tuple[NextStep, ...]:
    """Return what to do next, with the commands for it.

    readings_of: what probes read of each arm, by its name. margin: the largest difference that does not matter; by
    default half of the smallest that the seeds can show.
    """
    steps = []
    resume = study.resume()
    if resume and any(run.status in ("interrupted", "running") for run in study.runs):
        steps.append(NextStep(StepKind.FINISH, resume))
    for arm in arms:
        if not arm.trained:
            remedies = remedies_for(readings_of[arm.name])
            steps.append(NextStep(StepKind.MAKE_TRAIN, arm=arm.name, remedies=remedies))
        elif arm.runs and all(run.status == "diverged" for run in arm.runs):
            steps.append(NextStep(StepKind.MAKE_TRAIN, arm=arm.name, remedies=(Remedy.WARMUP,)))
    undecided = [difference for difference in differences if difference.verdict in UNDECIDED]
    if undecided:
        steps += more_seeds(study, undecided, margin)
    if differences and not steps:
        steps.append(confirm_elsewhere(study))
    return tuple(steps)


def remedies_for(readings: Readings) -> tuple[Remedy, ...]:
    """Return what may make an arm train."""
    remedies = []
    if readings.entering < SMALL and readings.passed < SMALL:
        remedies.append(Remedy.LARGER_STREAM)
    if readings.saturated > MOSTLY_SATURATED or readings.explode or readings.vanish_downward:
        remedies.append(Remedy.WARMUP)
    if readings.fall >= FALLS:
        remedies.append(Remedy.STEPS)
    return tuple(remedies or [Remedy.OTHER_RATES])


def more_seeds(study: RecordedStudy, differences: Sequence[Difference], margin: float | None) -> list[NextStep]:
    """Return the step that adds the seeds which undecided comparisons need; none where they have enough."""
    detectable = finite_numbers(difference.detectable for difference in differences)
    if not detectable:
        return [NextStep(StepKind.PILOT, study.more_seeds(PILOT_SEEDS))]
    size = margin or float(f"{max(detectable) / 2:.1g}")
    widest = max(difference.sd for difference in differences)
    needed = seeds_needed(size, widest, family=differences[0].family)
    more = needed - min(difference.n for difference in differences)
    if more <= 0:
        return []
    return [NextStep(StepKind.ADD_SEEDS, study.more_seeds(more), seeds=more, size=size)]


def confirm_elsewhere(study: RecordedStudy) -> NextStep:
    """Return how to see whether what was found holds elsewhere."""
    if LEARNING_RATE not in study.varied and not study.fairly_chosen and not study.ramps:
        return NextStep(StepKind.OWN_RATES, own_rates(study))
    name = f"{study.runs[0].config.get('name')}-longer"
    lengths = {run.steps for run in study.runs}
    command = ""  # where one value would take the place of several
    if len(lengths) == 1:
        command = study.command(**{"name": name, "trainer.steps": str(2 * lengths.pop())})
    return NextStep(StepKind.LONGER, command)
