"""What a sweep keeps beside the run directories, in `outputs/NAME/.sweep`, and how its runs stand by what is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from normbench.config.groups import GROUPS
from normbench.rundir import RunDirectory, fingerprint, read_json, write_json


@dataclass(frozen=True)
class Entry:
    """One run in the list of those that a sweep makes.

    arm: what varies, less the seed. words: those that `train` is given.
    """

    run: str
    arm: Mapping[str, str]
    seed: int
    steps: int
    words: Sequence[str]


@dataclass(frozen=True)
class Standing:
    """How a run stands. loss: of validation, in the end. cause: of its failure."""

    entry: Entry
    state: Literal["finished", "diverged", "failed", "running", "waiting"]
    step: int = 0
    loss: float | None = None
    cause: str = ""

    @property
    def over(self) -> bool:
        return self.state in ("finished", "diverged", "failed")


class SweepFolder:
    """The runs of a folder and what is noted about them. Nothing is created before it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plans, self.failures = path / ".sweep" / "plans", path / ".sweep" / "failures"

    def write_plan(self, entries: Iterable[Entry]) -> None:
        """Note which runs a sweep makes, for whoever looks on; the same runs are the same file."""
        runs = [{item.name: getattr(entry, item.name) for item in fields(Entry)} for entry in entries]
        self.plans.mkdir(parents=True, exist_ok=True)
        name = fingerprint({"runs": sorted(run["run"] for run in runs)})
        write_json(self.plans / f"{name}.json", {"runs": runs})

    def read_plans(self) -> list[Entry]:
        """Return the runs of all sweeps that were started on this folder, each once."""
        files = sorted(self.plans.glob("*.json"), key=lambda path: path.stat().st_mtime)
        runs = [run for path in files for run in (read_json(path) or {}).get("runs", [])]
        return list({run["run"]: Entry(**run) for run in runs}.values())

    def missing(self) -> dict[str, str]:
        """Return the planned runs that have no directory -> why they have failed; empty: not begun."""
        names = [entry.run for entry in self.read_plans() if not (self.path / entry.run).is_dir()]
        return {name: self.failure(name) for name in names}

    def note_failure(self, name: str, cause: str, details: str = "") -> None:
        """Note that a run has failed, in one line. details: what it has printed, and a traceback."""
        self.failures.mkdir(parents=True, exist_ok=True)
        write_json(self.failures / f"{name}.json", {"cause": cause, "details": details})

    def forget_failure(self, name: str) -> None:
        """Let a run be tried again that has failed."""
        (self.failures / f"{name}.json").unlink(missing_ok=True)

    def failure(self, name: str) -> str:
        """Return why a run has failed; empty: it has not."""
        return str((read_json(self.failures / f"{name}.json") or {}).get("cause", ""))

    def look(self, entry: Entry) -> Standing:
        """Return how a run stands, and how far it is."""
        directory = RunDirectory(self.path / entry.run)
        if summary := directory.ended():
            return Standing(entry, summary["status"], summary["step"], summary["metrics"].get("loss/val"))
        step = int((read_json(directory.status) or {}).get("step", 0))
        if directory.is_held():
            return Standing(entry, "running", step)
        cause = self.failure(entry.run)
        return Standing(entry, "failed" if cause else "waiting", step, cause=cause)


def arm_name(arm: Mapping[str, str]) -> str:
    """Name an arm, such as `rmsnorm · pre · optim.lr=0.001`: options and classes by their words."""
    words = [value if key in GROUPS or key.endswith("._target_") else f"{key}={value}" for key, value in arm.items()]
    return " · ".join(words) or "all runs"
