"""Numbers in words: as a report and its tables write them."""

from __future__ import annotations

import math

from normbench.analysis.measures import Metric, rounded_up
from normbench.analysis.power import ALPHA
from normbench.analysis.statistics import Interval

NONE = "–"
LEAST_P = 0.001  # below it, how small is of no interest


def fixed(value: float | None, digits: int, sign: bool = False) -> str:
    """A number with so many decimals."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent."""
    if not math.isfinite(value) or value == 0:
        return NONE if value else "0"
    return f"{value:,.{decimals(value, digits)}f}"


def decimals(value: float, digits: int) -> int:
    """The decimals with which a number other than 0 has so many significant digits."""
    return max(digits - 1 - math.floor(math.log10(abs(value))), 0)


def decimals_of(metric: Metric) -> int:
    """Decimals of a metric's values."""
    return 2 if metric.scale == 100 else 4


def bound(value: float | None) -> str:
    """A size that is not exceeded: two significant digits, rounded up."""
    if value is None or not math.isfinite(value):
        return NONE
    return plain(rounded_up(value, 2))


def plain(value: float) -> str:
    """A number as short as it can be written, without an exponent."""
    text = f"{value:.15f}" if abs(value) < 1e-4 else f"{value:.12g}" if abs(value) < 1e12 else f"{value:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def chance(p: float | None) -> str:
    """A p value; one below 5 % is never rounded up to it."""
    if p is None:
        return NONE
    if p < LEAST_P:
        return f"< {LEAST_P:g}"
    return next(text for digits in range(3, 18) if (text := f"{p:.{digits}f}") and (float(text) < ALPHA) == (p < ALPHA))


def equals(p: float | None) -> str:
    """A p value with its sign."""
    return text if (text := chance(p)).startswith("<") else f"= {text}"


def precision(mean: float, interval: Interval | None) -> int:
    """Decimals of a difference and its interval.

    Two significant digits of the interval's half width, and no more than four of the mean; but so many that an interval
    which does not reach 0 does not seem to.
    """
    half = (interval.upper - interval.lower) / 2 if interval else 0.0
    if not interval or not half:
        return decimals(mean, 2) if mean else 0
    places = min(decimals(half, 2), decimals(mean, 4)) if mean else decimals(half, 2)
    clear = interval.lower * interval.upper > 0
    return max(places, decimals(min(abs(interval.lower), abs(interval.upper)), 1)) if clear else places


def span(interval: Interval | None, digits: int, sign: bool = False) -> str:
    """An interval, its ends rounded away from its middle."""
    if interval is None:
        return NONE
    unit = 10.0**digits
    lower, upper = math.floor(round(interval.lower * unit, 6)) / unit, math.ceil(round(interval.upper * unit, 6)) / unit
    return f"{fixed(lower, digits, sign)} to {fixed(upper, digits, sign)}"


def duration(seconds: float) -> str:
    """A time for people."""
    if not math.isfinite(seconds):
        return NONE
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{significant(seconds / size)} {unit}"
    return f"{significant(seconds)} s"


def count(number: int, word: str) -> str:
    """Such as `5 seeds`."""
    return f"{number} {word}{'' if number == 1 else 's'}"
