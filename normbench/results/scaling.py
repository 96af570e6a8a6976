"""Ladders of sizes: whether a difference between arms grows or vanishes with the number of parameters of the model.

A ladder is an arm and its baseline at three sizes or more of one kind of model. In each seed the differences have a
line over log10 of the parameters, by least squares. The slopes of these lines are as many values as there are seeds,
and so are their heights at any one size: Student's interval and test are over the seeds, which are what is sampled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normbench.evidence.arms import Arm, families_of, without_settings
from normbench.evidence.facts import counts_of
from normbench.evidence.run import RecordedRun
from normbench.results.comparisons import Comparison, PairedTest
from normbench.results.statistics import Sample

FEWEST_SIZES = 3  # with two, each line would go through both differences
LEAST_SPAN = 3.0  # times as many parameters in the largest as in the smallest: half a decade
MODEL = "model"
KIND = f"{MODEL}._target_"  # the class of a model
DECADE = 10.0


@dataclass(frozen=True)
class Rung:
    """One size of a ladder.

    Attributes:
        parameters: of the baseline's model there, which the arm's may exceed or lack by those of its norms.
        settings: that make the size, such as `model.width`.
        sample: the differences there, in the seeds of the ladder.
    """

    parameters: int
    settings: Mapping[str, Any]
    sample: Sample


@dataclass(frozen=True, kw_only=True)
class Ladder(PairedTest):
    """By how much an arm less its baseline changes with each tenfold of parameters, in each seed.

    Attributes:
        rungs: from the smallest size to the largest; all have the same seeds.
        left_out: the arms of sizes at which one of the two did not train, or no seed finished in both.
    """

    rungs: tuple[Rung, ...]
    left_out: tuple[str, ...]

    @property
    def smallest(self) -> float:
        """Return the parameters of the smallest size."""
        return float(self.rungs[0].parameters)

    @property
    def largest(self) -> float:
        """Return the parameters of the largest size."""
        return float(self.rungs[-1].parameters)

    @property
    def further(self) -> float:
        """Return the parameters a decade beyond the largest size, of which no model was trained."""
        return DECADE * self.largest

    def at(self, parameters: float) -> Sample:
        """Return the height of each seed's line at a number of parameters."""
        decades = decades_of(self.rungs)
        from_middle = math.log10(parameters) - float(decades.mean())
        return weighted_sum(self.rungs, 1 / len(decades) + from_middle * slope_weights(decades))

    @property
    def bend(self) -> Sample:
        """Return the second-order coefficient of each seed's parabola, which is 0 where differences are on a line."""
        return weighted_sum(self.rungs, bend_weights(decades_of(self.rungs)))


# ---- lines by least squares


def decades_of(rungs: Sequence[Rung]) -> np.ndarray:
    """Return log10 of the parameters of each size: (sizes,) float64."""
    return np.log10([rung.parameters for rung in rungs])


def weighted_sum(rungs: Sequence[Rung], weights: np.ndarray) -> Sample:
    """Return the weighted sum of the differences in each seed. weights: (sizes,)."""
    differences = np.array([rung.sample.values for rung in rungs])  # (sizes, seeds)
    coarsest = max(rung.sample.resolution for rung in rungs)
    resolution = coarsest * float(np.abs(weights).sum())
    return Sample(tuple((weights @ differences).tolist()), resolution, rungs[0].sample.seeds)


def slope_weights(x: np.ndarray) -> np.ndarray:
    """Return what weighs values at places in the slope of their line by least squares. x: (n,) places."""
    from_middle = x - x.mean()
    return np.asarray(from_middle / (from_middle @ from_middle))


def bend_weights(x: np.ndarray) -> np.ndarray:
    """Return what weighs values at places in the coefficient of x² of their parabola by least squares."""
    from_middle = x - x.mean()
    squares = from_middle**2
    rest = squares - squares.mean() - (slope_weights(x) @ squares) * from_middle
    return np.asarray(rest / (rest @ rest))


# ---- which sizes there are


def find_ladders(comparisons: Sequence[Comparison]) -> tuple[Ladder, ...]:
    """Return a ladder of each arm that is compared with its baseline at three sizes or more; p is not corrected."""
    keys = size_settings(comparisons)
    families = defaultdict[tuple[str, str], list[Comparison]](list)
    for one in comparisons:
        if keys and is_of_one_size(one, keys):
            names = (without_settings(one.arm, *keys).name, without_settings(one.baseline, *keys).name)
            families[names].append(one)
    found = []
    for family in families.values():
        ladder = make_ladder(family, keys)
        if ladder:
            found.append(ladder)
    return tuple(found)


def size_settings(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """Return the settings that vary and make models of one kind smaller or larger.

    Those are numbers of the section `model`, and the model itself where all options of it are of one class, but for
    what leaves the number of parameters as it is where it alone differs, such as dropout.
    """
    baselines = [one.baseline for one in comparisons]
    candidates = dict[str, None]()
    for arm in baselines:
        for key in arm.settings:
            if key == MODEL or key.startswith(f"{MODEL}."):
                candidates[key] = None
    return tuple(key for key in candidates if is_size(key, baselines))


def is_size(key: str, arms: Sequence[Arm]) -> bool:
    """Tell whether a setting makes models smaller or larger."""
    values = [arm.settings.get(key) for arm in arms]
    if key == MODEL:
        classes = set[Any]()
        for arm in arms:
            classes.update(run.config.get(KIND) for run in arm.runs)
        can_be_size = len(classes) == 1
    else:
        can_be_size = all(type(value) in (int, float) for value in values)
    if not can_be_size:
        return False
    for family in families_of(arms, key):
        sizes = {arm.settings.get(key): parameters_of(arm) for arm in family}
        if len(set(sizes.values())) < len(sizes):
            return False
    return len(set(values)) > 1


def parameters_of(arm: Arm) -> int:
    """Return how many parameters an arm's model has; 0 where that is not known."""
    return max((counts_of(run).get("total", 0) for run in arm.runs), default=0)


def is_of_one_size(one: Comparison, keys: Sequence[str]) -> bool:
    """Tell whether an arm and its baseline have the same size. keys: the settings that make it."""
    own, other = one.arm.settings, one.baseline.settings
    return all(own.get(key) == other.get(key) for key in keys)


def make_ladder(family: Sequence[Comparison], keys: Sequence[str]) -> Ladder | None:
    """Return the ladder of comparisons that differ in their sizes alone; None where these are too few or too close.

    keys: the settings that make the size.
    """
    usable, left_out = list[Comparison](), list[str]()
    for one in sorted(family, key=lambda one: parameters_of(one.baseline)):
        if one.trained and one.n and not one.torn and parameters_of(one.baseline):
            usable.append(one)
        else:
            left_out.append(one.arm.name)
    sizes = [parameters_of(one.baseline) for one in usable]
    are_enough = len(set(sizes)) == len(sizes) >= FEWEST_SIZES
    if not are_enough or sizes[-1] < LEAST_SPAN * sizes[0]:
        return None
    common = set(usable[0].seeds)
    for one in usable[1:]:
        common &= set(one.seeds)
    if not common:
        return None
    rungs = tuple(rung_of(one, common, keys) for one in usable)
    slopes = weighted_sum(rungs, slope_weights(decades_of(rungs)))
    return Ladder(
        slopes.values,
        slopes.resolution,
        slopes.seeds,
        arm=gather([one.arm for one in usable], keys),
        baseline=gather([one.baseline for one in usable], keys),
        metric=usable[0].metric,
        rungs=rungs,
        left_out=tuple(left_out),
    )


def rung_of(one: Comparison, seeds: Collection[int], keys: Sequence[str]) -> Rung:
    """Return the size at which arms are compared. seeds: those to keep. keys: the settings that make the size."""
    kept = dict[int, float]()
    for seed, value in zip(one.seeds, one.values, strict=True):
        if seed in seeds:
            kept[seed] = value
    settings = {key: one.arm.settings[key] for key in keys}
    return Rung(parameters_of(one.baseline), settings, Sample(tuple(kept.values()), one.resolution, tuple(kept)))


def gather(arms: Sequence[Arm], keys: Sequence[str]) -> Arm:
    """Return the runs of an arm at all sizes as one arm, named without the settings that make the sizes."""
    runs = list[RecordedRun]()
    for arm in arms:
        runs += arm.runs
    first = without_settings(arms[0], *keys)
    return Arm(first.settings, tuple(runs), max(arm.rates_tried for arm in arms))
