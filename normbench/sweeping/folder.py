"""Where a sweep keeps what it knows beside the run directories: `outputs/NAME/.sweep`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from normbench.rundir import RunDirectory, fingerprint, read_json, write_json
from normbench.sweeping.claims import Claims
from normbench.sweeping.failures import Failure, Failures

# How a run of a sweep stands.
State = Literal["finished", "diverged", "failed", "running", "interrupted", "new"]
OVER: tuple[State, ...] = ("finished", "diverged", "failed")


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


class SweepFolder:
    """The runs of a folder and what is noted about them. Nothing is created before it is needed."""

    def __init__(self, path: Path, sweep: str = "") -> None:
        self.path = path
        self.notes = path / ".sweep"
        self.claims = Claims(self.notes / "claims", sweep)
        self.failures = Failures(self.notes / "failures")
        self.plans = self.notes / "plans"

    def run(self, name: str) -> RunDirectory:
        """A run's directory."""
        return RunDirectory(self.path / name)

    def write_plan(self, entries: Sequence[Entry]) -> None:
        """Note which runs a sweep makes, for whoever looks on; the same runs are the same file."""
        self.plans.mkdir(parents=True, exist_ok=True)
        name = fingerprint({"runs": sorted(entry.run for entry in entries)})
        write_json(self.plans / f"{name}.json", {"runs": [asdict(entry) for entry in entries]})

    def read_plans(self) -> list[Entry]:
        """The runs of all sweeps that were started on this folder, each once."""
        found: dict[str, Entry] = {}
        for path in sorted(self.plans.glob("*.json"), key=lambda path: path.stat().st_mtime):
            with suppress(TypeError):  # damaged, or another version's
                entries = [Entry(**content) for content in (read_json(path) or {}).get("runs", [])]
                found |= {entry.run: entry for entry in entries}
        return list(found.values())

    def missing(self) -> dict[str, str]:
        """The runs of the sweeps on this folder that have no directory -> why they have failed; empty: not begun."""
        names = [entry.run for entry in self.read_plans() if not self.run(entry.run).path.is_dir()]
        noted = {name: self.failures.of(name) for name in names}
        return {name: failure.cause if failure else "" for name, failure in noted.items()}

    def state(self, name: str) -> State:
        """How a run stands."""
        return self.look(name)[0]

    def look(self, name: str) -> tuple[State, dict[str, Any]]:
        """How a run stands, with what its summary or status says."""
        directory = self.run(name)
        if summary := directory.ended():
            return summary["status"], summary
        status = read_json(directory.status) or {}
        if self.claims.at_work(name):
            return "running", status
        if self.failures.of(name) or status.get("status") in ("failed", "out_of_memory"):
            return "failed", status
        return ("interrupted" if directory.checkpoint.exists() else "new"), status

    def failure(self, entry: Entry) -> Failure:
        """Why a run has failed: as the sweep has noted it, else as the run's status says."""
        if noted := self.failures.of(entry.run):
            return replace(noted, command=command(entry.words))  # the sweep knows all words, --config-dir among them
        status = read_json(self.run(entry.run).status) or {}
        cause = " ".join(str(status.get("message") or status.get("status")).split())
        return Failure(entry.run, cause, command(entry.words))


def command(words: Sequence[str]) -> str:
    """What repeats just one run, for a shell."""
    return shlex.join(["normbench", "train", *words])
