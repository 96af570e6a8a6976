"""Each arm against its baseline, seed by seed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

from normbench.evidence.arms import Arm, Baseline, pairs_of
from normbench.evidence.measures import Metric, final, final_values
from normbench.evidence.run import RecordedRun
from normbench.results.answer import Verdict
from normbench.results.statistics import (
    ALPHA,
    Interval,
    Sample,
    detectable_difference,
    detectable_interval,
    fisher_p,
    holm,
    least_fisher_p,
    paired_difference,
    signed_rank_p,
)

LOST = ("diverged", "failed", "out_of_memory")  # what leaves a run without a result
ENDS = ("finished", *LOST)
ENOUGH_SEEDS = 10  # seeds from which on skewed differences hardly mislead a t test
FEWEST_SEEDS = 3  # seeds from which on a report may say how much arms differ at most


@dataclass(frozen=True, kw_only=True)
class BaselineTest(ABC):
    """What is tested of an arm against its baseline.

    Attributes:
        arm: the arm.
        baseline: the arm that it is compared with.
        corrected: p after Holm's correction, and for the learning rates that one of the two had more of to choose from.
        family: over how many tests Holm corrects, which are all that an answer states.
    """

    arm: Arm
    baseline: Arm
    corrected: float | None = None
    family: int = 1

    @property
    @abstractmethod
    def p(self) -> float | None:
        """Return p of the test by itself."""

    @property
    @abstractmethod
    def p_before_holm(self) -> float | None:
        """Return p as it enters Holm's correction; None for a test that takes no part in it."""

    @property
    def bonferroni_factor(self) -> int:
        """Return what p is multiplied by where one arm had more learning rates to choose from than the other."""
        return 1 + abs(self.arm.rates_tried - self.baseline.rates_tried)

    @property
    def real(self) -> bool:
        """Tell whether it may be called a difference."""
        return self.corrected is not None and self.corrected < ALPHA


@dataclass(frozen=True, kw_only=True)
class PairedTest(Sample, BaselineTest):
    """A test of a number of an arm less the same number of its baseline, seed by seed."""

    metric: Metric

    @property
    def p_before_holm(self) -> float | None:
        """Return p as it enters Holm's correction; 1 where all differences are the same, which may be chance."""
        if self.n < 2:
            return None
        p = 1.0 if self.p is None else self.p
        return min(1.0, self.bonferroni_factor * p)

    @property
    def tried(self) -> set[int]:
        """Return the seeds of the arm and of its baseline, those that did not finish too."""
        return self.arm.seeds | self.baseline.seeds

    @property
    def decided_by(self) -> tuple[int, float] | None:
        """Return the one seed without which the answer would change, and p without it; None where no seed decides."""
        if not self.p or self.corrected is None:
            return None
        level = ALPHA * self.p / self.corrected if self.corrected < 1 else ALPHA / self.family
        return self.deciding(level)


@dataclass(frozen=True, kw_only=True)
class Comparison(PairedTest):
    """One arm less its baseline in a metric's unit, over the seeds that finished in both."""

    @cached_property
    def torn(self) -> list[Arm]:
        """Return which of the two arms have runs that end in two groups far apart, as some did not train."""
        sides = (self.arm, self.baseline)
        return [arm for arm in sides if in_two_groups(arm, self.metric, self.seeds)]

    @property
    def interval(self) -> Interval | None:
        """Return Student's interval; there is none over two groups."""
        return None if self.torn else super().interval

    @property
    def p(self) -> float | None:
        """Return p of the paired t test; there is none over two groups."""
        return None if self.torn else super().p

    @property
    def effect_size(self) -> float | None:
        """Return Hedges' g_z; there is none over two groups."""
        return None if self.torn else super().effect_size

    @property
    def p_before_holm(self) -> float | None:
        """Return p as it enters Holm's correction; None where an arm did not train, or ends in two groups."""
        return super().p_before_holm if self.trained and not self.torn else None

    @property
    def detectable(self) -> float | None:
        """Return the smallest true difference that would be found four times in five, with Holm's correction."""
        if not self.sd or self.torn:
            return None
        return detectable_difference(self.n, self.sd, family=self.family)

    @property
    def detectable_interval(self) -> Interval | None:
        """Return the interval of `detectable`, since the spread is estimated from few seeds."""
        if not self.sd or self.torn:
            return None
        return detectable_interval(self.n, self.sd, family=self.family)

    @property
    def survived(self) -> bool:
        """Tell whether other seeds were lost, so that those compared are the survivors."""
        runs = (*self.arm.runs, *self.baseline.runs)
        return any(run.status in LOST and run.seed not in self.seeds for run in runs)

    @cached_property
    def lost(self) -> tuple[set[int], set[int]]:
        """Return the seeds that the arm and the baseline lost, of those that have ended in both."""
        ours, theirs = ends_by_seed(self.arm), ends_by_seed(self.baseline)
        by_arm, by_baseline = set[int](), set[int]()
        for seed in ours.keys() & theirs.keys():
            if ours[seed] in LOST:
                by_arm.add(seed)
            if theirs[seed] in LOST:
                by_baseline.add(seed)
        return by_arm, by_baseline

    @property
    def flattered(self) -> bool:
        """Tell whether the side that looks better has lost more runs, so that only its best seeds are compared."""
        ours, theirs = self.lost
        arm_lost_more = len(ours) > len(theirs)
        return len(ours) != len(theirs) and self.better == arm_lost_more

    @property
    def ranked(self) -> tuple[float, ...]:
        """Return the values of the signed-rank test, in which a seed that only one side lost counts as its worst."""
        ours, theirs = self.lost
        worst = math.inf if self.metric.lower_is_better else -math.inf
        lost_by_arm = [worst] * len(ours - theirs)
        lost_by_baseline = [-worst] * len(theirs - ours)
        return (*self.values, *lost_by_arm, *lost_by_baseline)

    @property
    def ranked_p(self) -> float | None:
        """Return p of the signed-rank test over `ranked`; there is none over two groups."""
        return None if self.torn else signed_rank_p(self.ranked, self.resolution)

    @property
    def trained(self) -> bool:
        """Tell whether both arms trained."""
        return self.arm.trained and self.baseline.trained

    @property
    def real(self) -> bool:
        """Tell whether it may be called a difference."""
        return super().real and self.trained and not self.flattered

    @property
    def better(self) -> bool:
        """Tell whether the arm's mean is the better one."""
        return (self.mean < 0) == self.metric.lower_is_better

    def verdict(self, margin: float | None = None) -> Verdict:
        """Return what can be said of it.

        margin: in the metric's unit; differences within it do not matter.
        """
        if not self.trained:
            return Verdict.UNTRAINED
        if self.n < 2:
            return Verdict.ONE_SEED if self.n else Verdict.NO_SEED
        if self.torn:
            return Verdict.TORN
        p, interval = self.p, self.interval
        if self.flattered and (p is None or p < ALPHA):
            return Verdict.FLATTERED
        if interval is None or p is None:
            return Verdict.CONSTANT if self.mean else Verdict.SAME
        if p < ALPHA:
            return Verdict.DIFFERENT if self.real else Verdict.POSSIBLE
        if self.n < FEWEST_SEEDS:
            return Verdict.UNKNOWN
        if margin is not None and interval.reach <= margin:
            return Verdict.WITHIN
        runs = (*self.arm.runs, *self.baseline.runs)
        values = final_values(runs, self.metric)
        spread = max(values) - min(values)
        return Verdict.UNKNOWN if interval.reach > spread else Verdict.ALIKE


SomeTest = TypeVar("SomeTest", bound=BaselineTest)


def compare_all(arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> tuple[Comparison, ...]:
    """Return a comparison of every arm that has a partner with it; p is corrected over all of them after Holm.

    baseline: the settings in which a partner differs from its arm.
    """
    end = partial(final, metric=metric)
    found = []
    for arm, other in pairs_of(arms, baseline):
        one = paired_difference(by_seed(arm.runs, end), by_seed(other.runs, end))
        found.append(Comparison(one.values, one.resolution, one.seeds, arm=arm, baseline=other, metric=metric))
    return correct_p(found)


def ends_by_seed(arm: Arm) -> dict[int, str]:
    """Return the status of the runs of an arm that have ended, by seed."""
    ends = {}
    for run in arm.runs:
        if run.status in ENDS:
            ends[run.seed] = run.status
    return ends


def in_two_groups(arm: Arm, metric: Metric, seeds: Collection[int]) -> bool:
    """Tell whether some runs of an arm did not train, and end further from the others than either group is wide."""
    stuck_runs, trained_runs = list[RecordedRun](), list[RecordedRun]()
    for run in arm.runs:
        trained = run.trained if run.seed in seeds else None
        if trained:
            trained_runs.append(run)
        elif trained is False:
            stuck_runs.append(run)
    stuck = final_values(stuck_runs, metric)
    others = final_values(trained_runs, metric)
    if not stuck or not others:
        return False
    gap = max(min(stuck) - max(others), min(others) - max(stuck))
    width = max(max(stuck) - min(stuck), max(others) - min(others))
    return gap > width


# ---- runs that diverged or did not train


@dataclass(frozen=True, kw_only=True)
class Survival(BaselineTest):
    """A test of how many runs of an arm and of its baseline diverged or did not train.

    lost: how many runs of the arm, and of the baseline, did. runs: how many of each finished or diverged.
    """

    lost: tuple[int, int]
    runs: tuple[int, int]

    @property
    def p(self) -> float:
        """Return p of Fisher's exact test."""
        return fisher_p(self.lost, self.runs)

    @property
    def p_before_holm(self) -> float | None:
        """Return p as it enters Holm's correction; None where so few lost runs in all cannot show anything."""
        if min(self.runs) == 0 or least_fisher_p(self.lost, self.runs) >= ALPHA:
            return None
        return min(1.0, self.bonferroni_factor * self.p)


def compare_survivals(arms: Sequence[Arm], baseline: Baseline) -> tuple[Survival, ...]:
    """Return for every arm that has a partner a test of how many runs the two lost."""
    found = []
    for arm, other in pairs_of(arms, baseline):
        ours = were_lost(arm)
        theirs = were_lost(other)
        lost = (sum(ours), sum(theirs))
        runs = (len(ours), len(theirs))
        found.append(Survival(arm=arm, baseline=other, lost=lost, runs=runs))
    return correct_p(found)


def were_lost(arm: Arm) -> list[bool]:
    """Return for each run that finished or diverged whether it was lost: it diverged, or did not train."""
    found = []
    for run in arm.runs:
        if run.status in ("finished", "diverged"):
            found.append(run.status == "diverged" or run.trained is False)
    return found


# ---- families


def correct_p(found: Sequence[SomeTest]) -> tuple[SomeTest, ...]:
    """Return tests with p corrected after Holm, as a family of their own."""
    return with_corrected_p(found, holm([one.p_before_holm for one in found]))


def with_corrected_p(
    found: Sequence[SomeTest], corrected: Sequence[float | None], family: int | None = None
) -> tuple[SomeTest, ...]:
    """Return tests with p as Holm's correction has left it, in their order.

    family: over how many tests it was corrected; by default over those of these that have such a p.
    """
    known = [p for p in corrected if p is not None]
    size = family or max(len(known), 1)
    tests = []
    for one, p in zip(found, corrected, strict=True):
        tests.append(replace(one, corrected=None if one.p is None else p, family=size))
    return tuple(tests)


def by_seed(runs: Sequence[RecordedRun], measure: Callable[[RecordedRun], float]) -> dict[int, float]:
    """Return what is measured of runs, where it is not NaN; of several with one seed their mean."""
    measured = dict[int, list[float]]()
    for run in runs:
        value = measure(run)
        if not math.isnan(value):
            measured.setdefault(run.seed, []).append(value)
    means = {}
    for seed, values in sorted(measured.items()):
        mean = sum(values) / len(values)
        if not math.isnan(mean):  # as of ∞ and −∞
            means[seed] = mean
    return means
