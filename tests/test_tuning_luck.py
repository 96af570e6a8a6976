"""How often two equal arms are told apart, when each has learning rates to choose from.

Losses are as in `rmsnorm-parity`: what all runs of a seed share, what is each run's own (0.012 nats, so that paired
differences spread by 0.017), and three rates of which the best is better than its neighbours by about as much.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from normbench.results.statistics import ALPHA, paired_difference
from normbench.sweep.tuning import choose_rate

STUDIES, SEEDS = 2_000, 10
RATES = (1e-3, 3e-3, 1e-2)
SHARED, NOISE = 0.02, 0.012  # nats
VALLEYS = {"flat": (0.0, 0.0, 0.0), "shallow": (0.008, 0.0, 0.008), "steep": (0.03, 0.0, 0.03)}  # above the best rate

Choices = Callable[[np.ndarray], np.ndarray]  # of (seeds that choose, rates) losses: the rate's place for each seed


def draw(rng: np.random.Generator, valley: tuple[float, ...], shared: np.ndarray) -> np.ndarray:
    """Final losses of an arm: (seeds, rates)."""
    return 2.0 + shared[:, None] + np.array(valley) + NOISE * rng.standard_normal((len(shared), len(RATES)))


def best_of(losses: np.ndarray) -> int:
    """The place of the rate that a sweep chooses by the losses of some seeds."""
    by_rate = {rate: losses[:, place].tolist() for place, rate in enumerate(RATES)}
    return RATES.index(choose_rate({"norm": "dyt"}, by_rate)["lr"])


def once_for_all(losses: np.ndarray) -> np.ndarray:
    """As `sweep.lr=auto`: one seed chooses for all."""
    return np.full(SEEDS, best_of(losses[:1]))


def for_each(losses: np.ndarray) -> np.ndarray:
    """As `sweep.lr=each`: a seed of its own chooses for each."""
    return np.array([best_of(losses[seed : seed + 1]) for seed in range(SEEDS)])


def false_alarms(valley: tuple[float, ...], choices: Choices) -> float:
    """The share of studies of two equal arms whose 95 % interval excludes 0."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(STUDIES):
        shared_by_choosing, shared = SHARED * rng.standard_normal((2, SEEDS))
        ends = []
        for _ in range(2):
            chosen = choices(draw(rng, valley, shared_by_choosing))
            reported = draw(rng, valley, shared)
            ends.append(dict(enumerate(reported[np.arange(SEEDS), chosen].tolist())))
        p = paired_difference(*ends).p
        alarms += p is not None and p < ALPHA
    return alarms / STUDIES


@pytest.mark.parametrize("valley", VALLEYS)
def test_a_choice_for_each_seed_keeps_false_alarms_at_one_in_twenty(valley: str, tell: Callable[[str], None]) -> None:
    share = false_alarms(VALLEYS[valley], for_each)
    tell(f"{valley} valley, sweep.lr=each: {share:.1%} of equal arms are told apart")
    assert share <= 0.055


def test_one_choice_for_all_seeds_does_not(tell: Callable[[str], None]) -> None:
    shares = {valley: false_alarms(means, once_for_all) for valley, means in VALLEYS.items()}
    tell(f"sweep.lr=auto: {', '.join(f'{valley} valley {share:.1%}' for valley, share in shares.items())}")
    assert 0.1 < shares["shallow"] < 0.25 and shares["flat"] < 0.07
