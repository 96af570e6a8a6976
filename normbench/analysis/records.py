"""The runs below folders as a study: arms, which differ in what a person varied, each with a run for each seed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from normbench.analysis.curves import Curve, Recorded, read_recorded
from normbench.config.groups import GROUPS
from normbench.errors import UsageError
from normbench.results import configuration, flat, name_of, run_directories
from normbench.rundir import ENDED, RunDirectory, read_json

# Which of the keys that vary names an arm, where several tell the same runs apart: the first of these, then by name.
FIRST_KEYS = ("optim.lr", "model.depth", "model.width", "model.heads", "model.context", "data.batch_size")

# Keys that tell no arms apart: the seed, where a run lies or runs, what is shown, kept or probed.
ASIDE = (
    "seed", "name", "outputs", "quiet", "rerun", "extend", "device", "threads", "data.root", "data.path",
    "trainer.checkpoint_every", "trainer.keep_checkpoint",
)  # fmt: skip

# The groups whose option can name an arm.
ARM_GROUPS = tuple(group for group in GROUPS if group not in ("experiment", "probes"))


@dataclass(frozen=True)
class Run:
    """One run as its directory tells it.

    name: the path from the given folder on. status: of status.json's words, but `diverged` for a run that finished
    without a finite loss. choices: the option of each group. config: by dotted path. summary: empty until the run has
    ended. sessions: of environment.json, one for each time that the run was taken up.
    """

    name: str
    path: Path
    status: str
    step: int
    steps: int
    message: str
    seed: int
    choices: Mapping[str, str]
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    sessions: tuple[Mapping[str, Any], ...]

    @property
    def session(self) -> Mapping[str, Any]:
        """Return the newest session."""
        return self.sessions[-1] if self.sessions else {}

    @property
    def data(self) -> Mapping[str, Any]:
        """Return what describes its data."""
        return self.summary.get("data") or self.session.get("data") or {}

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Return its last metrics; none for a run that did not finish."""
        return self.summary.get("metrics", {}) if self.status == "finished" else {}

    @property
    def ended(self) -> bool:
        """Say whether it is a result."""
        return self.status in ENDED and bool(self.summary)

    @property
    def task(self) -> str:
        """Return its kind of task, as the data describe it."""
        return str(self.session.get("task", {}).get("kind") or self.data.get("kind"))

    @cached_property
    def recorded(self) -> Recorded:
        """Read its metrics.jsonl, once."""
        return read_recorded(self.path / "metrics.jsonl")

    @property
    def curves(self) -> Mapping[str, Curve]:
        """Return every tag of metrics.jsonl, up to a line that is torn."""
        return self.recorded.curves


@dataclass(frozen=True)
class Arm:
    """The runs that differ in nothing but the seed.

    settings: what varies in the study -> this arm's value. runs: by seed.
    """

    settings: Mapping[str, Any]
    runs: tuple[Run, ...] = ()

    @property
    def name(self) -> str:
        """Name it, such as `rmsnorm · pre`: options by their words, other settings as `lr=0.001`."""
        words = [str(v) if k in GROUPS else f"{k.rpartition('.')[2]}={v}" for k, v in self.settings.items()]
        return " · ".join(words) or "all runs"

    def has(self, settings: Mapping[str, Any]) -> bool:
        """Say whether it has all of these settings."""
        return all(self.settings.get(key) == value for key, value in settings.items())


@dataclass(frozen=True)
class Study:
    """Runs that may be compared.

    varied: the settings that tell the arms apart. damaged: runs that cannot be read, and why.
    """

    folders: tuple[Path, ...]
    arms: tuple[Arm, ...]
    varied: tuple[str, ...]
    damaged: tuple[tuple[str, str], ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        """Return all runs, arm by arm."""
        return tuple(run for arm in self.arms for run in arm.runs)

    def names_of(self, runs: Sequence[Run]) -> list[str]:
        """Return the names of the arms that have some of these runs."""
        paths = {run.path for run in runs}
        return [arm.name for arm in self.arms if any(run.path in paths for run in arm.runs)]

    @property
    def task(self) -> str:
        """Return the one kind of task of all runs."""
        return self.runs[0].task


def read_study(folders: Sequence[Path]) -> Study:
    """Read the runs below some folders; each counts once, though the folders may lie in one another.

    Raises:
        UsageError: a folder is not there or holds no runs, no run has ended, or the runs have different tasks.
    """
    found = {one.path.resolve(): (one, name_of(one, folder)) for folder in folders for one in run_directories(folder)}
    runs, damaged = [], []
    for directory, name in found.values():
        try:
            runs.append(read_run(directory, name))
        except ValueError as error:
            damaged.append((name, str(error)))
    if not any(run.ended for run in runs):
        why = ": {} is damaged, {}".format(*damaged[0]) if damaged else ""
        where = ", ".join(map(str, folders))
        raise UsageError(f"{where} holds no run that has ended{why}: wait for one, or give another folder")
    if len(tasks := sorted({run.task for run in runs})) > 1:
        raise UsageError(
            f"the runs have different tasks ({', '.join(tasks)}): give the folders of one task, and a sweep a name="
        )
    varied = varied_settings(runs)
    return Study(tuple(folders), arms_of(runs, varied), varied, tuple(damaged))


def read_run(directory: RunDirectory, name: str) -> Run:
    """Read one run.

    Raises:
        ValueError: what it must have is missing or damaged.
    """
    config = flat(configuration(directory))
    summary, status = read_json(directory.summary) or {}, read_json(directory.status) or {}
    sessions = (read_json(directory.environment) or {}).get("sessions", [])
    stands = summary or status
    whole = {
        "config.yaml": "seed" in config,
        "summary.json": bool(summary) or (status.get("status") not in ENDED and not directory.summary.exists()),
        "status.json": "status" in stands,
    }
    for file in (file for file, there in whole.items() if not there):
        raise ValueError(f"{file} is missing or damaged")
    state, message = stands["status"], stands.get("message") or ""
    if state == "finished" and (lost := not_finite(summary["metrics"])):
        state, message = "diverged", f"its final {lost} is not finite"
    run = Run(
        name=name,
        path=directory.path,
        status=state,
        step=stands.get("step") or 0,
        steps=stands.get("steps") or 0,
        message=message,
        seed=config["seed"],
        choices=(sessions or [summary])[-1].get("choices") or {},
        config=config,
        summary=summary,
        sessions=tuple(sessions),
    )
    if run.recorded.damage and (run.ended or run.curves):  # a run that has not ended may have no metrics yet
        raise ValueError(run.recorded.damage)
    return run


def not_finite(metrics: Mapping[str, float | None]) -> str:
    """Name the loss that a run has ended without, as null in JSON says; nothing where all are there."""
    losses = {"validation loss": metrics.get("loss/val"), "test loss": metrics.get("loss/test", 0.0)}  # may have none
    return next((words for words, value in losses.items() if value is None or not math.isfinite(value)), "")


# ---- arms


def varied_settings(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the settings that tell the arms apart: groups first, and none that follows from those before it."""
    cells: list[Hashable] = [()] * len(runs)
    varied = []
    for key in candidates(runs):
        refined = list(zip(cells, [setting(run, key) for run in runs], strict=True))
        if len(set(refined)) > len(set(cells)):
            varied.append(key)
            cells = list(refined)
    return tuple(varied)


def candidates(runs: Sequence[Run]) -> list[str]:
    """Return the settings that could tell arms apart, in the order in which they are asked."""
    keys = {key for run in runs for key in run.config if key not in ASIDE and not key.startswith("probes.")}
    first = [key for key in FIRST_KEYS if key in keys]
    return [*ARM_GROUPS, *first, *sorted(keys.difference(first))]


def setting(run: Run, key: str) -> Any:
    """Return a run's option of a group, or value of a key."""
    return run.choices.get(key) if key in GROUPS else run.config.get(key)


def arms_of(runs: Sequence[Run], varied: Sequence[str]) -> tuple[Arm, ...]:
    """Gather runs by the settings that vary; arms in the order of their settings, runs by seed."""
    gathered: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.seed, run.name)):
        gathered[tuple(setting(run, key) for key in varied)].append(run)
    ordered = sorted(gathered.items(), key=lambda item: [in_order(value) for value in item[0]])
    return tuple(Arm(dict(zip(varied, values, strict=True)), tuple(own)) for values, own in ordered)


def in_order(value: Any) -> tuple[bool, bool, Any]:
    """Return a sort key for values of any kind: none, numbers, then words."""
    word = not isinstance(value, int | float)
    return value is not None, word, str(value) if word else value


def shortened(names: Sequence[str], most: int = 12) -> str:
    """Join names in a row, the first ones where there are many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
