"""Statistics of a comparison against cases worked by hand, scipy's tests and plain loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from normbench.evidence.scores import count_spikes, learning_rate_sensitivity
from normbench.results.statistics import (
    Sample,
    fisher_p,
    holm,
    mean_interval,
    paired_difference,
    signed_rank_p,
)


def differences(values: Sequence[float]) -> Sample:
    """The paired difference of arms whose differences by seed are these."""
    return paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))


def rank_p(sample: Sample) -> float | None:
    """p of the signed-rank test of a sample."""
    return signed_rank_p(sample.values, sample.resolution)


def test_mean_interval_by_hand() -> None:
    # 1, 2, 3, 4: mean 2.5; squares of deviations 2.25 + 0.25 + 0.25 + 2.25 = 5, sd √(5/3); t_{0.975, 3} = 3.18245.
    half = 3.18245 * math.sqrt(5 / 3) / 2
    mean, interval = mean_interval([1, 2, 3, 4])
    assert mean == 2.5 and interval == pytest.approx((2.5 - half, 2.5 + half), abs=1e-5)
    assert mean_interval([1, 2, 3, 4], (0.6, 3.0)) == (2.5, (0.6, 3.0))


def test_values_that_do_not_say_how_they_spread_have_no_interval() -> None:
    for values in ([0.1], [0.1] * 7, [0.1 + 0.2, 0.3, 0.3]):
        assert mean_interval(values) == (values[0], None)
    assert math.isnan(mean_interval([])[0])


def test_a_sample_has_one_value_a_seed() -> None:
    with pytest.raises(ValueError, match="one value a seed, not 3 of 2 seeds"):
        Sample((1.0, 2.0, 3.0), 0.0, (0, 1))


def test_paired_difference_by_hand() -> None:
    # Seeds 0, 1, 2 are in both arms: differences 1, 2, 3, mean 2, sd 1. J(2) = Γ(1) / (√1·Γ(1/2)) = 1/√π.
    found = paired_difference({0: 6.0, 1: 3.0, 2: 5.0, 7: 1.0}, {2: 2.0, 1: 1.0, 0: 5.0, 8: 0.0})
    assert (found.seeds, found.n, found.values) == ((0, 1, 2), 3, (1.0, 2.0, 3.0))
    assert (found.mean, found.sd) == (2, 1)
    assert found.effect_size == pytest.approx(2 / math.sqrt(math.pi)) and rank_p(found) == 0.25


@pytest.mark.parametrize("n", [2, 3, 6, 20, 200])
def test_paired_difference_is_scipys_paired_t_test(n: int) -> None:
    rng = np.random.default_rng(n)
    first, second = rng.normal(2.0, 0.3, n), rng.normal(1.9, 0.3, n)
    found = paired_difference(dict(enumerate(first)), dict(enumerate(second)))
    reference = stats.ttest_rel(first, second)
    bounds = reference.confidence_interval(0.95)
    assert found.p == pytest.approx(reference.pvalue, rel=1e-9)
    if n > 3:  # and that of signed ranks, exact up to 50 seeds
        assert rank_p(found) == pytest.approx(stats.wilcoxon(first, second).pvalue, rel=1e-9 if n <= 50 else 0.02)
    assert found.interval == pytest.approx((bounds.low, bounds.high), rel=1e-9)
    reverse = paired_difference(dict(enumerate(second)), dict(enumerate(first)))
    assert (reverse.mean, reverse.p) == (-found.mean, found.p)


def test_equal_differences_are_not_certain() -> None:
    found = differences([-0.1] * 6)
    assert (found.mean, found.sd) == (-0.1, 0)
    assert found.p is found.interval is found.effect_size is None
    assert rank_p(found) == 2 / 2**6  # which needs no spread: of 2⁶ choices of signs two are so far out
    # Accuracies in percent that only rounding tells apart: 340 − 339 and 28 − 27 of 360 are not the same number.
    first, second = ({0: 100 * a / 360, 1: 100 * b / 360} for a, b in ((340, 28), (339, 27)))
    found = paired_difference(first, second)
    assert len(set(found.values)) == 2 and found.sd == 0 and found.p is None
    same = paired_difference({0: 0.1 + 0.2, 1: 0.3}, {0: 0.3, 1: 0.3})
    assert (same.mean, same.sd, same.p) == (0, 0, 1)


@pytest.mark.parametrize("case", range(20))
def test_wilcoxon_with_ties_is_the_share_of_signs_that_are_as_far_out(case: int) -> None:
    values = np.random.default_rng(case).integers(-2, 5, 8)
    moved = values[values != 0]
    ranks = stats.rankdata(abs(moved))
    sums = np.array([np.dot(signs, ranks) for signs in itertools.product((0, 1), repeat=moved.size)])
    observed = ranks[moved > 0].sum()
    tail = min((sums <= observed).mean(), (sums >= observed).mean())
    assert rank_p(differences(values.tolist())) == min(1, 2 * tail)


def test_holm_by_hand() -> None:
    # Sorted 0.005·4, 0.01·3, 0.03·2, 0.04·1 = 0.02, 0.03, 0.06, 0.04; none below the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([None, 0.02, None, 0.03]) == [None, 0.04, None, 0.04]
    assert holm([0.6, 0.9]) == [1, 1] and holm([]) == [] and holm([None]) == [None]


@pytest.mark.parametrize("case", range(30))
def test_holm_rejects_what_its_step_down_rejects(case: int) -> None:
    rng = np.random.default_rng(case)
    family = (rng.random(rng.integers(1, 12)) ** 3).round(3)
    corrected = np.array(holm(family.tolist()), dtype=float)
    for alpha in (0.01, 0.05, 0.2):
        # As in the paper: from the smallest p on, against alpha / (m − i); the first that stays ends it.
        passed = np.sort(family) <= alpha / np.arange(family.size, 0, -1)
        assert (corrected <= alpha + 1e-12).sum() == np.logical_and.accumulate(passed).sum()
    assert (np.diff(corrected[np.argsort(family)]) >= 0).all()


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_learning_rate_sensitivity_by_hand(lost: float) -> None:
    # From 4: losses 2, 1, diverged, 5 count as 2, 1, 4, 4, mean 11/4; less the best, 1.
    assert learning_rate_sensitivity({1e-3: 2.0, 3e-3: 1.0, 1e-2: lost, 3e-2: 5.0}, 4.0) == pytest.approx(1.75)
    assert learning_rate_sensitivity({1e-2: 1.0, 1e-3: 1.0}, 4.0) == 0
    assert learning_rate_sensitivity({1e-3: 4.0, 1e-2: lost}, 4.0) is None  # nothing was learned


BEFORE = [2.0, 4.0] * 25  # mean 3, sd √(50/49); 7 of them are 7.07107, so that a spike begins at 10.07107


@pytest.mark.parametrize(
    ("values", "spikes", "judged"),
    [
        ([*BEFORE, 10.0711], 1, 1),
        ([*BEFORE, -4.0711], 1, 1),
        ([*BEFORE, 10.0710], 0, 1),
        ([*BEFORE, 10.0711, 3.0, 3.0], 1, 3),  # the spike is part of the history of the next points
        ([math.nan, *BEFORE[:20], math.nan, math.inf, *BEFORE[20:], -math.inf, 20.0, math.nan], 1, 1),
        ([*[0.1] * 80, 0.2], 1, 31),
    ],
)
def test_spikes_by_hand(values: list[float], spikes: int, judged: int) -> None:
    assert count_spikes(values) == (spikes, judged)


def plain_spikes(values: np.ndarray, history: int, fewest: int) -> tuple[int, int]:
    finite = [value for value in values if math.isfinite(value)]
    spikes = judged = 0
    for index in range(fewest, len(finite)):
        window = np.array(finite[max(0, index - history) : index])
        judged += 1
        spikes += abs(finite[index] - window.mean()) >= 7 * window.std(ddof=1)
    return int(spikes), judged


@pytest.mark.parametrize(("length", "history", "fewest"), [(3_000, 1_000, 50), (997, 100, 20), (1_000, 50, 50)])
def test_spikes_are_those_of_a_plain_loop(length: int, history: int, fewest: int) -> None:
    rng = np.random.default_rng(length)
    values = 2 + 8 / (1 + np.arange(length) / 30) + 0.01 * rng.normal(size=length)
    at = rng.choice(length, 30, replace=False)
    values[at[:20]] += 10.0 ** rng.uniform(-1, 3, 20)
    values[at[20:]] = math.nan
    found = count_spikes(values, history=history, fewest=fewest)
    assert found == plain_spikes(values, history, fewest) and found[0] > 2


@pytest.mark.parametrize(("lost", "runs"), [((3, 0), (4, 6)), ((1, 5), (9, 5)), ((0, 2), (3, 8)), ((2, 2), (5, 5))])
def test_fishers_p_is_the_share_of_draws_that_are_no_likelier(lost: tuple[int, int], runs: tuple[int, int]) -> None:
    """Of all ways in which as many of the runs are lost, also where one side has more runs than the other."""
    every = range(sum(runs))
    of_first = [sum(run < runs[0] for run in drawn) for drawn in itertools.combinations(every, sum(lost))]
    ways = {count: of_first.count(count) for count in set(of_first)}
    no_likelier = sum(number for number in ways.values() if number <= ways[lost[0]])
    assert fisher_p(lost, runs) == pytest.approx(no_likelier / len(of_first))
