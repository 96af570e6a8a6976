"""What a difference in loss is worth in compute: the steps and the time that an arm and its baseline take to one loss.

At each seed that is the higher of the two losses at which they end, so that both come down to it: the baseline's last
loss wherever the arm comes so far, and else the arm's own. A seed at which the arm does not come so far is counted, and
neither left out, nor given the length of its run: of two equal arms half of the seeds are such, and without them, or
with a bound in their place, an interval of ten seeds excludes equal steps in three to six cases of ten
(tests/test_worth.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normbench.evidence.arms import Arm
from normbench.evidence.measures import VALIDATION_LOSS, comparable, finite_points, loss_on
from normbench.evidence.run import RecordedRun
from normbench.results.caveat import OF_TIMES
from normbench.results.caveats import FEWEST_STEPS, STEADY, time_ratio
from normbench.results.comparisons import in_two_groups
from normbench.results.effects import FEWEST_EVALUATIONS, Descent, common_loss, doublings_of_steps
from normbench.results.recorded_facts import SHOULD_BE_ALIKE, Alike, Record
from normbench.results.statistics import ROUNDING, Interval, Sample, exp2
from normbench.wording import fixed

MOST_RISE = 0.05  # of the loss after its lowest, as a share of how far it fell: beyond it runs overfit

# What must be the same in both, as a step is else another amount of work.
OF_A_STEP = ("data.batch_size", "trainer.accumulate", "model.context")


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of ratios over seeds, and Student's 95 % interval of their logarithms, where there is one."""

    mean: float
    interval: Interval | None


@dataclass(frozen=True)
class Worth:
    """What an arm takes to a loss that its baseline takes so much for.

    Attributes:
        arm: its name.
        baseline: the name of the arm that it is compared with.
        seeds: at which both finished, and were evaluated on the way.
        steps: the logarithm to base 2 of the arm's steps over the baseline's, by seed.
        price: that of the arm's median step time over the baseline's; empty where times are no basis.
        unreached: seeds at which the arm does not come down to the baseline's last loss.
        bounds: seeds at which one of the two is there at its first evaluation, so that its steps may be fewer.
        lost: seeds that ended and are left out, as one of the two did not finish.
        no_time: why times are no basis; empty where they are.
        reason: why there is nothing at all; empty otherwise.
    """

    arm: str
    baseline: str
    seeds: tuple[int, ...] = ()
    steps: tuple[float, ...] = ()
    price: tuple[float, ...] = ()
    unreached: tuple[int, ...] = ()
    bounds: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    no_time: str = ""
    reason: str = ""

    DERIVED = ("n", "of_steps", "of_step_time", "of_time")  # what follows, and is written with them

    def __post_init__(self) -> None:
        """Refuse ratios that are not one a seed, and seeds of which it has none."""
        for ratios in (self.steps, self.price or self.steps):
            if len(ratios) != len(self.seeds):
                raise ValueError(f"a worth has one ratio a seed, not {len(ratios)} of {len(self.seeds)} seeds")
        if not {*self.unreached, *self.bounds} <= {*self.seeds}:
            raise ValueError("a worth names seeds that it does not have")

    @property
    def n(self) -> int:
        """Return how many seeds it rests on."""
        return len(self.seeds)

    @property
    def of_steps(self) -> Ratio | None:
        """Return the arm's steps to the same loss, as a multiple of the baseline's."""
        return self._ratio_of(self.steps)

    @property
    def of_step_time(self) -> Ratio | None:
        """Return the time of a step of the arm, as a multiple of the baseline's."""
        return self._ratio_of(self.price)

    @property
    def of_time(self) -> Ratio | None:
        """Return the arm's time to the same loss, as a multiple of the baseline's: steps times the time of a step."""
        if not self.price:
            return None
        return self._ratio_of([steps + price for steps, price in zip(self.steps, self.price, strict=True)])

    def _ratio_of(self, logarithms: Sequence[float]) -> Ratio | None:
        """Return the geometric mean of ratios. logarithms: to base 2, by seed."""
        if not logarithms:
            return None
        largest = max(map(abs, logarithms))
        sample = Sample(tuple(logarithms), ROUNDING * max(largest, 1.0), self.seeds)
        interval = sample.interval
        return Ratio(exp2(sample.mean), None if interval is None else interval.as_ratios)


def worth_of(arm: Arm, baseline: Arm) -> Worth:
    """Return what an arm takes to the losses of its baseline, paired by seed."""
    reason = why_not_comparable(arm, baseline)
    if reason:
        return Worth(arm.name, baseline.name, reason=reason)
    ended = {run.seed for run in arm.runs if run.ended} & {run.seed for run in baseline.runs if run.ended}
    descents_of_arm, descents_of_baseline = descents_of(arm), descents_of(baseline)
    seeds = sorted(descents_of_arm.keys() & descents_of_baseline.keys())
    if not seeds:
        why = "no seed finished in both with two evaluations on the same data or more, between which its loss is known"
        return Worth(arm.name, baseline.name, reason=why)
    for side, descents in ((arm, descents_of_arm), (baseline, descents_of_baseline)):
        if rises_again([descents[seed] for seed in seeds]):
            why = f"the loss of {side.name} rises again towards the end, so that it is met twice"
            return Worth(arm.name, baseline.name, reason=why)
    steps, unreached, bounds = [], [], []
    for seed in seeds:
        of_arm, of_baseline = descents_of_arm[seed], descents_of_baseline[seed]
        target = common_loss(of_arm, of_baseline)
        steps.append(doublings_of_steps(of_arm, of_baseline))
        if of_arm.steps_to(of_baseline.losses[-1]) is None:
            unreached.append(seed)
        if min(of_arm.losses[0], of_baseline.losses[0]) <= target:
            bounds.append(seed)
    no_time = why_no_time(arm, baseline, seeds)
    return Worth(
        arm=arm.name,
        baseline=baseline.name,
        seeds=tuple(seeds),
        steps=tuple(steps),
        price=() if no_time else log_ratios_of_times(arm, baseline, seeds),
        unreached=tuple(unreached),
        bounds=tuple(bounds),
        lost=tuple(sorted(ended.difference(seeds))),
        no_time=no_time,
    )


# ---- steps


def fall_of(run: RecordedRun) -> Descent:
    """Return how the validation loss of a run fell, as far as evaluations can be compared."""
    curve = finite_points(comparable(run, VALIDATION_LOSS))
    is_after_start = curve.steps > 0
    return Descent(curve.steps[is_after_start].tolist(), curve.values[is_after_start].tolist(), run.steps)


def descents_of(arm: Arm) -> dict[int, Descent]:
    """Return how the losses of the finished runs of an arm fell, by seed, where there are evaluations on the way."""
    descents = {}
    for run in arm.finished:
        descent = fall_of(run)
        if len(descent.steps) >= FEWEST_EVALUATIONS:
            descents[run.seed] = descent
    return descents


def rises_again(descents: Sequence[Descent]) -> bool:
    """Tell whether losses end above their lowest by more than what evaluations differ in, in the mean over seeds."""
    risen = sum(descent.losses[-1] - min(descent.losses) for descent in descents)
    fallen = sum(descent.losses[0] - min(descent.losses) for descent in descents)
    return risen > MOST_RISE * fallen


def why_not_comparable(arm: Arm, baseline: Arm) -> str:
    """Return why the steps of two arms say nothing of one another; empty where they do."""
    for side in (arm, baseline):
        if not side.trained:
            return f"{side.name} did not train"
        if in_two_groups(side, loss_on("val"), side.seeds):
            return f"runs of {side.name} end in two groups, of which one did not train"
        if any(run.ramp for run in side.runs):
            return "learning rates grew until runs no longer learned"
    for key in OF_A_STEP:
        if values_of(arm, key) != values_of(baseline, key):
            return f"the two differ in {key}, so that their steps are not the same work"
    return ""


def values_of(arm: Arm, key: str) -> set[str]:
    """Return the values that the runs of an arm have of a setting."""
    return {str(run.config.get(key)) for run in arm.runs}


# ---- time


def log_ratios_of_times(arm: Arm, baseline: Arm, seeds: Sequence[int]) -> tuple[float, ...]:
    """Return the logarithms to base 2 of the median step times of an arm over those of its baseline, by seed."""
    times_of_arm, times_of_baseline = step_times(arm), step_times(baseline)
    return tuple(math.log2(times_of_arm[seed] / times_of_baseline[seed]) for seed in seeds)


def step_times(arm: Arm) -> dict[int, float]:
    """Return the median step time of each finished run of an arm (ms) by seed; NaN where none was taken."""
    return {run.seed: run.step_ms for run in arm.finished}


def why_no_time(arm: Arm, baseline: Arm, seeds: Sequence[int]) -> str:
    """Return why the step times of two arms are no basis of a comparison; empty where they are. seeds: of it."""
    runs = [*arm.runs, *baseline.runs]
    if any(run.summary.get("stack", 1) > 1 for run in runs):
        return "seeds were trained together as one model (sweep.stack), so that none has a step time of its own"
    for rule in SHOULD_BE_ALIKE:
        if rule.kind in OF_TIMES and len(values_in(rule, arm, baseline)) > 1:
            return rule.sentence
    for side in (arm, baseline):
        ratio = time_ratio(side)
        if ratio > STEADY:
            return f"step times differ up to {fixed(ratio, 1)}-fold between seeds of {side.name}, as load changed"
    by_seed = [step_times(side) for side in (arm, baseline)]
    if any(math.isnan(times[seed]) for times in by_seed for seed in seeds):
        return "not all runs have a step time"
    if any((run.summary.get("step_time", {}).get("n") or 0) < FEWEST_STEPS for run in runs if run.seed in seeds):
        return f"some step times are of fewer than {FEWEST_STEPS} steps"
    return ""


def values_in(rule: Alike, arm: Arm, baseline: Arm) -> set[Any]:
    """Return the values that a rule reads of all sessions of two arms; what is not recorded is none."""
    values = set()
    for side in (arm, baseline):
        for run in side.runs:
            for session in run.sessions:
                values.add(rule.read(Record(side, run, session)))
    return values - {None}
