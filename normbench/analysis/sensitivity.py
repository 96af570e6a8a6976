"""How an arm takes to the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from normbench.analysis.comparisons import LEARNING_RATE, LOST, best_rate, rate_families, without_rate
from normbench.analysis.measures import TRAINING_LOSS, final, finite, known, loss_on
from normbench.analysis.records import Arm, Run, Study
from normbench.analysis.statistics import learning_rate_sensitivity


@dataclass(frozen=True)
class Tried:
    """An arm over its learning rates.

    losses: mean final validation loss by rate (nats), of the runs that finished; NaN where none did. sensitivity: a
    value for each seed, in nats (Wortsman et al. 2023). best: the rate of `best_rate`. lost: how many runs did not get
    through, by rate.
    """

    name: str
    losses: Mapping[float, float]
    best: float
    sensitivity: tuple[float, ...]
    lost: Mapping[float, int]


def tried_rates(study: Study) -> tuple[Tried, ...]:
    """Every arm that was trained at several learning rates."""
    if LEARNING_RATE not in study.varied:
        return ()
    families = rate_families(study) or (study.arms,)
    return tuple(tried(family) for family in families if len(family) > 1)


def tried(family: Sequence[Arm]) -> Tried:
    """One arm at several rates."""
    by_rate = {float(arm.settings[LEARNING_RATE]): arm for arm in family}
    rates = sorted(by_rate)
    losses = {rate: mean(final(run, loss_on("val")) for run in by_rate[rate].runs) for rate in rates}
    lost = {rate: count for rate in rates if (count := sum(run.status in LOST for run in by_rate[rate].runs))}
    best = float(best_rate(family).settings[LEARNING_RATE])
    seeds = sorted({run.seed for arm in family for run in arm.runs})
    scores = [sensitivity(by_rate, seed) for seed in seeds]
    return Tried(without_rate(family[0]).name, losses, best, tuple(known(scores)), lost)


def sensitivity(by_rate: Mapping[float, Arm], seed: int) -> float | None:
    """What one seed says; None where it has not ended at every rate."""
    runs = {rate: run for rate, arm in by_rate.items() for run in arm.runs if run.seed == seed and run.ended}
    starts = known(first_loss(run) for run in runs.values())
    if runs.keys() != by_rate.keys() or not starts:
        return None
    ends = {rate: final(run, loss_on("val")) for rate, run in runs.items()}
    return learning_rate_sensitivity(ends, sum(starts) / len(starts)).sensitivity


def first_loss(run: Run) -> float:
    """The first training loss that was logged."""
    values = finite(run.curves.get(TRAINING_LOSS)).values
    return float(values[0]) if len(values) else math.nan


def mean(values: Iterable[float]) -> float:
    """Of those that are known."""
    found = known(values)
    return sum(found) / len(found) if found else math.nan
