"""Studies that cross factors: what a setting does to an arm, less what it does to the baseline, seed by seed.

Of a setting with words, or with two values, that is the change from its usual value to another (so their difference is
an interaction, a difference of differences); of one with three numbers or more the slope per doubling, and the largest
at which an arm still trains; how sensitive the arm is to the learning rate; and of two such settings the share of their
grid in which it trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pandas as pd

from normbench.analysis.answers import EffectKind
from normbench.analysis.baselines import USUAL
from normbench.analysis.comparisons import Baseline, Compared, corrected_alone, in_two_groups, outcomes
from normbench.analysis.measures import NAN, Metric, final, loss_on
from normbench.analysis.records import LEARNING_RATE, Arm, RecordedRun, RecordedStudy, in_order
from normbench.analysis.sensitivity import AREA, Area, are_numbers, areas, failing, levels_in, tried_levels
from normbench.analysis.statistics import paired_difference

Effects = Mapping[int, float]  # by seed


@dataclass(frozen=True)
class Contrast(Compared):
    """The effect of a factor on an arm less that on its baseline, in each seed that has all it takes.

    levels: of the factor, the usual one first, or all from low to high. own, other: the effects on the arm and on the
    baseline.
    """

    own: tuple[float, ...] = ()
    other: tuple[float, ...] = ()
    kind: EffectKind = EffectKind.CHANGE
    factor: str = ""
    levels: Sequence[Any] = ()


def find_contrasts(
    study: RecordedStudy, arms: Sequence[Arm], baseline: Baseline, metric: Metric
) -> tuple[Contrast, ...]:
    """Find all contrasts of a study with two factors or more; p is corrected over all of them after Holm.

    arms: those that are compared, each at its best learning rate where that was a choice. One that did not train is in
    no interaction: its loss says what a constant predictor reaches, and not what a factor does. Nor is one whose runs
    end in two groups: it has no mean.
    """
    mapped = areas(study)
    on_the_map = set[str]()
    for area in mapped:
        on_the_map.update(area.keys)
    able = [arm for arm in arms if is_able(arm, metric)]
    found = list[Contrast]()
    for crossing in crossings(able, baseline, metric):
        if crossing.subject not in on_the_map and crossing.factor not in on_the_map:
            found += crossing.contrasts()
    found += over_areas(mapped, baseline)
    if LEARNING_RATE not in on_the_map:
        found += over_levels(study.arms, LEARNING_RATE, baseline)
    for key in failing(arms):
        if key not in on_the_map and key != LEARNING_RATE:
            found += over_levels(arms, key, baseline)
    return corrected_alone(found)


def is_able(arm: Arm, metric: Metric) -> bool:
    """Say whether an arm trained, no more than half of its runs diverged or did not, and it has a mean."""
    lost = outcomes(arm)
    torn = in_two_groups(arm, metric, {run.seed for run in arm.runs})
    return arm.trained and 2 * sum(lost) <= len(lost) and not torn


def contrast(
    own: Effects,
    other: Effects,
    *,
    arm: Arm,
    baseline: Arm,
    metric: Metric,
    kind: EffectKind,
    factor: str,
    levels: Sequence[Any],
) -> Contrast:
    """Return the contrast of two effects, one on an arm and one on its baseline, over the seeds that both have."""
    found = paired_difference(own, other)
    return Contrast(
        found.values,
        found.resolution,
        found.seeds,
        arm=arm,
        baseline=baseline,
        metric=metric,
        own=tuple(own[seed] for seed in found.seeds),
        other=tuple(other[seed] for seed in found.seeds),
        kind=kind,
        factor=factor,
        levels=levels,
    )


# ---- two factors


@dataclass(frozen=True)
class Crossing:
    """A factor of a study, the subject, whose levels are arms, and another one.

    Attributes:
        subject: the setting in which the arms differ.
        factor: the other one.
        arms: the baseline first.
        levels: of the other factor, the usual one first.
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

    def contrasts(self) -> list[Contrast]:
        """Compare how each arm takes to the factor, against how the baseline does."""
        found = []
        for place in range(1, len(self.arms)):
            for kind, weights in effects(self.shared_levels(place)):
                sides = pd.concat([self.weighted(place, weights), self.weighted(0, weights)], axis=1)
                by_seed = sides.dropna().groupby(level="seed").mean()
                own, other = by_seed.to_dict().values()
                one = contrast(
                    own,
                    other,
                    arm=self.arms[place],
                    baseline=self.arms[0],
                    metric=self.metric,
                    kind=kind,
                    factor=self.factor,
                    levels=[self.levels[key] for key in weights],
                )
                found.append(one)
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


def effects(levels: Mapping[int, Any]) -> list[tuple[EffectKind, dict[int, float]]]:
    """Return a factor's effects as weights of its levels, which have their places as keys.

    That is the slope over the logarithm to base 2, by least squares, of three numbers above 0 or more; else the change
    from the first level to each other.
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
    return [(EffectKind.CHANGE, {first: -1.0, other: 1.0}) for other in others]


def crossings(arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> list[Crossing]:
    """Return every two factors, with how the runs ended under both."""
    levels = varied_levels(arms, baseline)
    keys = list(levels)
    rows = []
    for arm in arms:
        places = [levels[key].index(arm.settings.get(key)) for key in keys]
        for run in arm.runs:
            rows.append((*places, run.seed, ending(run, metric)))
    ends = pd.DataFrame(rows, columns=[*keys, "seed", "end"])
    found = []
    for subject, factor in combinations(keys, 2):
        gathered = [gather(arms, {subject: level}) for level in levels[subject]]
        rest = [key for key in keys if key not in (subject, factor)]
        cells = ends.pivot_table("end", [*rest, "seed"], [subject, factor])
        found.append(Crossing(subject, factor, gathered, levels[factor], cells, metric))
    return found


def varied_levels(arms: Sequence[Arm], baseline: Baseline) -> dict[str, list[Any]]:
    """Return the values of each setting that has several, the usual one first."""
    usual = {**USUAL, **baseline}
    found = {}
    for arm in arms:
        for key in arm.settings:
            if key not in found:
                found[key] = levels_of(arms, key, usual.get(key))
    return {key: levels for key, levels in found.items() if len(levels) > 1}


def levels_of(arms: Sequence[Arm], key: str, usual: Any) -> list[Any]:
    """Return the values that arms have in a setting, the usual one first."""
    return sorted(levels_in(arms, key), key=lambda value: (value != usual, in_order(value)))


def gather(arms: Sequence[Arm], settings: Mapping[str, Any]) -> Arm:
    """Return the runs of all arms that have some settings, as one arm."""
    runs = list[RecordedRun]()
    for arm in arms:
        if arm.has(settings):
            runs += arm.runs
    return Arm(settings, tuple(runs))


def ending(run: RecordedRun, metric: Metric) -> float:
    """Return how a run ended, in the metric's unit: at worst as a constant predictor, which a diverged run counts as.

    NaN where it has failed or not ended.
    """
    constant = run.constant.get(f"{metric.kind}/val")
    has_ended = run.status in ("finished", "diverged")
    worst = metric.scale * constant if has_ended and constant is not None else NAN
    better_of = np.fmin if metric.lower_is_better else np.fmax
    return float(better_of(final(run, metric), worst))


# ---- from where to where arms train


def over_levels(arms: Sequence[Arm], key: str, baseline: Baseline) -> list[Contrast]:
    """Compare arms at the same levels of a setting: the largest that trains, and sensitivity to the learning rate."""
    found = []
    for one, other in permutations(tried_levels(arms, key), 2):
        levels = list(one.by_level)
        if not is_partner(other.arm, one.arm, baseline) or list(other.by_level) != levels:
            continue
        sides = {EffectKind.LARGEST: (one.largest, other.largest)}
        if key == LEARNING_RATE:
            sides[EffectKind.SENSITIVITY] = (one.sensitivity, other.sensitivity)
        for kind, (own, others) in sides.items():
            effect = contrast(
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


def over_areas(mapped: Sequence[Area], baseline: Baseline) -> list[Contrast]:
    """Compare the shares of a grid in which arms train."""
    found = []
    for one, other in permutations(mapped, 2):
        if is_partner(other.arm, one.arm, baseline) and one.keys == other.keys:
            effect = contrast(
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
    """Say whether one arm has the baseline's settings, and is like another in all else."""
    return other.settings == {**arm.settings, **baseline}
