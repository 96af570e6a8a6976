"""Runs that have failed: a file for each, with its cause and the command that repeats it."""

from __future__ import annotations

import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from normbench.rundir import read_json, write_json


@dataclass(frozen=True)
class Failure:
    """Why a run has no result.

    cause: in one line. details: a traceback and the last output, where there is one. time: seconds since 1970.
    """

    run: str
    cause: str
    command: str
    details: str = ""
    host: str = ""
    time: float = 0.0


class Failures:
    """The failures of the runs of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, run: str) -> Path:
        """Where a run's failure is noted."""
        return self.folder / f"{run}.json"

    def note(self, run: str, cause: str, command: str, details: str = "") -> Failure:
        """Note that a run has failed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = " ".join(cause.split())
        failure = Failure(run, line, command, details, socket.gethostname(), time.time())
        write_json(self.path(run), asdict(failure))
        return failure

    def of(self, run: str) -> Failure | None:
        """A run's failure, if it is noted."""
        try:
            return Failure(**(read_json(self.path(run)) or {}))
        except TypeError:
            return None

    def forget(self, run: str) -> None:
        """Let a run be tried again."""
        self.path(run).unlink(missing_ok=True)
