"""Statistics of a comparison: intervals, paired differences, Holm's correction, and power.

Power: the difference of two arms by seed is taken for Gaussian with mean δ and standard deviation σ. Then
t = √n·mean/sd of n seeds follows a noncentral t distribution with n − 1 degrees of freedom and noncentrality √n·δ/σ
(Cohen 1988, chapter 2). In a family of m comparisons each is planned at Holm's smallest level, alpha / m: never too few
seeds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # whose parts are imported where they are first used: stats alone takes half as long as torch

from normbench.errors import UsageError
from normbench.wording import short

ALPHA = 0.05  # two-sided level of a test, and 1 − the confidence of an interval
POWER = 0.8  # share of studies that find a difference that is there
MOST_PLANNED = 1_000_000  # beyond it nobody plans
FEWEST_WITHOUT_ONE = 3  # values that are left where one is left out
FEWEST_RANKS = 6  # values with which the test of signed ranks can give a p below 0.05
ROUNDING = 1e-12  # of the largest value: what is closer than this is the same


def exp2(exponent: float) -> float:
    """Return 2 to the power of an exponent; infinity where that is too large for a number."""
    with np.errstate(over="ignore"):
        return float(np.exp2(exponent))


class Interval(NamedTuple):
    """A two-sided confidence interval, in the unit of the values."""

    lower: float
    upper: float

    @property
    def reach(self) -> float:
        """Return the largest distance from 0 in it: max(|lower|, |upper|)."""
        return max(map(abs, self))

    @property
    def as_ratios(self) -> Interval:
        """Return the interval of ratios, where this one is of their logarithms to base 2."""
        return Interval(exp2(self.lower), exp2(self.upper))


@dataclass(frozen=True)
class Sample:
    """Independent values, one a seed, and what they say of the mean behind them.

    resolution: values that differ by no more than this are the same.

    Values that are all the same have sd 0, which does not measure how they spread (accuracies are multiples of
    1 / samples, so that a few of them agree by chance): they have no interval and effect_size; p is 1 where all are
    0, and None otherwise.
    """

    values: tuple[float, ...]
    resolution: float
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse values that are not one a seed."""
        if len(self.values) != len(self.seeds):
            raise ValueError(f"a sample has one value a seed, not {len(self.values)} of {len(self.seeds)} seeds")

    @property
    def n(self) -> int:
        """Return how many values there are."""
        return len(self.values)

    @cached_property
    def sd(self) -> float:
        """Return the standard deviation (n − 1); 0 where values are all the same, or there is one."""
        if not self.n or np.ptp(self.values) <= self.resolution:
            return 0.0
        return float(np.std(self.values, ddof=1))

    @property
    def standard_error(self) -> float:
        """Return the standard error of the mean, sd/√n."""
        return self.sd / math.sqrt(self.n)

    @cached_property
    def mean(self) -> float:
        """Return the mean; NaN for no values."""
        if not self.n:
            return math.nan
        if self.sd:
            return float(np.mean(self.values))
        value = self.values[0]
        return 0.0 if abs(value) <= self.resolution else value

    @property
    def interval(self) -> Interval | None:
        """Return Student's interval, mean ± t_{0.975, n−1}·sd/√n (Student 1908)."""
        return self.interval_at(ALPHA)

    def interval_at(self, level: float) -> Interval | None:
        """Return Student's interval of 1 − level, mean ± t_{1 − level/2, n−1}·sd/√n."""
        if not self.sd:
            return None
        quantile = float(scipy.special.stdtrit(self.n - 1, 1 - level / 2))
        half = quantile * self.sd / math.sqrt(self.n)
        return Interval(self.mean - half, self.mean + half)

    @property
    def p(self) -> float | None:
        """Return p of the two-sided t test against 0 (Student 1908)."""
        if not self.sd:
            are_all_zero = self.n > 1 and self.mean == 0
            return 1.0 if are_all_zero else None
        t = self.mean / self.standard_error
        return 2 * float(scipy.special.stdtr(self.n - 1, -abs(t)))

    @property
    def effect_size(self) -> float | None:
        """Return Hedges' g_z from three values on: mean / sd times J(n − 1), which makes it unbiased (Hedges 1981).

        J(df) = Γ(df/2) / (√(df/2)·Γ((df−1)/2)); Pochhammer's symbol is the ratio of the two.
        """
        df = self.n - 1
        if df < 2 or not self.sd:
            return None
        correction = float(scipy.special.poch((df - 1) / 2, 0.5)) / math.sqrt(df / 2)
        return correction * self.mean / self.sd

    def without(self, place: int) -> Sample:
        """Return the values but the one at a place."""
        values = self.values[:place] + self.values[place + 1 :]
        seeds = self.seeds[:place] + self.seeds[place + 1 :]
        return Sample(values, self.resolution, seeds)

    def deciding_at(self, level: float) -> tuple[int, float] | None:
        """Return the seed without which the t test says otherwise at a level, and p without it.

        Where there are several, that is the one without which p changes most. None where no single seed decides, and
        where too few values would be left without one.
        """
        if self.p is None or self.n <= FEWEST_WITHOUT_ONE:
            return None
        is_below = self.p < level
        p_without = dict[int, float]()  # p by the seed that is left out
        for place, seed in enumerate(self.seeds):
            p = self.without(place).p
            if p is not None and (p < level) != is_below:
                p_without[seed] = p
        if not p_without:
            return None
        seed = max(p_without, key=p_without.__getitem__) if is_below else min(p_without, key=p_without.__getitem__)
        return seed, p_without[seed]

    @property
    def skewed(self) -> bool:
        """Tell whether the values are skewed or have an outlier, by the test of Shapiro & Wilk (1965)."""
        if self.n < 3 or not self.sd:
            return False
        return float(scipy.stats.shapiro(self.values).pvalue) < ALPHA


def signed_rank_p(values: Sequence[float], resolution: float) -> float | None:
    """Return the two-sided p of the signed-rank test of two values or more (Wilcoxon 1945), those of 0 left out.

    With fewer than six it cannot be below 0.05: five values give 0.0625 at the least.
    From the distribution of the rank sum over all signs, ties included, where scipy resamples, which takes seconds.

    Args:
        values: one may be infinite, which is ranked last.
        resolution: values that differ by no more than this are the same.
    """
    if len(values) < 2:
        return None
    rounded = np.rint(np.divide(values, resolution or 1))
    moved = rounded[rounded != 0]
    ranks = (2 * scipy.stats.rankdata(np.abs(moved))).astype(int)  # doubled, so that a tie's mean rank is whole
    chances = np.ones(1)  # of each sum of the positive ranks
    for rank in ranks:
        negative = np.pad(chances, (0, rank))
        positive = np.pad(chances, (rank, 0))
        chances = (negative + positive) / 2
    observed = int(ranks[moved > 0].sum())
    at_most = float(chances[: observed + 1].sum())
    at_least = float(chances[observed:].sum())
    return min(1.0, 2 * min(at_most, at_least))


# ---- means and differences


def mean_interval(
    values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, Interval | None]:
    """Return the mean of independent values and its interval, cut at the bounds between which the values lie.

    There is none for one value, or values that are all the same; the mean of none is NaN.
    """
    resolution = ROUNDING * max(map(abs, values), default=0.0)
    sample = Sample(tuple(values), resolution, tuple(range(len(values))))
    interval = sample.interval
    if interval is None:
        return sample.mean, None
    least, most = bounds
    return sample.mean, Interval(max(interval.lower, least), min(interval.upper, most))


def paired_difference(arm: Mapping[int, float], baseline: Mapping[int, float]) -> Sample:
    """Return arm − baseline over the seeds that both have; its p is that of the paired t test (Student 1908).

    arm, baseline: value by seed.
    """
    seeds = tuple(sorted(arm.keys() & baseline.keys()))
    values_of_arm = np.array([arm[seed] for seed in seeds])
    values_of_baseline = np.array([baseline[seed] for seed in seeds])
    largest = np.abs([values_of_arm, values_of_baseline]).max(initial=0.0)
    return Sample(tuple((values_of_arm - values_of_baseline).tolist()), ROUNDING * float(largest), seeds)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's corrected p values of a family, in the order given: max over j ≤ i of (m − j + 1)·p_(j), at most 1.

    Holm 1979, for any dependence among the tests. None stays None and does not count towards m.
    """
    known = sorted(p for p in p_values if p is not None)
    factors = np.arange(len(known), 0, -1)
    steps = np.maximum.accumulate(np.array(known) * factors)
    at_most_one = np.minimum(steps, 1).tolist()
    corrected = dict(zip(known, at_most_one, strict=True))
    return [None if p is None else corrected[p] for p in p_values]


def fisher_p(lost: tuple[int, int], runs: tuple[int, int]) -> float:
    """Return the two-sided p of Fisher's exact test of how many runs two sides lost, of how many (Fisher 1922)."""
    first = [lost[0], runs[0] - lost[0]]
    second = [lost[1], runs[1] - lost[1]]
    return float(scipy.stats.fisher_exact([first, second]).pvalue)


def least_fisher_p(lost: tuple[int, int], runs: tuple[int, int]) -> float:
    """Return the smallest p that Fisher's test can give with these numbers of runs and as many lost in all.

    A test that cannot reach the level needs no correction and takes no part in one (Tarone 1990): how many are lost in
    all says nothing of which side lost them.
    """
    total = sum(lost)
    first, second = runs
    most, least = min(total, first), max(0, total - second)  # that the first side may have lost
    return min(fisher_p((most, total - most), runs), fisher_p((least, total - least), runs))


# ---- power


def paired_power(difference: float, sd: float, n: int, *, family: int = 1) -> float:
    """Return the share of studies of n seeds, two or more, in which the paired t test finds a true mean difference.

    sd: standard deviation of the differences, in the difference's unit; family: comparisons that Holm corrects for.

    That is P(|T| > c), c the two-sided critical value of t, from T², which follows a noncentral F: scipy's noncentral t
    is NaN for 2 to 5 seeds at the levels that Holm's correction asks for. Its noncentral F is 0 where the noncentrality
    is next to nothing, and NaN for some that are so large that the power is 1.
    """
    level = ALPHA / family
    critical = float(scipy.special.stdtrit(n - 1, 1 - level / 2))
    noncentrality = math.sqrt(n) * abs(difference) / sd
    noncentrality = min(max(noncentrality, 1e-5), 1e100)
    missed = float(scipy.special.ncfdtr(1, n - 1, noncentrality**2, critical**2))
    return 1.0 if math.isnan(missed) else 1 - missed


def seeds_needed(difference: float, sd: float, *, family: int = 1) -> int:
    """Return the smallest number of seeds (2 or more) with which a difference is found four times in five.

    sd is that of the paired differences of a pilot; `sd_upper_limit` is the cautious one.

    Raises:
        UsageError: more than 1,000,000 seeds would be needed.
    """
    numbers = range(2, MOST_PLANNED + 1)
    place = bisect_left(numbers, POWER, key=lambda n: paired_power(difference, sd, n, family=family))
    if place == len(numbers):
        needs = f"a difference of {short(difference)} needs more than {MOST_PLANNED:,} seeds"
        raise UsageError(f"{needs}: give a larger one")
    return numbers[place]


def detectable_difference(n: int, sd: float, *, family: int = 1) -> float:
    """Return the smallest true difference that n seeds, two or more, find four times in five, in the unit of sd.

    sd: standard deviation of the paired differences.
    """

    def excess(size: float) -> float:
        return paired_power(size, 1.0, n, family=family) - POWER

    size = float(scipy.optimize.brentq(excess, 0, 1e6, xtol=1e-12))
    return sd * size


def detectable_interval(n: int, sd: float, *, family: int = 1) -> Interval:
    """Return the 95 % interval of `detectable_difference`, which is as uncertain as the sd of n values.

    sd·√(df / χ²), df = n − 1, χ² its quantiles at 97.5 and 2.5 %. Of five values that is 1.0 to 4.8 sd.
    """
    detectable = detectable_difference(n, sd, family=family)
    df = n - 1
    high = float(scipy.special.chdtri(df, ALPHA / 2))
    low = float(scipy.special.chdtri(df, 1 - ALPHA / 2))
    return Interval(detectable * math.sqrt(df / high), detectable * math.sqrt(df / low))


def sd_upper_limit(sd: float, n: int, confidence: float = 0.8) -> float:
    """Return the one-sided upper limit of the standard deviation behind n Gaussian values: sd·√(df / χ²_{1−c, df}).

    df = n − 1, χ² its quantile at 1 − c. A plan made with the pilot's own sd falls short in more than half of all
    cases; with this limit it holds in 80 % (Browne 1995).
    """
    df = n - 1
    quantile = float(scipy.special.chdtri(df, confidence))
    return sd * math.sqrt(df / quantile)
