"""Parts that sentences of several kinds have in common: who is compared, by how much, and over how many seeds."""

from __future__ import annotations

from typing import NamedTuple

from normbench.results.result import Paired, Result
from normbench.wording import count, equals, fixed, precision, with_unit


class Said(NamedTuple):
    """A sentence of an answer, and what it rests on: p, ranks, and what one seed decides; empty where that is nothing.

    The sentence answers what was asked, and is read alone; what it rests on is told after all of them.
    """

    text: str
    detail: str = ""


def pair(one: Result) -> str:
    """Name both arms."""
    return f"{one.arm} and {one.baseline}"


def amount(one: Paired) -> str:
    """Write the size of a mean difference, without its sign, with its unit."""
    size = fixed(abs(one.mean), precision(one.mean, one.interval))
    return with_unit(size, one.metric.unit)


def lower_or_higher(one: Paired) -> str:
    """Say whether an arm is lower or higher than its baseline."""
    return "lower" if one.mean < 0 else "higher"


def seeds_of(one: Paired) -> str:
    """Say how many seeds are compared, and of how many."""
    if one.n < one.tried:
        return f"{one.n} of {one.tried} seeds"
    return count(one.n, "seed")


def corrected_p(one: Result) -> str:
    """Write the corrected p, and that Holm corrected it, where it is one of several tests."""
    holm = " after Holm" if one.family > 1 else ""
    return f"p {equals(one.corrected)}{holm}"


def corrections(one: Result) -> str:
    """Say what p is corrected for."""
    return "more learning rates" if one.family == 1 else f"{one.family} tests"
