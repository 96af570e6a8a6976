"""Power of the paired t test: what a number of seeds can show, and how many seeds a difference needs.

The difference of two arms by seed is taken for Gaussian with mean δ and standard deviation σ. Then t = √n·mean/sd of n
seeds follows a noncentral t distribution with n − 1 degrees of freedom and noncentrality √n·δ/σ (Cohen 1988,
chapter 2). In a family of m comparisons each is planned at Holm's smallest level, alpha / m: never too few seeds.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy import integrate, optimize, special

from normbench.errors import UsageError

ALPHA = 0.05  # two-sided level of a test, and 1 − the confidence of an interval
POWER = 0.8  # share of studies that find a difference that is there
MOST_SEEDS = 1_000_000  # beyond it nobody plans


def paired_power(difference: float, sd: float, n: int, *, family: int = 1, alpha: float = ALPHA) -> float:
    """Share of studies of n seeds in which the paired t test finds a true mean difference.

    sd: standard deviation of the differences, in the difference's unit; family: comparisons that Holm corrects for.
    0 for fewer than two seeds, which no test can be made of.
    """
    _check(difference, sd, family)
    if n < 2 or sd == 0:
        return float(n >= 2 and difference != 0)
    return _power(n, math.sqrt(n) * abs(difference) / sd, alpha / family)


def seeds_needed(difference: float, sd: float, *, family: int = 1, alpha: float = ALPHA, power: float = POWER) -> int:
    """Smallest number of seeds (2 or more) whose `paired_power` reaches the given power.

    sd is that of the paired differences of a pilot; `sd_upper_limit` is the cautious one. UsageError for a difference
    of 0 or one that more than 1,000,000 seeds would be needed for.
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
    """Smallest true difference that n seeds find with the given power, in the unit of sd; None for n < 2.

    sd: standard deviation of the paired differences. At 0 every difference would be found.
    """
    _check(0.0, sd, family)
    return None if n < 2 else sd * _noncentrality(n, alpha / family, power) / math.sqrt(n)


def sd_upper_limit(sd: float, n: int, confidence: float = 0.8) -> float:
    """One-sided upper confidence limit of the standard deviation behind n Gaussian values: sd·√(df / χ²_{1−c, df}).

    df = n − 1, χ² its quantile at 1 − c. A plan made with the pilot's own sd falls short in more than half of all
    cases; with this limit it holds in 80 % (Browne 1995). ValueError for n < 2.
    """
    if n < 2:
        raise ValueError(f"a standard deviation of {n} values: there is one from two values on")
    return sd * math.sqrt((n - 1) / float(special.chdtri(n - 1, confidence)))


def _check(difference: float, sd: float, family: int) -> None:
    if math.isnan(difference):
        raise UsageError("a difference of nan cannot be found: give a number")
    if not (math.isfinite(sd) and sd >= 0):
        raise UsageError(f"a standard deviation of {sd:g} says nothing: give a finite one, 0 or above")
    if family < 1:
        raise UsageError(f"a family of {family} comparisons is none: give 1 or more")


@lru_cache(maxsize=4096)
def _power(n: int, noncentrality: float, alpha: float) -> float:
    """P(|T| > c) for T = (Z + noncentrality) / √(χ²/df), c the two-sided critical value of t at alpha, df = n − 1.

    = ∫ φ(z) P(χ² < df·((z + noncentrality) / c)²) dz. scipy's own `nct.cdf` is NaN for 2 to 5 seeds at the levels that
    Holm's correction asks for, and `ncfdtr` 0 close to no difference (scipy 1.17).
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
    """The noncentrality at which n seeds reach this power."""
    if not alpha < power < 1:
        raise ValueError(f"a power of {power:g} at a level of {alpha:g}: it lies between the level and 1")
    above = 1.0
    while _power(n, above, alpha) < power:
        above *= 2
    return float(optimize.brentq(lambda shift: _power(n, shift, alpha) - power, 0, above, xtol=1e-9))
