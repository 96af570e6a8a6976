"""How numbers and lists of words are written, by every part of the house: pages, Markdown, LaTeX and terminals."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import ROUND_UP, Context, Decimal
from typing import Any

NONE = "–"
PYTHON_WORDS = {"None": "–", "True": "true", "False": "false"}  # how a reader sees them
SIGNIFICANT = 0.05  # p below it is never written as if it were not
LEAST_P = 0.001  # below it, how small is of no interest
LARGEST_EFFECT = 10
MOST_DECIMALS = 12  # of an estimate; one with more has an exponent
LARGEST_WRITTEN_OUT = 1e7  # of an estimate; a larger one has an exponent
LARGE = {"billion": 1e9, "million": 1e6, "thousand": 1e3}
UNITS = {"h": 3600.0, "min": 60.0}


def fixed(value: float | None, digits: int, sign: bool = False) -> str:
    """Write a number with so many decimals."""
    if value is None or not math.isfinite(value):
        return NONE
    written = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return written.replace("-", "−")


def decimals(value: float, digits: int) -> int:
    """Return the decimals with which a number has so many significant digits."""
    if not value:
        return 0
    magnitude = math.floor(math.log10(abs(value)))
    return max(digits - 1 - magnitude, 0)


def significant(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits, without an exponent."""
    if not math.isfinite(value):
        return NONE
    after_point = decimals(value, digits)
    return f"{value:,.{after_point}f}"


def plain(value: float, digits: int = 12) -> str:
    """Write a number as short as can be, with at most so many significant digits, without an exponent."""
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def short(value: float, digits: int = 6) -> str:
    """Write a number as short as can be, with at most so many significant digits: 0.03, 1e-9, −0.5."""
    written, _, exponent = f"{value:.{digits}g}".partition("e")
    if exponent:
        written += f"e{int(exponent)}"
    return written.replace("-", "−", 1) if value < 0 else written


def brief(value: float) -> str:
    """Write a number where there is little room, as at an axis: 0.5, 1000, 1e-4, 2e5."""
    if value == 0 or 1e-3 <= value < 1e5:
        return f"{value:g}"
    return re.sub(r"\.?0*e\+?(-?)0*", r"e\1", f"{value:.2e}")


def compact(value: float, digits: int = 3, sign: bool = False) -> str:
    """Write a number with so many significant digits, with an exponent where it is very large or small.

    For numbers that go over many orders of magnitude, such as gradients.
    """
    if not math.isfinite(value):
        return NONE
    written = f"{value:+.{digits}g}" if sign else f"{value:.{digits}g}"
    return written.replace("-", "−")


def compact_span(interval: tuple[float, float] | None, sign: bool = False) -> str:
    """Write an interval of such numbers; a dash where there is none."""
    if interval is None or not all(map(math.isfinite, interval)):
        return NONE
    lower, upper = interval
    return f"{compact(lower, sign=sign)} to {compact(upper, sign=sign)}"


def whole(value: float | None) -> str:
    """Write a number without decimals."""
    return NONE if value is None or math.isnan(value) else f"{value:,.0f}"


def percent(share: float, digits: int = 2) -> str:
    """Write a share as a percentage, with at most so many significant digits."""
    return NONE if math.isnan(share) else f"{plain(100 * share, digits)} %"


def factors(logarithms: tuple[float, float] | None) -> str:
    """Write an interval of logarithms to base 2 as one of what they are of."""
    if logarithms is None:
        return NONE
    lower, upper = logarithms
    return f"{significant(2**lower)} to {significant(2**upper)}"


def bound(value: float | None) -> str:
    """Write a size that is not exceeded: two significant digits, rounded up."""
    return NONE if value is None else plain(rounded_up(value, 2))


def p_value(p: float | None) -> str:
    """Write a p value; one below 5 % is not rounded up to it."""
    if p is None:
        return NONE
    if p < LEAST_P:
        return f"< {LEAST_P:g}"
    just_below = 0 < SIGNIFICANT - p < LEAST_P
    return f"{p:.4f}" if just_below else f"{p:.3f}"


def equals(p: float | None) -> str:
    """Write a p value where `p` stands before it, such as `= 0.031`."""
    words = p_value(p)
    return words if words.startswith("<") else f"= {words}"


def precision(mean: float, interval: tuple[float, float] | None) -> int:
    """Return with how many decimals to write a difference and its interval.

    Two significant digits of the interval's half width, and no more than four of the mean; but enough that an interval
    which does not include 0 does not seem to.
    """
    if interval is None:
        return decimals(mean, 2)
    lower, upper = interval
    digits = decimals((upper - lower) / 2, 2)
    if mean:
        digits = min(digits, decimals(mean, 4))
    is_clear_of_zero = lower * upper > 0
    if not is_clear_of_zero:
        return digits
    nearest_end = min(abs(lower), abs(upper))
    return max(digits, decimals(nearest_end, 1))


def effect_size(size: float | None) -> str:
    """Write an effect size; beyond 10, its size tells of a small spread and of nothing else."""
    if size is None or abs(size) <= LARGEST_EFFECT:
        return fixed(size, 2, sign=True)
    return f"> {LARGEST_EFFECT}" if size > 0 else f"< −{LARGEST_EFFECT}"


def multiple(mean: float, interval: tuple[float, float] | None) -> tuple[str, str]:
    """Write a ratio and its interval, with decimals enough that an interval without 1 does not seem to have it."""
    if interval is None:
        digits = max(2, decimals(mean, 2))
    else:
        lower, upper = interval
        digits = precision(mean - 1, (lower - 1, upper - 1))
    return fixed(mean, digits), span(interval, digits)


def span(interval: tuple[float, float] | None, digits: int, sign: bool = False) -> str:
    """Write an interval, its ends rounded away from its middle."""
    if interval is None:
        return NONE
    unit = 10.0**digits
    lower = math.floor(round(interval[0] * unit, 6)) / unit
    upper = math.ceil(round(interval[1] * unit, 6)) / unit
    return f"{fixed(lower, digits, sign)} to {fixed(upper, digits, sign)}"


def estimate(mean: float, interval: tuple[float, float] | None, sign: bool = False) -> tuple[str, str]:
    """Write a mean and its interval, with the digits that the interval gives them; a dash where there is no interval.

    sign: of the ends of the interval too.
    """
    digits = precision(mean, interval) if math.isfinite(mean) else 0
    largest = max(map(abs, (mean, *(interval or ()))))
    if digits > MOST_DECIMALS or largest >= LARGEST_WRITTEN_OUT:
        return compact(mean, sign=sign), compact_span(interval, sign)
    return fixed(mean, digits, sign), span(interval, digits, sign)


def duration(seconds: float, digits: int = 3) -> str:
    """Write a time in a unit that suits it, with so many significant digits."""
    if not math.isfinite(seconds):
        return NONE
    for unit, size in UNITS.items():
        if seconds >= 2 * size:
            return f"{significant(seconds / size, digits)} {unit}"
    return f"{significant(seconds, digits)} s"


def write_minutes(minutes: float) -> str:
    """Write how long runs take: `25 seconds`, `13 minutes`, `4.2 hours`."""
    if minutes < 1:
        return count(round(60 * minutes), "second")
    if minutes < 120:
        return count(round(minutes), "minute")
    hours = minutes / 60
    return f"{hours:.1f} hours" if hours < 10 else f"{hours:,.0f} hours"


def in_words(value: Any) -> str:
    """Write a setting: numbers short, a dash for none, several values joined by `and`."""
    if isinstance(value, list | tuple):
        return " and ".join(in_words(each) for each in value)
    if str(value) in PYTHON_WORDS:
        return PYTHON_WORDS[str(value)]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def in_prose(value: Any) -> str:
    """Write a setting as a paper has it: 1e-8 for 1e-08; lists, which are JSON here, in brackets."""
    if isinstance(value, str) and value.startswith("["):
        with suppress(ValueError, RecursionError):  # a person's own word may begin so, too
            parts = [in_prose(part) for part in json.loads(value)]
            return f"({', '.join(parts)})"
    return short(value) if isinstance(value, float) else in_words(value)


def count(number: int, word: str) -> str:
    """Write a number of things, such as `5 seeds` or `2 families`."""
    if number == 1:
        return f"1 {word}"
    stem = re.sub("(?<![aeiou])y$", "ie", word)
    return f"{number:,} {stem}s"


def step_of(step: int, steps: int) -> str:
    """Write how many steps of all are done."""
    return f"{step:,}/{steps:,}"


def rounded_count(number: float) -> str:
    """Write a large number with two significant digits, such as `4.9 million`."""
    for word, size in LARGE.items():
        if number >= 0.995 * size:
            return f"{plain(float(f'{number / size:.2g}'))} {word}"
    return plain(float(f"{number:.2g}"))


def with_unit(words: str, unit: str) -> str:
    """Write a number with its unit, where it has one: `2 points`, `1 point`."""
    if words == "1":
        unit = unit.removesuffix("s")
    return f"{words} {unit}" if unit else words


def one_line(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def rounded_up(value: float, digits: int) -> float:
    """Round to so many significant digits, away from zero."""
    context = Context(prec=digits, rounding=ROUND_UP)
    return float(context.create_decimal(f"{value:.{digits + 6}g}"))


def join_first(names: Sequence[str], most: int = 12, between: str = ", ") -> str:
    """Join names; of many only the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def list_words(words: Sequence[str], most: int = 12) -> str:
    """Join words as prose does: `a, b and c`; of many the first ones, and how many more there are."""
    shown = [*words[:most]]
    if len(words) > most:
        shown.append(f"{len(words) - most} more")
    *others, last = shown
    return f"{', '.join(others)} and {last}" if others else last
