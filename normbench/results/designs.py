"""Studies that cross factors: what a setting does to an arm, less what it does to the baseline, seed by seed.

What a setting does is measured by what it is:

- words, or two values: the change from the usual value to another, so that the difference is an interaction;
- three numbers or more: the slope per doubling, and the largest at which the arm still trains;
- the learning rate: also how sensitive the arm is to it;
- two settings with three numbers or more: the share of their grid in which the arm trains.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pandas as pd

from normbench.evidence.arms import LEARNING_RATE, Arm, Baseline, sort_key
from normbench.evidence.baselines import USUAL
from normbench.evidence.measures import NAN, Metric, final, loss_on
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import RecordedStudy
from normbench.results.comparisons import choices_of, in_two_groups, were_lost
from normbench.results.result import EffectKind, FactorEffect
from normbench.results.sensitivity import AREA, Area, are_numbers, areas, failing_settings, levels_in, tried_levels
from normbench.results.statistics import paired_difference

BySeed = Mapping[int, float]


def find_effects(
    study: RecordedStudy,
    arms: Sequence[Arm],
    baseline: Baseline,
    metric: Metric,
    without_slopes: Collection[str] = (),
) -> tuple[FactorEffect, ...]:
    """Return what factors do to arms less what they do to their baselines; nothing is corrected yet.

    An arm that did not train is in no interaction: its loss says what a constant predictor reaches, and not what a
    factor does. Nor is one whose runs end in two groups: it has no mean.

    Args:
        study: the runs.
        arms: those that are compared, each at its best learning rate where that was a choice.
        baseline: the settings in which the partner of an arm differs from it.
        metric: in which runs ended.
        without_slopes: the settings whose slopes per doubling are left out, as others stand in their place.
    """
    mapped = areas(study)
    mapped_keys = set[str]()
    for area in mapped:
        mapped_keys.update(area.keys)
    able = [arm for arm in arms if can_be_contrasted(arm, metric)]
    found = list[FactorEffect]()
    for crossing in crossings(able, baseline, metric):
        if crossing.subject in mapped_keys or crossing.factor in mapped_keys:
            continue
        for one in crossing.contrasts():
            if one.kind != EffectKind.SLOPE or one.factor not in without_slopes:
                found.append(one)
    found += contrast_areas(mapped, baseline)
    if LEARNING_RATE not in mapped_keys:
        found += contrast_levels(study.arms, LEARNING_RATE, baseline)
    for key in failing_settings(arms):
        if key not in mapped_keys and key != LEARNING_RATE:
            found += contrast_levels(arms, key, baseline)
    return tuple(found)


def can_be_contrasted(arm: Arm, metric: Metric) -> bool:
    """Tell whether an arm trained, with no more than half of its runs lost, and has a mean."""
    lost = were_lost(arm)
    torn = in_two_groups(arm, metric, arm.seeds)
    return arm.trained and 2 * sum(lost) <= len(lost) and not torn


def compare_effects(
    own: BySeed,
    other: BySeed,
    *,
    arm: Arm,
    baseline: Arm,
    metric: Metric,
    kind: EffectKind,
    factor: str,
    levels: Sequence[Any],
) -> FactorEffect:
    """Return an effect on an arm less that on its baseline, over the seeds in which both can be measured.

    own: the effect on the arm, by seed. other: that on the baseline.
    """
    sample = paired_difference(own, other)
    return FactorEffect(
        values=sample.values,
        resolution=sample.resolution,
        seeds=sample.seeds,
        arm=arm.name,
        baseline=baseline.name,
        choices=choices_of(arm, baseline),
        metric=metric,
        tried=len(arm.seeds | baseline.seeds),
        own=tuple(own[seed] for seed in sample.seeds),
        other=tuple(other[seed] for seed in sample.seeds),
        kind=kind,
        factor=factor,
        levels=tuple(levels),
    )


# ---- two factors


@dataclass(frozen=True)
class Crossing:
    """Two factors of a study that are crossed: what the one does is compared between the levels of the other.

    Attributes:
        subject: the factor whose levels are compared, as arms.
        factor: the one whose effect is measured.
        arms: the runs at each level of the subject, the baseline first.
        levels: of the factor, the usual one first.
        cells: how runs ended; a column for each pair of places in `arms` and in `levels`, a row for each setting of
            what else varies and each seed.
        metric: in which they ended.
    """

    subject: str
    factor: str
    arms: list[Arm]
    levels: list[Any]
    cells: pd.DataFrame
    metric: Metric

    def contrasts(self) -> list[FactorEffect]:
        """Return a contrast of each effect of the factor on each arm, against that on the baseline."""
        found = []
        for place in range(1, len(self.arms)):
            for kind, weights in effect_weights(self.shared_levels(place)):
                sides = pd.DataFrame({"own": self.weighted(place, weights), "other": self.weighted(0, weights)})
                by_seed = sides.dropna().groupby(level="seed").mean()
                effect = compare_effects(
                    by_seed["own"].to_dict(),
                    by_seed["other"].to_dict(),
                    arm=self.arms[place],
                    baseline=self.arms[0],
                    metric=self.metric,
                    kind=kind,
                    factor=self.factor,
                    levels=[self.levels[key] for key in weights],
                )
                found.append(effect)
        return found

    def shared_levels(self, place: int) -> dict[int, Any]:
        """Return the levels, by their places, at which both an arm and the baseline have runs."""
        found = {}
        for key, level in enumerate(self.levels):
            if (place, key) in self.cells and (0, key) in self.cells:
                found[key] = level
        return found

    def weighted(self, place: int, weights: Mapping[int, float]) -> Any:
        """Return the weighted sum of an arm's cells, by row. weights: by the place of a level."""
        return sum(self.cells[place, key] * weight for key, weight in weights.items())


def effect_weights(levels: Mapping[int, Any]) -> list[tuple[EffectKind, dict[int, float]]]:
    """Return what weighs a factor's levels in each of its effects, by the places of the levels.

    For three numbers or more, all above 0, there is one effect: the slope over their logarithms to base 2, by least
    squares. Else there is the change from the first level to each other.
    """
    if not levels:
        return []
    values = list(levels.values())
    if are_numbers(values) and min(values) > 0:
        x = np.log2(values)
        x -= x.mean()
        weights = x / (x @ x)
        return [(EffectKind.SLOPE, dict(zip(levels, weights, strict=True)))]
    first, *others = sorted(levels)
    changes: list[tuple[EffectKind, dict[int, float]]] = []
    for other in others:
        changes.append((EffectKind.CHANGE, {first: -1.0, other: 1.0}))
    return changes


def crossings(arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> list[Crossing]:
    """Return every two factors of some arms as a crossing. metric: in which runs ended."""
    levels = varied_levels(arms, baseline)
    keys = list(levels)
    ends = tabulate_ends(arms, levels, metric)
    found = []
    for subject, factor in combinations(keys, 2):
        gathered = [gather(arms, {subject: level}) for level in levels[subject]]
        rest = [key for key in keys if key not in (subject, factor)]
        cells = ends.pivot_table("end", [*rest, "seed"], [subject, factor])
        found.append(Crossing(subject, factor, gathered, levels[factor], cells, metric))
    return found


def tabulate_ends(arms: Sequence[Arm], levels: Mapping[str, list[Any]], metric: Metric) -> pd.DataFrame:
    """Return a row for each run: the place of its level in each setting, its seed, and how it ended."""
    rows = []
    for arm in arms:
        places = []
        for key, own_levels in levels.items():
            places.append(own_levels.index(arm.settings.get(key)))
        for run in arm.runs:
            rows.append((*places, run.seed, ending(run, metric)))
    return pd.DataFrame(rows, columns=[*levels, "seed", "end"])


def varied_levels(arms: Sequence[Arm], baseline: Baseline) -> dict[str, list[Any]]:
    """Return the values of each setting that has several among some arms, the usual one first."""
    usual = {**USUAL, **baseline}
    found = {}
    for arm in arms:
        for key in arm.settings:
            if key not in found:
                found[key] = levels_of(arms, key, usual.get(key))
    return {key: levels for key, levels in found.items() if len(levels) > 1}


def levels_of(arms: Sequence[Arm], key: str, usual: Any) -> list[Any]:
    """Return the values that arms have in a setting, the usual one first."""
    return sorted(levels_in(arms, key), key=lambda value: (value != usual, sort_key(value)))


def gather(arms: Sequence[Arm], settings: Mapping[str, Any]) -> Arm:
    """Return the runs of all arms that have some settings, as one arm."""
    runs = list[RecordedRun]()
    for arm in arms:
        if arm.has(settings):
            runs += arm.runs
    return Arm(settings, tuple(runs))


def ending(run: RecordedRun, metric: Metric) -> float:
    """Return how a run ended, in the metric's unit, but no worse than a constant predictor.

    A run that diverged counts as a constant predictor. NaN for a run that failed or has not ended.
    """
    constant = run.constant.get(f"{metric.kind}/val")
    has_ended = run.status in ("finished", "diverged")
    worst = metric.scale * constant if has_ended and constant is not None else NAN
    better_of = np.fmin if metric.lower_is_better else np.fmax
    return float(better_of(final(run, metric), worst))


# ---- from where to where arms train


def contrast_levels(arms: Sequence[Arm], key: str, baseline: Baseline) -> list[FactorEffect]:
    """Return contrasts of arms over the same levels of a setting: in the largest that trains, and in sensitivity.

    There is none of two arms that train at no level.
    """
    found = []
    for one, other in permutations(tried_levels(arms, key), 2):
        levels = list(one.by_level)
        has_same_levels = list(other.by_level) == levels
        if not has_same_levels or not is_partner(other.arm, one.arm, baseline):
            continue
        if not one.trains and not other.trains:  # both have half the lowest level, which is no finding
            continue
        sides = {EffectKind.LARGEST: (one.largest, other.largest)}
        if key == LEARNING_RATE:
            sides[EffectKind.SENSITIVITY] = (one.sensitivity, other.sensitivity)
        for kind, (own, others) in sides.items():
            effect = compare_effects(
                own,
                others,
                arm=one.arm,
                baseline=other.arm,
                metric=loss_on("val"),
                kind=kind,
                factor=key,
                levels=levels,
            )
            found.append(effect)
    return found


def contrast_areas(mapped: Sequence[Area], baseline: Baseline) -> list[FactorEffect]:
    """Return contrasts of the shares of a grid in which arms train; there is none of two that train nowhere in it."""
    found = []
    for one, other in permutations(mapped, 2):
        trains = any(one.shares.values()) or any(other.shares.values())
        if trains and is_partner(other.arm, one.arm, baseline) and one.keys == other.keys:
            effect = compare_effects(
                one.shares,
                other.shares,
                arm=one.arm,
                baseline=other.arm,
                metric=AREA,
                kind=EffectKind.AREA,
                factor=one.words,
                levels=one.levels[1],
            )
            found.append(effect)
    return found


def is_partner(other: Arm, arm: Arm, baseline: Baseline) -> bool:
    """Tell whether one arm has the baseline's settings, and is like another in all else."""
    return other.settings == {**arm.settings, **baseline}
