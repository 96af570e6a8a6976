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
from normbench.results.effects import slope_weights
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
    able = [arm for arm in arms if has_an_end(arm, metric)]
    effects = list[FactorEffect]()
    for crossing in crossings(able, baseline, metric):
        if crossing.subject in mapped_keys or crossing.factor in mapped_keys:
            continue
        for effect in crossing.effects():
            if effect.kind != EffectKind.SLOPE or effect.factor not in without_slopes:
                effects.append(effect)
    effects += compare_areas(mapped, baseline)
    if LEARNING_RATE not in mapped_keys:
        effects += compare_levels(study.arms, LEARNING_RATE, baseline)
    for key in failing_settings(arms):
        if key not in mapped_keys and key != LEARNING_RATE:
            effects += compare_levels(arms, key, baseline)
    return tuple(effects)


def has_an_end(arm: Arm, metric: Metric) -> bool:
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

    def effects(self) -> list[FactorEffect]:
        """Return each effect of the factor on each arm less that on the baseline."""
        effects = []
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
                effects.append(effect)
        return effects

    def shared_levels(self, place: int) -> dict[int, Any]:
        """Return the levels, by their places, at which both an arm and the baseline have runs."""
        shared = {}
        for key, level in enumerate(self.levels):
            if (place, key) in self.cells and (0, key) in self.cells:
                shared[key] = level
        return shared

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
        weights = slope_weights(np.log2(values)).tolist()
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
    crossed = []
    for subject, factor in combinations(keys, 2):
        gathered = [gather(arms, {subject: level}) for level in levels[subject]]
        rest = [key for key in keys if key not in (subject, factor)]
        cells = ends.pivot_table("end", [*rest, "seed"], [subject, factor])
        crossed.append(Crossing(subject, factor, gathered, levels[factor], cells, metric))
    return crossed


def tabulate_ends(arms: Sequence[Arm], levels: Mapping[str, list[Any]], metric: Metric) -> pd.DataFrame:
    """Return a row for each run: the place of its level in each setting, its seed, and how it ended."""
    rows = []
    for arm in arms:
        places = []
        for key, levels_of_key in levels.items():
            places.append(levels_of_key.index(arm.settings.get(key)))
        for run in arm.runs:
            rows.append((*places, run.seed, ending(run, metric)))
    return pd.DataFrame(rows, columns=[*levels, "seed", "end"])


def varied_levels(arms: Sequence[Arm], baseline: Baseline) -> dict[str, list[Any]]:
    """Return the values of each setting that has several among some arms, the usual one first."""
    usual = {**USUAL, **baseline}
    levels_of_key = {}
    for arm in arms:
        for key in arm.settings:
            if key not in levels_of_key:
                levels_of_key[key] = levels_of(arms, key, usual.get(key))
    return {key: levels for key, levels in levels_of_key.items() if len(levels) > 1}


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


def compare_levels(arms: Sequence[Arm], key: str, baseline: Baseline) -> list[FactorEffect]:
    """Return how arms over the same levels of a setting differ in the largest that trains, and in sensitivity.

    There is nothing of two arms that train at no level: both have half the lowest one, which shows no difference. Of
    two that train at the highest there is the sensitivity alone, as nobody knows how much higher they would train.
    """
    effects = []
    for tried, tried_by_baseline in permutations(tried_levels(arms, key), 2):
        levels = list(tried.by_level)
        has_same_levels = list(tried_by_baseline.by_level) == levels
        if not has_same_levels or not is_partner(tried_by_baseline.arm, tried.arm, baseline):
            continue
        if not tried.trains and not tried_by_baseline.trains:
            continue
        sides = {}
        if not (tried.bears_highest and tried_by_baseline.bears_highest):
            sides[EffectKind.LARGEST] = (tried.largest, tried_by_baseline.largest)
        if key == LEARNING_RATE:
            sides[EffectKind.SENSITIVITY] = (tried.sensitivity, tried_by_baseline.sensitivity)
        for kind, (on_arm, on_baseline) in sides.items():
            effect = compare_effects(
                on_arm,
                on_baseline,
                arm=tried.arm,
                baseline=tried_by_baseline.arm,
                metric=loss_on("val"),
                kind=kind,
                factor=key,
                levels=levels,
            )
            effects.append(effect)
    return effects


def compare_areas(mapped: Sequence[Area], baseline: Baseline) -> list[FactorEffect]:
    """Return how arms differ in the share of a grid in which they train.

    There is nothing of two that train nowhere in it, or everywhere: a grid elsewhere may tell them apart.
    """
    effects = []
    for area, area_of_baseline in permutations(mapped, 2):
        shares = {*area.shares.values(), *area_of_baseline.shares.values()}
        are_partners = is_partner(area_of_baseline.arm, area.arm, baseline) and area.keys == area_of_baseline.keys
        if shares not in ({0.0}, {100.0}) and are_partners:
            effect = compare_effects(
                area.shares,
                area_of_baseline.shares,
                arm=area.arm,
                baseline=area_of_baseline.arm,
                metric=AREA,
                kind=EffectKind.AREA,
                factor=area.words,
                levels=area.levels[1],
            )
            effects.append(effect)
    return effects


def is_partner(other: Arm, arm: Arm, baseline: Baseline) -> bool:
    """Tell whether one arm has the baseline's settings, and is like another in all else."""
    return other.settings == {**arm.settings, **baseline}
