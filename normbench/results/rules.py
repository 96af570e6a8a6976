"""What can be said of a result, in one enumeration, and the rules by which claims are judged.

The rules of reports and studies are the `judge` of each kind of result.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import scipy

from normbench.results.statistics import ALPHA, POWER, Interval, Sample

LEVELS = {1: ALPHA, 2: 0.0294}  # of each look at a claim, by how many are planned (Pocock 1977, table 1)
MOST_TO_SETTLE = 1_000  # beyond them nobody settles a claim


class Verdict(StrEnum):
    """What can be said of a result."""

    DIFFERENT = "different"  # it is one after correction
    FLATTERED = "flattered"  # the arm that looks better has lost more runs
    POSSIBLE = "possible"  # p is below 0.05 by itself, but not after correction
    CONSTANT = "constant"  # it is the same in each seed, so that the spread is not known
    TORN = "torn"  # runs of an arm end in two groups, of which some did not train
    UNTRAINED = "untrained"  # an arm did not train
    SAME = "same"  # both end the same in each seed
    WITHIN = "within"  # the interval lies within the margin
    UNKNOWN = "unknown"  # there are too few seeds to tell
    ALIKE = "alike"  # no difference was found
    ONE_SEED = "one_seed"
    NO_SEED = "no_seed"
    # Of claims, at the scale at which their seeds ran; claim.json has these words.
    REPRODUCED = "reproduced"
    PARITY = "parity"
    NOT_REPRODUCED = "not reproduced"
    SIZE_UNSETTLED = "real, size unsettled"  # it is above 0, and may or may not reach the margin
    TOO_SMALL = "real, smaller than matters"  # it is above 0, and does not reach the margin
    OPPOSITE_UNSETTLED = "opposite, size unsettled"
    OPPOSITE_TOO_SMALL = "opposite, smaller than matters"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"


IN_FAVOUR = (Verdict.REPRODUCED, Verdict.PARITY)  # of a claim
OF_SIGN = (Verdict.SIZE_UNSETTLED, Verdict.TOO_SMALL, Verdict.OPPOSITE_UNSETTLED, Verdict.OPPOSITE_TOO_SMALL)
OF_CLAIMS = (*IN_FAVOUR, *OF_SIGN, Verdict.NOT_REPRODUCED, Verdict.CONTRADICTED, Verdict.INCONCLUSIVE)


# ---- claims


class ClaimKind(StrEnum):
    """What a claim says of its effect."""

    LARGER = "larger"  # as claims were registered until 2026-11-29: above 0, and perhaps as large as the margin
    SIZED = "sized"  # as large as the margin
    ANY = "any"  # above 0, however little
    PARITY = "parity"
    AT_LEAST = "at_least"
    EXACT = "exact"
    SLOPE = "slope"


OF_A_DIFFERENCE = (ClaimKind.LARGER, ClaimKind.SIZED, ClaimKind.ANY)  # which say that there is one


@dataclass(frozen=True)
class ClaimRule:
    """How a verdict follows from the interval of a claim's effect: it holds within bounds, and its opposite beyond.

    Values are Gaussian with the effect as their mean, one a seed. A difference is tested with Student's interval of
    1 − level, closeness with two one-sided tests, which is an interval of 1 − 2·level (Schuirmann 1987). Where values
    are looked at twice, after half of the seeds and after all, each look has Pocock's level (1977).

    Kind, bounds of the mean within which the claim holds, and the level on either side:

        larger      above 0                         level / 2, and the upper end is no less than the margin
        sized       from the margin on              level / 2
        any         above 0                         level / 2
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

    kind: ClaimKind
    margin: float
    target: float = 0.0
    looks: int = 1

    @property
    def level(self) -> float:
        """Return the level of each look."""
        return ALPHA if self.kind is ClaimKind.EXACT else LEVELS[self.looks]

    @property
    def bounds(self) -> Interval:
        """Return the means for which the claim holds."""
        if self.kind in (ClaimKind.LARGER, ClaimKind.ANY):
            return Interval(0.0, math.inf)
        if self.kind is ClaimKind.SIZED:
            return Interval(self.margin, math.inf)
        if self.kind is ClaimKind.AT_LEAST:
            return Interval(-self.margin, math.inf)
        return Interval(self.target - self.margin, self.target + self.margin)

    @property
    def tells_signs(self) -> bool:
        """Tell whether an effect that is real and no verdict on its size is called so."""
        return self.kind in (ClaimKind.SIZED, ClaimKind.ANY)

    @property
    def one_sided(self) -> float:
        """Return the level at either end of the interval that decides."""
        return self.level / 2 if self.kind in OF_A_DIFFERENCE else self.level

    def decide(self, deciding: Interval) -> Verdict:
        """Return the verdict on an effect. deciding: its interval, of `one_sided` at either end."""
        return self._decide_by_sign(deciding) if self.tells_signs else self._decide_within_bounds(deciding)

    def _decide_by_sign(self, deciding: Interval) -> Verdict:
        """Return the verdict on an effect whose sign counts apart from its size."""
        lower, upper = deciding
        if lower > 0:
            if lower >= self.bounds.lower:
                return Verdict.REPRODUCED
            return Verdict.TOO_SMALL if upper < self.margin else Verdict.SIZE_UNSETTLED
        if upper < 0:
            if upper < -self.margin:
                return Verdict.CONTRADICTED
            return Verdict.OPPOSITE_TOO_SMALL if lower >= -self.margin else Verdict.OPPOSITE_UNSETTLED
        return Verdict.NOT_REPRODUCED if upper < self.margin else Verdict.INCONCLUSIVE

    def _decide_within_bounds(self, deciding: Interval) -> Verdict:
        """Return the verdict on an effect that lies within bounds, beyond them, or across one."""
        bounds = self.bounds
        if deciding.upper < bounds.lower or deciding.lower > bounds.upper:
            return Verdict.CONTRADICTED
        if self.kind is ClaimKind.LARGER and deciding.upper < self.margin:
            return Verdict.NOT_REPRODUCED
        if bounds.lower < deciding.lower and deciding.upper < bounds.upper:
            return Verdict.PARITY if self.kind is ClaimKind.PARITY else Verdict.REPRODUCED
        return Verdict.INCONCLUSIVE

    def test(self, sample: Sample) -> tuple[float, float]:
        """Return p of the claim and p of its opposite, at one look."""
        df = sample.n - 1
        above_lower = (sample.mean - self.bounds.lower) / sample.standard_error
        below_upper = (self.bounds.upper - sample.mean) / sample.standard_error
        nearest = min(above_lower, below_upper)
        tail = float(scipy.special.stdtr(df, -nearest))
        above_contradiction = (sample.mean + self.margin) / sample.standard_error if self.tells_signs else nearest
        opposite = float(scipy.special.stdtr(df, above_contradiction))
        sides = self.level / self.one_sided  # 2: both are tested at once
        return min(1.0, sides * tail), min(1.0, sides * opposite)

    @property
    def assumed_effect(self) -> float:
        """Return the effect for which `power` is told: the margin, where a claim says that there is a difference.

        One that says that it is as large as the margin is true of that effect, and no number of seeds would find it
        often; so power is told for twice the margin.
        """
        if self.kind is ClaimKind.SIZED:
            return 2 * self.margin
        return {ClaimKind.SLOPE: self.target}.get(self.kind, self.margin if self.kind in OF_A_DIFFERENCE else 0.0)

    def power(self, sd: float, n: int) -> float | None:
        """Return the chance that n seeds find a true claim, whose effect is `assumed_effect`, at one look.

        None where values do not spread, or n is 1. A claim of kind larger is found where the interval is above 0 and
        reaches the margin: however many seeds there are, half of the level (2.5 %) of them miss an effect that is just
        the margin, as too small.

        sd: of the effect, from seed to seed.
        """
        if self.kind is ClaimKind.EXACT or not sd or n < 2:
            return None
        within = self._chance_within(self.bounds, self.assumed_effect, sd, n)
        if self.kind is not ClaimKind.LARGER:
            return within
        return within - self._chance_of_small(self.assumed_effect, sd, n)

    def seeds_to_settle(self, sample: Sample) -> int | None:
        """Return with how many seeds a verdict is found four times in five, if mean and spread are those seen.

        None where more than 1,000 are needed.
        """

        def chance(n: int) -> float:
            return self._chance_of_a_verdict(sample.mean, sample.sd, n)

        numbers = range(sample.n + 1, MOST_TO_SETTLE + 1)
        place = bisect_left(numbers, POWER, key=chance)
        return numbers[place] if place < len(numbers) else None

    def _chance_of_a_verdict(self, truth: float, sd: float, n: int) -> float:
        """Return the chance that n seeds leave a claim anything but inconclusive."""
        if self.tells_signs:
            above_zero = self._chance_within(Interval(0.0, math.inf), truth, sd, n)
            below_margin = self._chance_within(Interval(-math.inf, self.margin), truth, sd, n)
            return above_zero + below_margin - self._chance_of_small(truth, sd, n)
        below = self._chance_within(Interval(-math.inf, self.bounds.lower), truth, sd, n)
        within = self._chance_within(self.bounds, truth, sd, n)
        above = self._chance_within(Interval(self.bounds.upper, math.inf), truth, sd, n)
        if self.kind is not ClaimKind.LARGER:
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
        spread = np.sqrt(scipy.special.chdtri(df, quantiles) / df)
        half = float(scipy.special.stdtrit(df, 1 - self.one_sided)) * spread
        upper = scipy.special.ndtr((bounds.upper - truth) * math.sqrt(n) / sd - half)
        lower = scipy.special.ndtr((bounds.lower - truth) * math.sqrt(n) / sd + half)
        return float(np.maximum(upper - lower, 0.0).mean())


def level_over_looks(p: float, looks: int) -> float:
    """Return the level at which a value of p at one look is reached at any of them, where all have the same.

    Of two, after half of the values and after all: 1 − P(|Z₁| < z, |Z₂| < z), the correlation of the two √½; at 0.0294
    it is 0.05 (Pocock 1977).
    """
    if looks == 1 or p in (0, 1):
        return p
    z = -float(scipy.special.ndtri(p / 2))
    nodes, weights = np.polynomial.legendre.leggauss(100)
    first = z * nodes
    conditional_sd = math.sqrt(0.5)
    upper = scipy.special.ndtr((z - conditional_sd * first) / conditional_sd)
    lower = scipy.special.ndtr((-z - conditional_sd * first) / conditional_sd)
    density = np.exp(-(first**2) / 2) / math.sqrt(2 * math.pi)
    inside = z * float(np.sum(weights * density * (upper - lower)))
    return min(max(1 - inside, p), 2 * p, 1.0)
