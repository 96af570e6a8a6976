"""How often a verdict calls a difference where there is none: lost runs, unequal choices, repeated looks, outliers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import null_studies
import numpy as np
import pytest
from scipy import stats
from support import WHOLE
from test_sentences import arm

from normbench.evidence.arms import Arm
from normbench.evidence.measures import loss_on
from normbench.results.comparisons import compare_all
from normbench.results.family import correct
from normbench.results.result import Difference
from normbench.results.statistics import ALPHA, paired_difference, signed_rank_p

STUDIES = 600


def compared(ours: Sequence[float | str], theirs: Sequence[float | str], rates: tuple[int, int] = (1, 1)) -> Difference:
    """An arm against layernorm, each chosen from so many learning rates."""
    arms = [
        Arm({"norm": name}, arm(own).runs, number)
        for name, own, number in zip(("dyt", "layernorm"), (ours, theirs), rates, strict=True)
    ]
    (one,) = correct(compare_all(arms, {"norm": "layernorm"}, loss_on("val")))
    return one


# Beyond what a t test can do; and crossed factors in small, unless the whole matrix is asked for.
LEFT_OUT = ("skewed",) if WHOLE else ("skewed", "2 × 2")


def without_worst(losses: np.ndarray, share: float) -> list[float | str]:
    """Losses, of which the worst ones are of runs that diverged."""
    bound = np.sort(losses)[round(len(losses) * (1 - share)) - 1]
    return [loss if loss <= bound else "diverged" for loss in losses.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("design", [name for name in null_studies.DESIGNS if name not in LEFT_OUT])
def test_a_study_in_which_nothing_differs_claims_something_in_one_of_twenty(
    design: str, tell: Callable[[str], None]
) -> None:
    """Whatever it states: comparisons, crossed factors and lost runs are one family; one metric is of one kind."""
    number = 150
    claimed = null_studies.claims(design, number)
    tell(f"{design}, nothing differs: {claimed:.1%} of {number} studies claim something")
    assert claimed <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / number)


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 10])
@pytest.mark.parametrize("shares", [(0.4, 0.0), (0.4, 0.4), (0.4, 0.2)])
def test_lost_runs_make_no_arm_better(n: int, shares: tuple[float, float], tell: Callable[[str], None]) -> None:
    rng, called, naive = np.random.default_rng(n), [], []
    for _ in range(STUDIES):
        seeds = rng.normal(2, 0.02, n)
        ours, theirs = (without_worst(seeds + rng.normal(0, 0.1, n), share) for share in shares)
        one = compared(ours, theirs)
        called.append(one.real and one.better)
        naive.append(one.better and one.p is not None and one.p < ALPHA)
    tell(f"{shares} of {n} seeds lost: better in {np.mean(called):.1%}, of survivors alone {np.mean(naive):.1%}")
    assert np.mean(called) <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / STUDIES)


def test_lost_runs_rank_last() -> None:
    better = [1.9, 2.0, 1.95, 1.92, 1.97, 1.93]
    one = compared(["diverged", "diverged", *better], [2.0, 2.0, *(loss + 0.1 for loss in better)])
    behind = [100.0, 100.0, *[-0.1] * 6]  # with ties, all signs counted
    sample = paired_difference(dict(enumerate(behind)), dict.fromkeys(range(8), 0.0))
    assert one.ranked_p == signed_rank_p(sample.values, sample.resolution)
    lost = compared(["diverged"] * 6 + [2.0, 2.1], [2.0] * 6 + [2.01, 2.09])
    assert lost.ranked_p is not None and lost.ranked_p < 0.05  # fewer runs lost is worth something
    assert compared(["diverged", 2.0], ["diverged", 2.0]).lost == (1, 1)


@pytest.mark.parametrize("rates", [(5, 1), (5, 3)])
def test_an_arm_with_more_rates_to_choose_from_is_not_better_for_it(
    rates: tuple[int, int], tell: Callable[[str], None]
) -> None:
    rng, called, naive = np.random.default_rng(0), [], []
    for _ in range(STUDIES):
        ours, theirs = (min(rng.normal(2, 0.05, (number, 5)), key=np.mean).tolist() for number in rates)
        one = compared(ours, theirs, rates)
        called.append(one.real and one.better)
        naive.append(one.better and one.p is not None and one.p < ALPHA)
    tell(f"{rates} rates to choose from: better in {np.mean(called):.1%}, uncorrected {np.mean(naive):.1%}")
    assert np.mean(called) <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / STUDIES)


def test_looking_again_and_again_raises_false_alarms_and_the_planned_rule_does_not(tell: Callable[[str], None]) -> None:
    """As `sentences.LOOKS` says: two seeds at a time from 3 to 15, and p below 0.05 / K at each of K looks."""
    looks = range(3, 16, 2)
    values = np.random.default_rng(0).normal(size=(20_000, 15))
    smallest = np.min([stats.ttest_1samp(values[:, :n], 0, axis=1).pvalue for n in looks], axis=0)
    raw, planned = np.mean(smallest < ALPHA), np.mean(smallest < ALPHA / len(looks))
    tell(f"looks at 3 to 15 seeds: false alarms {raw:.1%}, by the planned rule {planned:.1%}")
    assert 0.16 <= raw <= 0.18 and planned <= ALPHA


def test_skewed_differences_are_warned_of_and_gaussian_ones_seldom(tell: Callable[[str], None]) -> None:
    def share(values: np.ndarray) -> float:
        zeros = dict.fromkeys(range(values.shape[1]), 0.0)
        return float(np.mean([paired_difference(dict(enumerate(own)), zeros).skewed for own in values.tolist()]))

    rng = np.random.default_rng(0)
    gaussian, skewed = rng.normal(size=(STUDIES, 10)), rng.lognormal(sigma=1.5, size=(STUDIES, 10))
    outlier = rng.normal(size=(STUDIES, 5)) + np.array([0, 0, 0, 0, 12.0])
    found = [share(values) for values in (gaussian, skewed, outlier)]
    tell("warned of: gaussian {:.1%}, skewed {:.1%}, an outlier among five {:.1%}".format(*found))
    assert found[0] <= 0.07 and min(found[1:]) >= 0.8
