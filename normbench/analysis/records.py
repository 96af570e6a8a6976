"""The runs below folders as a study: arms, which differ in what a person varied, each with a run for each seed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from normbench.analysis import shapes
from normbench.analysis.curves import Curve, Recorded, read_recorded
from normbench.config.groups import GROUPS
from normbench.errors import UsageError
from normbench.results import configuration, flat_columns, name_of, run_directories
from normbench.rundir import ENDED, RunDirectory, read_json

# Which of the keys that vary names an arm, where several tell the same runs apart: the first of these, then by name.
FIRST_KEYS = ("optim.lr", "model.depth", "model.width", "model.heads", "model.context", "data.batch_size")

# Keys that tell no arms apart: the seed, where a run lies or runs, what is shown, kept or probed.
ASIDE = (
    "seed", "name", "outputs", "quiet", "rerun", "extend", "device", "threads", "data.root", "data.path",
    "trainer.checkpoint_every", "trainer.keep_checkpoint",
)  # fmt: skip
ASIDE_SECTIONS = ("probes.",)

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
        """The newest session."""
        return self.sessions[-1] if self.sessions else {}

    @property
    def ended(self) -> bool:
        """Whether it is a result."""
        return self.status in ("finished", "diverged") and bool(self.summary)

    @property
    def task(self) -> str:
        """Its kind of task, as the data describe it."""
        return str(self.session.get("task", {}).get("kind") or self.summary.get("data", {}).get("kind"))

    @cached_property
    def recorded(self) -> Recorded:
        """Its metrics.jsonl, read once."""
        return read_recorded(self.path / "metrics.jsonl")

    @property
    def curves(self) -> Mapping[str, Curve]:
        """Every tag of metrics.jsonl, up to a line that is torn."""
        return self.recorded.curves


@dataclass(frozen=True)
class Arm:
    """The runs that differ in nothing but the seed.

    settings: what varies in the study -> this arm's value. runs: by seed.
    """

    settings: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """Such as `rmsnorm · pre`: options by their words, other settings as `lr=0.001`."""
        words = [str(v) if k in GROUPS else f"{k.rpartition('.')[2]}={v}" for k, v in self.settings.items()]
        return " · ".join(words) or "all runs"

    @property
    def ended(self) -> tuple[Run, ...]:
        """The runs that are results."""
        return tuple(run for run in self.runs if run.ended)


@dataclass(frozen=True)
class Study:
    """Runs that may be compared.

    varied: the settings that tell the arms apart. damaged: runs that cannot be read, and why.
    """

    folders: tuple[Path, ...]
    arms: tuple[Arm, ...]
    varied: tuple[str, ...]
    damaged: tuple[tuple[str, str], ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, arm by arm."""
        return tuple(run for arm in self.arms for run in arm.runs)

    @property
    def task(self) -> str:
        """The one kind of task of all runs."""
        return self.runs[0].task


def read_study(folders: Sequence[Path]) -> Study:
    """The study that the runs below some folders make.

    Raises:
        UsageError: a folder is not there or holds no runs, no run has ended, or the runs have different tasks.
    """
    runs, damaged = [], []
    for directory, name in directories(folders):
        run, why = whole(directory, name)
        if run is None:
            damaged.append((name, why))
        else:
            runs.append(run)
    if not any(run.ended for run in runs):
        if damaged:
            name, why = damaged[0]
            raise UsageError(f"no run that has ended can be read ({name}: {why}): give other folders")
        where = ", ".join(map(str, folders))
        raise UsageError(f"{where} holds no run that has ended: wait for one, or give another folder")
    if len(tasks := sorted({run.task for run in runs})) > 1:
        raise UsageError(
            f"the runs have different tasks ({', '.join(tasks)}): give the folders of one task, and a sweep a name="
        )
    varied = varied_settings(runs)
    return Study(tuple(folders), arms_of(runs, varied), varied, tuple(damaged))


def whole(directory: RunDirectory, name: str) -> tuple[Run | None, str]:
    """A run, or what is wrong with its files."""
    try:
        run = read_run(directory, name)
    except ValueError as error:
        return None, str(error)
    why = damage(run)
    return (None, why) if why else (run, "")


def directories(folders: Sequence[Path]) -> list[tuple[RunDirectory, str]]:
    """The runs below some folders and their names, each once, though the folders may lie in one another."""
    found: dict[Path, tuple[RunDirectory, str]] = {}
    for folder in folders:
        for directory in run_directories(folder):
            found.setdefault(directory.path.resolve(), (directory, name_of(directory, folder)))
    return list(found.values())


def damage(run: Run) -> str:
    """What is wrong with the files of a run that has ended; one that has not may have no metrics yet."""
    if run.status in ENDED and not run.summary:
        return "summary.json is missing"
    return run.recorded.damage if run.ended or run.recorded.curves else ""


def read_run(directory: RunDirectory, name: str) -> Run:
    """One run.

    Raises:
        ValueError: what it must have is missing or damaged.
    """
    config = read_config(directory)
    summary, sessions = read_summary(directory), read_sessions(directory)
    status, step, steps, message = how_it_stands(summary or read_status(directory))
    if status == "finished" and summary and (lost := not_finite(summary)):
        status, message = "diverged", f"its final {lost} is not finite"
    return Run(
        name=name,
        path=directory.path,
        status=status,
        step=step,
        steps=steps,
        message=message,
        seed=config["seed"],
        choices=(sessions[-1].get("choices") if sessions else None) or summary.get("choices") or {},
        config=config,
        summary=summary,
        sessions=sessions,
    )


def read_config(directory: RunDirectory) -> dict[str, Any]:
    """The configuration by dotted path.

    Raises:
        ValueError: it is damaged.
    """
    try:
        config = flat_columns(configuration(directory))
    except TypeError as error:  # a list of something that JSON has no word for, such as a date
        raise ValueError("config.yaml is damaged") from error
    if "seed" not in config:
        raise ValueError("config.yaml is damaged")
    shapes.check("config.yaml", config, shapes.CONFIG)
    return config


def read_summary(directory: RunDirectory) -> dict[str, Any]:
    """The summary; empty where there is none yet.

    Raises:
        ValueError: it is damaged.
    """
    summary = read_json(directory.summary)
    if summary is None:
        if directory.summary.exists():
            raise ValueError("summary.json is damaged")
        return {}
    shapes.check("summary.json", summary, shapes.SUMMARY, all_of=("status", "metrics"))
    return summary


def read_status(directory: RunDirectory) -> dict[str, Any]:
    """How a run without a summary stands.

    Raises:
        ValueError: it is damaged.
    """
    status = read_json(directory.status)
    if status is None:
        raise ValueError("status.json is damaged, and there is no summary.json")
    shapes.check("status.json", status, shapes.STANDS, all_of=("status",))
    return status


def read_sessions(directory: RunDirectory) -> tuple[Mapping[str, Any], ...]:
    """The sessions of environment.json, the newest last; none where it is not there.

    Raises:
        ValueError: one of them is damaged.
    """
    sessions = (read_json(directory.environment) or {}).get("sessions", [])
    if not isinstance(sessions, list) or not all(isinstance(session, Mapping) for session in sessions):
        raise ValueError("environment.json is damaged (sessions)")
    for session in sessions:
        shapes.check("environment.json", session, shapes.SESSION)
    return tuple(sessions)


def how_it_stands(stands: Mapping[str, Any]) -> tuple[str, int, int, str]:
    """Status, step, steps in all, and message."""
    return stands["status"], stands.get("step") or 0, stands.get("steps") or 0, stands.get("message") or ""


def not_finite(summary: Mapping[str, Any]) -> str:
    """Which loss a run has ended without, as null in JSON says; empty where both are there, or test data are not."""
    metrics = {"loss/val": None, **summary["metrics"]}
    for split, words in (("val", "validation loss"), ("test", "test loss")):
        value = metrics.get(f"loss/{split}", 0.0)
        if value is None or not math.isfinite(value):
            return words
    return ""


# ---- arms


def varied_settings(runs: Sequence[Run]) -> tuple[str, ...]:
    """The settings that tell the arms apart: groups first, and none that follows from those before it."""
    cells: list[Hashable] = [()] * len(runs)
    varied = []
    for key in candidates(runs):
        values = [setting(run, key) for run in runs]
        refined = list(zip(cells, values, strict=True))
        if len(set(refined)) > len(set(cells)):
            varied.append(key)
            cells = list(refined)
    return tuple(varied)


def candidates(runs: Iterable[Run]) -> list[str]:
    """The settings that could tell arms apart, in the order in which they are asked."""
    keys = {key for run in runs for key in run.config if key not in ASIDE and not key.startswith(ASIDE_SECTIONS)}
    first = [key for key in FIRST_KEYS if key in keys]
    return [*ARM_GROUPS, *first, *sorted(keys.difference(first))]


def setting(run: Run, key: str) -> Any:
    """A run's option of a group, or value of a key."""
    return run.choices.get(key) if key in GROUPS else run.config.get(key)


def arms_of(runs: Sequence[Run], varied: Sequence[str]) -> tuple[Arm, ...]:
    """Runs gathered by the settings that vary; arms in the order of their settings, runs by seed."""
    gathered: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        gathered[tuple(setting(run, key) for key in varied)].append(run)
    ordered = sorted(gathered.items(), key=lambda item: [in_order(value) for value in item[0]])
    return tuple(
        Arm(dict(zip(varied, values, strict=True)), tuple(sorted(own, key=lambda run: (run.seed, run.name))))
        for values, own in ordered
    )


def in_order(value: Any) -> tuple[int, float, str]:
    """A sort key for values of any kind: none, numbers, then words."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, int | float):
        return 1, float(value), ""
    return 2, 0.0, str(value)
