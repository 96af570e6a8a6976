"""A result: an effect over arms, seed by seed, with its interval, p, the family that corrects p, and its verdict.

What a result holds is what was measured and what was said of it; all else follows from that and is computed where it
is asked for. `answer.json` has both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from normbench.evidence.measures import Metric
from normbench.results.rules import Verdict
from normbench.results.statistics import (
    ALPHA,
    Interval,
    Sample,
    detectable_difference,
    detectable_interval,
    fisher_p,
)

FEWEST_SEEDS = 3  # seeds from which on a report may say how much arms differ at most


@dataclass(frozen=True, kw_only=True)
class Result(ABC):
    """What is found of an arm against its baseline.

    Attributes:
        arm: its name.
        baseline: the name of the arm that it is compared with.
        choices: what p is multiplied by where one of the two had more learning rates to choose from (Bonferroni).
        corrected: p after Holm's correction, and for these choices.
        family: over how many tests Holm corrects, which are all that an answer states.
        verdict: what can be said of it, once it is corrected.
    """

    DERIVED: ClassVar[tuple[str, ...]] = ("p", "real")  # what follows from the fields and `answer.json` has too

    arm: str
    baseline: str
    choices: int = 1
    corrected: float | None = None
    family: int = 1
    verdict: Verdict = Verdict.UNKNOWN

    @property
    @abstractmethod
    def p(self) -> float | None:
        """Return p of the test by itself."""

    @property
    @abstractmethod
    def p_before_holm(self) -> float | None:
        """Return p as it enters Holm's correction; None for a test that takes no part in it."""

    @property
    def real(self) -> bool:
        """Tell whether it may be called a difference."""
        return self.corrected is not None and self.corrected < ALPHA

    def judge(self) -> Verdict:
        """Return what can be said of it, once p is corrected: of two counts, which have no interval."""
        if self.real:
            return Verdict.DIFFERENT
        is_found_alone = self.p is not None and self.p < ALPHA
        return Verdict.POSSIBLE if is_found_alone else Verdict.ALIKE


@dataclass(frozen=True, kw_only=True)
class Paired(Sample, Result):
    """A number of an arm less the same number of its baseline, seed by seed.

    Attributes:
        metric: in which both are measured.
        tried: how many seeds the arm and the baseline have, those that did not finish too, counting each once.
    """

    DERIVED = (*Result.DERIVED, "mean", "sd", "interval")

    resolution: float = 0.0
    metric: Metric
    tried: int

    @property
    def better(self) -> bool:
        """Tell whether the arm's mean is the better one."""
        return (self.mean < 0) == self.metric.lower_is_better

    @property
    def p_before_holm(self) -> float | None:
        """Return p as it enters Holm's correction; 1 where all differences are the same, which may be chance."""
        if self.n < 2:
            return None
        p = 1.0 if self.p is None else self.p
        return min(1.0, self.choices * p)

    def judge(self) -> Verdict:
        """Return what can be said of it, once p is corrected: of values by seed, of which nothing else is known."""
        if self.n < 2:
            return Verdict.ONE_SEED if self.n else Verdict.NO_SEED
        if self.interval is None or self.p is None:
            return Verdict.CONSTANT if self.mean else Verdict.SAME
        if self.p < ALPHA:
            return Verdict.DIFFERENT if self.real else Verdict.POSSIBLE
        return Verdict.UNKNOWN


# ---- how arms end


@dataclass(frozen=True)
class TwoGroups:
    """An arm whose runs end in two groups far apart: how many of its runs trained, of how many that finished."""

    arm: str
    trained: int
    runs: int


@dataclass(frozen=True)
class Deciding:
    """The seed without which the answer would change, and p without it."""

    seed: int
    p: float


@dataclass(frozen=True, kw_only=True)
class Difference(Paired):
    """How an arm ends less how its baseline does, in the metric's unit, over the seeds that finished in both.

    Where an arm did not train, or its runs end in two groups, of which one did not train, nothing is tested; over two
    groups there is no mean either.

    Attributes:
        margin: differences within it do not matter; None where nobody has said.
        spread: of how all runs of the two end, from the lowest to the highest.
        untrained: which of the two did not train.
        torn: which of the two end in two groups.
        survived: whether other seeds were lost, so that these are the survivors.
        lost: how many seeds the arm and the baseline lost, of those that ended in both.
        ranks: how many values the signed-rank test has, in which a lost run ranks last.
        ranked_p: p of that test.
    """

    DERIVED = (
        *Paired.DERIVED,
        "better",
        "effect_size",
        "detectable",
        "detectable_interval",
        "skewed",
        "deciding",
    )

    margin: float | None = None
    spread: float = math.inf
    untrained: tuple[str, ...] = ()
    torn: tuple[TwoGroups, ...] = ()
    survived: bool = False
    lost: tuple[int, int] = (0, 0)
    ranks: int = 0
    ranked_p: float | None = None

    @property
    def interval(self) -> Interval | None:
        """Return Student's interval; there is none over two groups."""
        return None if self.torn else super().interval

    @property
    def is_tested(self) -> bool:
        """Tell whether there is a test: not where an arm did not train, or ends in two groups."""
        return not (self.untrained or self.torn)

    @property
    def p(self) -> float | None:
        """Return p of the paired t test."""
        return super().p if self.is_tested else None

    @property
    def p_before_holm(self) -> float | None:
        """Return p as it enters Holm's correction."""
        return super().p_before_holm if self.is_tested else None

    @property
    def real(self) -> bool:
        """Tell whether it may be called a difference."""
        return super().real and not self.flattered

    @property
    def flattered(self) -> bool:
        """Tell whether the side that looks better has lost more runs, so that only its best seeds are compared."""
        lost_by_arm, lost_by_baseline = self.lost
        arm_lost_more = lost_by_arm > lost_by_baseline
        return lost_by_arm != lost_by_baseline and self.better == arm_lost_more

    @property
    def effect_size(self) -> float | None:
        """Return Hedges' g_z; there is none where nothing is tested."""
        return super().effect_size if self.is_tested else None

    @property
    def detectable(self) -> float | None:
        """Return the smallest true difference that would be found four times in five, with Holm's correction."""
        if not self.sd or not self.is_tested:
            return None
        return detectable_difference(self.n, self.sd, family=self.family)

    @property
    def detectable_interval(self) -> Interval | None:
        """Return the interval of `detectable`, since the spread is estimated from few seeds."""
        if not self.sd or not self.is_tested:
            return None
        return detectable_interval(self.n, self.sd, family=self.family)

    @property
    def deciding(self) -> Deciding | None:
        """Return the one seed without which the answer would change; None where no seed decides."""
        if not self.p or self.corrected is None:
            return None
        level = ALPHA * self.p / self.corrected if self.corrected < 1 else ALPHA / self.family
        seed_and_p = self.deciding_at(level)
        return Deciding(*seed_and_p) if seed_and_p else None

    def judge(self) -> Verdict:
        """Return what can be said of it, once p is corrected: of arms that may not train, or lose runs."""
        if self.untrained:
            return Verdict.UNTRAINED
        if self.torn and self.n > 1:
            return Verdict.TORN
        if self.n > 1 and self.flattered and (self.p is None or self.p < ALPHA):
            return Verdict.FLATTERED
        by_values = super().judge()
        if by_values != Verdict.UNKNOWN or self.n < FEWEST_SEEDS:
            return by_values
        interval = self.interval
        assert interval is not None  # as its p is known
        if self.margin is not None and interval.reach <= self.margin:
            return Verdict.WITHIN
        return Verdict.UNKNOWN if interval.reach > self.spread else Verdict.ALIKE


# ---- what factors and sizes do


class EffectKind(StrEnum):
    """What is measured of a factor's effect on an arm."""

    CHANGE = "change"  # from its usual value to another
    SLOPE = "slope"  # per doubling
    LARGEST = "largest"  # the logarithm to base 2 of its largest value at which an arm trains
    AREA = "area"  # the percentage of the grid of two factors in which an arm trains
    SENSITIVITY = "sensitivity"  # to the learning rate


@dataclass(frozen=True, kw_only=True)
class FactorEffect(Paired):
    """What a factor does to an arm, less what it does to the baseline.

    Attributes:
        kind: what is measured of it.
        factor: the setting, or the two of a grid.
        levels: its values, the usual one first, or all from low to high.
        own: the effects on the arm, by seed.
        other: the effects on the baseline, by seed.
    """

    kind: EffectKind
    factor: str
    levels: tuple[Any, ...]
    own: tuple[float, ...]
    other: tuple[float, ...]


@dataclass(frozen=True)
class DifferenceAtSize:
    """The difference between an arm and its baseline in models of one size.

    Attributes:
        parameters: of the baseline's model; where they are extrapolated to, of none that was trained.
        values: in each seed.
        mean: of the values.
        interval: Student's 95 % interval of the mean.
        settings: that make the size; none on a line.
        resolution: values that differ by no more than this are the same.
    """

    parameters: float
    values: tuple[float, ...]
    mean: float
    interval: Interval | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    resolution: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Scaling(Paired):
    """By how much the difference between an arm and its baseline changes with each tenfold of parameters.

    In each seed the differences at all sizes have a line over log10 of the parameters, by least squares; `values` are
    the slopes.

    Attributes:
        sizes: what was measured, from the smallest size to the largest.
        at_smallest: the seeds' lines at the smallest size.
        at_largest: the seeds' lines at the largest size.
        extrapolated: the seeds' lines a decade beyond the largest size, of which no model was trained.
        bend_p: p of the test of whether the lines are curved, by the seeds' second-order coefficients.
        left_out: arms of sizes at which one of the two did not train, or no seed finished in both.
    """

    sizes: tuple[DifferenceAtSize, ...]
    at_smallest: DifferenceAtSize
    at_largest: DifferenceAtSize
    extrapolated: DifferenceAtSize
    bend_p: float | None
    left_out: tuple[str, ...]


# ---- runs that diverged or did not train


@dataclass(frozen=True, kw_only=True)
class LostRuns(Result):
    """How many runs of an arm and of its baseline diverged or did not train.

    Attributes:
        lost: how many runs of the arm, and of the baseline, did.
        runs: how many of each finished or diverged.
        counted: whether the test can show anything with so many lost in all, and so counts in its family.
        diverged: whether some runs diverged.
        stuck: whether some runs did not train.
    """

    lost: tuple[int, int]
    runs: tuple[int, int]
    counted: bool
    diverged: bool
    stuck: bool

    @property
    def p(self) -> float:
        """Return p of Fisher's exact test."""
        return fisher_p(self.lost, self.runs)

    @property
    def p_before_holm(self) -> float | None:
        """Return p as it enters Holm's correction; None where so few lost runs in all cannot show anything."""
        return min(1.0, self.choices * self.p) if self.counted else None
