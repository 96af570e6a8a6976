"""Statistics of a comparison: intervals, differences paired by seed, Holm's correction, equivalence, and two scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from normbench.analysis.power import ALPHA, detectable_difference
from normbench.errors import UsageError

FloatArray = NDArray[np.float64]

FEWEST_FOR_BOOTSTRAP = 20  # below it, intervals of a nominal 95 % cover 76 (n = 3) to 90 % (n = 10)
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
        """The largest distance from 0 in it: max(|lower|, |upper|)."""
        return max(abs(self.lower), abs(self.upper))


@dataclass(frozen=True)
class Estimate:
    """The mean of n values. One value alone has no sd and no interval, and values that are all the same no interval."""

    n: int
    mean: float
    sd: float | None
    interval: Interval | None


@dataclass(frozen=True)
class PairedDifference:
    """An arm less its baseline, seed by seed.

    differences: one a seed, in the order of `seeds`; sd: their standard deviation (n − 1); interval, t, p: of the
    paired t test; effect_size: Hedges' g_z, that is Cohen's d_z = mean / sd times J(n − 1), unbiased, from three seeds
    on; wilcoxon_p: of the signed-rank test, from six seeds on; detectable: the smallest true difference that so many
    seeds find in 80 % of all studies, were sd the true one. None: what n is too small for.

    Differences that are all the same have sd 0, which is no measure of how they spread (accuracies are multiples of
    1 / samples, so that a few of them agree by chance): they have no interval, t, effect_size and detectable; p is 1
    where all are 0, and None otherwise.
    """

    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    sd: float | None = None
    interval: Interval | None = None
    t: float | None = None
    p: float | None = None
    effect_size: float | None = None
    wilcoxon_p: float | None = None
    detectable: float | None = None

    @property
    def n(self) -> int:
        """Number of seeds that both arms have."""
        return len(self.seeds)

    @property
    def spreads(self) -> bool:
        """Whether the differences tell how they vary: two or more of them that are not all the same."""
        return bool(self.sd)


@dataclass(frozen=True)
class Equivalence:
    """Whether two arms can be said not to differ by more than a margin.

    smallest_margin: the smallest one for which that can be said ("do not differ by more than …"), in the unit of the
    difference; round it up for print. None without an interval.
    """

    margin: float
    holds: bool
    smallest_margin: float | None
    n: int


@dataclass(frozen=True)
class LearningRateSensitivity:
    """How much of the best rate's loss is lost on average over the grid; see `learning_rate_sensitivity`."""

    sensitivity: float | None
    best_rate: float | None
    best_loss: float | None
    rates: int
    diverged: int


@dataclass(frozen=True)
class SpikeScore:
    """Spikes among the points that had history enough to be judged; share: spikes / judged, None if none was."""

    share: float | None
    spikes: int
    judged: int


def mean_interval(values: Sequence[float] | FloatArray, *, alpha: float = ALPHA) -> Estimate:
    """Mean of independent values with Student's interval, mean ± t_{1−alpha/2, n−1}·sd/√n (Student 1908).

    ValueError for no values and for values that are not finite: what diverged is counted, not averaged.
    """
    sample = _sample(values)
    mean, sd = _mean_and_sd(sample, ROUNDING * float(np.abs(sample).max()))
    if sample.size == 1:
        return Estimate(1, mean, None, None)
    return Estimate(sample.size, mean, sd, _t_interval(mean, sd, sample.size, alpha) if sd else None)


def paired_difference(
    arm: Mapping[int, float], baseline: Mapping[int, float], *, alpha: float = ALPHA
) -> PairedDifference:
    """The difference arm − baseline over the seeds that both have, with its paired t test (Student 1908).

    arm, baseline: value by seed. UsageError if no seed is in both, ValueError for a value that is not finite.
    """
    seeds = tuple(sorted(arm.keys() & baseline.keys()))
    if not seeds:
        raise UsageError(
            f"no seed in common: one arm has {_listed(arm)}, the other {_listed(baseline)}; "
            "run both with the same seeds"
        )
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
        detectable=detectable_difference(n, sd, alpha=alpha),
    )


def equivalence(difference: PairedDifference, margin: float) -> Equivalence:
    """Whether the interval of the difference lies within ± margin, ends included (two one-sided tests).

    Schuirmann 1987, who asks for 5 % each; with a 95 % interval it is 2.5 %.
    """
    if not (math.isfinite(margin) and margin >= 0):
        raise UsageError(f"a margin of {margin:g} cannot be held: give a finite one, 0 or above")
    smallest = None if difference.interval is None else difference.interval.reach
    return Equivalence(margin, smallest is not None and smallest <= margin, smallest, difference.n)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's corrected p values of a family, in the order given: max over j ≤ i of (m − j + 1)·p_(j), at most 1.

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


def bootstrap_interval(
    values: Sequence[float] | FloatArray, *, alpha: float = ALPHA, resamples: int = 9_999, seed: int = 0
) -> Interval | None:
    """Bootstrap interval of the mean, bias-corrected and accelerated (Efron 1987); None for fewer than 20 values.

    The same values and seed give the same interval. ValueError as for `mean_interval`.
    """
    sample = _sample(values)
    if sample.size < FEWEST_FOR_BOOTSTRAP:
        return None
    if sample.min() == sample.max():
        return Interval(float(sample[0]), float(sample[0]))
    found = stats.bootstrap(
        (sample,),
        np.mean,
        n_resamples=resamples,
        batch=1_000,  # bounds the memory
        confidence_level=1 - alpha,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(found.low), float(found.high))


def learning_rate_sensitivity(losses: Mapping[float, float | None], loss_at_init: float) -> LearningRateSensitivity:
    """Mean over the rates of min(loss, loss at initialisation) − the best rate's loss (Wortsman et al. 2023).

    losses: final loss by learning rate, in nats; None, NaN or inf for a run that diverged, which counts as the loss at
    initialisation. Of equal rates the smaller is the best. Several seeds: one call a seed, then `mean_interval`. Where
    no rate ends below the start there is no best one to measure from, and all but the counts are None. ValueError
    for an empty grid or a start that is not finite.
    """
    if not losses or not math.isfinite(loss_at_init):
        raise ValueError(f"{len(losses)} learning rates from a loss of {loss_at_init}: there is nothing to compare")
    finite = {rate: loss for rate, loss in losses.items() if loss is not None and math.isfinite(loss)}
    counts = (len(losses), len(losses) - len(finite))
    below = {rate: loss for rate, loss in finite.items() if loss < loss_at_init}
    if not below:
        return LearningRateSensitivity(None, None, None, *counts)
    best_rate = min(below, key=lambda rate: (below[rate], rate))
    excess = [below.get(rate, loss_at_init) - below[best_rate] for rate in losses]
    return LearningRateSensitivity(math.fsum(excess) / len(excess), best_rate, below[best_rate], *counts)


def spike_score(
    values: Sequence[float | None] | FloatArray,
    *,
    history: int = 1_000,
    fewest: int = 50,
    threshold: float = 7.0,
) -> SpikeScore:
    """Share of points at least 7 standard deviations from the mean of the last 1,000 points before it (OLMo 2, 2025).

    values: losses or gradient norms in the order of steps. A point is judged once it has `fewest` points before it:
    with few, Gaussian noise alone reaches 7 sample deviations. Points that are not finite (or None) are neither judged
    nor part of a history.
    """
    if not 2 <= fewest <= history:
        raise ValueError(f"fewest={fewest} of a history of {history} points: at least 2, and no more than there are")
    series = np.array(values, dtype=np.float64)
    series = series[np.isfinite(series)]
    if series.size <= fewest:
        return SpikeScore(None, 0, 0)
    centered = series - np.median(series)  # so that squares keep the digits that matter
    counts = np.minimum(np.arange(series.size), history)[fewest:]
    sums, squares = (_sums_before(x, history)[fewest:] for x in (centered, centered**2))
    spread = np.sqrt(np.maximum(squares - sums**2 / counts, 0) / (counts - 1))
    distance = np.abs(centered[fewest:] - sums / counts)
    rounding = np.finfo(np.float64).eps * np.sqrt(counts * squares)  # of the mean: no distance where all are equal
    spikes = int(((distance >= threshold * spread) & (distance > rounding)).sum())
    return SpikeScore(spikes / distance.size, spikes, distance.size)


def _sums_before(values: FloatArray, length: int) -> FloatArray:
    """For each value the sum of the `length` values before it, or of as many as there are.

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


def _sample(values: Sequence[float] | FloatArray) -> FloatArray:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size or not np.isfinite(sample).all():
        raise ValueError(f"a sample of shape {sample.shape}: it has one or more values, all of them finite")
    return sample


def _mean_and_sd(sample: FloatArray, resolution: float) -> tuple[float, float]:
    """Mean and standard deviation (n − 1); of values that only rounding tells apart the first one and 0."""
    if sample.max() - sample.min() <= resolution:
        return float(sample[0]), 0.0
    return float(sample.mean()), float(sample.std(ddof=1))


def _t_interval(mean: float, sd: float, n: int, alpha: float) -> Interval:
    half = float(special.stdtrit(n - 1, 1 - alpha / 2)) * sd / math.sqrt(n)
    return Interval(mean - half, mean + half)


def _hedges(df: int) -> float:
    """J(df) = Γ(df/2) / (√(df/2)·Γ((df−1)/2)), which makes mean / sd unbiased (Hedges 1981)."""
    return math.exp(float(special.gammaln(df / 2) - special.gammaln((df - 1) / 2))) / math.sqrt(df / 2)


def _signed_rank_p(differences: FloatArray, resolution: float) -> float:
    """Two-sided p of the signed-rank test (Wilcoxon 1945), differences of 0 left out.

    Up to 50 differences from the distribution of the rank sum over all signs, ties included: scipy resamples
    where there are ties, which takes seconds. `resolution`: differences closer than this are the same.
    """
    steps = np.rint(differences / resolution) if resolution else differences
    moved = steps[steps != 0]
    if moved.size > MOST_FOR_EXACT_RANKS:
        return float(stats.wilcoxon(moved, method="asymptotic").pvalue)
    sizes = np.abs(moved)
    below, up_to = sizes < sizes[:, None], sizes <= sizes[:, None]
    ranks = below.sum(axis=1) + up_to.sum(axis=1) + 1  # doubled, so that a tie's mean rank is whole
    ways = np.zeros(ranks.sum() + 1)  # in how many choices of signs the positive ranks have this sum
    ways[0] = 1
    for rank in ranks:
        ways[rank:] += ways[:-rank].copy()
    observed = int(ranks[moved > 0].sum())
    tail = min(ways[: observed + 1].sum(), ways[observed:].sum()) / ways.sum()
    return min(1.0, 2 * float(tail))


def _listed(arm: Mapping[int, float]) -> str:
    return "seeds " + ", ".join(map(str, sorted(arm))) if arm else "none"
