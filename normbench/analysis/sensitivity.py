"""How arms take to the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from normbench.analysis.comparisons import LEARNING_RATE, LOST, best_rate, rate_families, without_rate
from normbench.analysis.measures import TRAINING_LOSS, Metric, final, finite, known, loss_on
from normbench.analysis.records import Arm, Study
from normbench.analysis.statistics import learning_rate_sensitivity


class Outcome(NamedTuple):
    """How the runs of an arm ended. mean, low, high: of those that finished; NaN where none did."""

    runs: int
    finished: int
    diverged: int
    mean: float
    low: float
    high: float


def outcome(arm: Arm, metric: Metric) -> Outcome:
    """Return how the runs of an arm ended in a metric's unit."""
    values = known(final(run, metric) for run in arm.runs)
    spread = (float(np.mean(values)), min(values), max(values)) if values else (np.nan, np.nan, np.nan)
    return Outcome(len(arm.runs), len(values), sum(run.status == "diverged" for run in arm.runs), *spread)


@dataclass(frozen=True)
class Tried:
    """An arm that was trained at several learning rates.

    arm: as it is called without one. by_rate: the arm at each rate, from low to high. best: the rate of `best_rate`.
    """

    arm: Arm
    by_rate: Mapping[float, Arm]
    best: float

    @property
    def name(self) -> str:
        """Return the name that the arm shares at all rates."""
        return self.arm.name

    @property
    def losses(self) -> dict[float, float]:
        """Return the mean final validation loss (nats) by rate; NaN where no run finished."""
        return {rate: outcome(arm, loss_on("val")).mean for rate, arm in self.by_rate.items()}

    @property
    def lost(self) -> dict[float, int]:
        """Return how many runs did not get through, by rate, where some did not."""
        counts = {rate: sum(run.status in LOST for run in arm.runs) for rate, arm in self.by_rate.items()}
        return {rate: count for rate, count in counts.items() if count}

    @property
    def sensitivity(self) -> tuple[float, ...]:
        """Return a value (nats) for each seed that has ended at every rate (Wortsman et al. 2023)."""
        seeds = sorted({run.seed for arm in self.by_rate.values() for run in arm.runs})
        return tuple(known(seed_sensitivity(self.by_rate, seed) for seed in seeds))


def tried_rates(study: Study, fewest: int = 2) -> tuple[Tried, ...]:
    """Return every arm that was trained at so many learning rates or more, where they vary in the study."""
    if LEARNING_RATE not in study.varied:
        return ()
    found = []
    for family in rate_families(study) or (study.arms,):
        arms = [arm for arm in family if arm.settings[LEARNING_RATE] is not None]  # an optimizer may have none
        if len(arms) >= fewest:
            by_rate = {float(arm.settings[LEARNING_RATE]): arm for arm in arms}
            best = float(best_rate(arms).settings[LEARNING_RATE])
            found.append(Tried(without_rate(arms[0]), dict(sorted(by_rate.items())), best))
    return tuple(found)


def seed_sensitivity(by_rate: Mapping[float, Arm], seed: int) -> float | None:
    """Return what one seed says; None where it has not ended at every rate."""
    runs = {rate: run for rate, arm in by_rate.items() for run in arm.runs if run.seed == seed and run.ended}
    starts = [loss for run in runs.values() for loss in finite(run.curves.get(TRAINING_LOSS)).values[:1].tolist()]
    if runs.keys() != by_rate.keys() or not starts:
        return None
    ends = {rate: final(run, loss_on("val")) for rate, run in runs.items()}
    return learning_rate_sensitivity(ends, sum(starts) / len(starts))
