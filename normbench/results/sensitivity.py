"""How arms ended, how sensitive they are to the learning rate, and at which values of settings they train."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from normbench.evidence.arms import LEARNING_RATE, Arm, best_rate, families_of, without_settings
from normbench.evidence.measures import (
    TRAINING_LOSS,
    Metric,
    final,
    final_values,
    finite_points,
    loss_on,
)
from normbench.evidence.run import WITHOUT_RESULT, RecordedRun
from normbench.evidence.scores import learning_rate_sensitivity
from normbench.evidence.study import RecordedStudy

AREA = Metric("share of the grid that trains", "percentage points", "%", 1.0, 0, (0.0, 100.0), lower_is_better=False)


@dataclass(frozen=True)
class Outcome:
    """How the runs of an arm ended.

    mean, low and high are over those that finished, in a metric's unit; NaN where none did.
    """

    runs: int
    finished: int
    diverged: int
    mean: float
    low: float
    high: float


def outcome(arm: Arm, metric: Metric) -> Outcome:
    """Return how the runs of an arm ended."""
    values = pd.Series(final_values(arm.runs, metric), dtype=float)
    diverged = [run for run in arm.runs if run.status == "diverged"]
    return Outcome(
        runs=len(arm.runs),
        finished=len(values),
        diverged=len(diverged),
        mean=values.mean(),
        low=values.min(),
        high=values.max(),
    )


def is_lost(run: RecordedRun) -> bool:
    """Tell whether a run diverged, failed, ran out of memory or did not train."""
    return run.status in WITHOUT_RESULT or run.trained is False


def count_trained(runs: Iterable[RecordedRun]) -> int:
    """Return how many runs are not lost."""
    return sum(not is_lost(run) for run in runs)


@dataclass(frozen=True)
class TriedLevels:
    """An arm that was trained at several levels of a setting that is a number, above all of the learning rate.

    Attributes:
        arm: named without the setting.
        by_level: the arm at each level, from low to high.
        best: the level that `best_rate` chooses.
    """

    arm: Arm
    by_level: Mapping[float, Arm]
    best: float

    @property
    def losses(self) -> dict[float, float]:
        """Return the mean final validation loss (nats) by level; NaN where no run finished."""
        losses = dict[float, float]()
        for level, arm in self.by_level.items():
            losses[level] = outcome(arm, loss_on("val")).mean
        return losses

    @property
    def lost(self) -> dict[float, int]:
        """Return how many runs are lost, by level."""
        lost = dict[float, int]()
        for level, arm in self.by_level.items():
            lost[level] = len(arm.runs) - count_trained(arm.runs)
        return lost

    @property
    def by_seed(self) -> dict[int, dict[float, RecordedRun]]:
        """Return the runs of each seed that has ended at every level, by seed and level."""
        runs_of_seed = defaultdict[int, dict[float, RecordedRun]](dict)
        for level, arm in self.by_level.items():
            for run in arm.runs:
                if run.ended:
                    runs_of_seed[run.seed][level] = run
        everywhere = {}
        for seed in sorted(runs_of_seed):
            if len(runs_of_seed[seed]) == len(self.by_level):
                everywhere[seed] = runs_of_seed[seed]
        return everywhere

    @property
    def trains_at_best(self) -> bool:
        """Tell whether a run trains at the best level, which else is only that with the lowest loss of a failure."""
        return count_trained(self.by_level[self.best].runs) > 0

    @property
    def sensitivity(self) -> dict[int, float]:
        """Return the sensitivity to the learning rate (nats) of each seed (Wortsman et al. 2023).

        It is empty for an arm that does not train at its best rate, which ends alike at every rate and learns at none.
        """
        score_of_seed = dict[int, float]()
        if not self.by_level[self.best].trained:
            return score_of_seed
        for seed, runs in self.by_seed.items():
            starts, ends = list[float](), dict[float, float]()
            for rate, run in runs.items():
                logged = finite_points(run.curves.get(TRAINING_LOSS))
                starts += logged.values[:1].tolist()
                ends[rate] = final(run, loss_on("val"))
            if starts:
                score = learning_rate_sensitivity(ends, float(np.mean(starts)))
                if score is not None:
                    score_of_seed[seed] = score
        return score_of_seed

    @property
    def largest(self) -> dict[int, float]:
        """Return the logarithm to base 2 of the largest level at which each seed trains; half the lowest if at none."""
        largest_of_seed = {}
        for seed, runs in self.by_seed.items():
            train = [level for level, run in runs.items() if not is_lost(run)]
            largest = max(train, default=min(runs) / 2)
            largest_of_seed[seed] = math.log2(largest)
        return largest_of_seed

    @property
    def bears_highest(self) -> bool:
        """Tell whether each seed that has ended at every level trains at the highest, so that none was too high."""
        return not any(is_lost(runs[max(runs)]) for runs in self.by_seed.values())

    @property
    def trains(self) -> bool:
        """Tell whether a seed that has ended at every level trains at one of them."""
        return any(not is_lost(run) for runs in self.by_seed.values() for run in runs.values())


def tried_levels(arms: Iterable[Arm], key: str = LEARNING_RATE, fewest: int = 2) -> list[TriedLevels]:
    """Return every arm that was trained at several levels of a setting that is a number. fewest: levels to count."""
    tried = []
    having = [arm for arm in arms if arm.settings.get(key) is not None]  # an optimizer may have no learning rate
    for family in families_of(having, key):
        if len(family) < fewest:
            continue
        by_level = {}
        for arm in sorted(family, key=lambda arm: float(arm.settings[key])):
            by_level[float(arm.settings[key])] = arm
        best = float(best_rate(family).settings[key])
        tried.append(TriedLevels(without_settings(family[0], key), by_level, best))
    return tried


@dataclass(frozen=True)
class Area:
    """An arm over the grid of two settings that are numbers.

    Attributes:
        arm: named without the two settings.
        keys: the two settings.
        cells: the arm at each pair of their levels.
    """

    arm: Arm
    keys: tuple[str, str]
    cells: Mapping[tuple[float, float], Arm]

    @property
    def names(self) -> tuple[str, str]:
        """Return the last parts of the two keys."""
        first, second = self.keys
        return first.rpartition(".")[2], second.rpartition(".")[2]

    @property
    def words(self) -> str:
        """Name the grid, such as `factor and lr`."""
        return " and ".join(self.names)

    @property
    def levels(self) -> list[list[float]]:
        """Return the levels of each of the two settings, from low to high."""
        first, second = set[float](), set[float]()
        for level_of_first, level_of_second in self.cells:
            first.add(level_of_first)
            second.add(level_of_second)
        return [sorted(first), sorted(second)]

    @property
    def shares(self) -> dict[int, float]:
        """Return the percentage of the grid in which a seed trains, for each seed that has ended everywhere in it."""
        train = defaultdict[int, list[float]](list)
        for arm in self.cells.values():
            for run in arm.runs:
                if run.ended:
                    train[run.seed].append(0.0 if is_lost(run) else 100.0)
        share_of_seed = dict[int, float]()
        for seed, cells in train.items():
            if len(cells) == len(self.cells):
                share_of_seed[seed] = float(np.mean(cells))
        return share_of_seed


def levels_in(arms: Iterable[Arm], key: str) -> list[Any]:
    """Return the values that arms have in a setting, each once."""
    return [*{arm.settings.get(key) for arm in arms}]


def are_numbers(levels: Sequence[Any]) -> bool:
    """Tell whether levels are three numbers or more, which so have places on an axis."""
    kinds = {type(level) for level in levels}
    return len(levels) > 2 and kinds <= {int, float}


def failing_settings(arms: Sequence[Arm]) -> list[str]:
    """Return the settings whose levels are numbers above 0, where some run of the arms is lost."""
    none_is_lost = all(count_trained(arm.runs) == len(arm.runs) for arm in arms)
    if none_is_lost:
        return []
    failing = []
    for key in arms[0].settings:
        levels = levels_in(arms, key)
        if are_numbers(levels) and min(levels) > 0:
            failing.append(key)
    return failing


def areas(study: RecordedStudy) -> list[Area]:
    """Return every arm that was trained at all pairs of the levels of two settings that are numbers."""
    levels = {key: levels_in(study.arms, key) for key in study.varied}
    numbers = [key for key in levels if are_numbers(levels[key])]
    mapped = []
    for first, second in combinations(numbers, 2):
        cells_of_grid = len(levels[first]) * len(levels[second])
        for family in families_of(study.arms, first, second):
            cells = {}
            for arm in family:
                cells[arm.settings[first], arm.settings[second]] = arm
            if len(cells) == cells_of_grid:
                mapped.append(Area(without_settings(family[0], first, second), (first, second), cells))
    return mapped
