"""Statistics of a comparison: intervals, paired differences, Holm's correction, power, and two scores of a run.

Power: the difference of two arms by seed is taken for Gaussian with mean δ and standard deviation σ. Then
t = √n·mean/sd of n seeds follows a noncentral t distribution with n − 1 degrees of freedom and noncentrality √n·δ/σ
(Cohen 1988, chapter 2). In a family of m comparisons each is planned at Holm's smallest level, alpha / m: never too few
seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, optimize, special, stats

from normbench.errors import UsageError

FloatArray = NDArray[np.float64]

ALPHA = 0.05  # two-sided level of a test, and 1 − the confidence of an interval
POWER = 0.8  # share of studies that find a difference that is there
MOST_SEEDS = 1_000_000  # beyond it nobody plans
FEWEST_FOR_WILCOXON = 6  # five pairs give p = 0.0625 at the least
MOST_FOR_EXACT_RANKS = 50  # above it, Wilcoxon's p comes from the normal approximation
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

    differences: one a seed, in the order of `seeds`; sd: their standard deviation (n − 1); interval, t, p: of the
    paired t test; effect_size: Hedges' g_z, that is Cohen's d_z = mean / sd times J(n − 1), unbiased, from three seeds
    on; wilcoxon_p: of the signed-rank test, from six seeds on. None: what n is too small for; the mean of no seeds is
    NaN.

    Differences that are all the same have sd 0, which is no measure of how they spread (accuracies are multiples of
    1 / samples, so that a few of them agree by chance): they have no interval, t and effect_size; p is 1 where all are
    0, and None otherwise.
    """

    seeds: tuple[int, ...] = ()
    differences: tuple[float, ...] = ()
    mean: float = math.nan
    sd: float | None = None
    interval: Interval | None = None
    t: float | None = None
    p: float | None = None
    effect_size: float | None = None
    wilcoxon_p: float | None = None

    @property
    def n(self) -> int:
        """Return the number of seeds that both arms have."""
        return len(self.seeds)


# ---- means and differences


def mean_interval(
    values: Sequence[float] | FloatArray, bounds: tuple[float, float] = (-math.inf, math.inf), *, alpha: float = ALPHA
) -> tuple[float, Interval | None]:
    """Return the mean of independent values and Student's interval, mean ± t_{1−alpha/2, n−1}·sd/√n (Student 1908).

    bounds: between what values lie, where the interval is cut. There is none for one value, or values that are all the
    same; the mean of none is NaN. ValueError for values that are not finite: what diverged is counted, not averaged.
    """
    if not len(values):
        return math.nan, None
    sample = _sample(values)
    mean, sd = _mean_and_sd(sample, ROUNDING * float(np.abs(sample).max()))
    if not sd:
        return mean, None
    interval = _t_interval(mean, sd, sample.size, alpha)
    return mean, Interval(max(interval.lower, bounds[0]), min(interval.upper, bounds[1]))


def paired_difference(
    arm: Mapping[int, float], baseline: Mapping[int, float], *, alpha: float = ALPHA
) -> PairedDifference:
    """Return arm − baseline over the seeds that both have, with the paired t test (Student 1908).

    arm, baseline: value by seed. ValueError for a value that is not finite.
    """
    seeds = tuple(sorted(arm.keys() & baseline.keys()))
    if not seeds:
        return PairedDifference()
    first, second = (_sample([side[seed] for seed in seeds]) for side in (arm, baseline))
    differences = first - second
    resolution = ROUNDING * float(max(np.abs(first).max(), np.abs(second).max()))
    mean, sd = _mean_and_sd(differences, resolution)
    found = PairedDifference(seeds, tuple(differences.tolist()), mean)
    n = len(seeds)
    if n == 1:
        return found
    wilcoxon = _signed_rank_p(differences, resolution) if n >= FEWEST_FOR_WILCOXON else None
    if sd == 0:
        same = abs(mean) <= resolution
        return replace(found, mean=0.0 if same else mean, sd=0.0, p=1.0 if same else None, wilcoxon_p=wilcoxon)
    t = mean / (sd / math.sqrt(n))
    return replace(
        found,
        sd=sd,
        interval=_t_interval(mean, sd, n, alpha),
        t=t,
        p=min(1.0, 2 * float(special.stdtr(n - 1, -abs(t)))),
        effect_size=_hedges(n - 1) * mean / sd if n > 2 else None,
        wilcoxon_p=wilcoxon,
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's corrected p values of a family, in the order given: max over j ≤ i of (m − j + 1)·p_(j), at most 1.

    Holm 1979, for any dependence among the tests. None stays None and does not count towards m. ValueError for a p
    outside [0, 1].
    """
    known = [index for index, p in enumerate(p_values) if p is not None]
    given = np.array([p_values[index] for index in known], dtype=np.float64)
    if not ((given >= 0) & (given <= 1)).all():
        raise ValueError(f"p values {given.tolist()}: each lies between 0 and 1")
    order = np.argsort(given)
    steps = np.maximum.accumulate(given[order] * np.arange(given.size, 0, -1))
    corrected: list[float | None] = [None] * len(p_values)
    for place, step in zip(order.tolist(), steps.tolist(), strict=True):
        corrected[known[place]] = min(1.0, step)
    return corrected


def _sample(values: Sequence[float] | FloatArray) -> FloatArray:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size or not np.isfinite(sample).all():
        raise ValueError(f"a sample of shape {sample.shape}: it has one or more values, all of them finite")
    return sample


def _mean_and_sd(sample: FloatArray, resolution: float) -> tuple[float, float]:
    """Return mean and standard deviation (n − 1); of values that only rounding tells apart the first one and 0."""
    if sample.max() - sample.min() <= resolution:
        return float(sample[0]), 0.0
    return float(sample.mean()), float(sample.std(ddof=1))


def _t_interval(mean: float, sd: float, n: int, alpha: float) -> Interval:
    half = float(special.stdtrit(n - 1, 1 - alpha / 2)) * sd / math.sqrt(n)
    return Interval(mean - half, mean + half)


def _hedges(df: int) -> float:
    """Return J(df) = Γ(df/2) / (√(df/2)·Γ((df−1)/2)), which makes mean / sd unbiased (Hedges 1981)."""
    return math.exp(float(special.gammaln(df / 2) - special.gammaln((df - 1) / 2))) / math.sqrt(df / 2)


def _signed_rank_p(differences: FloatArray, resolution: float) -> float:
    """Return the two-sided p of the signed-rank test (Wilcoxon 1945), differences of 0 left out.

    Up to 50 differences from the distribution of the rank sum over all signs, ties included: scipy resamples
    where there are ties, which takes seconds. `resolution`: differences closer than this are the same.
    """
    steps = np.rint(differences / resolution) if resolution else differences
    moved = steps[steps != 0]
    if moved.size > MOST_FOR_EXACT_RANKS:
        return float(stats.wilcoxon(moved, method="asymptotic").pvalue)
    ranks = (2 * stats.rankdata(np.abs(moved))).astype(int)  # doubled, so that a tie's mean rank is whole
    ways = np.zeros(ranks.sum() + 1)  # in how many choices of signs the positive ranks have this sum
    ways[0] = 1
    for rank in ranks:
        ways[rank:] += ways[:-rank].copy()
    observed = int(ranks[moved > 0].sum())
    tail = min(ways[: observed + 1].sum(), ways[observed:].sum()) / ways.sum()
    return min(1.0, 2 * float(tail))


# ---- power


def paired_power(difference: float, sd: float, n: int, *, family: int = 1, alpha: float = ALPHA) -> float:
    """Return the share of studies of n seeds in which the paired t test finds a true mean difference.

    sd: standard deviation of the differences, in the difference's unit; family: comparisons that Holm corrects for.
    0 for fewer than two seeds, which no test can be made of.
    """
    if n < 2 or sd == 0:
        return float(n >= 2 and difference != 0)
    return _power(n, math.sqrt(n) * abs(difference) / sd, alpha / family)


def seeds_needed(difference: float, sd: float, *, family: int = 1, alpha: float = ALPHA, power: float = POWER) -> int:
    """Return the smallest number of seeds (2 or more) whose `paired_power` reaches the given power.

    sd is that of the paired differences of a pilot; `sd_upper_limit` is the cautious one.

    Raises:
        UsageError: the difference is 0, or more than 1,000,000 seeds would be needed.
    """
    if not math.isfinite(difference) or difference == 0:
        raise UsageError(f"a difference of {difference:g} cannot be planned for: give the smallest one that matters")

    def enough(n: int) -> bool:
        return paired_power(difference, sd, n, family=family, alpha=alpha) >= power

    most = 2
    while not enough(most):
        if most >= MOST_SEEDS:
            raise UsageError(
                f"a difference of {difference:g} at a standard deviation of {sd:g} needs more than {MOST_SEEDS:,} "
                "seeds: give a larger difference"
            )
        most = min(2 * most, MOST_SEEDS)
    too_few = most // 2  # either shown not to be enough, or 1
    while most - too_few > 1:
        middle = (too_few + most) // 2
        too_few, most = (too_few, middle) if enough(middle) else (middle, most)
    return most


def detectable_difference(
    n: int, sd: float, *, family: int = 1, alpha: float = ALPHA, power: float = POWER
) -> float | None:
    """Return the smallest true difference that n seeds find with the given power, in the unit of sd; None for n < 2.

    sd: standard deviation of the paired differences. At 0 every difference would be found.
    """
    return None if n < 2 else sd * _noncentrality(n, alpha / family, power) / math.sqrt(n)


def sd_upper_limit(sd: float, n: int, confidence: float = 0.8) -> float:
    """Return the one-sided upper limit of the standard deviation behind n Gaussian values: sd·√(df / χ²_{1−c, df}).

    df = n − 1, χ² its quantile at 1 − c. A plan made with the pilot's own sd falls short in more than half of all
    cases; with this limit it holds in 80 % (Browne 1995).
    """
    return sd * math.sqrt((n - 1) / float(special.chdtri(n - 1, confidence)))


@lru_cache(maxsize=4096)
def _power(n: int, noncentrality: float, alpha: float) -> float:
    """Return P(|T| > c) for T = (Z + noncentrality) / √(χ²/df), c the two-sided critical value of t at alpha.

    = ∫ φ(z) P(χ² < df·((z + noncentrality) / c)²) dz, df = n − 1. scipy's own `nct.cdf` is NaN for 2 to 5 seeds at the
    levels that Holm's correction asks for, and `ncfdtr` 0 close to no difference (scipy 1.17).
    """
    df = n - 1
    critical = float(special.stdtrit(df, 1 - alpha / 2))
    shift = min(noncentrality, 1e100)  # its square is a number, too

    def density(z: float) -> float:
        share = float(special.gammainc(df / 2, df / 2 * ((z + shift) / critical) ** 2))
        return share * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    # For many seeds the inner probability is a step of this width, which the integration would overlook.
    width = critical / math.sqrt(2 * df)
    edges = [step + 9 * side * width - shift for step in (-critical, critical) for side in (-1, 0, 1)]
    inside = sorted(edge for edge in edges if -9 < edge < 9) or None
    found, _ = integrate.quad(density, -9, 9, points=inside, limit=200, epsabs=1e-10, epsrel=1e-10)
    return min(float(found), 1.0)


@lru_cache(maxsize=1024)
def _noncentrality(n: int, alpha: float, power: float) -> float:
    """Return the noncentrality at which n seeds reach this power."""
    above = 1.0
    while _power(n, above, alpha) < power:
        above *= 2
    return float(optimize.brentq(lambda shift: _power(n, shift, alpha) - power, 0, above, xtol=1e-9))


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
    values: Sequence[float] | FloatArray, *, history: int = 1_000, fewest: int = 50, threshold: float = 7.0
) -> tuple[int, int]:
    """Count points at least 7 standard deviations from the mean of the last 1,000 before them (OLMo 2, 2025).

    values: losses or gradient norms in the order of steps. Returns the spikes and how many points were judged: those
    with `fewest` points before them, as with few, Gaussian noise alone reaches 7 sample deviations. Points that are not
    finite are neither judged nor part of a history.
    """
    series = np.asarray(values, dtype=np.float64)
    series = series[np.isfinite(series)]
    if series.size <= fewest:
        return 0, 0
    centered = series - np.median(series)  # so that squares keep the digits that matter
    counts = np.minimum(np.arange(series.size), history)[fewest:]
    sums, squares = (_sums_before(x, history)[fewest:] for x in (centered, centered**2))
    spread = np.sqrt(np.maximum(squares - sums**2 / counts, 0) / (counts - 1))
    distance = np.abs(centered[fewest:] - sums / counts)
    rounding = np.finfo(np.float64).eps * np.sqrt(counts * squares)  # of the mean: no distance where all are equal
    return int(((distance >= threshold * spread) & (distance > rounding)).sum()), distance.size


def _sums_before(values: FloatArray, length: int) -> FloatArray:
    """Return for each value the sum of the `length` values before it, or of as many as there are.

    Nothing is subtracted again, so that a huge value leaves no rounding behind once it is out of the window: the values
    lie in blocks of `length`, and each window is the end of one block and the start of the next (van Herk 1992).
    """
    blocks = -(-values.size // length) + 1
    padded = np.zeros(blocks * length)
    padded[length : length + values.size] = values
    table = padded.reshape(blocks, length)
    ends = np.cumsum(table[:, ::-1], axis=1)[:, ::-1]
    starts = np.zeros_like(table)
    starts[:, 1:] = np.cumsum(table[:, :-1], axis=1)
    return ends.ravel()[: values.size] + starts.ravel()[length : length + values.size]
