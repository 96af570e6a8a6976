"""What claims have come to: effects by seed, judged by the rules with which they were registered, and all together.

Values are Gaussian with the effect as their mean, one a seed. A difference is tested with Student's interval of
1 − level, closeness with two one-sided tests, which is an interval of 1 − 2·level (Schuirmann 1987). Where values are
looked at twice, after half of the seeds and after all, each look has Pocock's level (1977).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from scipy import special

from normbench.results.statistics import ALPHA, POWER, ROUNDING, Interval, Sample, holm

LEVELS = {1: ALPHA, 2: 0.0294}  # of each look, by how many are planned (Pocock 1977, table 1)
FEWEST_EQUAL = 3  # values without which equal ones say nothing
MOST_SEEDS = 1_000  # beyond them nobody settles a claim


class Verdict(StrEnum):
    """What the seeds of a claim say of it, at the scale at which they ran."""

    REPRODUCED = "reproduced"
    PARITY = "parity"
    NOT_REPRODUCED = "not reproduced"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"


IN_FAVOUR = (Verdict.REPRODUCED, Verdict.PARITY)


# ---- rules


class Kind(StrEnum):
    """What a claim says of its effect."""

    LARGER = "larger"
    PARITY = "parity"
    AT_LEAST = "at_least"
    EXACT = "exact"
    SLOPE = "slope"


@dataclass(frozen=True)
class Rule:
    """How a verdict follows from the interval of an effect: the claim holds within bounds, and its opposite beyond.

    Kind, bounds of the mean within which the claim holds, and the level on either side:

        larger      above 0                         level / 2, and the upper end is no less than the margin
        parity      between −margin and margin      level
        at_least    above −margin                   level
        slope       target ± margin                 level
        exact       no value beyond ± margin        no chance in it

    Attributes:
        kind: what the claim says.
        margin: the smallest effect that matters, in its unit; above 0 but for exact claims.
        target: the value that theory gives to a slope.
        looks: how often values are judged by plan, 1 or 2.
    """

    kind: Kind
    margin: float
    target: float = 0.0
    looks: int = 1

    @property
    def level(self) -> float:
        """Return the level of each look."""
        return ALPHA if self.kind is Kind.EXACT else LEVELS[self.looks]

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

    def decide(self, deciding: Interval) -> Verdict:
        """Return the verdict on an effect. deciding: its interval, of `one_sided` at either end."""
        bounds = self.bounds
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

    def power(self, sd: float, n: int) -> float | None:
        """Return the chance that n seeds find a true claim: parity with an effect of 0, say, at one look.

        None where values do not spread, or n is 1. A claim of kind larger is true if its effect is the margin, and is
        found where the interval is above 0 and reaches the margin: however many seeds there are, half of the level
        (2.5 %) of them miss an effect that is just the margin, as too small.

        sd: of the effect, from seed to seed.
        """
        if self.kind is Kind.EXACT or not sd or n < 2:
            return None
        truth = {Kind.LARGER: self.margin, Kind.SLOPE: self.target}.get(self.kind, 0.0)
        within = self._chance_within(self.bounds, truth, sd, n)
        if self.kind is not Kind.LARGER:
            return within
        return within - self._chance_of_small(truth, sd, n)

    def seeds_to_settle(self, sample: Sample) -> int | None:
        """Return with how many seeds a verdict is found four times in five, if mean and spread are those seen.

        None where more than 1,000 are needed.
        """

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


# ---- effects


@dataclass(frozen=True)
class ClaimedEffect(Sample):
    """The effect of a claim by seed, positive as published, and the verdict on it.

    Values that are all the same have no interval: from three on the value decides. Exact claims have none either, as
    there is no chance in them: one value beyond the margin contradicts them.
    """

    rule: Rule

    # What follows from values and rule, and is kept with them.
    DERIVED = (
        "verdict", "n", "mean", "sd", "level", "interval", "inner", "p", "p_against", "note", "power",
        "seeds_to_settle",
    )  # fmt: skip

    @property
    def level(self) -> float:
        """Return the level of each look."""
        return self.rule.level

    @property
    def interval(self) -> Interval | None:
        """Return Student's interval of 1 − level; None where values do not say how they spread."""
        return None if self.is_exact else self.interval_at(self.level)

    @property
    def inner(self) -> Interval | None:
        """Return the interval of 1 − 2·level."""
        return None if self.is_exact else self.interval_at(2 * self.level)

    @property
    def deciding_interval(self) -> Interval | None:
        """Return the interval from which the verdict follows."""
        return self.interval if self.rule.kind is Kind.LARGER else self.inner

    @property
    def is_exact(self) -> bool:
        """Tell whether there is no chance in it."""
        return self.rule.kind is Kind.EXACT

    @property
    def farthest(self) -> float:
        """Return the largest distance of a value from 0."""
        return max(map(abs, self.values))

    @cached_property
    def verdict(self) -> Verdict:
        """Return what the seeds say of the claim."""
        if self.is_exact:
            return Verdict.REPRODUCED if self.farthest <= self.rule.margin else Verdict.CONTRADICTED
        if self.deciding_interval is not None:
            return self.rule.decide(self.deciding_interval)
        if self.n < FEWEST_EQUAL:
            return Verdict.INCONCLUSIVE
        return self.rule.decide(Interval(self.mean, self.mean))

    @property
    def p(self) -> float:
        """Return the smallest level at which the claim holds, 1 where the values speak against it.

        That is p of the t test against 0, the larger of the two one-sided tests, or one of them, over all planned
        looks.
        """
        return 1.0 if self.verdict is Verdict.NOT_REPRODUCED else self.p_of_claim_and_opposite[0]

    @property
    def p_against(self) -> float:
        """Return the same for the opposite, which makes a claim contradicted."""
        return self.p_of_claim_and_opposite[1]

    @cached_property
    def p_of_claim_and_opposite(self) -> tuple[float, float]:
        """Return p of the claim and p of its opposite over all planned looks.

        That of equal values is the sign test's, 2^(1 − n): chance puts n independent values on one side of a bound no
        more often.
        """
        if self.interval is not None:
            p, p_against = self.rule.test(self)
            return level_over_looks(p, self.rule.looks), level_over_looks(p_against, self.rule.looks)
        chance = 0.0 if self.is_exact else 2.0 ** (1 - self.n)
        is_held, is_contradicted = self.verdict in IN_FAVOUR, self.verdict is Verdict.CONTRADICTED
        return chance if is_held else 1.0, chance if is_contradicted else 1.0

    @property
    def note(self) -> str:
        """Return what the verdict leaves out; empty where that is nothing."""
        if self.is_exact:
            is_beyond = self.verdict is Verdict.CONTRADICTED
            return f"the farthest value from 0 is {self.farthest:.3g}" if is_beyond else ""
        if self.interval is None:
            if self.n == 1:
                return "one seed has no interval"
            if self.n < FEWEST_EQUAL:
                return "two equal values say nothing of how they spread"
            return f"all {self.n} values are the same, so that there is no interval, and the value decides"
        lower, upper = self.interval
        if lower <= 0 <= upper:
            return ""
        if self.verdict is Verdict.NOT_REPRODUCED:
            return "the effect is real, but smaller than matters"
        if self.verdict is Verdict.PARITY:
            direction = "above" if lower > 0 else "below"
            return f"the difference is real, {direction} 0, but smaller than matters"
        return ""

    @cached_property
    def power(self) -> float | None:
        """Return the share of repetitions that would find a true claim, with the spread seen; None without one."""
        return self.rule.power(self.sd, self.n)

    @property
    def is_underpowered(self) -> bool:
        """Tell whether a true claim would be missed more than once in five times."""
        return self.power is not None and self.power < POWER

    @cached_property
    def seeds_to_settle(self) -> int | None:
        """Return how many seeds in all settle an inconclusive claim, one way or the other, four times in five.

        None for other claims, where more than 1,000 are needed, and where there is no spread.
        """
        is_open = self.verdict is Verdict.INCONCLUSIVE and self.interval is not None
        return self.rule.seeds_to_settle(self) if is_open else None

    def derive(self) -> dict[str, Any]:
        """Return what follows from values and rule, by name."""
        return {name: getattr(self, name) for name in self.DERIVED}


def judge(values: Mapping[int, float], rule: Rule) -> ClaimedEffect:
    """Return the effect of a claim with its verdict.

    values: effect by seed, all finite. Of a claim that is looked at twice, those of the seeds so far.

    Raises:
        ValueError: there are no values, or one is not finite.
    """
    if not values or not all(map(math.isfinite, values.values())):
        raise ValueError(f"a claim is judged by finite values, at least one, and these are {dict(values)}")
    sample = sample_of(values)
    return ClaimedEffect(sample.values, sample.resolution, sample.seeds, rule)


def sample_of(values: Mapping[int, float]) -> Sample:
    """Return effects by seed, at least one, as a sample, in which those that differ by rounding alone are the same."""
    seeds = tuple(sorted(values))
    effects = tuple(values[seed] for seed in seeds)
    return Sample(effects, ROUNDING * max(map(abs, effects)), seeds)


# ---- one claim


class Status(StrEnum):
    """How far a claim has come."""

    COMPLETE = "complete"
    NOT_COMPLETE = "not complete"
    NOT_RUN = "not run"
    TRIAL = "trial"


@dataclass(frozen=True)
class ClaimResult:
    """One claim, its runs and the verdict: the content of its claim.json.

    Attributes:
        name: of the claim, which is that of its YAML and of its folder.
        digest: sha256 of the claim as it was registered when its runs were made.
        registered: the date of that, as 2026-11-28.
        status: complete ones alone have a verdict; a trial has other words than the claim.
        reason: why it is not run or not complete; empty otherwise.
        claim: the claim as it was then: key and value of its YAML, the defaults included.
        values: the effect by seed, in the claim's unit.
        arms: what was measured, by arm and seed, where that is one number.
        lost: how many runs were lost, by arm: those counted with the loss at initialization.
        unreached: at how many seeds an arm never comes down to the loss of its reference in `steps`, by arm: those
            counted with the length of the run; None where that was not noted.
        judgement: the effect with its verdict; None where there is no verdict.
        minutes: that the runs took; None where that is not known.
        machine: `processor` or `gpu`, `cores`, `torch`, `normbench`, `commit`.
        date: of the end of its last run, as 2026-11-28; empty for none.
        words: those of the command that made the runs, `normbench` and its command left out.
        report: path of the report of its runs, from the folder of claim.json; empty for none.
    """

    name: str
    digest: str
    registered: str
    status: Status
    reason: str = ""
    claim: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[int, float] = field(default_factory=dict)
    arms: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    unreached: Mapping[str, int] | None = None
    judgement: ClaimedEffect | None = None
    minutes: float | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    date: str = ""
    words: Sequence[str] = ()
    report: str = ""

    @property
    def minutes_to_settle(self) -> float | None:
        """Return the minutes of as many seeds as settle an inconclusive claim, all of them counted."""
        if self.judgement is None or self.judgement.seeds_to_settle is None or self.minutes is None:
            return None
        return self.minutes * self.judgement.seeds_to_settle / self.judgement.n

    def as_record(self) -> dict[str, Any]:
        """Return what claim.json holds, by name."""
        content = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**content, "judgement": self.judgement and self.judgement.derive()}


def rule_of(claim: Mapping[str, Any]) -> Rule:
    """Return the rule by which a claim is judged. claim: key and value of its YAML.

    Raises:
        ValueError, LookupError, TypeError: it is not a claim.
    """
    return Rule(Kind(claim["kind"]), claim["margin"], claim.get("target") or 0.0, len(claim["seeds"]))


@dataclass(frozen=True)
class Entry:
    """A claim and what it has come to.

    Attributes:
        name: of the claim.
        claim: key and value of its YAML as it is registered now.
        result: of its runs for this registration; None where there are none.
        older: results of earlier registrations, which do not count.
        corrected: its verdict among all that are registered.
    """

    name: str
    claim: Mapping[str, Any]
    result: ClaimResult | None
    older: Sequence[ClaimResult]
    corrected: Corrected

    @property
    def kind(self) -> Kind:
        """Return what the claim says of its effect."""
        return Kind(self.claim["kind"])

    @property
    def margin(self) -> float:
        """Return the smallest effect that matters."""
        return float(self.claim["margin"])

    @property
    def target(self) -> float:
        """Return the value that theory gives, 0 for all but slopes."""
        return float(self.claim.get("target") or 0.0)

    @property
    def unit(self) -> str:
        """Return the unit of the effect."""
        return str(self.claim.get("unit") or "")

    @property
    def judgement(self) -> ClaimedEffect | None:
        """Return the effect with its verdict; None where there is none."""
        return self.result.judgement if self.result else None

    @property
    def standing(self) -> str:
        """Return what the claim has come to in a word or two: a verdict, or why there is none."""
        if self.judgement:
            return self.judgement.verdict
        return self.result.status if self.result else Status.NOT_RUN

    @property
    def reason(self) -> str:
        """Return why there is no verdict; empty where there is one."""
        if self.judgement:
            return ""
        if self.result is None:
            return "its runs have not been made"
        if self.result.status is Status.TRIAL:
            return "a trial, which has other words or seeds than the claim and no verdict"
        return self.result.reason

    @property
    def lost(self) -> int:
        """Return how many runs were lost, and count with the loss at initialization."""
        return sum(self.result.lost.values()) if self.result else 0

    @property
    def unreached(self) -> Mapping[str, int]:
        """Return at how many seeds an arm's steps are a bound, as it never comes down to the loss asked for, by arm."""
        return (self.result.unreached or {}) if self.result else {}

    @property
    def deciding(self) -> Interval | None:
        """Return the interval from which the verdict follows."""
        return self.judgement.deciding_interval if self.judgement else None


# ---- all claims


@dataclass(frozen=True)
class Corrected:
    """A claim among all that are registered: p after Holm's correction, and the verdict that it leaves.

    p, p_against: as `ClaimedEffect` has them, corrected. verdict: None for a claim that is not judged.
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


def correct_verdicts(effects: Mapping[str, ClaimedEffect | None]) -> Suite:
    """Correct the verdicts on all registered claims after Holm (1979).

    effects: by name, None for a claim that is not judged: its p is 1, so that what is run chooses nothing.

    What speaks for claims is one family, and what contradicts them another, each at 5 %. A verdict that correction does
    not leave is inconclusive; "not reproduced" is kept, as it claims nothing new.
    """
    p_values = [1.0 if one is None else one.p for one in effects.values()]
    opposite = [1.0 if one is None else one.p_against for one in effects.values()]
    judged = [one for one in effects.values() if one is not None]
    corrected = dict[str, Corrected]()
    for (name, one), p, p_against in zip(effects.items(), holm(p_values), holm(opposite), strict=True):
        assert p is not None and p_against is not None
        corrected[name] = Corrected(p, p_against, None if one is None else keep(one.verdict, p, p_against))
    by_chance = ALPHA * sum(one.interval is not None for one in judged)
    return Suite(corrected, len(judged), by_chance)


def keep(verdict: Verdict, p: float, p_against: float) -> Verdict:
    """Return a verdict, or that it is inconclusive once p is corrected."""
    is_lost = (verdict in IN_FAVOUR and p > ALPHA) or (verdict is Verdict.CONTRADICTED and p_against > ALPHA)
    return Verdict.INCONCLUSIVE if is_lost else verdict
