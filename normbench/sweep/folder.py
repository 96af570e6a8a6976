"""What a sweep keeps beside the run directories, in `outputs/NAME/.sweep`, and how its runs stand by what is there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from normbench.rundir import RunDirectory, fingerprint, read_json, write_json

# How a run of a sweep stands.
State = Literal["finished", "diverged", "failed", "running", "interrupted", "new"]
OVER: tuple[State, ...] = ("finished", "diverged", "failed")

TAIL = 4096  # bytes at the end of metrics.jsonl that hold its last line


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

    @property
    def command(self) -> str:
        """Return what repeats just this run, for a shell."""
        return shlex.join(["normbench", "train", *self.words])


@dataclass(frozen=True)
class Standing:
    """How a run stands.

    loss: of training, as last logged, or in the end of validation; None: not known. cause: of its failure.
    """

    entry: Entry
    state: State
    step: int = 0
    loss: float | None = None
    cause: str = ""

    @property
    def over(self) -> bool:
        return self.state in OVER


class SweepFolder:
    """The runs of a folder and what is noted about them. Nothing is created before it is needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes = path / ".sweep"

    def write_plan(self, entries: Sequence[Entry]) -> None:
        """Note which runs a sweep makes, for whoever looks on; the same runs are the same file."""
        name = fingerprint({"runs": sorted(entry.run for entry in entries)})
        (self.notes / "plans").mkdir(parents=True, exist_ok=True)
        write_json(self.notes / "plans" / f"{name}.json", {"runs": [asdict(entry) for entry in entries]})

    def read_plans(self) -> list[Entry]:
        """Return the runs of all sweeps that were started on this folder, each once."""
        found: dict[str, Entry] = {}
        for path in sorted((self.notes / "plans").glob("*.json"), key=lambda path: path.stat().st_mtime):
            with suppress(TypeError):  # damaged, or another version's
                entries = [Entry(**content) for content in (read_json(path) or {}).get("runs", [])]
                found |= {entry.run: entry for entry in entries}
        return list(found.values())

    def missing(self) -> dict[str, str]:
        """Return the planned runs that have no directory -> why they have failed; empty: not begun."""
        names = [entry.run for entry in self.read_plans() if not (self.path / entry.run).is_dir()]
        return {name: self.failure(name) for name in names}

    def note_failure(self, entry: Entry, cause: str, details: str = "") -> None:
        """Note that a run has failed, as one line, and the command that repeats it. details: its last output, say."""
        (self.notes / "failures").mkdir(parents=True, exist_ok=True)
        content = {"cause": " ".join(cause.split()), "command": entry.command, "details": details}
        write_json(self.notes / "failures" / f"{entry.run}.json", content)

    def forget_failure(self, entry: Entry) -> None:
        """Let a run be tried again, if it has failed."""
        if self.look(entry).state == "failed":
            (self.notes / "failures" / f"{entry.run}.json").unlink(missing_ok=True)
            if (directory := RunDirectory(self.path / entry.run)).status.exists():
                directory.write_status("interrupted", 0, entry.steps, "to be tried again")

    def failure(self, name: str) -> str:
        """Return why a run has failed: as the sweep has noted it, else as the run's status says; empty: it has not."""
        noted = read_json(self.notes / "failures" / f"{name}.json")
        status = read_json(RunDirectory(self.path / name).status) or {}
        own = status.get("message") or status["status"] if status.get("status") in ("failed", "out_of_memory") else ""
        return " ".join(str(noted["cause"] if noted else own).split())

    def look(self, entry: Entry) -> Standing:
        """Return how a run stands, and how far it is."""
        directory = RunDirectory(self.path / entry.run)
        if summary := directory.ended():
            return Standing(entry, summary["status"], summary["step"], summary["metrics"].get("loss/val"))
        step = int((read_json(directory.status) or {}).get("step") or 0)
        if directory.is_held():
            logged, loss = last_logged(directory.metrics)
            return Standing(entry, "running", max(step, logged), loss)
        if cause := self.failure(entry.run):
            return Standing(entry, "failed", step, cause=cause)
        return Standing(entry, "interrupted" if directory.checkpoint.exists() else "new", step)


def last_logged(path: Path) -> tuple[int, float | None]:
    """Return the last step in metrics.jsonl and the last training loss near it; 0 and None: nothing is logged."""
    step, loss = 0, None
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        for line in file.read().splitlines():
            with suppress(ValueError, KeyError, TypeError, AttributeError):  # the first and the last may be half a line
                logged: Any = json.loads(line)
                step, loss = max(step, int(logged["step"])), logged.get("loss/train", loss)
    return step, loss
