"""From the points of a grid to runs that are fully decided, down to the name of each one's directory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from normbench import assembly
from normbench.catalog import GROUPS, Choices
from normbench.compose import Composition, compose_each
from normbench.config import OPEN_SECTIONS, Tree, is_foreign, lookup
from normbench.errors import CombinationRefused, UsageError
from normbench.plan import directory_of, with_steps
from normbench.request import settled, wanted
from normbench.sweeping.folder import Entry, command
from normbench.sweeping.grid import Exclusion, Grid, Point, check_matched, in_one_form, plain_value
from normbench.types import Data


@dataclass(frozen=True)
class PlannedRun:
    """One run that a sweep makes.

    words: those that `train` is given to make just this run. arm: what varies, less the seed.
    """

    words: tuple[str, ...]
    arm: Mapping[str, str]
    seed: int
    steps: int
    tree: Tree
    choices: Choices
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def entry(self) -> Entry:
        """The run as the sweep's folder lists it."""
        return Entry(self.name, dict(self.arm), self.seed, self.steps, self.words)

    @property
    def command(self) -> str:
        """What repeats just this run."""
        return command(self.words)


@dataclass(frozen=True)
class LeftOut:
    """Points that are not run, and why."""

    points: str
    reason: str
    count: int


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep, each once, and what is left out.

    folder: of all its runs. left_out: by reason.
    """

    folder: Path
    runs: tuple[PlannedRun, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def arms(self) -> dict[str, list[PlannedRun]]:
        """The runs by arm, in the order of the words; the names differ."""
        found: dict[ArmKey, list[PlannedRun]] = {}
        for run in self.runs:
            found.setdefault(arm_key(run.arm), []).append(run)
        if set(found) == {()}:  # nothing varies but the seed: the arm is what was chosen
            return {" · ".join(self.runs[0].choices.words): list(self.runs)}
        return dict(zip(arm_names([runs[0].arm for runs in found.values()]), found.values(), strict=True))


@dataclass
class Planner:
    """Plans grids; data that several runs share are loaded once, and what they have in common is checked once.

    elsewhere: the runs are made on machines whose devices are not known here.
    """

    elsewhere: bool = False
    loaded: dict[str, dict[int, Data]] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)
    refused: dict[str, CombinationRefused | None] = field(default_factory=dict)

    def plan(self, grid: Grid, exclusions: Sequence[Exclusion] = ()) -> SweepPlan:
        """Decide every run of a grid.

        Raises:
            UsageError: a mistake in the words, an exclusion that fits no run, or no run is left.
        """
        kept, left_out = self.sorted_out(grid, exclusions)
        runs: dict[Path, PlannedRun] = {}
        for point, composition in kept:
            try:
                run = self.decided(point, composition)
            except CombinationRefused as refusal:
                left_out.append((point, str(refusal)))
            else:
                runs.setdefault(run.path, run)
        if not runs:
            reasons = "; ".join(dict.fromkeys(reason for _, reason in left_out))
            raise UsageError(f"the grid is empty: none of its {len(grid.points)} runs is left ({reasons})")
        return SweepPlan(one_folder(runs), tuple(runs.values()), gathered(left_out))

    def sorted_out(
        self, grid: Grid, exclusions: Sequence[Exclusion]
    ) -> tuple[list[tuple[Point, Composition]], list[tuple[Point, str]]]:
        """The points with their configurations, less those that are excluded; of those, why."""
        matched: set[str] = set()
        left_out: list[tuple[Point, str]] = []

        def excluded(point: Point, composition: Composition | None) -> bool:
            for exclusion in exclusions:
                if exclusion.applies(lambda key: value_of(key, point, composition)):
                    matched.add(exclusion.text)
                    left_out.append((point, f"sweep.exclude={exclusion.text}"))
                    return True
            return False

        points = [point for point in grid.points if not excluded(point, None)]
        compositions = compose_each("train", [point.words for point in points])
        kept = [(p, c) for p, c in zip(points, compositions, strict=True) if not excluded(p, c)]
        check_matched(exclusions, matched, values_seen(kept))
        return kept, left_out

    def decided(self, point: Point, composition: Composition) -> PlannedRun:
        """One run.

        Raises:
            CombinationRefused: its parts do not go together.
            UsageError: any other mistake.
        """
        composition = settled(composition)
        tree: Tree
        tree, choices = wanted(composition)
        self.check(tree, choices)
        data = self.data(tree)
        steps = assembly.number_of_steps(tree, data)
        tree = with_steps(tree, steps)
        device = self.device_type(tree["device"])
        directory = directory_of(tree, choices, data, device, tree["threads"] or torch.get_num_threads())
        arm = {key: value for key, value in point.varied.items() if key != "seed"}
        return PlannedRun(composition.overrides, arm, tree["seed"], steps, tree, choices, directory.path)

    def check(self, tree: Tree, choices: Choices) -> None:
        """Refuse parts that do not go together, and settings that a class does not take.

        Raises:
            CombinationRefused: its parts do not go together.
            UsageError: any other mistake.
        """
        parts = [tree["norm"], *(tree[section]["_target_"] for section in OPEN_SECTIONS)]
        together = json.dumps([*parts, dict(choices.groups)], sort_keys=True)
        if together not in self.refused:
            self.refused[together] = refusal_of(tree, choices)
        if refusal := self.refused[together]:
            raise refusal
        for section in OPEN_SECTIONS:
            text = section + json.dumps(tree[section], sort_keys=True)
            if text not in self.checked:
                assembly.factory(tree, section)
                self.checked.add(text)

    def path_with(self, run: PlannedRun, threads: int) -> Path:
        """The directory that a run would have with another number of threads."""
        device = self.device_type(run.tree["device"])
        return directory_of(run.tree, run.choices, self.data(run.tree), device, threads).path

    def device_type(self, device: str) -> str:
        """What kind of device the run's name counts in."""
        if self.elsewhere and device == "auto":
            raise UsageError(
                "device=auto is not known before a cluster has chosen the machine: give device=cpu or cuda"
            )
        return device.partition(":")[0] if self.elsewhere else assembly.resolve_device(device).type

    def data(self, tree: Tree) -> Data:
        """What a run learns, loaded once for all runs with the same data section.

        A class of the user's own may draw its data from the seed: the first two seeds show whether it does.
        """
        section, seed = json.dumps(tree["data"], sort_keys=True), tree["seed"]
        loaded = self.loaded.setdefault(section, {})
        alike = len(loaded) > 1 and len({data.fingerprint for data in loaded.values()}) == 1
        if seed not in loaded and loaded and (alike or not is_foreign(tree["data"])):
            return next(iter(loaded.values()))
        if seed not in loaded:
            made: Data = assembly.factory(tree, "data")(seed=seed)
            equal = (data for data in loaded.values() if data.fingerprint == made.fingerprint)
            loaded[seed] = next(equal, made)
        return loaded[seed]


def refusal_of(tree: Tree, choices: Choices) -> CombinationRefused | None:
    """Why the parts of a run do not go together; None: they do."""
    try:
        assembly.check_combination(tree, choices.groups)
    except CombinationRefused as refusal:
        return refusal
    return None


def one_folder(paths: Iterable[Path]) -> Path:
    """The folder that all runs of a sweep are in.

    Raises:
        UsageError: they are in several.
    """
    folders = list(dict.fromkeys(path.parent for path in paths))
    if len(folders) > 1:
        raise UsageError(
            f"the runs would be in {folders[0]} and {folders[1]}, and a sweep has one folder: give name= and outputs= "
            "values that are the same for all runs"
        )
    return folders[0]


def value_of(key: str, point: Point, composition: Composition | None) -> Any:
    """A run's option of a group or value of a key, in one form.

    Raises:
        KeyError: it has none, or none is known before its configuration is composed.
    """
    words = {word.lstrip("+").partition("=")[0]: word.partition("=")[2] for word in point.words}
    if key in words:
        return plain_value(words[key])
    if composition is None:
        raise KeyError(key)
    found = composition.groups[key] if key in GROUPS else lookup(composition.tree, key)
    return in_one_form(found)


def values_seen(kept: Iterable[tuple[Point, Composition]]) -> dict[str, set[str]]:
    """The values that each varied key and each group has among the runs."""
    seen: dict[str, set[str]] = {}
    for point, composition in kept:
        for key, value in {**composition.groups, **point.varied}.items():
            seen.setdefault(key, set()).add(value)
    return seen


def gathered(left_out: Iterable[tuple[Point, str]]) -> tuple[LeftOut, ...]:
    """Points that are left out by the same reason, as one row."""
    rows: dict[str, list[Point]] = {}
    for point, reason in left_out:
        rows.setdefault(reason, []).append(point)
    return tuple(LeftOut(alike(points), reason, len(points)) for reason, points in rows.items())


def alike(points: Sequence[Point]) -> str:
    """What points have in common of what varies."""
    first = points[0].varied
    common = {key: value for key, value in first.items() if all(point.varied[key] == value for point in points)}
    return arm_name(common)


ArmKey = tuple[tuple[str, str], ...]


def arm_key(arm: Mapping[str, str]) -> ArmKey:
    """What tells one arm from all others; names may be alike."""
    return tuple(arm.items())


def arm_name(arm: Mapping[str, str], whole: bool = False) -> str:
    """Such as `rmsnorm · pre · lr=0.001`: options by their words, own classes by their names.

    whole: classes by their paths, and settings by all of their keys.
    """
    words = []
    for key, value in arm.items():
        name = key.rpartition(".")[2]
        own = name == "_target_"
        short = value.rpartition(".")[2].lower() if own else f"{name}={value}"
        words.append(value if key in GROUPS or (own and whole) else f"{key}={value}" if whole else short)
    return " · ".join(words) or "all runs"


def arm_names(arms: Sequence[Mapping[str, str]]) -> list[str]:
    """The names of different arms; those that would be named alike say more."""
    short = Counter(arm_name(arm) for arm in arms)
    return [arm_name(arm, whole=short[arm_name(arm)] > 1) for arm in arms]
