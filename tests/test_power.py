"""Power of the paired t test against published numbers and simulated studies."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from scipy import special, stats

from normbench.errors import UsageError
from normbench.evidence.measures import loss_on
from normbench.results.family import correct
from normbench.results.result import Difference
from normbench.results.statistics import (
    detectable_difference,
    detectable_interval,
    holm,
    paired_difference,
    paired_power,
    sd_upper_limit,
    seeds_needed,
)

STUDIES = 2_000
ARMS = 5


@pytest.mark.parametrize("family", [1, 2, 5, 35])
@pytest.mark.parametrize("effect", [0.3, 1.0, 2.5, 40.0])
def test_seeds_needed_are_the_fewest_and_the_published_ones(effect: float, family: int) -> None:
    n = seeds_needed(effect, 1.0, family=family)
    assert paired_power(effect, 1.0, n, family=family) >= 0.8
    assert n == 2 or paired_power(effect, 1.0, n - 1, family=family) < 0.8
    # Cohen's d_z: seeds, as G*Power 3.1 gives them for a paired, two-sided t test at 5 % with a power of 80 %.
    for published, seeds in {0.2: 199, 0.5: 34, 0.8: 15, 1.0: 10}.items():
        assert seeds_needed(published, 1.0) == seeds_needed(-3 * published, 3.0) == seeds


@pytest.mark.parametrize("family", [1, 35])
@pytest.mark.parametrize("n", [2, 3, 30, 1_000])
def test_power_is_the_mean_over_the_spreads_that_may_be_seen(n: int, family: int) -> None:
    # P(|Z + δ| > c·S), S² = χ² / df: the mean of it over 200,000 quantiles of χ².
    critical = float(stats.t.isf(0.025 / family, n - 1))
    spread = np.sqrt(special.chdtri(n - 1, (np.arange(200_000) + 0.5) / 200_000) / (n - 1))
    for noncentrality in (1e-7, 0.3, 2.0, 4.5, 60.0):
        both = special.ndtr(noncentrality - critical * spread) + special.ndtr(-noncentrality - critical * spread)
        found = paired_power(noncentrality / math.sqrt(n), 1.0, n, family=family)
        assert found == pytest.approx(both.mean(), abs=1e-4)


def test_power_at_its_limits() -> None:
    # (1.95996 + 0.84162)·sd/√n is 1.253 for five seeds; they can show no less than 1.682.
    assert detectable_difference(5, 1.0) == pytest.approx(1.682, abs=5e-4)
    for n, family in ((2, 1), (3, 20), (50, 20), (1_000_000, 1)):
        found = detectable_difference(n, 0.02, family=family)
        assert paired_power(found, 0.02, n, family=family) == pytest.approx(0.8, abs=1e-7)
    assert [paired_power(0.0, 1.0, 5), paired_power(1e-12, 1.0, 2)] == pytest.approx([0.05, 0.05])
    assert paired_power(1e200, 1e-200, 2) == 1
    with pytest.raises(UsageError, match="more than 1,000,000 seeds: give a larger one"):
        seeds_needed(1e-6, 1.0)


def test_the_detectable_difference_is_as_uncertain_as_the_spread() -> None:
    assert detectable_interval(5, 1.0) == pytest.approx((1.008, 4.833), abs=1e-3)
    pilots = np.random.default_rng(0).normal(size=(20_000, 5)).std(axis=1, ddof=1)
    scale = detectable_difference(5, 1.0)
    low, high = detectable_interval(5, 1.0)
    held = (low * pilots <= scale) & (scale <= high * pilots)  # the truth is at a standard deviation of 1
    assert abs(held.mean() - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 20_000)


@pytest.mark.parametrize("n", [2, 5, 20])
def test_the_cautious_sd_is_large_enough_in_four_of_five_pilots(n: int) -> None:
    pilots = np.random.default_rng(n).normal(size=(20_000, n)).std(axis=1, ddof=1)
    share = np.mean([sd_upper_limit(sd, n) >= 1 for sd in pilots.tolist()])
    assert abs(share - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 20_000)


@cache
def simulated(n: int, shifted: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Studies of five arms against a baseline, n seeds each: corrected p and whether the interval holds the truth.

    A run's loss is its seed's part, which pairing takes out, and a part of its own; all differences share the
    baseline's. The first `shifted` arms truly differ, by one standard deviation of the differences.
    """
    rng = np.random.default_rng(100 * n + shifted)
    seeds, own = rng.normal(2, 0.1, (STUDIES, 1, n)), rng.normal(0, 0.02, (STUDIES, ARMS + 1, n))
    truth = np.where(np.arange(ARMS) < shifted, 0.02 * math.sqrt(2), 0.0)
    runs = seeds + own
    runs[:, 1:] += truth[:, None]
    corrected, held = np.empty((STUDIES, ARMS)), np.empty((STUDIES, ARMS), dtype=bool)
    for study, (baseline, *arms) in enumerate(runs.tolist()):
        reference = dict(enumerate(baseline))
        found = [paired_difference(dict(enumerate(arm)), reference) for arm in arms]
        corrected[study] = holm([difference.p for difference in found])
        intervals = [difference.interval for difference in found]
        held[study] = [i is not None and i.lower <= t <= i.upper for i, t in zip(intervals, truth, strict=True)]
    return corrected, held


@pytest.mark.parametrize("n", [3, 5, 10])
def test_intervals_cover_and_false_alarms_are_rare(n: int, tell: Callable[[str], None]) -> None:
    corrected, held = simulated(n)
    # The standard error of a coverage of 95 % in 2,000 studies is 0.5 %; the first arm's studies are independent.
    coverage, alarms = held[:, 0].mean(), (corrected <= 0.05).any(axis=1).mean()
    tell(f"{STUDIES:,} studies without a difference, {n} seeds: coverage {coverage:.2%}, false alarms {alarms:.2%}")
    assert 0.93 <= coverage <= 0.97
    assert alarms <= 0.06


@pytest.mark.parametrize("n", [2, 3, 5])
def test_false_alarms_are_rare_for_accuracies_too(n: int) -> None:
    # 297 images of which 98.5 % are known: differences are a few whole images, and often the same in each seed.
    images, arms, studies = 297, 7, 1_000
    known = 100 * np.random.default_rng(n).binomial(images, 0.985, (studies, arms + 1, n)) / images
    alarms, sides = 0, {"arm": "", "baseline": "", "metric": loss_on("val"), "tried": n}
    for baseline, *others in known.tolist():
        reference = dict(enumerate(baseline))
        found = [paired_difference(dict(enumerate(arm)), reference) for arm in others]
        tested = correct([Difference(**vars(one), **sides) for one in found])
        assert {one.family for one in tested} == {arms}
        alarms += any(one.real for one in tested)
    assert alarms / studies <= 0.06


def test_true_differences_do_not_raise_the_false_alarms_of_the_others() -> None:
    corrected, _ = simulated(10, shifted=2)
    assert (corrected[:, 2:] <= 0.05).any(axis=1).mean() <= 0.06


def test_a_planned_family_finds_its_difference_at_least_as_often_as_predicted() -> None:
    # Holm's smallest level is that of the first arm only while no other is found: the prediction is a lower limit.
    n = seeds_needed(1.0, 1.0, family=ARMS)
    corrected, _ = simulated(n, shifted=1)
    predicted = paired_power(1.0, 1.0, n, family=ARMS)
    assert predicted >= 0.8
    assert (corrected[:, 0] <= 0.05).mean() >= predicted - 3 * math.sqrt(predicted * (1 - predicted) / STUDIES)
