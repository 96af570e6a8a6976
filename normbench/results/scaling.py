"""Ladders of sizes: whether a difference between arms grows or vanishes with the number of parameters of the model.

A ladder is an arm and its baseline at three sizes or more of one kind of model. In each seed the differences have a
line over log10 of the parameters, by least squares. The slopes of these lines are as many values as there are seeds,
and so are their heights at any one size: Student's interval and test are over the seeds, which are what is sampled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normbench.evidence.arms import Arm, Baseline, families_of, pairs_of, without_settings
from normbench.evidence.facts import counts_of
from normbench.evidence.run import RecordedRun
from normbench.results.comparisons import choices_of
from normbench.results.effects import slope_weights
from normbench.results.result import Difference, DifferenceAtSize, Scaling
from normbench.results.statistics import Sample

FEWEST_SIZES = 3  # with two, each line would go through both differences
LEAST_SPAN = 3.0  # times as many parameters in the largest as in the smallest: half a decade
MODEL = "model"
KIND = f"{MODEL}._target_"  # the class of a model
DECADE = 10.0


# ---- lines by least squares


def decades_of(sizes: Sequence[DifferenceAtSize]) -> np.ndarray:
    """Return log10 of the parameters of each size: (sizes,) float64."""
    return np.log10([size.parameters for size in sizes])


def weighted_sum(sizes: Sequence[DifferenceAtSize], weights: np.ndarray, seeds: tuple[int, ...]) -> Sample:
    """Return the weighted sum of the differences in each seed. weights: (sizes,)."""
    differences = np.array([size.values for size in sizes])  # (sizes, seeds)
    coarsest = max(size.resolution for size in sizes)
    resolution = coarsest * float(np.abs(weights).sum())
    return Sample(tuple((weights @ differences).tolist()), resolution, seeds)


def height_at(parameters: float, sizes: Sequence[DifferenceAtSize], seeds: tuple[int, ...]) -> Sample:
    """Return the height of each seed's line at a number of parameters."""
    decades = decades_of(sizes)
    from_middle = math.log10(parameters) - float(decades.mean())
    return weighted_sum(sizes, 1 / len(decades) + from_middle * slope_weights(decades), seeds)


def bend_of(sizes: Sequence[DifferenceAtSize], seeds: tuple[int, ...]) -> Sample:
    """Return the second-order coefficient of each seed's parabola, which is 0 where differences are on a line."""
    return weighted_sum(sizes, bend_weights(decades_of(sizes)), seeds)


def bend_weights(x: np.ndarray) -> np.ndarray:
    """Return what weighs values at places in the coefficient of x² of their parabola by least squares."""
    from_middle = x - x.mean()
    squares = from_middle**2
    rest = squares - squares.mean() - (slope_weights(x) @ squares) * from_middle
    return np.asarray(rest / (rest @ rest))


# ---- which sizes there are


@dataclass(frozen=True)
class Rung:
    """An arm and its baseline at one size, and how they differ there."""

    arm: Arm
    baseline: Arm
    difference: Difference


def find_ladders(arms: Sequence[Arm], baseline: Baseline, differences: Sequence[Difference]) -> tuple[Scaling, ...]:
    """Return how the difference of each arm that is compared at three sizes or more changes; nothing is corrected yet.

    differences: of the arms from their partners, in the order of `pairs_of`.
    """
    rungs = []
    for (arm, other), difference in zip(pairs_of(arms, baseline), differences, strict=True):
        rungs.append(Rung(arm, other, difference))
    keys = size_settings([rung.baseline for rung in rungs])
    families = defaultdict[tuple[str, str], list[Rung]](list)
    for rung in rungs:
        if keys and is_of_one_size(rung, keys):
            names = (without_settings(rung.arm, *keys).name, without_settings(rung.baseline, *keys).name)
            families[names].append(rung)
    ladders = []
    for family in families.values():
        ladder = make_ladder(family, keys)
        if ladder:
            ladders.append(ladder)
    return tuple(ladders)


def size_settings(baselines: Sequence[Arm]) -> tuple[str, ...]:
    """Return the settings that vary among arms and make models of one kind smaller or larger.

    Those are numbers of the section `model`, and the model itself where all options of it are of one class, but for
    what leaves the number of parameters as it is where it alone differs, such as dropout.
    """
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


def is_of_one_size(rung: Rung, keys: Sequence[str]) -> bool:
    """Tell whether an arm and its baseline have the same size. keys: the settings that make it."""
    return all(rung.arm.settings.get(key) == rung.baseline.settings.get(key) for key in keys)


def make_ladder(family: Sequence[Rung], keys: Sequence[str]) -> Scaling | None:
    """Return the ladder of arms that differ in their sizes alone; None where these are too few or too close.

    keys: the settings that make the size.
    """
    usable, left_out = list[Rung](), list[str]()
    for rung in sorted(family, key=lambda rung: parameters_of(rung.baseline)):
        difference = rung.difference
        is_usable = difference.n and difference.is_tested
        if is_usable and parameters_of(rung.baseline):
            usable.append(rung)
        else:
            left_out.append(rung.arm.name)
    parameters = [parameters_of(rung.baseline) for rung in usable]
    are_enough = len(set(parameters)) == len(parameters) >= FEWEST_SIZES
    if not are_enough or parameters[-1] < LEAST_SPAN * parameters[0]:
        return None
    common = set(usable[0].difference.seeds)
    for rung in usable[1:]:
        common &= set(rung.difference.seeds)
    if not common:
        return None
    seeds = tuple(seed for seed in usable[0].difference.seeds if seed in common)
    sizes = tuple(measured_at(rung, seeds, keys) for rung in usable)
    smallest, largest = float(parameters[0]), float(parameters[-1])
    slopes = weighted_sum(sizes, slope_weights(decades_of(sizes)), seeds)
    arm = gather([rung.arm for rung in usable], keys)
    baseline = gather([rung.baseline for rung in usable], keys)
    return Scaling(
        values=slopes.values,
        resolution=slopes.resolution,
        seeds=seeds,
        arm=arm.name,
        baseline=baseline.name,
        choices=choices_of(arm, baseline),
        metric=usable[0].difference.metric,
        tried=len(arm.seeds | baseline.seeds),
        sizes=sizes,
        at_smallest=on_line(smallest, sizes, seeds),
        at_largest=on_line(largest, sizes, seeds),
        extrapolated=on_line(DECADE * largest, sizes, seeds),
        bend_p=bend_of(sizes, seeds).p,
        left_out=tuple(left_out),
    )


def measured_at(rung: Rung, seeds: tuple[int, ...], keys: Sequence[str]) -> DifferenceAtSize:
    """Return how arms differ at their size. seeds: those to keep. keys: the settings that make the size."""
    difference = rung.difference
    value_of_seed = dict(zip(difference.seeds, difference.values, strict=True))
    sample = Sample(tuple(value_of_seed[seed] for seed in seeds), difference.resolution, seeds)
    settings = {key: rung.arm.settings[key] for key in keys}
    return DifferenceAtSize(
        parameters_of(rung.baseline), sample.values, sample.mean, sample.interval, settings, sample.resolution
    )


def on_line(parameters: float, sizes: Sequence[DifferenceAtSize], seeds: tuple[int, ...]) -> DifferenceAtSize:
    """Return the heights of the seeds' lines at a number of parameters."""
    heights = height_at(parameters, sizes, seeds)
    return DifferenceAtSize(parameters, heights.values, heights.mean, heights.interval, resolution=heights.resolution)


def gather(arms: Sequence[Arm], keys: Sequence[str]) -> Arm:
    """Return the runs of an arm at all sizes as one arm, named without the settings that make the sizes."""
    runs = list[RecordedRun]()
    for arm in arms:
        runs += arm.runs
    first = without_settings(arms[0], *keys)
    return Arm(first.settings, tuple(runs), max(arm.rates_tried for arm in arms))
