"""From the points of a grid to runs that are fully decided, down to the name of each one's directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from normbench.build import make_data, resolve_device
from normbench.config.compose import Config, read_each
from normbench.config.groups import GROUPS
from normbench.config.schema import is_foreign
from normbench.errors import CombinationRefused, UsageError
from normbench.run.plan import Run, prepare
from normbench.settings import Tree
from normbench.sweep.folder import Entry
from normbench.sweep.grid import Exclusion, Grid, Point, changed
from normbench.sweep.launchers import Launcher, devices_to_hand_out
from normbench.sweep.words import EXCLUDE
from normbench.types import Data

SWEEP_NAME = "sweep"  # of the folder, where neither the words nor an experiment name it


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run that a sweep makes: as its folder lists it, and as `train` makes it."""

    entry: Entry
    prepared: Run


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep, each once. folder: of all of them. left_out: reason -> the points that are not run."""

    folder: Path
    runs: tuple[PlannedRun, ...]
    left_out: Mapping[str, Sequence[Point]]

    @property
    def arms(self) -> dict[str, list[PlannedRun]]:
        """Return the runs by arm, in the order of the words."""
        found: dict[str, list[PlannedRun]] = {}
        for run in self.runs:
            found.setdefault(arm_name(run.entry.arm), []).append(run)
        return found


@dataclass
class Planner:
    """Plans grids; data that several runs share are loaded once.

    jobs, threads, devices, quiet: what the words ask for, or the first run's configuration, or our own defaults.
    """

    launcher: Launcher
    jobs: int
    threads: int = 0
    devices: tuple[str, ...] = ()
    quiet: bool = False
    loaded: dict[str, dict[int, Data]] = field(default_factory=dict)

    def plan(self, grid: Grid, exclusions: Sequence[Exclusion] = ()) -> SweepPlan:
        """Decide every run of a grid.

        Raises:
            UsageError: a mistake in the words, an exclusion that fits no run, or no run is left.
        """
        runs: dict[Path, PlannedRun] = {}
        left_out: dict[str, list[Point]] = {}
        for point, config in composed(grid, exclusions, left_out):
            if not self.threads:
                self.share_out(config.tree)
            missing: dict[str, Any] = {} if config.tree["threads"] else {"threads": self.threads}
            missing |= {} if grid.named else {"name": SWEEP_NAME}
            try:
                run = self.prepare(with_settings(config, missing))
            except CombinationRefused as refusal:
                left_out.setdefault(str(refusal), []).append(point)
                continue
            arm = {key: value for key, value in point.varied.items() if key != "seed"}
            entry = Entry(run.directory.path.name, arm, config.tree["seed"], run.steps, run.config.words)
            runs.setdefault(run.directory.path, PlannedRun(entry, run))
        folders = sorted({path.parent for path in runs})
        if not folders:
            raise UsageError(f"the grid is empty: none of its {len(grid.points)} runs is left ({'; '.join(left_out)})")
        if len(folders) > 1:
            raise UsageError(
                f"the runs would be in {folders[0]} and {folders[1]}: give name= and outputs= the same value for all"
            )
        return SweepPlan(folders[0], tuple(runs.values()), left_out)

    def share_out(self, tree: Tree) -> None:
        """Take from a run what all have in common, and decide what each gets of the machine."""
        self.quiet = tree["quiet"]
        if not self.launcher.gives_devices:
            device = str(resolve_device(tree["device"]))
            self.devices = devices_to_hand_out(device, torch.cuda.device_count(), self.jobs or None)
        self.jobs, self.threads = self.launcher.share(self.jobs or None, tree["threads"], len(self.devices))

    def prepare(self, config: Config) -> Run:
        """Decide one run.

        Raises:
            CombinationRefused: its parts do not go together.
            UsageError: any other mistake.
        """
        device = str(config.tree["device"])
        if self.launcher.elsewhere and device == "auto":
            raise UsageError(
                "device=auto is not known before a cluster has chosen the machine: give device=cpu or cuda"
            )
        return prepare(config, self.data(config.tree), torch.device(device) if self.launcher.elsewhere else None)

    def data(self, tree: Tree) -> Data:
        """Return what a run learns, loaded once; a class of the user's own may draw it from the seed."""
        loaded = self.loaded.setdefault(json.dumps(tree["data"], sort_keys=True), {})
        seed = tree["seed"] if is_foreign(tree["data"]) else 0
        if seed not in loaded:
            made = make_data(tree, seed)
            loaded[seed] = next((data for data in loaded.values() if data.fingerprint == made.fingerprint), made)
        return loaded[seed]


def with_settings(config: Config, settings: Mapping[str, Any], more: bool = True) -> Config:
    """Return a configuration with some settings at its root changed; more: as by further words."""
    words = changed(config.words, {key: str(value) for key, value in settings.items()}) if more else config.words
    return replace(config, tree={**config.tree, **settings}, closed=replace(config.closed, **settings), words=words)


def composed(
    grid: Grid, exclusions: Sequence[Exclusion], left_out: dict[str, list[Point]]
) -> list[tuple[Point, Config]]:
    """Return the points with their configurations, less those that are excluded; these are noted in `left_out`.

    Raises:
        UsageError: a mistake in the words, or an exclusion that fits no run.
    """

    def is_kept(point: Point, config: Config | None = None) -> bool:
        reason = next((f"{EXCLUDE}={one.text}" for one in exclusions if one.applies(point, config)), "")
        if reason:
            left_out.setdefault(reason, []).append(point)
        return not reason

    points = [point for point in grid.points if is_kept(point)]  # the others need not compose
    configs = read_each([point.words for point in points])
    kept = [(point, config) for point, config in zip(points, configs, strict=True) if is_kept(point, config)]
    for exclusion in exclusions:
        if f"{EXCLUDE}={exclusion.text}" not in left_out:
            raise UsageError(
                f"{EXCLUDE}={exclusion.text} leaves out none of the runs: check its keys and values, or leave it out"
            )
    return kept


def arm_name(arm: Mapping[str, str]) -> str:
    """Name an arm, such as `rmsnorm · pre · optim.lr=0.001`: options and classes by their words."""
    words = [value if key in GROUPS or key.endswith("._target_") else f"{key}={value}" for key, value in arm.items()]
    return " · ".join(words) or "all runs"
