"""Statistics of a comparison: intervals, paired differences, Holm's correction, power, and two scores of a run.

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
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy import optimize, special, stats

from normbench.errors import UsageError

ALPHA = 0.05  # two-sided level of a test, and 1 − the confidence of an interval
POWER = 0.8  # share of studies that find a difference that is there
MOST_SEEDS = 1_000_000  # beyond it nobody plans
FEWEST_FOR_WILCOXON = 6  # five pairs give p = 0.0625 at the least
ROUNDING = 1e-12  # of the largest value: what is closer than this is the same


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval, in the unit of the values."""

    lower: float
    upper: float

    @property
    def reach(self) -> float:
        """Return the largest distance from 0 in it: max(|lower|, |upper|)."""
        return max(abs(self.lower), abs(self.upper))


@dataclass(frozen=True)
class PairedDifference:
    """An arm less its baseline, seed by seed.

    differences: one a seed, in the order of `seeds`; sd: their standard deviation (n − 1); interval, p: of the paired
    t test; effect_size: Hedges' g_z, that is Cohen's d_z = mean / sd times J(n − 1), unbiased, from three seeds
    on; wilcoxon_p: of the signed-rank test, from six seeds on. None: what n is too small for; the mean of no seeds is
    NaN.

    Differences that are all the same have sd 0, which is no measure of how they spread (accuracies are multiples of
    1 / samples, so that a few of them agree by chance): they have no interval and effect_size; p is 1 where all are
    0, and None otherwise.
    """

    seeds: tuple[int, ...] = ()
    differences: tuple[float, ...] = ()
    mean: float = math.nan
    sd: float | None = None
    interval: Interval | None = None
    p: float | None = None
    effect_size: float | None = None
    wilcoxon_p: float | None = None

    @property
    def n(self) -> int:
        """Return the number of seeds that both arms have."""
        return len(self.seeds)


# ---- means and differences


def mean_interval(
    values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, Interval | None]:
    """Return the mean of independent values and Student's interval, mean ± t_{0.975, n−1}·sd/√n (Student 1908).

    bounds: between what values lie, where the interval is cut. There is none for one value, or values that are all the
    same; the mean of none is NaN.
    """
    if not values:
        return math.nan, None
    mean, sd = _mean_and_sd(np.array(values), ROUNDING * max(map(abs, values)))
    if not sd:
        return mean, None
    interval = _t_interval(mean, sd, len(values))
    return mean, Interval(max(interval.lower, bounds[0]), min(interval.upper, bounds[1]))


def paired_difference(arm: Mapping[int, float], baseline: Mapping[int, float]) -> PairedDifference:
    """Return arm − baseline over the seeds that both have, with the paired t test (Student 1908).

    arm, baseline: value by seed.
    """
    seeds = tuple(sorted(arm.keys() & baseline.keys()))
    n = len(seeds)
    if not n:
        return PairedDifference()
    first, second = (np.array([side[seed] for seed in seeds]) for side in (arm, baseline))
    differences = first - second
    resolution = ROUNDING * float(np.abs([first, second]).max())
    mean, sd = _mean_and_sd(differences, resolution)
    mean = mean if abs(mean) > resolution or sd else 0.0
    figures: dict[str, float | None] = {}
    if n > 1:
        figures = {"sd": sd, "p": None if mean else 1.0}
    if n >= FEWEST_FOR_WILCOXON:
        figures["wilcoxon_p"] = _signed_rank_p(np.rint(differences / resolution) if resolution else differences)
    if sd:
        t = mean / (sd / math.sqrt(n))
        effect_size = _hedges(n - 1) * mean / sd if n > 2 else None
        figures |= {"p": 2 * float(special.stdtr(n - 1, -abs(t))), "effect_size": effect_size}
    return PairedDifference(
        seeds, tuple(differences.tolist()), mean, interval=_t_interval(mean, sd, n) if sd else None, **figures
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's corrected p values of a family, in the order given: max over j ≤ i of (m − j + 1)·p_(j), at most 1.

    Holm 1979, for any dependence among the tests. None stays None and does not count towards m.
    """
    known = sorted(p for p in p_values if p is not None)
    steps = np.maximum.accumulate(np.array(known) * np.arange(len(known), 0, -1))
    corrected = dict(zip(known, np.minimum(steps, 1).tolist(), strict=True))
    return [None if p is None else corrected[p] for p in p_values]


def _mean_and_sd(sample: np.ndarray, resolution: float) -> tuple[float, float]:
    """Return mean and standard deviation (n − 1); of values that only rounding tells apart the first one and 0."""
    if np.ptp(sample) <= resolution:
        return float(sample[0]), 0.0
    return float(sample.mean()), float(sample.std(ddof=1))


def _t_interval(mean: float, sd: float, n: int) -> Interval:
    half = float(special.stdtrit(n - 1, 1 - ALPHA / 2)) * sd / math.sqrt(n)
    return Interval(mean - half, mean + half)


def _hedges(df: int) -> float:
    """Return J(df) = Γ(df/2) / (√(df/2)·Γ((df−1)/2)), which makes mean / sd unbiased (Hedges 1981)."""
    return math.exp(float(special.gammaln(df / 2) - special.gammaln((df - 1) / 2))) / math.sqrt(df / 2)


def _signed_rank_p(differences: np.ndarray) -> float:
    """Return the two-sided p of the signed-rank test (Wilcoxon 1945), differences of 0 left out.

    From the distribution of the rank sum over all signs, ties included, where scipy resamples, which takes seconds.
    """
    moved = differences[differences != 0]
    ranks = (2 * stats.rankdata(np.abs(moved))).astype(int)  # doubled, so that a tie's mean rank is whole
    chances = np.ones(1)  # of each sum of the positive ranks
    for rank in ranks:
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    observed = int(ranks[moved > 0].sum())
    return min(1.0, 2 * float(min(chances[: observed + 1].sum(), chances[observed:].sum())))


# ---- power


def paired_power(difference: float, sd: float, n: int, *, family: int = 1) -> float:
    """Return the share of studies of n seeds, two or more, in which the paired t test finds a true mean difference.

    sd: standard deviation of the differences, in the difference's unit; family: comparisons that Holm corrects for.
    """
    return _power(n, math.sqrt(n) * abs(difference) / sd, ALPHA / family)


def seeds_needed(difference: float, sd: float, *, family: int = 1) -> int:
    """Return the smallest number of seeds (2 or more) with which a difference is found four times in five.

    sd is that of the paired differences of a pilot; `sd_upper_limit` is the cautious one.

    Raises:
        UsageError: more than 1,000,000 seeds would be needed.
    """
    numbers = range(2, MOST_SEEDS + 1)
    place = bisect_left(numbers, POWER, key=lambda n: paired_power(difference, sd, n, family=family))
    if place == len(numbers):
        raise UsageError(f"a difference of {difference:g} needs more than {MOST_SEEDS:,} seeds: give a larger one")
    return numbers[place]


def detectable_difference(n: int, sd: float, *, family: int = 1) -> float:
    """Return the smallest true difference that n seeds, two or more, find four times in five, in the unit of sd.

    sd: standard deviation of the paired differences.
    """
    return sd * _noncentrality(n, ALPHA / family) / math.sqrt(n)


def sd_upper_limit(sd: float, n: int, confidence: float = 0.8) -> float:
    """Return the one-sided upper limit of the standard deviation behind n Gaussian values: sd·√(df / χ²_{1−c, df}).

    df = n − 1, χ² its quantile at 1 − c. A plan made with the pilot's own sd falls short in more than half of all
    cases; with this limit it holds in 80 % (Browne 1995).
    """
    return sd * math.sqrt((n - 1) / float(special.chdtri(n - 1, confidence)))


def _power(n: int, noncentrality: float, alpha: float) -> float:
    """Return P(|T| > c), c the two-sided critical value of t at alpha, from T², which follows a noncentral F.

    scipy's noncentral t is NaN for 2 to 5 seeds at the levels that Holm's correction asks for. Its noncentral F is 0
    where the noncentrality is next to nothing, and NaN for some that are so large that the power is 1.
    """
    critical = float(special.stdtrit(n - 1, 1 - alpha / 2))
    missed = float(special.ncfdtr(1, n - 1, min(max(noncentrality, 1e-5), 1e100) ** 2, critical**2))
    return 1.0 if math.isnan(missed) else 1 - missed


@lru_cache(maxsize=1024)
def _noncentrality(n: int, alpha: float) -> float:
    """Return the noncentrality at which n seeds have the power asked for."""
    return float(optimize.brentq(lambda shift: _power(n, shift, alpha) - POWER, 0, 1e6, xtol=1e-9))


# ---- scores of runs


def learning_rate_sensitivity(losses: Mapping[float, float], loss_at_init: float) -> float | None:
    """Return the mean over rates of min(loss, loss at initialisation) − the best rate's loss (Wortsman et al. 2023).

    losses: final loss by learning rate, in nats; one that is not finite, of a run that diverged, counts as the loss at
    initialisation. Several seeds: one call a seed, then `mean_interval`. None where no rate ends below the start, so
    that there is no best one to measure from.
    """
    capped = [min(loss, loss_at_init) if math.isfinite(loss) else loss_at_init for loss in losses.values()]
    best = min(capped)
    return math.fsum(loss - best for loss in capped) / len(capped) if best < loss_at_init else None


def count_spikes(
    values: np.ndarray | Sequence[float], *, history: int = 1_000, fewest: int = 50, threshold: float = 7.0
) -> tuple[int, int]:
    """Count points at least 7 standard deviations from the mean of the last 1,000 before them (OLMo 2, 2025).

    values: losses or gradient norms in the order of steps; what is not finite is left out. Returns the spikes and how
    many points were judged: those with `fewest` points before them, as with few, noise alone reaches 7 deviations.
    """
    series = pd.Series(values, dtype=float)
    series = series[np.isfinite(series)]
    before = series.shift().rolling(history, min_periods=fewest)
    distance = (series - before.mean()).abs()
    spikes = (distance >= threshold * before.std()) & (distance > 0)
    return int(spikes.sum()), max(len(series) - fewest, 0)
