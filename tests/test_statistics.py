"""Statistics of a comparison against cases worked by hand, scipy's tests and plain loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from normbench.analysis.statistics import (
    Interval,
    PairedDifference,
    bootstrap_interval,
    equivalence,
    holm,
    learning_rate_sensitivity,
    mean_interval,
    paired_difference,
    spike_score,
)
from normbench.errors import UsageError


def differences(values: Sequence[float]) -> PairedDifference:
    """The paired difference of arms whose differences by seed are these."""
    return paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))


def test_mean_interval_by_hand() -> None:
    # 1, 2, 3, 4: mean 2.5; squares of deviations 2.25 + 0.25 + 0.25 + 2.25 = 5, sd √(5/3); t_{0.975, 3} = 3.18245.
    found = mean_interval([1, 2, 3, 4])
    assert (found.n, found.mean, found.sd) == (4, 2.5, pytest.approx(math.sqrt(5 / 3)))
    half = 3.18245 * math.sqrt(5 / 3) / 2
    assert found.interval is not None
    assert (found.interval.lower, found.interval.upper) == pytest.approx((2.5 - half, 2.5 + half), abs=1e-5)


def test_one_value_has_a_mean_and_no_interval() -> None:
    found = mean_interval([0.1])
    assert (found.n, found.mean, found.sd, found.interval) == (1, 0.1, None, None)


@pytest.mark.parametrize("values", [[0.1] * 7, [0.1 + 0.2, 0.3, 0.3]])
def test_equal_values_do_not_say_how_they_spread(values: list[float]) -> None:
    found = mean_interval(values)
    assert (found.mean, found.sd, found.interval) == (values[0], 0, None)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf], [[1.0, 2.0]]])
def test_what_is_no_sample_is_refused(values: list[float]) -> None:
    for refuse in (mean_interval, bootstrap_interval):
        with pytest.raises(ValueError, match="one or more values, all of them finite"):
            refuse(values)


def test_paired_difference_by_hand() -> None:
    # Seeds 0, 1, 2 are in both arms: differences 1, 2, 3, mean 2, sd 1, t = 2√3. With 2 degrees of freedom the t
    # distribution is algebraic: two-sided p = 1 − t / √(2 + t²) = 1 − 2√3 / √14; t_{0.975, 2} = 4.30265.
    # J(2) = Γ(1) / (√1·Γ(1/2)) = 1/√π.
    found = paired_difference({0: 6.0, 1: 3.0, 2: 5.0, 7: 1.0}, {2: 2.0, 1: 1.0, 0: 5.0, 8: 0.0})
    assert (found.seeds, found.n, found.differences) == ((0, 1, 2), 3, (1.0, 2.0, 3.0))
    assert (found.mean, found.sd) == (2, 1)
    assert found.t == pytest.approx(2 * math.sqrt(3))
    assert found.p == pytest.approx(1 - 2 * math.sqrt(3) / math.sqrt(14))
    assert found.effect_size == pytest.approx(2 / math.sqrt(math.pi))
    assert found.interval is not None
    half = 4.30265 / math.sqrt(3)
    assert (found.interval.lower, found.interval.upper) == pytest.approx((2 - half, 2 + half), abs=1e-5)
    assert found.wilcoxon_p is None


@pytest.mark.parametrize("n", [2, 3, 6, 20, 200])
def test_paired_difference_is_scipys_paired_t_test(n: int) -> None:
    rng = np.random.default_rng(n)
    first, second = rng.normal(2.0, 0.3, n), rng.normal(1.9, 0.3, n)
    found = paired_difference(dict(enumerate(first)), dict(enumerate(second)))
    reference = stats.ttest_rel(first, second)
    bounds = reference.confidence_interval(0.95)
    assert (found.t, found.p) == pytest.approx((reference.statistic, reference.pvalue), rel=1e-9)
    assert found.interval is not None
    assert (found.interval.lower, found.interval.upper) == pytest.approx((bounds.low, bounds.high), rel=1e-9)
    reverse = paired_difference(dict(enumerate(second)), dict(enumerate(first)))
    assert (reverse.mean, reverse.t, reverse.p) == (-found.mean, -(found.t or 0), found.p)


def test_one_seed_gives_a_difference_and_nothing_else() -> None:
    found = paired_difference({3: 1.5}, {3: 1.0, 4: 2.0})
    assert found == PairedDifference(seeds=(3,), differences=(0.5,), mean=0.5)
    assert found.p is None and found.interval is None and found.detectable is None


def test_two_seeds_have_no_unbiased_effect_size() -> None:
    found = differences([1.0, 2.0])
    assert found.effect_size is None and found.p is not None


def test_arms_without_a_common_seed_are_refused() -> None:
    with pytest.raises(UsageError, match="no seed in common: one arm has seeds 0, 1, the other none; run both"):
        paired_difference({1: 1.0, 0: 2.0}, {})
    with pytest.raises(ValueError, match="finite"):
        paired_difference({0: math.nan}, {0: 1.0})


@pytest.mark.parametrize("n", [2, 3, 8, 100])
def test_bitwise_equal_arms_do_not_differ(n: int) -> None:
    arm = dict(enumerate(np.random.default_rng(0).normal(size=n)))
    found = paired_difference(arm, dict(arm))
    assert (found.mean, found.sd, found.p, found.spreads) == (0, 0, 1, False)
    assert found.interval is found.t is found.effect_size is found.detectable is None
    assert found.wilcoxon_p == (1 if n >= 6 else None)
    assert not equivalence(found, 0.0).holds


def test_equal_differences_are_not_certain() -> None:
    found = differences([-0.1] * 6)
    assert (found.mean, found.sd, found.spreads) == (-0.1, 0, False)
    assert found.p is found.interval is found.t is found.effect_size is found.detectable is None
    assert found.wilcoxon_p == 2 / 2**6  # which needs no spread: of 2⁶ choices of signs two are so far out


def test_differences_that_only_rounding_tells_apart_are_equal() -> None:
    # Accuracies in percent: 340 − 339 and 28 − 27 of 360, which are not the same number.
    first, second = ({0: 100 * a / 360, 1: 100 * b / 360} for a, b in ((340, 28), (339, 27)))
    found = paired_difference(first, second)
    assert len(set(found.differences)) == 2 and found.sd == 0 and found.p is None
    assert paired_difference({0: 0.1 + 0.2, 1: 0.3}, {0: 0.3, 1: 0.3}).mean == 0


def test_many_seeds() -> None:
    found = differences(np.random.default_rng(0).normal(0.1, 1, 200_000).tolist())
    assert found.interval is not None and found.interval.lower < 0.1 < found.interval.upper
    assert found.p == pytest.approx(0, abs=1e-100)
    # Normal approximation, right for so many: (1.95996 + 0.84162)·sd/√n.
    assert found.detectable == pytest.approx(2.80159 * (found.sd or 0) / math.sqrt(200_000), rel=1e-4)


def test_effect_size_is_unbiased() -> None:
    # 4,000 studies of 5 seeds whose true d_z is 1: their mean is 1 within 4 standard errors; uncorrected it is 1.25.
    rng = np.random.default_rng(5)
    found = np.array([differences(study).effect_size for study in rng.normal(1, 1, (4_000, 5)).tolist()])
    assert abs(found.mean() - 1) < 4 * found.std() / math.sqrt(found.size)


def test_wilcoxon_by_hand() -> None:
    # 1..6, all above 0: of 2⁶ choices of signs only this one and its mirror are so far out.
    assert differences([3, 1, 2, 6, 5, 4]).wilcoxon_p == 2 / 64
    # −1 among them: rank sums of the negatives 0 (1 way) and 1 (1 way) and the mirror images.
    assert differences([3, -1, 2, 6, 5, 4]).wilcoxon_p == 4 / 64
    # A difference of 0 is left out: 5 remain, all above 0.
    assert differences([3, 0, 2, 6, 5, 4]).wilcoxon_p == 2 / 32


@pytest.mark.parametrize("n", [6, 10, 50, 51, 300])
def test_wilcoxon_without_ties_is_scipys(n: int) -> None:
    values = np.random.default_rng(n).normal(0.3, 1, n)
    assert differences(values.tolist()).wilcoxon_p == pytest.approx(stats.wilcoxon(values).pvalue, rel=1e-9)


@pytest.mark.parametrize("case", range(20))
def test_wilcoxon_with_ties_is_the_share_of_signs_that_are_as_far_out(case: int) -> None:
    values = np.random.default_rng(case).integers(-2, 5, 8)
    moved = values[values != 0]
    ranks = stats.rankdata(abs(moved))
    sums = np.array([np.dot(signs, ranks) for signs in itertools.product((0, 1), repeat=moved.size)])
    observed = ranks[moved > 0].sum()
    tail = min((sums <= observed).mean(), (sums >= observed).mean())
    assert differences(values.tolist()).wilcoxon_p == min(1, 2 * tail)


def test_ties_that_only_rounding_tells_apart_are_ties() -> None:
    # Each difference is ±0.1, but 0.3 − 0.2 and 0.4 − 0.3 are not the same number.
    first, second = [0.3, 0.4, 0.8, 1.0, 0.2, 0.6, 0.5], [0.2, 0.3, 0.7, 0.9, 0.3, 0.5, 0.4]
    found = paired_difference(dict(enumerate(first)), dict(enumerate(second)))
    assert len(set(map(abs, found.differences))) > 1
    assert found.wilcoxon_p == differences([1, 1, 1, 1, -1, 1, 1]).wilcoxon_p


def test_holm_by_hand() -> None:
    # Sorted 0.005·4, 0.01·3, 0.03·2, 0.04·1 = 0.02, 0.03, 0.06, 0.04; none below the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([None, 0.02, None, 0.03]) == [None, 0.04, None, 0.04]
    assert holm([0.6, 0.9]) == [1, 1]
    assert holm([0.02, 0.02, 0.02]) == pytest.approx([0.06] * 3)
    assert holm([]) == [] and holm([None]) == [None] and holm([0.3]) == [0.3] and holm([0, 1]) == [0, 1]


@pytest.mark.parametrize("case", range(30))
def test_holm_rejects_what_its_step_down_rejects(case: int) -> None:
    rng = np.random.default_rng(case)
    family = (rng.random(rng.integers(1, 12)) ** 3).round(3)
    corrected = np.array(holm(family.tolist()), dtype=float)
    for alpha in (0.01, 0.05, 0.2):
        # As in the paper: from the smallest p on, against alpha / (m − i); the first that stays ends it.
        rejected = 0
        for index, p in enumerate(np.sort(family)):
            if p > alpha / (family.size - index):
                break
            rejected += 1
        assert (corrected <= alpha + 1e-12).sum() == rejected
    assert (corrected >= family).all() and (corrected <= 1).all()
    assert (np.diff(corrected[np.argsort(family)]) >= 0).all()
    shuffled = rng.permutation(family.size)
    assert holm(family[shuffled].tolist()) == corrected[shuffled].tolist()


@pytest.mark.parametrize("p", [math.nan, -0.1, 1.1])
def test_holm_refuses_what_is_no_p(p: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([0.1, p])


def test_bootstrap_only_from_twenty_values() -> None:
    values = np.random.default_rng(0).gamma(2.0, size=60)
    assert bootstrap_interval(values[:19]) is None
    assert bootstrap_interval(values[:20]) is not None
    assert bootstrap_interval([0.1] * 20) == Interval(0.1, 0.1)
    found = bootstrap_interval(values, seed=3)
    assert found == bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)
    # For so many values it is near Student's: the ends within a tenth of its width.
    student = mean_interval(values).interval
    assert found is not None and student is not None
    width = student.upper - student.lower
    assert (found.lower, found.upper) == pytest.approx((student.lower, student.upper), abs=0.1 * width)


def test_equivalence_by_hand() -> None:
    # Differences −1, 0, 1, 4: mean 1, sd √(14/3); half width 3.18245·√(14/3)/2 = 3.43743.
    found = equivalence(differences([-1, 0, 1, 4]), 4.5)
    assert found.holds and found.n == 4
    assert found.smallest_margin == pytest.approx(4.43743, abs=1e-5)
    assert not equivalence(differences([-1, 0, 1, 4]), 4.4).holds
    assert equivalence(differences([1, 0, -1, -4]), 4.5) == found
    smallest = found.smallest_margin or 0.0
    assert equivalence(differences([-1, 0, 1, 4]), smallest).holds
    assert not equivalence(differences([-1, 0, 1, 4]), math.nextafter(smallest, 0)).holds


def test_equivalence_needs_an_interval_and_a_margin() -> None:
    single = equivalence(differences([0.0]), 1.0)
    assert not single.holds and single.smallest_margin is None
    for margin in (-0.1, math.nan, math.inf):
        with pytest.raises(UsageError, match="margin"):
            equivalence(differences([0.0, 1.0]), margin)


@pytest.mark.parametrize("lost", [math.nan, math.inf, None])
def test_learning_rate_sensitivity_by_hand(lost: float | None) -> None:
    # From 4: losses 2, 1, diverged, 5 count as 2, 1, 4, 4, mean 11/4; less the best, 1.
    found = learning_rate_sensitivity({1e-3: 2.0, 3e-3: 1.0, 1e-2: lost, 3e-2: 5.0}, 4.0)
    assert found.sensitivity == pytest.approx(1.75)
    assert (found.best_rate, found.best_loss, found.rates, found.diverged) == (3e-3, 1.0, 4, 1)


def test_learning_rate_sensitivity_at_its_limits() -> None:
    flat = learning_rate_sensitivity({1e-2: 1.0, 1e-3: 1.0}, 4.0)
    assert (flat.sensitivity, flat.best_rate) == (0, 1e-3)
    nothing_learned = learning_rate_sensitivity({1e-3: 4.0, 1e-2: None}, 4.0)
    assert (nothing_learned.sensitivity, nothing_learned.best_rate, nothing_learned.diverged) == (None, None, 1)
    for losses, start in (({}, 4.0), ({1e-3: 1.0}, math.nan)):
        with pytest.raises(ValueError, match="nothing to compare"):
            learning_rate_sensitivity(losses, start)


def test_spike_score_by_hand() -> None:
    # 25 times 2 and 4: mean 3, sd √(50/49); 7 of them are 7.07107, so that a spike begins at 10.07107.
    before = [2.0, 4.0] * 25
    assert spike_score([*before, 10.0711]) == spike_score([*before, -4.0711])
    assert (spike_score([*before, 10.0711]).share, spike_score([*before, 10.0710]).share) == (1.0, 0.0)
    # The threshold itself counts: −1, 0, 1 have mean 0 and sd 1.
    assert spike_score([-1, 0, 1, 7], history=3, fewest=3).spikes == 1
    # Two more points are judged, and are none: the spike is now part of their history.
    found = spike_score([*before, 10.0711, 3.0, 3.0])
    assert (found.share, found.spikes, found.judged) == (pytest.approx(1 / 3), 1, 3)


def test_points_without_history_are_not_judged() -> None:
    assert spike_score([]).share is None
    found = spike_score([1.0, 2.0] * 25)
    assert (found.share, found.spikes, found.judged) == (None, 0, 0)
    assert spike_score([1.0, 2.0, 1.0, 2.0, 1e6], fewest=2, history=4).spikes == 1
    with pytest.raises(ValueError, match="at least 2"):
        spike_score([1.0], fewest=1)


def test_points_that_are_not_finite_are_passed_over() -> None:
    before = [2.0, 4.0] * 25
    with_gaps = [math.nan, *before[:20], None, math.inf, *before[20:], -math.inf, 20.0, math.nan]
    assert spike_score(with_gaps) == spike_score([*before, 20.0])
    assert spike_score([math.nan] * 100).share is None


def test_equal_points_are_no_spikes_and_what_leaves_them_is_one() -> None:
    constant = [0.1] * 80
    assert spike_score(constant).spikes == 0
    assert spike_score([*constant, 0.2]).spikes == 1
    # A new level: with k of 60 points on it the next one lies (1 − k/60) / √(k/60·(1 − k/60)·60/59) sd from the mean,
    # which is 7.6 for k = 1 and 5.3 for k = 2.
    assert spike_score([*[5.0] * 300, *[0.1] * 100], history=60).spikes == 2


def plain_spikes(values: np.ndarray, history: int, fewest: int) -> tuple[int, int]:
    finite = [value for value in values if math.isfinite(value)]
    spikes = judged = 0
    for index in range(fewest, len(finite)):
        window = np.array(finite[max(0, index - history) : index])
        judged += 1
        spikes += abs(finite[index] - window.mean()) >= 7 * window.std(ddof=1)
    return int(spikes), judged


@pytest.mark.parametrize(("length", "history", "fewest"), [(3_000, 1_000, 50), (997, 100, 20), (1_000, 50, 50)])
def test_spike_score_is_that_of_a_plain_loop(length: int, history: int, fewest: int) -> None:
    rng = np.random.default_rng(length)
    values = 2 + 8 / (1 + np.arange(length) / 30) + 0.01 * rng.normal(size=length)
    at = rng.choice(length, 30, replace=False)
    values[at[:20]] += 10.0 ** rng.uniform(-1, 3, 20)
    values[at[20:]] = math.nan
    found = spike_score(values, history=history, fewest=fewest)
    assert (found.spikes, found.judged) == plain_spikes(values, history, fewest)
    assert found.spikes > 2


def test_a_huge_value_leaves_no_rounding_behind() -> None:
    # Once 1e12 has left the window of 100, small spikes on small noise are seen again.
    values = 2 + 1e-3 * np.random.default_rng(0).normal(size=700)
    values[150], values[400] = 1e12, 2.1
    assert spike_score(values, history=100).spikes == plain_spikes(values, 100, 50)[0] == 2


def test_small_spikes_far_from_zero_are_seen() -> None:
    values = 1e8 + 1e-2 * np.random.default_rng(0).normal(size=300)
    values[200] += 0.2
    assert spike_score(values).spikes == plain_spikes(values, 1_000, 50)[0] == 1
