"""From the points of a grid to runs that are fully decided, down to the name of each one's directory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from normbench.build import make_data, resolve_device
from normbench.config.compose import Config, read_each
from normbench.config.schema import is_foreign
from normbench.errors import CombinationRefused, UsageError
from normbench.run.plan import Run, prepare
from normbench.settings import Tree
from normbench.sweep.folder import Entry, arm_name
from normbench.sweep.grid import Point, changed
from normbench.sweep.launchers import Launcher
from normbench.types import Data


@dataclass(frozen=True)
class PlannedRun(Entry):
    """One run that a sweep makes, decided in full."""

    prepared: Run = field(compare=False)


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep, each once. folder: of all of them. left_out: reason -> number of runs."""

    folder: Path
    runs: Sequence[PlannedRun]
    left_out: Mapping[str, int]

    @property
    def arms(self) -> dict[str, list[PlannedRun]]:
        """Return the runs by arm, in the order of the words."""
        found: dict[str, list[PlannedRun]] = {}
        for run in self.runs:
            found.setdefault(arm_name(run.arm), []).append(run)
        return found


@dataclass
class Planner:
    """Plans grids; data that several runs share are loaded once.

    jobs, threads, devices, quiet: what the words ask for, or the first run's configuration, or our own defaults.
    """

    launcher: Launcher
    jobs: int
    threads: int = 0
    devices: Sequence[str] = ()
    quiet: bool = False
    loaded: dict[tuple[str, int], Data] = field(default_factory=dict)

    def plan(self, points: Sequence[Point], excluded: Mapping[str, int] | None = None) -> SweepPlan:
        """Decide every run of a grid. excluded: reasons for which points are left out already.

        Raises:
            UsageError: a mistake in the words, or no run is left.
        """
        runs, left_out = dict[str, PlannedRun](), Counter(excluded)
        for point, config in zip(points, read_each([point.words for point in points]), strict=True):
            if not self.threads:
                self.share_out(config.tree)
            try:
                run = self.prepare(config)
            except CombinationRefused as refusal:
                left_out[str(refusal)] += 1
                continue
            name, arm = run.directory.path.name, {key: point.varied[key] for key in point.varied if key != "seed"}
            runs.setdefault(name, PlannedRun(name, arm, config.tree["seed"], run.steps, run.config.words, run))
        if not runs:
            reasons = "; ".join(left_out) or "what varies stands for no value"
            raise UsageError(f"the grid is empty: none of its {left_out.total()} runs is left ({reasons})")
        (folder,) = {run.prepared.directory.path.parent for run in runs.values()}
        return SweepPlan(folder, list(runs.values()), left_out)

    def share_out(self, tree: Tree) -> None:
        """Take from a run what all have in common, and decide what each gets of the machine.

        A run has a GPU for itself, or a core, unless more runs at a time are asked for.
        """
        self.quiet, device, elsewhere = tree["quiet"], tree["device"], self.launcher.elsewhere
        if elsewhere and device == "auto":
            raise UsageError(
                "device=auto is not known before a cluster has chosen the machine: give device=cpu or cuda"
            )
        device = device if elsewhere else str(resolve_device(device))
        several = torch.cuda.device_count() if device == "cuda" and not elsewhere else 0
        self.devices = [f"cuda:{number}" for number in range(several)] or [device]
        gpus = 0 if elsewhere or device == "cpu" else len(self.devices)
        self.jobs, self.threads = self.launcher.share(self.jobs, tree["threads"], gpus)

    def prepare(self, config: Config) -> Run:
        """Decide one run.

        Raises:
            CombinationRefused: its parts do not go together.
            UsageError: any other mistake.
        """
        settings: dict[str, Any] = {"quiet": True, "threads": config.closed.threads or self.threads}
        words = config.words if config.closed.threads else changed(config.words, {"threads": str(self.threads)})
        config = Config(config.tree | settings, replace(config.closed, **settings), config.choices, words)
        return prepare(config, self.data(config.tree), torch.device(self.devices[0]))

    def data(self, tree: Tree) -> Data:
        """Return what a run learns, loaded once; a class of the user's own may draw it from the seed."""
        key = json.dumps(tree["data"], sort_keys=True), tree["seed"] if is_foreign(tree["data"]) else 0
        if key not in self.loaded:
            self.loaded[key] = make_data(tree, key[1])
        return self.loaded[key]
