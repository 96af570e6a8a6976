"""Verdicts on claims: from the interval of a claim's effect alone, and corrected over all claims that are registered.

Values are Gaussian with the effect as their mean, one a seed. A difference is tested with Student's interval of
1 − level, closeness with two one-sided tests, which is an interval of 1 − 2·level (Schuirmann 1987). Where values are
looked at twice, after half of the seeds and after all, each look has Pocock's level (1977).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import special

from normbench.results.statistics import ALPHA, POWER, ROUNDING, Interval, Sample, holm

LEVELS = {1: ALPHA, 2: 0.0294}  # of each look, by how many are planned (Pocock 1977, table 1)
FEWEST_EQUAL = 3  # values without which equal ones say nothing
MOST_SEEDS = 1_000  # beyond them nobody settles a claim


class Kind(StrEnum):
    """What a claim says of its effect."""

    LARGER = "larger"
    PARITY = "parity"
    AT_LEAST = "at_least"
    EXACT = "exact"
    SLOPE = "slope"


class Verdict(StrEnum):
    """What the seeds of a claim say of it, at the scale at which they ran."""

    REPRODUCED = "reproduced"
    PARITY = "parity"
    NOT_REPRODUCED = "not reproduced"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"


IN_FAVOUR = (Verdict.REPRODUCED, Verdict.PARITY)


@dataclass(frozen=True)
class Judgement:
    """A claim's effect and the verdict on it.

    Attributes:
        verdict: from the interval alone.
        n: how many values there are.
        mean: of the values.
        sd: their standard deviation (n − 1); 0 where they are all the same.
        level: of each look.
        interval: of 1 − level; None where values do not say how they spread, and for exact claims.
        inner: of 1 − 2·level.
        p: the smallest level at which the claim holds: of the t test against 0, the larger of the two one-sided tests,
            or one of them; 1 where the values speak against the claim. It counts all planned looks.
        p_against: the same for the opposite, which makes a claim contradicted.
        note: what the verdict leaves out; empty where that is nothing.
        power: share of repetitions that would find the claim to hold if the effect is the margin (larger), 0 (parity,
            at_least) or the target (slope), with the standard deviation seen, at one look; None without one. A claim
            of kind larger is found where the interval is above 0 and reaches the margin: however many seeds there are,
            half of the level (2.5 %) of them miss an effect that is just the margin, as too small.
        seeds_to_settle: of an inconclusive claim: how many in all settle it, one way or the other, four times in five
            if mean and spread stay as they are. None where more than 1,000 are needed, or there is no spread.
    """

    verdict: Verdict
    n: int
    mean: float
    sd: float
    level: float = ALPHA
    interval: Interval | None = None
    inner: Interval | None = None
    p: float = 1.0
    p_against: float = 1.0
    note: str = ""
    power: float | None = None
    seeds_to_settle: int | None = None

    @property
    def is_underpowered(self) -> bool:
        """Tell whether a true claim would be missed more than once in five times."""
        return self.power is not None and self.power < POWER


def judge(values: Mapping[int, float], kind: Kind, margin: float, *, target: float = 0.0, looks: int = 1) -> Judgement:
    """Judge the effect of a claim, positive as published.

    Args:
        values: effect by seed, all finite. Of a claim that is looked at twice, those of the seeds so far.
        kind: `larger` than 0, by the margin; `parity`, closer to 0 than the margin; `at_least`, not below 0 by the
            margin; `exact`, no value farther from 0 than the margin; `slope`, closer to the target than the margin.
        margin: the smallest effect that matters, in its unit; above 0 but for exact claims.
        target: the value that theory gives, for `slope`.
        looks: how often values are judged by plan, 1 or 2.

    Raises:
        ValueError: there are no values, or one is not finite.
    """
    if not values or not all(map(math.isfinite, values.values())):
        raise ValueError(f"a claim is judged by finite values, at least one, and these are {dict(values)}")
    sample = sample_of(values)
    if kind is Kind.EXACT:
        return _judge_exact(sample, margin)
    rule = _Rule(kind, margin, target, LEVELS[looks])
    if not sample.sd:
        return _judge_equal(sample, rule)
    outer = sample.interval_at(rule.level)
    inner = sample.interval_at(2 * rule.level)
    assert outer is not None and inner is not None
    verdict = rule.decide(outer, inner)
    p, p_against = rule.test(sample)
    to_settle = None
    if verdict is Verdict.INCONCLUSIVE:
        to_settle = rule.seeds_to_settle(sample)
    return Judgement(
        verdict,
        sample.n,
        sample.mean,
        sample.sd,
        rule.level,
        outer,
        inner,
        1.0 if verdict is Verdict.NOT_REPRODUCED else level_over_looks(p, looks),
        level_over_looks(p_against, looks),
        rule.remark(verdict, outer),
        rule.power(sample.sd, sample.n),
        to_settle,
    )


def sample_of(values: Mapping[int, float]) -> Sample:
    """Return effects by seed, at least one, as a sample, in which those that differ by rounding alone are the same."""
    seeds = tuple(sorted(values))
    effects = tuple(values[seed] for seed in seeds)
    return Sample(effects, ROUNDING * max(map(abs, effects)), seeds)


def power_of(kind: Kind, margin: float, sd: float, n: int, target: float = 0.0, looks: int = 1) -> float | None:
    """Return the chance that n seeds find a true claim reproduced; None where values do not spread, or n is 1.

    Args:
        kind, margin, target, looks: of the claim, as `judge` has them.
        sd: of the effect, from seed to seed.
        n: the seeds of one look.
    """
    if kind is Kind.EXACT or not sd or n < 2:
        return None
    return _Rule(kind, margin, target, LEVELS[looks]).power(sd, n)


def _judge_exact(sample: Sample, margin: float) -> Judgement:
    """Judge a claim that has no chance in it: one value beyond the margin contradicts it."""
    farthest = max(map(abs, sample.values))
    mean = float(np.mean(sample.values))
    sd = float(np.std(sample.values, ddof=1)) if sample.n > 1 else 0.0
    if farthest <= margin:
        return Judgement(Verdict.REPRODUCED, sample.n, mean, sd, p=0.0)
    note = f"the farthest value from 0 is {farthest:.3g}"
    return Judgement(Verdict.CONTRADICTED, sample.n, mean, sd, p_against=0.0, note=note)


def _judge_equal(sample: Sample, rule: _Rule) -> Judgement:
    """Judge values that are all the same, which have no interval: by the value, from three on.

    p is that of the sign test, 2^(1 − n): chance puts n independent values on one side of a bound no more often.
    """
    value = sample.mean
    if sample.n < FEWEST_EQUAL:
        note = "one seed has no interval" if sample.n == 1 else "two equal values say nothing of how they spread"
        return Judgement(Verdict.INCONCLUSIVE, sample.n, value, 0.0, rule.level, note=note)
    point = Interval(value, value)
    verdict = rule.decide(point, point)
    chance = 2.0 ** (1 - sample.n)
    return Judgement(
        verdict,
        sample.n,
        value,
        0.0,
        rule.level,
        p=chance if verdict in IN_FAVOUR else 1.0,
        p_against=chance if verdict is Verdict.CONTRADICTED else 1.0,
        note=f"all {sample.n} values are the same, so that there is no interval, and the value decides",
    )


@dataclass(frozen=True)
class _Rule:
    """How a verdict follows from intervals: the claim holds within bounds, and its opposite beyond others.

    Kind, bounds of the mean within which the claim holds, and the level on either side:

        larger      above 0                         level / 2, and the upper end is no less than the margin
        parity      between −margin and margin      level
        at_least    above −margin                   level
        slope       target ± margin                 level
    """

    kind: Kind
    margin: float
    target: float
    level: float

    @property
    def bounds(self) -> Interval:
        """Return the means for which the claim holds."""
        if self.kind is Kind.LARGER:
            return Interval(0.0, math.inf)
        if self.kind is Kind.AT_LEAST:
            return Interval(-self.margin, math.inf)
        return Interval(self.target - self.margin, self.target + self.margin)

    @property
    def one_sided(self) -> float:
        """Return the level at either end of the interval that decides."""
        return self.level / 2 if self.kind is Kind.LARGER else self.level

    def decide(self, outer: Interval, inner: Interval) -> Verdict:
        """Return the verdict on an effect with these intervals."""
        bounds = self.bounds
        deciding = outer if self.kind is Kind.LARGER else inner
        if deciding.upper < bounds.lower or deciding.lower > bounds.upper:
            return Verdict.CONTRADICTED
        if self.kind is Kind.LARGER and deciding.upper < self.margin:
            return Verdict.NOT_REPRODUCED
        if bounds.lower < deciding.lower and deciding.upper < bounds.upper:
            return Verdict.PARITY if self.kind is Kind.PARITY else Verdict.REPRODUCED
        return Verdict.INCONCLUSIVE

    def test(self, sample: Sample) -> tuple[float, float]:
        """Return p of the claim and p of its opposite, at one look."""
        df = sample.n - 1
        above_lower = (sample.mean - self.bounds.lower) / sample.standard_error
        below_upper = (self.bounds.upper - sample.mean) / sample.standard_error
        nearest = min(above_lower, below_upper)
        tail = float(special.stdtr(df, -nearest))
        opposite = float(special.stdtr(df, nearest))
        sides = self.level / self.one_sided  # 2: both are tested at once
        return min(1.0, sides * tail), min(1.0, sides * opposite)

    def remark(self, verdict: Verdict, outer: Interval) -> str:
        """Return what the verdict leaves out."""
        is_real = outer.lower > 0 or outer.upper < 0
        if verdict is Verdict.NOT_REPRODUCED and is_real:
            return "the effect is real, but smaller than matters"
        if verdict is Verdict.PARITY and is_real:
            direction = "above" if outer.lower > 0 else "below"
            return f"the difference is real, {direction} 0, but smaller than matters"
        return ""

    def power(self, sd: float, n: int) -> float:
        """Return the chance that n seeds find a true claim reproduced: parity with an effect of 0, say."""
        truth = {Kind.LARGER: self.margin, Kind.SLOPE: self.target}.get(self.kind, 0.0)
        within = self._chance_within(self.bounds, truth, sd, n)
        if self.kind is not Kind.LARGER:
            return within
        return within - self._chance_of_small(truth, sd, n)

    def seeds_to_settle(self, sample: Sample) -> int | None:
        """Return with how many seeds a verdict is found four times in five, if mean and spread are those seen."""

        def chance(n: int) -> float:
            return self._chance_of_a_verdict(sample.mean, sample.sd, n)

        numbers = range(sample.n + 1, MOST_SEEDS + 1)
        place = bisect_left(numbers, POWER, key=chance)
        return numbers[place] if place < len(numbers) else None

    def _chance_of_a_verdict(self, truth: float, sd: float, n: int) -> float:
        """Return the chance that n seeds leave a claim anything but inconclusive."""
        below = self._chance_within(Interval(-math.inf, self.bounds.lower), truth, sd, n)
        within = self._chance_within(self.bounds, truth, sd, n)
        above = self._chance_within(Interval(self.bounds.upper, math.inf), truth, sd, n)
        if self.kind is not Kind.LARGER:
            return below + within + above
        # Real but smaller than the margin counts twice: as above 0, and as below the margin.
        below_margin = self._chance_within(Interval(-math.inf, self.margin), truth, sd, n)
        return within + below_margin - self._chance_of_small(truth, sd, n)

    def _chance_of_small(self, truth: float, sd: float, n: int) -> float:
        """Return the chance that n seeds find an effect real, but smaller than the margin."""
        return self._chance_within(Interval(0.0, self.margin), truth, sd, n)

    def _chance_within(self, bounds: Interval, truth: float, sd: float, n: int) -> float:
        """Return the chance that an interval of n seeds lies within bounds.

        Given the standard deviation S of a sample, its mean is Gaussian with sd/√n; this is the mean over 200 quantiles
        of S²·(n − 1)/sd², which follows χ². With one bound it is a noncentral t distribution, with two Owen's (1965).
        """
        df = n - 1
        quantiles = (np.arange(200) + 0.5) / 200
        spread = np.sqrt(special.chdtri(df, quantiles) / df)
        half = float(special.stdtrit(df, 1 - self.one_sided)) * spread
        upper = special.ndtr((bounds.upper - truth) * math.sqrt(n) / sd - half)
        lower = special.ndtr((bounds.lower - truth) * math.sqrt(n) / sd + half)
        return float(np.maximum(upper - lower, 0.0).mean())


def level_over_looks(p: float, looks: int) -> float:
    """Return the level at which a value of p at one look is reached at any of them, where all have the same.

    Of two, after half of the values and after all: 1 − P(|Z₁| < z, |Z₂| < z), the correlation of the two √½; at 0.0294
    it is 0.05 (Pocock 1977).
    """
    if looks == 1 or p in (0, 1):
        return p
    z = -float(special.ndtri(p / 2))
    nodes, weights = np.polynomial.legendre.leggauss(100)
    first = z * nodes
    conditional_sd = math.sqrt(0.5)
    upper = special.ndtr((z - conditional_sd * first) / conditional_sd)
    lower = special.ndtr((-z - conditional_sd * first) / conditional_sd)
    density = np.exp(-(first**2) / 2) / math.sqrt(2 * math.pi)
    inside = z * float(np.sum(weights * density * (upper - lower)))
    return min(max(1 - inside, p), 2 * p, 1.0)


# ---- all claims


@dataclass(frozen=True)
class Corrected:
    """A claim among all that are registered: p after Holm's correction, and the verdict that it leaves.

    p, p_against: as `Judgement` has them, corrected. verdict: None for a claim that is not judged.
    """

    p: float
    p_against: float
    verdict: Verdict | None


@dataclass(frozen=True)
class Suite:
    """All registered claims, judged or not.

    Attributes:
        corrected: by name of the claim.
        judged: how many have a verdict.
        by_chance: how many verdicts chance gives at most, each tested at 5 %: those without an interval have none.
    """

    corrected: Mapping[str, Corrected]
    judged: int
    by_chance: float

    def count(self, *verdicts: Verdict) -> int:
        """Return how many claims have one of these verdicts after correction."""
        return sum(one.verdict in verdicts for one in self.corrected.values())


def correct_verdicts(judgements: Mapping[str, Judgement | None]) -> Suite:
    """Correct the verdicts on all registered claims after Holm (1979).

    judgements: by name, None for a claim that is not judged: its p is 1, so that what is run chooses nothing.

    What speaks for claims is one family, and what contradicts them another, each at 5 %. A verdict that correction does
    not leave is inconclusive; "not reproduced" is kept, as it claims nothing new.
    """
    p_values = [1.0 if one is None else one.p for one in judgements.values()]
    opposite = [1.0 if one is None else one.p_against for one in judgements.values()]
    judged = [one for one in judgements.values() if one is not None]
    corrected = dict[str, Corrected]()
    for (name, one), p, p_against in zip(judgements.items(), holm(p_values), holm(opposite), strict=True):
        assert p is not None and p_against is not None
        corrected[name] = Corrected(p, p_against, None if one is None else _keep(one.verdict, p, p_against))
    by_chance = ALPHA * sum(one.interval is not None for one in judged)
    return Suite(corrected, len(judged), by_chance)


def _keep(verdict: Verdict, p: float, p_against: float) -> Verdict:
    """Return a verdict, or that it is inconclusive once p is corrected."""
    is_lost = (verdict in IN_FAVOUR and p > ALPHA) or (verdict is Verdict.CONTRADICTED and p_against > ALPHA)
    return Verdict.INCONCLUSIVE if is_lost else verdict
