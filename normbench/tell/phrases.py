"""Parts that sentences of several kinds have in common: who is compared, by how much, and over how many seeds."""

from __future__ import annotations

from typing import NamedTuple

from normbench.results.result import Paired, Result
from normbench.results.rows import StudyResult
from normbench.wording import count, equals, estimate, with_unit


class Said(NamedTuple):
    """A sentence of an answer, and what it rests on: p, ranks, and what one seed decides; empty where that is nothing.

    The sentence answers what was asked, and is read alone; what it rests on is told after all of them.
    """

    text: str
    detail: str = ""


def pair(result: Result) -> str:
    """Name what is compared: both arms, or two kinds of what a study has measured of one arm."""
    if isinstance(result, StudyResult) and result.kinds:
        first, second = result.kinds
        return f"{result.arm}: the {result.metric.words} {first} and {second}"
    return f"{result.arm} and {result.baseline}"


def in_number(result: Paired) -> str:
    """Say in which number two arms are compared, where an answer has several; one of a report has one."""
    is_one_of_several = isinstance(result, StudyResult) and not result.kinds
    return f" in the {result.metric.words}" if is_one_of_several else ""


def amount(result: Paired) -> str:
    """Write the size of a mean difference, without its sign, with its unit; of a ratio `factor of 1.2`."""
    if isinstance(result, StudyResult) and result.ratio:
        size, _ = estimate(*result.summary)
        return f"factor of {size}"
    size, _ = estimate(abs(result.mean), result.interval)
    return with_unit(size, result.metric.unit)


def interval_of(result: Paired) -> str:
    """Write the interval of a mean difference, with its sign, or that of a ratio."""
    if isinstance(result, StudyResult) and result.ratio:
        _, interval = estimate(*result.summary)
    else:
        _, interval = estimate(result.mean, result.interval, sign=True)
    return interval


def lower_or_higher(result: Paired) -> str:
    """Say whether an arm is lower or higher than its baseline."""
    return "lower" if result.mean < 0 else "higher"


def seeds_of(result: Paired) -> str:
    """Say how many seeds are compared, and of how many."""
    if result.n < result.tried:
        return f"{result.n} of {result.tried} seeds"
    return count(result.n, "seed")


def evidence(result: Paired, interval: str, doubt: str = "") -> str:
    """Write how far a difference may be off, on how many seeds it was measured, and what makes it doubtful."""
    parts = [f"95 %: {interval}"] if result.interval else []
    parts.append(seeds_of(result))
    if doubt:
        parts.append(doubt)
    return f"({'; '.join(parts)})"


def uncertain(result: Result) -> str:
    """Say that a difference is no longer certain after correction."""
    return f"not certain after correction for {corrections(result)}"


def corrections(result: Result) -> str:
    """Say what p is corrected for."""
    return "more learning rates" if result.family == 1 else f"{result.family} tests"


def corrected_p(result: Result) -> str:
    """Write the corrected p, and that Holm corrected it, where it is one of several tests."""
    holm = " after Holm" if result.family > 1 else ""
    return f"p {equals(result.corrected)}{holm}"


def p_before_correction(result: Result) -> str:
    """Write p of a test by itself."""
    return f"p {equals(result.p)} before correction"
