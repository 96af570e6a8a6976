"""The order in which a sweep makes its runs, and that a machine's drift makes no difference between equal arms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normbench.results.statistics import paired_difference
from normbench.sweep.folder import Entry
from normbench.sweep.plan import balance


def entries(arms: int, seeds: int) -> list[Any]:
    return [Entry(f"{arm}-{seed}", {"norm": str(arm)}, seed, 1, []) for arm in range(arms) for seed in range(seeds)]


def test_runs_come_seed_by_seed_with_arms_at_random_and_then_in_reverse() -> None:
    order = [run.run.split("-") for run in balance(entries(6, 4))]
    assert [int(seed) for _, seed in order] == [seed for seed in range(4) for _ in range(6)]
    first, second, third, fourth = ([arm for arm, seed in order if seed == str(number)] for number in range(4))
    assert (second, fourth) == (first[::-1], third[::-1])
    assert first not in (sorted(first), third)
    assert {*first} == {*third} == {*"012345"}
    assert balance(entries(6, 4)[::-1])[-1].seed == 0  # seeds come as they are given


DRIFTS: dict[str, Callable[[np.random.Generator, np.ndarray], Any]] = {
    "none": lambda rng, at: 0 * at,
    "slower and slower": lambda rng, at: 0.2 * at,
    "cold at first": lambda rng, at: 0.2 * np.exp(-5 * at),
    "a walk": lambda rng, at: np.cumsum(rng.normal(0, 0.02, len(at))),
    "another load from some time on": lambda rng, at: 0.3 * (at >= rng.random()),
    "day and night": lambda rng, at: 0.1 * np.sin(2 * np.pi * (at * rng.uniform(0.1, 1) + rng.random())),
}


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("drift", DRIFTS)
def test_step_times_of_identical_arms_seldom_differ_whatever_the_machine_does(drift: str, seeds: int) -> None:
    """A 95 % interval is wrong in one of twenty studies, here at most in eight of a hundred."""
    rng, arms, runs = np.random.default_rng(0), 3, entries(3, seeds)
    wrong = {"as given": 0, "balanced": 0}
    for study in range(300):
        machine = DRIFTS[drift](rng, np.linspace(0, 1, len(runs))) + rng.normal(0, 0.01, len(runs))
        renamed = [replace(run, arm={"norm": f"{study} {run.arm['norm']}"}) for run in runs]  # which draws again
        for how, order in (("as given", runs), ("balanced", balance(renamed))):
            times = {run.run: time for run, time in zip(order, machine, strict=True)}
            pair = ({seed: times[f"{arm}-{seed}"] for seed in range(seeds)} for arm in (0, arms - 1))
            interval = paired_difference(*pair).interval
            wrong[how] += interval is not None and not interval.lower <= 0 <= interval.upper
    assert wrong["balanced"] <= 0.08 * 300
    assert wrong["as given"] > 0.08 * 300 or drift == "none" or seeds == 3
