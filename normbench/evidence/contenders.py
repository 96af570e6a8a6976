"""Which arms are compared: where several learning rates were tried for one, the arm at the best of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from normbench.evidence.baselines import Baseline
from normbench.evidence.measures import final_values, loss_on
from normbench.evidence.records import LEARNING_RATE, Arm, RecordedStudy
from normbench.settings import drop_keys

SETTLED = ("finished", "diverged", "out_of_memory")  # ends that a run would come to again


def choose_contenders(study: RecordedStudy, baseline: Baseline) -> tuple[tuple[Arm, ...], bool]:
    """Return the arms that are compared, and whether a learning rate was chosen for each.

    Of an arm that was tried at several rates, that is the arm at the best of them (`best_rate`), unless the rates
    themselves are what is compared.
    """
    families = rate_families(study)
    if LEARNING_RATE in baseline or not families:
        return study.arms, False
    chosen = []
    for family in families:
        best = without_settings(best_rate(family), LEARNING_RATE)
        chosen.append(replace(best, rates_tried=len(family)))
    return tuple(chosen), True


def rate_families(study: RecordedStudy) -> tuple[tuple[Arm, ...], ...]:
    """Return the arms in groups that differ only in the learning rate; none where it does not vary, or varies alone."""
    if LEARNING_RATE not in study.varied or len(study.varied) == 1:
        return ()
    return families_of(study.arms, LEARNING_RATE)


def families_of(arms: Iterable[Arm], *keys: str) -> tuple[tuple[Arm, ...], ...]:
    """Return arms in groups that differ only in some settings."""
    families = defaultdict[str, list[Arm]](list)
    for arm in arms:
        name = without_settings(arm, *keys).name
        families[name].append(arm)
    return tuple(map(tuple, families.values()))


def best_rate(family: Sequence[Arm]) -> Arm:
    """Return which of the arms that differ in a rate alone lost the fewest runs, then has the best validation loss.

    Only seeds that have ended at every rate count, so that no rate loses or wins by what has not run yet.
    """
    tried = [arm for arm in family if settled_seeds(arm)] or list(family)
    common = settled_seeds(tried[0])
    for arm in tried[1:]:
        common &= settled_seeds(arm)

    def badness(arm: Arm) -> tuple[float, float]:
        runs = [run for run in arm.runs if run.status in SETTLED]
        if common:
            runs = [run for run in runs if run.seed in common]
        losses = final_values(runs, loss_on("val"))
        share_lost = 1 - len(losses) / max(len(runs), 1)
        mean = sum(losses) / len(losses) if losses else math.inf
        return share_lost, mean

    return min(tried, key=badness)


def settled_seeds(arm: Arm) -> set[int]:
    """Return the seeds that have ended, with a result or without one."""
    return {run.seed for run in arm.runs if run.status in SETTLED}


def without_settings(arm: Arm, *keys: str) -> Arm:
    """Return an arm without some settings: all arms that differ only in these get the same name."""
    return replace(arm, settings=drop_keys(arm.settings, *keys))
