"""The run directory: its files, its name, its status, and who holds it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from normbench.errors import HeldElsewhere, UsageError
from normbench.files import is_disk_full, remove_leftovers, write_json

Status = Literal["running", "interrupted", "finished", "diverged", "failed", "out_of_memory"]
CHOICE_FILE = "lr_choice.json"  # beside the runs of a sweep: the learning rate that it has chosen for each arm
ENDED: tuple[Status, ...] = ("finished", "diverged")


def fingerprint(content: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of whatever changes a run's numbers."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class RunDirectory:
    """One run's directory. Nothing is created before `create`."""

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

    def create(self) -> None:
        """Make the directory.

        Raises:
            UsageError: it cannot be made or written to.
            OSError: the disk is full.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if is_disk_full(error):
                raise
            raise UsageError(
                f"outputs={self.path.parent.parent} cannot be written ({error.strerror}): give another folder"
            ) from error
        if not os.access(self.path, os.W_OK):
            raise UsageError(f"outputs: {self.path} cannot be written: change its permissions or give another folder")

    def check_creatable(self) -> None:
        """Refuse a path where `create` would fail, without making anything.

        Raises:
            UsageError: it could not be made or written to.
        """
        existing = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            reason = os.strerror(errno.EACCES if existing.is_dir() else errno.ENOTDIR)
            raise UsageError(f"outputs={self.path.parent.parent} cannot be written ({reason}): give another folder")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run, so that no second process works on it, and clear away what a killed one left half written.

        Raises:
            HeldElsewhere: another process holds it.
        """
        with open(self.path / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = read_json(self.status) or {}
                raise HeldElsewhere(
                    f"{self.path} is being written by another process (pid {holder.get('pid', 'unknown')}): "
                    "wait for it, or give this run another name="
                ) from error
            remove_leftovers(self.path)
            yield

    def set_aside(self) -> Path:
        """Rename the directory, to make the run anew; returns where the old one is now."""
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.old{number}")).exists():
            number += 1
        self.path.rename(aside)
        return aside

    def write_status(self, status: Status, step: int, steps: int, message: str = "") -> None:
        """Say how the run stands (atomically)."""
        write_json(
            self.status,
            {
                "status": status,
                "step": step,
                "steps": steps,
                "message": message,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "heartbeat": time.time(),
            },
        )

    def ended(self) -> dict[str, Any] | None:
        """The summary of a run that has ended as a result, else None."""
        summary = read_json(self.summary)
        return summary if summary and summary.get("status") in ENDED else None


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file is missing or damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
