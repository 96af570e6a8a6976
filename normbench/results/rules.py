"""What can be said of a result: one enumeration of verdicts, and the rules by which results have them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from normbench.results.statistics import ALPHA

if TYPE_CHECKING:
    from normbench.results.result import Difference, Paired, Result

FEWEST_SEEDS = 3  # seeds from which on a report may say how much arms differ at most


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


def judge_counts(result: Result) -> Verdict:
    """Return the verdict on two counts, which have a p value and no interval."""
    if result.real:
        return Verdict.DIFFERENT
    is_found_alone = result.p is not None and result.p < ALPHA
    return Verdict.POSSIBLE if is_found_alone else Verdict.ALIKE


def judge_paired(result: Paired) -> Verdict:
    """Return the verdict on a difference by seed of which nothing but its values is known."""
    if result.n < 2:
        return Verdict.ONE_SEED if result.n else Verdict.NO_SEED
    if result.interval is None or result.p is None:
        return Verdict.CONSTANT if result.mean else Verdict.SAME
    if result.p < ALPHA:
        return Verdict.DIFFERENT if result.real else Verdict.POSSIBLE
    return Verdict.UNKNOWN


def judge_difference(result: Difference) -> Verdict:
    """Return the verdict on how two arms end, which may not have trained, or have lost runs."""
    if result.untrained:
        return Verdict.UNTRAINED
    if result.n < 2:
        return Verdict.ONE_SEED if result.n else Verdict.NO_SEED
    if result.torn:
        return Verdict.TORN
    if result.flattered and (result.p is None or result.p < ALPHA):
        return Verdict.FLATTERED
    by_values = judge_paired(result)
    if by_values != Verdict.UNKNOWN or result.n < FEWEST_SEEDS:
        return by_values
    interval = result.interval
    assert interval is not None  # as its p is known
    if result.margin is not None and interval.reach <= result.margin:
        return Verdict.WITHIN
    return Verdict.UNKNOWN if interval.reach > result.spread else Verdict.ALIKE
