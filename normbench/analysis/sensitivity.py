"""How arms ended, and how they take to the learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from normbench.analysis.comparisons import LOST, best_rate, rate_families, without_rate
from normbench.analysis.measures import TRAINING_LOSS, Metric, final, finite, known, loss_on
from normbench.analysis.records import LEARNING_RATE, Arm, Run, Study
from normbench.analysis.statistics import learning_rate_sensitivity


def outcome(arm: Arm, metric: Metric) -> dict[str, Any]:
    """Return how many runs of an arm there are, finished and diverged, and mean, low and high of those that finished.

    These three are in the metric's unit; NaN where none finished.
    """
    values = pd.Series(known(final(run, metric) for run in arm.runs), dtype=float)
    diverged = sum(run.status == "diverged" for run in arm.runs)
    counts = {"runs": len(arm.runs), "finished": len(values), "diverged": diverged}
    return {**counts, "mean": values.mean(), "low": values.min(), "high": values.max()}


def is_lost(run: Run) -> bool:
    """Say whether a run did not get through, or did not train."""
    return run.status in LOST or run.trained is False


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
        return {rate: sum(map(is_lost, arm.runs)) for rate, arm in self.by_rate.items()}

    @property
    def by_seed(self) -> dict[int, dict[float, Run]]:
        """Return the runs of each seed that has ended at every rate."""
        ended = {rate: {run.seed: run for run in arm.runs if run.ended} for rate, arm in self.by_rate.items()}
        common = sorted(set[int].intersection(*map(set, ended.values())))
        return {seed: {rate: runs[seed] for rate, runs in ended.items()} for seed in common}

    @property
    def sensitivity(self) -> dict[int, float]:
        """Return a value (nats) for each seed (Wortsman et al. 2023).

        There is none for an arm that does not train at its best rate: it takes every rate alike, and learns at none.
        """
        found = dict[int, float]()
        for seed, runs in self.by_seed.items() if self.by_rate[self.best].trained else ():
            starts = [loss for run in runs.values() for loss in finite(run.curves.get(TRAINING_LOSS)).values[:1]]
            ends = {rate: final(run, loss_on("val")) for rate, run in runs.items()}
            score = learning_rate_sensitivity(ends, float(np.mean(starts))) if starts else None
            found |= {} if score is None else {seed: score}
        return found

    @property
    def largest(self) -> dict[int, float]:
        """Return the base 2 logarithm of the largest rate at which each seed trains; of none, half the lowest rate."""
        found = {}
        for seed, runs in self.by_seed.items():
            train = [rate for rate, run in runs.items() if not is_lost(run)]
            found[seed] = math.log2(max(train, default=min(runs) / 2))
        return found


def tried_rates(study: Study, fewest: int = 2) -> list[Tried]:
    """Return every arm that was trained at so many learning rates or more, where they vary in the study."""
    found = []
    for family in rate_families(study) or (study.arms,):
        arms = [arm for arm in family if arm.settings.get(LEARNING_RATE) is not None]  # an optimizer may have none
        if len(arms) >= fewest:
            by_rate = {float(arm.settings[LEARNING_RATE]): arm for arm in arms}
            best = float(best_rate(arms).settings[LEARNING_RATE])
            found.append(Tried(without_rate(arms[0]), dict(sorted(by_rate.items())), best))
    return found
