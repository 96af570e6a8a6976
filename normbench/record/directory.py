"""The run directory: its files, its name, its status, and who holds it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from normbench.errors import HeldElsewhere, UsageError
from normbench.record.digests import find_altered, write_with_digests
from normbench.record.files import inside, lock, parse_yaml, read_json, read_object, write_json
from normbench.record.forms import EXTENDED

Status = Literal["running", "interrupted", "finished", "diverged", "failed", "out_of_memory"]
ENDED: tuple[Status, ...] = ("finished", "diverged")
RECORD = ("config.yaml", "environment.json", "metrics.jsonl", "summary.json")  # what a report rests on
BLOCKS = "blocks"  # of a session, and the tag of a text: the blocks of the model as they are drawn
# What must be the same for a continuation to give the same bits.
DECISIVE = ("commit", "cpu", "accelerator", "python", "machine")


def fingerprint(content: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits of whatever changes a run's numbers."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class RunDirectory:
    """One run's directory, which need not be there.

    Attributes:
        writes: False in a process that only helps the one that holds the run.
    """

    writes = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint.pt"
        self.previous = path / "checkpoint.prev.pt"
        self.best = path / "checkpoint.best.pt"
        self.status = path / "status.json"
        self.summary = path / "summary.json"

    def check_creatable(self) -> None:
        """Refuse a path that cannot be made or written to, without making anything.

        Raises:
            UsageError: it could not.
        """
        existing = self.path
        while not existing.exists():
            existing = existing.absolute().parent
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            why = f"{existing} is not a folder where you may write"
            raise UsageError(f"outputs={self.path.parent.parent} cannot be written ({why}): give another one")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the run, so that no second process works on it, and clear away what a killed one left half written.

        Raises:
            HeldElsewhere: another process holds it.
        """
        if not self.writes:
            yield
            return
        with open(inside(self.path, ".lock"), "a") as file:
            self.acquire(file)
            for temporary in self.half_written():
                temporary.unlink(missing_ok=True)
            yield

    def half_written(self) -> Iterator[Path]:
        """Yield what processes were writing when they were killed, or are writing now."""
        return self.path.glob(".*.tmp")

    def acquire(self, file: IO[str]) -> None:
        """Lock the run by its lock file; `is_held` of another process may have it for a moment.

        Raises:
            HeldElsewhere: another process holds it.
        """
        for pause in (0, 0.01, 0.1):
            time.sleep(pause)
            if lock(file, fcntl.LOCK_EX):
                return
        status = read_json(self.status) or {}
        pid = status.get("pid", "unknown")
        cure = "wait for it, or give this run another name="
        raise HeldElsewhere(f"{self.path} is being written by another process (pid {pid}): {cure}")

    def is_held(self) -> bool:
        """Return whether a process is at work on the run."""
        try:
            with open(self.path / ".lock") as file:
                return not lock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def write_status(self, status: Status, step: int, steps: int, message: str = "") -> None:
        """Write how the run stands (atomically), if there is room: it must not hide what it reports, a full disk."""
        if not self.writes:
            return
        content = {
            "status": status,
            "step": step,
            "steps": steps,
            "message": message,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "heartbeat": time.time(),
        }
        with suppress(OSError):
            write_json(self.status, content)

    def sessions(self) -> list[dict[str, Any]]:
        """Return the processes that have worked on the run, the first one first."""
        known: list[dict[str, Any]] = (read_json(self.environment) or {"sessions": []})["sessions"]
        return known

    def configuration(self) -> dict[str, Any]:
        """Return the resolved configuration; empty where it cannot be read."""
        return read_object(self.config, parse_yaml) or {}

    def describe_differences(self, now: dict[str, Any]) -> str | None:
        """Return what decides about bits and is not as it was when the run was begun, in one line."""
        sessions = self.sessions()
        if not sessions:
            return None
        begun = sessions[0]
        versions = begun.get("packages") or {}
        changed: list[str] = []
        for key in DECISIVE:
            if begun.get(key) != now[key]:
                changed.append(f"{key} was {begun.get(key)}, is {now[key]}")
        for name, version in now["packages"].items():
            if versions.get(name) != version:
                changed.append(f"{name} was {versions.get(name)}, is {version}")
        if not changed:
            return None
        what = f"this run was begun elsewhere, so its numbers may differ in the last bits ({'; '.join(changed)})"
        return f"{what}: rerun=true makes it again and keeps the old one beside it"

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary (atomically), when all other files are as they are to stay."""
        write_with_digests(self.summary, summary, RECORD)

    def find_altered(self, names: Iterable[str] = RECORD) -> list[str]:
        """Return which files of the record are not as the run has left them; none where it has noted no digests.

        Raises:
            OSError, ValueError: the summary cannot be read.
        """
        return find_altered(self.summary, names) or []

    def read_result(self) -> dict[str, Any] | None:
        """Return the summary of a run that has ended as a result, else None."""
        summary = read_json(self.summary)
        if summary and summary.get("status") in ENDED:
            return summary
        return None


def extended_runs(sessions: Sequence[Mapping[str, Any]], eval_batches: int | None) -> list[dict[str, Any]]:
    """Return where each run ended that a run goes on with, and on how many batches it was evaluated, the first first.

    A record of an older version tells of the last such run alone, and not on how many batches: it is taken for one like
    the run itself.

    Args:
        sessions, eval_batches: of the run.
    """
    if not sessions:
        return []
    noted = sessions[-1].get(EXTENDED)
    if noted is not None:
        return list(noted)
    begun = sessions[0].get("step")
    if not begun:
        return []
    return [{"steps": begun, "eval_batches": eval_batches}]
