"""How arms ended, and how they take to the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from normbench.analysis.comparisons import LOST, best_rate, rate_families, without_rate
from normbench.analysis.measures import TRAINING_LOSS, Metric, final, finite, known, loss_on
from normbench.analysis.records import LEARNING_RATE, Arm, Study
from normbench.analysis.statistics import learning_rate_sensitivity


def outcome(arm: Arm, metric: Metric) -> dict[str, Any]:
    """Return how many runs of an arm there are, finished and diverged, and mean, low and high of those that finished.

    These three are in the metric's unit; NaN where none finished.
    """
    values = known(final(run, metric) for run in arm.runs)
    mean, low, high = (np.mean(values), min(values), max(values)) if values else [np.nan] * 3
    diverged = sum(run.status == "diverged" for run in arm.runs)
    counts = {"runs": len(arm.runs), "finished": len(values), "diverged": diverged}
    return counts | {"mean": float(mean), "low": low, "high": high}


@dataclass(frozen=True)
class Tried:
    """An arm that was trained at several learning rates.

    arm: as it is called without one. by_rate: the arm at each rate, from low to high. best: the rate of `best_rate`.
    """

    arm: Arm
    by_rate: Mapping[float, Arm]
    best: float

    @property
    def losses(self) -> dict[float, float]:
        """Return the mean final validation loss (nats) by rate; NaN where no run finished."""
        return {rate: outcome(arm, loss_on("val"))["mean"] for rate, arm in self.by_rate.items()}

    @property
    def lost(self) -> dict[float, int]:
        """Return how many runs did not get through or did not train, by rate."""
        return {
            rate: sum(run.status in LOST or run.trained is False for run in arm.runs)
            for rate, arm in self.by_rate.items()
        }

    @property
    def sensitivity(self) -> list[float]:
        """Return a value (nats) for each seed that has ended at every rate (Wortsman et al. 2023).

        There is none for an arm that does not train at its best rate: it takes every rate alike, and learns at none.
        """
        found: list[float | None] = []
        if not self.by_rate[self.best].trained:
            return []
        for seed in sorted({run.seed for arm in self.by_rate.values() for run in arm.runs}):
            runs = {
                rate: run for rate, arm in self.by_rate.items() for run in arm.runs if run.seed == seed and run.ended
            }
            starts = [loss for run in runs.values() for loss in finite(run.curves.get(TRAINING_LOSS)).values[:1]]
            if len(runs) == len(self.by_rate) and starts:
                ends = {rate: final(run, loss_on("val")) for rate, run in runs.items()}
                found.append(learning_rate_sensitivity(ends, float(np.mean(starts))))
        return known(found)


def tried_rates(study: Study, fewest: int = 2) -> list[Tried]:
    """Return every arm that was trained at so many learning rates or more, where they vary in the study."""
    if LEARNING_RATE not in study.varied:
        return []
    found = []
    for family in rate_families(study) or (study.arms,):
        arms = [arm for arm in family if arm.settings[LEARNING_RATE] is not None]  # an optimizer may have none
        if len(arms) >= fewest:
            by_rate = {float(arm.settings[LEARNING_RATE]): arm for arm in arms}
            best = float(best_rate(arms).settings[LEARNING_RATE])
            found.append(Tried(without_rate(arms[0]), dict(sorted(by_rate.items())), best))
    return found
