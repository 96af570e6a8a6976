"""What can be said of a claim before its runs: whether words, arms, measure and effect fit, and what it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import Any

from normbench.claims.claim import Claim
from normbench.claims.measuring import WILDCARD, fits
from normbench.config import compose
from normbench.config.groups import check_option
from normbench.config.schema import ROOT
from normbench.errors import UsageError
from normbench.evidence.measures import BEST, SPLITS
from normbench.results.effects import ArmValue, Descent, EffectError
from normbench.settings import drop_keys, either, flat, nearest, show
from normbench.studies.frame import Study, make_study, split_words, study_class
from normbench.studies.study import grid_words
from normbench.sweep.plan import exclude, read_grid
from normbench.sweep.words import read_settings, settings_in

# The first parts of the tags that runs log; those of SCORES are followed by a split of the data.
SCORES = ("loss", "accuracy", "perplexity", "bleu")
PROBED = ("act", "grad", "update", "norm", "attention", "noise")
TAGS = (*SCORES, BEST, "rate", "time", "optim", "weight", *PROBED)
ALL_SPLITS = (*SPLITS, "train_eval")

HUB = "hub"
GPU = "gpu"
PRETENDED = Descent([1, 2], [2.0, 1.0], 2)  # of runs that are not made yet


@dataclass(frozen=True)
class PlannedPoint:
    """A run that words ask for.

    Attributes:
        varied: the settings in which the runs differ, as they were given.
        settings: its configuration by path, with the options of its groups.
        tree: its configuration.
    """

    varied: Mapping[str, str]
    settings: Mapping[str, Any]
    seed: int
    tree: Mapping[str, Any] = field(default_factory=dict, repr=False)


def study_of(claim: Claim) -> type[Study] | None:
    """Return the study that measures a claim's rows; None for a sweep.

    Raises:
        UsageError: there is no such study.
    """
    if not claim.study:
        return None
    try:
        check_option("study", claim.study)
    except UsageError as error:
        raise claim.blame("study", str(error)) from error
    return study_class(claim.study)


def is_in_blocks(kind: type[Study] | None) -> bool:
    """Tell whether the seeds of a claim are processes: its study measures all its subjects in turn, as times are."""
    return kind is not None and kind.together


def seed_word(seeds: Sequence[int]) -> str:
    """Return the word for some seeds."""
    return f"seed={','.join(map(str, seeds))}"


def read_seeds(words: Sequence[str]) -> list[int]:
    """Return the seeds that words ask for, `seed=0,1` or `'seed=range(100,103)'`, sorted.

    Raises:
        UsageError: one is not a seed.
    """
    points, _ = read_grid(words)
    seeds = set[int]()
    for point in points:
        value = compose.value_of(settings_in(point.words)["seed"])
        seeds.add(ROOT["seed"].check("seed", value))
    return sorted(seeds)


def check_claim(claim: Claim, seeds: Sequence[int], more: Sequence[str] = ()) -> None:
    """Refuse a claim whose words, arms, measure or effect do not exist or do not fit each other.

    Args:
        claim: as it would be run.
        seeds: of its last look.
        more: words of the machine, and where further options are.

    Raises:
        UsageError: with the line of the mistake.
    """
    kind = study_of(claim)
    words = [*claim.words, *more]
    if not is_in_blocks(kind):
        words.append(seed_word(seeds))
    try:
        points = plan_points(claim, kind, words)
    except UsageError as error:
        raise claim.blame("words", f"words: {error}") from error
    if kind is None:
        check_tag(claim, points)
        check_arms(claim, points, seeds)
        check_effect(claim, points, seeds[0])
    else:
        check_rows(claim, kind, points)


def plan_points(claim: Claim, kind: type[Study] | None, words: Sequence[str]) -> list[PlannedPoint]:
    """Return the runs that words ask for, with their configurations; no data are read.

    Raises:
        UsageError: a mistake in the words.
    """
    grid = list(words)
    if kind is not None:
        of_study, of_runs = split_words(words)
        make_study(kind, of_study)
        grid = grid_words(kind, claim.study, of_runs)
    points, sweep_words = read_grid(grid)
    settings, _ = read_settings(sweep_words)
    points, _ = exclude(points, settings.exclude or ())
    configs = compose.read_each([point.words for point in points])
    planned = []
    for point, config in zip(points, configs, strict=True):
        known = {**flat(config.tree), **config.choices.groups}
        planned.append(PlannedPoint(point.varied, {**known, **point.varied}, int(config.tree["seed"]), config.tree))
    return planned


def check_tag(claim: Claim, points: Sequence[PlannedPoint]) -> None:
    """Refuse a measure that no run can log; whether these runs log it shows once they are made.

    Data of a person's own may come with a task that has scores of its own: with them any measure is taken.

    Raises:
        UsageError: with the measure's line.
    """
    if not all(str(point.settings["data._target_"]).startswith("normbench.") for point in points):
        return
    first, _, split = claim.measure.partition("/")
    if first not in TAGS:
        near = nearest(first, TAGS)
        raise claim.blame("measure", f"measure: no run logs {claim.measure}: {near}tags begin with {either(TAGS)}")
    if first in SCORES and split not in ALL_SPLITS:
        near = nearest(split, ALL_SPLITS)
        raise claim.blame("measure", f"measure: no run logs {claim.measure}: {near}{first}/ has {either(ALL_SPLITS)}")


def check_arms(claim: Claim, points: Sequence[PlannedPoint], seeds: Sequence[int]) -> None:
    """Refuse an arm that no run fits, or that lacks a seed.

    Raises:
        UsageError: with the arm's line.
    """
    for arm, conditions in claim.arms.items():
        chosen = [point for point in points if fits(conditions, point.settings)]
        if not chosen:
            offered = tell_values(points, conditions)
            raise claim.blame(f"arms.{arm}", f"arms: {arm} fits none of the runs of the words ({offered})")
        seeds_of_arm = {point.seed for point in chosen}
        if seeds_of_arm != set(seeds):
            missing = ", ".join(map(str, sorted(set(seeds) - seeds_of_arm)))
            what = f"{arm} lacks seed {missing}, and arms are paired"
            raise claim.blame(f"arms.{arm}", f"arms: {what}: give all the same seeds")


def tell_values(points: Sequence[PlannedPoint], keys: Iterable[str]) -> str:
    """Say which values planned runs have of some settings."""
    phrases = []
    for key in keys:
        values: dict[str, None] = {}
        for point in points:
            if key in point.settings:
                values[show(point.settings[key])] = None
        phrases.append(f"{key} is {either(values)}" if values else f"{key} is no setting of theirs")
    return "; ".join(phrases)


def check_effect(claim: Claim, points: Sequence[PlannedPoint], seed: int) -> None:
    """Refuse an effect that leaves open what the runs of an arm differ in, or goes over a key that does not vary.

    Raises:
        UsageError: with the effect's line.
    """
    points_of_seed = [point for point in points if point.seed == seed]
    pattern = WILDCARD.search(claim.measure)
    places = (1, 2) if pattern else (0,)
    values: dict[str, list[ArmValue]] = {}
    for number, point in enumerate(points_of_seed):
        keys = drop_keys(point.varied, "seed")
        for arm, conditions in claim.arms.items():
            if not fits(conditions, point.settings):
                continue
            for place in places:
                own_keys = {**keys, pattern[1]: str(place)} if pattern else keys
                value = 1.5 + number + place / 10
                values.setdefault(arm, []).append(ArmValue(seed, own_keys, value, PRETENDED))
    try:
        claim.effect.of(values)
    except EffectError as error:
        raise claim.blame("effect", f"effect: {error}") from error


def check_rows(claim: Claim, kind: type[Study], points: Sequence[PlannedPoint]) -> None:
    """Refuse a measure that is no column of a study, and an arm that fits none of the models or runs that it measures.

    Conditions on columns of the rows are checked once there are rows.

    Raises:
        UsageError: with the line.
    """
    if claim.measure not in kind.columns:
        columns = ", ".join(kind.columns)
        raise claim.blame("measure", f"measure: study {claim.study} has no column {claim.measure}: it has {columns}")
    known = set[str]()
    for point in points:
        known.update(point.settings)
    for arm, conditions in claim.arms.items():
        of_runs = {key: values for key, values in conditions.items() if key in known}
        if not any(fits(of_runs, point.settings) for point in points):
            offered = tell_values(points, of_runs)
            raise claim.blame(f"arms.{arm}", f"arms: {arm} fits nothing that the study measures ({offered})")


# ---- what must be there


def find_lacking(claim: Claim) -> str:
    """Return what a claim needs and this machine does not have, in words; empty for nothing.

    Whether data of the hub are there shows when they are read.
    """
    lacking = []
    for need in claim.needs:
        if need == HUB:
            continue
        if need == GPU:
            import torch

            if not torch.cuda.is_available():
                lacking.append("a GPU")
        elif not has_extra(need):
            lacking.append(f"pip install 'normbench[{need}]'" if need in extras() else f"the package {need}")
    return f"needs {' and '.join(lacking)}" if lacking else ""


def has_extra(name: str) -> bool:
    """Tell whether a package is installed, or all packages of one of our extras."""
    packages = extras().get(name)
    if packages is None:
        return find_spec(name) is not None
    return all(is_installed(package) for package in packages)


def is_installed(package: str) -> bool:
    """Tell whether a package is installed."""
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


@cache
def extras() -> dict[str, list[str]]:
    """Return the packages of each of our extras, without those of other extras that it names."""
    packages: dict[str, list[str]] = {}
    for line in requires("normbench") or []:
        package, _, condition = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", condition)
        name = re.match(r"[\w.-]+", package)
        if extra and name:
            packages.setdefault(extra[1], [])
            if name[0] != "normbench":
                packages[extra[1]].append(name[0])
    return packages
