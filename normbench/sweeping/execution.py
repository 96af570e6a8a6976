"""Brings the runs of a sweep to their end, whatever happens to one of them, and beside other sweeps on the folder."""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from normbench.errors import RunFailure, is_disk_full
from normbench.sweeping.folder import OVER, SweepFolder
from normbench.sweeping.job import Job, ask_to_stop, stop_file
from normbench.sweeping.launchers import Launching, Share
from normbench.sweeping.launching import launch
from normbench.sweeping.plan import PlannedRun

LOOK_SECONDS = 1.0  # between two looks at runs that another process has claimed
REST_SECONDS = 5.0  # for a run that another process holds without a claim, as `normbench train` does
TRIES, POOL_TRIES = 2, 3  # of a run whose process dies; in a pool the first ones may be another's fault


class Stopped(Exception):
    """A signal has ended the sweep; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass
class StopSignal:
    """Notes the first SIGINT or SIGTERM, and tells the jobs, wherever they are, by a file; a second SIGINT raises."""

    folder: Path
    sweep: str
    number: int = 0

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        """Stop the sweep."""
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        ask_to_stop(self.folder, self.sweep)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """While this lasts, signals are noted."""
        before = {number: signal.signal(number, self.ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if not self.number:  # else it is there for jobs that wait in a cluster's queue
                stop_file(self.folder, self.sweep).unlink(missing_ok=True)


@dataclass
class Execution:
    """One sweep at work.

    resting: until when a run is left alone that a process holds without a claim. error: what a launcher last raised.
    """

    launching: Launching
    share: Share
    devices: tuple[str, ...]
    sweep: str
    resting: dict[str, float] = field(default_factory=dict)
    error: str = ""

    def finish(self, runs: Sequence[PlannedRun]) -> None:
        """Make all runs that are not over, and wait for those that others make.

        Raises:
            Stopped: by a signal.
            RunFailure: the launcher starts nothing.
        """
        folder = SweepFolder(runs[0].path.parent, self.sweep)
        stop = StopSignal(folder.path, self.sweep)
        try:
            with stop.heard():
                while waiting := [run for run in runs if folder.state(run.name) not in OVER]:
                    if batch := self.next_batch(folder, waiting):
                        self.start(folder, batch, stop)
                    else:
                        time.sleep(LOOK_SECONDS)
                    if stop.number:
                        raise Stopped(stop.number)
        except KeyboardInterrupt:
            raise Stopped(signal.SIGINT) from None

    def next_batch(self, folder: SweepFolder, waiting: Sequence[PlannedRun]) -> list[PlannedRun]:
        """What to start: all that is free, and behind it the runs whose process has died, which may fail for that.

        Where a worker that dies takes others with it, a run fails that has died alone, the last time. A launcher may
        raise before a process is gone, so deaths are not counted when it does but read from the claims.
        """
        now = time.monotonic()
        free = [run for run in waiting if not folder.claims.at_work(run.name) and self.resting.get(run.name, 0) < now]
        tries = POOL_TRIES if self.launching.children else TRIES
        by_deaths: list[list[PlannedRun]] = [[] for _ in range(tries + 1)]
        for run in free:
            by_deaths[min(tries, folder.claims.deaths(run.name))].append(run)
        for run in by_deaths.pop():
            self.give_up(folder, run)
        if self.launching.children:
            by_deaths[-1] = by_deaths[-1][:1]
        batch = next(filter(None, by_deaths), [])
        return batch[: self.launching.most(self.share.jobs)]

    def give_up(self, folder: SweepFolder, run: PlannedRun) -> None:
        """Note that a run has failed whose process has died as often as it may."""
        times = "three times" if self.launching.children else "twice"
        cause = f"its process ended without a word, {times}{how(self.error)}; where memory is short, give it more"
        folder.failures.note(run.name, cause, run.command, self.error)
        mark_failed(folder, run, cause)

    def start(self, folder: SweepFolder, batch: Sequence[PlannedRun], stop: StopSignal) -> None:
        """Let the launcher make some runs; returns when it has no more to do."""
        job = Job(
            folder=folder.path.absolute(),
            sweep=self.sweep,
            here=Path.cwd(),
            parent=os.getpid() if self.launching.children else None,
            devices=self.devices,
            own_process=self.launching.own_process,
        )
        before = [folder.claims.number(run.name) for run in batch]
        named = [(run.name, run.words) for run in batch]
        try:
            outcomes = launch(self.launching, job, named, self.share.jobs, folder.notes.absolute())
        except Exception as error:  # whatever a launcher raises where a worker dies
            if is_disk_full(error):
                raise
            self.error = str(error)
            if [folder.claims.number(run.name) for run in batch] == before:
                raise RunFailure(f"the launcher has started nothing ({one_line(error)}): see its settings") from error
            return
        if "full" in outcomes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if "unwritable" in outcomes:
            raise RunFailure(f"{folder.notes} cannot be written or linked in: give another folder with outputs=")
        for run, outcome in zip(batch, outcomes, strict=True):
            if outcome == "elsewhere":
                self.resting[run.name] = time.monotonic() + REST_SECONDS
            if outcome == "interrupted" and not self.launching.own_process and not stop.number:
                stop.ask(signal.SIGINT)


def mark_failed(folder: SweepFolder, run: PlannedRun, cause: str) -> None:
    """Let the run's own directory say what has become of it."""
    directory = folder.run(run.name)
    if directory.path.is_dir():
        _, status = folder.look(run.name)
        with suppress(OSError):
            directory.write_status("failed", int(status.get("step") or 0), run.steps, cause)


def how(error: str) -> str:
    """The signals or exit statuses that a launcher's error names."""
    found = dict.fromkeys(re.findall(r"SIG[A-Z]+|EXIT\(\d+\)", error))
    return f" ({', '.join(found)})" if found else ""


def one_line(error: Any) -> str:
    """What an exception says, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500].rstrip(".")
