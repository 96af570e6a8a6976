"""All runs below a folder as tables of pandas."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from normbench.catalog import GROUPS
from normbench.errors import UsageError
from normbench.rundir import RunDirectory, read_json

if TYPE_CHECKING:
    import pandas as pd

# What a summary tells beside its metrics, its data (whose keys are the configuration's) and what else has its place.
DETAILS = (
    "message",
    "leak",
    "padding",
    "peak_memory_bytes",
    "skipped_steps",
    "compile_seconds",
    "extends",
    "step_time",
    "norm_facts",
    "ledger",
)


def load_runs(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """A row for each run below a folder; see `normbench.load_runs`.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    import pandas as pd

    base = Path(os.path.expanduser(folder))
    return pd.DataFrame([row(directory, base) for directory in run_directories(base)])


def load_metrics(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """What the runs below a folder have logged, in long form: `run`, `step`, `tag`, `value`.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    import pandas as pd

    base = Path(os.path.expanduser(folder))
    found = [entry for directory in run_directories(base) for entry in logged(directory, name_of(directory, base))]
    frame = pd.DataFrame(found, columns=["run", "step", "tag", "value"])
    return frame.astype({"run": "category", "step": "int64", "tag": "category", "value": "float64"})


def run_directories(folder: Path) -> list[RunDirectory]:
    """The runs below a folder, or the one that it is, by path.

    Those that were set aside when they were made anew are left out, and those in hidden folders.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give the folder of your runs, such as outputs")
    paths = sorted(path.parent for path in folder.rglob("config.yaml"))
    kept = [path for path in paths if not is_aside(path.relative_to(folder))]
    found = [run for run in map(RunDirectory, kept) if run.status.exists() or run.summary.exists()]
    if not found:
        raise UsageError(f"{folder} holds no runs: train something first, or give the folder of your runs")
    return found


def is_aside(path: Path) -> bool:
    """Whether a run's path from a folder on is where `rerun=true` puts the old one, or hidden."""
    return re.search(r"\.old\d+$", path.name) is not None or any(part.startswith(".") for part in path.parts)


def name_of(directory: RunDirectory, folder: Path) -> str:
    """A run's path from the folder on, which tells the runs apart; the directory's own name for the folder itself."""
    return directory.path.name if directory.path == folder else str(directory.path.relative_to(folder))


def row(directory: RunDirectory, folder: Path) -> dict[str, Any]:
    """One run: where it is and how it stands, its choices, its configuration, and its results where it has ended."""
    summary, status, environment = (
        read_json(path) or {} for path in (directory.summary, directory.status, directory.environment)
    )
    stands, latest = summary or status, (environment.get("sessions") or [{}])[-1]
    chosen = latest.get("choices", summary.get("choices", {}))
    return {
        "run": name_of(directory, folder),
        "path": str(directory.path),
        "status": stands.get("status"),
        "step": stands.get("step"),
        "steps": stands.get("steps"),
        "heartbeat": moment(status.get("heartbeat")),
        **{group: None if chosen[group] == "None" else chosen[group] for group in GROUPS if group in chosen},
        **dict(flat(configuration(directory))),
        **summary.get("metrics", {}),
        **dict(flat({name: summary[name] for name in DETAILS if name in summary})),
    }


def moment(seconds: float | None) -> datetime | None:
    """A time that a status notes."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def configuration(directory: RunDirectory) -> Mapping[str, Any]:
    """A run's resolved configuration; empty where it cannot be read."""
    try:
        tree = yaml.load(directory.config.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested tree by dotted paths, without Hydra's marks; lists as text, so that rows can be grouped by them."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif name != "_partial_":
            yield f"{prefix}{name}", json.dumps(value) if isinstance(value, list) else value


def logged(directory: RunDirectory, name: str) -> Iterator[tuple[str, int, str, float | None]]:
    """Every number in metrics.jsonl; what was not finite is null there, and a last line may be torn."""
    try:
        lines = directory.metrics.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
            step = int(entry.pop("step"))
        except (ValueError, KeyError, TypeError):
            return
        yield from ((name, step, tag, value) for tag, value in entry.items())
