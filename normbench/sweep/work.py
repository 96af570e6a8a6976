"""Brings the runs of a sweep to their end, whatever happens to one of them, and beside other sweeps on the folder.

The lock of a run's directory says who works on it.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from normbench.config.groups import find_own_classes
from normbench.errors import HeldElsewhere, RunFailure, UsageError, is_disk_full
from normbench.run.plan import Run, check_unchanged
from normbench.run.train import train
from normbench.rundir import locked
from normbench.sweep.folder import Entry, SweepFolder
from normbench.sweep.launchers import STOP_SIGNALS, Job
from normbench.sweep.plan import PlannedRun, Planner, with_settings

# Exit statuses of a task, beside 0 (the folder says how the run has ended) and 128 + the signal that has ended it.
DISK_FULL, HELD = 3, 4

LOOK_SECONDS = 1.0  # between two looks at runs that other processes work on
TRIES = 2  # of a run whose process dies
MOST_DETAILS = 20_000  # characters


# ---- in the process of a run


@dataclass(frozen=True)
class RunTask:
    """Makes one run, wherever a launcher has brought it; a failure is noted, whatever it is.

    here: where relative paths begin. devices: to be handed out.
    """

    entry: Entry
    run: Run
    here: Path
    devices: tuple[str, ...]

    def __call__(self) -> int:
        os.chdir(self.here)
        find_own_classes()
        output = io.StringIO()
        try:
            with redirect_stdout(output), redirect_stderr(output), handed_out(self.devices) as device:
                return self.train(device)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except HeldElsewhere:
            return HELD
        except (Exception, SystemExit) as error:  # a fault of ours or of a user's class must not end the other runs
            if is_disk_full(error.__cause__):
                return DISK_FULL
            expected = isinstance(error, UsageError | RunFailure)
            cause = str(error) if expected else f"{type(error).__name__}: {error}"
            details = output.getvalue() + ("" if expected else traceback.format_exc())
        try:
            SweepFolder(self.run.directory.path.parent).note_failure(self.entry, cause, details[-MOST_DETAILS:])
        except OSError as error:
            return DISK_FULL if is_disk_full(error) else 1
        return 0

    def train(self, device: str | None) -> int:
        """Make the run, on a device of its own if there is one; returns 0 or 128 + the signal that has ended it."""
        settings = {"quiet": True, "device": device or self.run.config.closed.device}
        config = with_settings(self.run.config, settings, more=False)
        run = replace(self.run, config=config, device=torch.device(device) if device else self.run.device)
        before, sys.argv = sys.argv, ["normbench", "train", *self.entry.words]  # the record names what repeats the run
        try:
            check_unchanged(run)
            status = train(run)
            return status if status >= 128 else 0
        finally:
            sys.argv = before

    def checkpoint(self, *_: Any) -> Any:
        """Let submitit queue the run again, which goes on from its checkpoint, where its time is over."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


@contextmanager
def handed_out(devices: Sequence[str], folder: Path | None = None) -> Iterator[str | None]:
    """Hold one of the devices, the first that is free; None where there are none to hand out.

    Args:
        devices: such as cuda:0, cuda:1.
        folder: where their locks are; by default one that all sweeps of this user on this machine share.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"normbench-devices-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        locks = [(device, stack.enter_context(open(folder / device.replace(":", "-"), "w"))) for device in devices]
        while devices:
            if free := next((device for device, lock in locks if locked(lock, fcntl.LOCK_EX)), None):
                yield free
                return
            time.sleep(LOOK_SECONDS / 2)
        yield None


# ---- in the process of the sweep


class Stopped(Exception):
    """A signal has ended the sweep, whose number is given."""


@contextmanager
def signals_noted(noted: list[int], at_once: bool) -> Iterator[None]:
    """While this lasts, note SIGINT and SIGTERM in a list; a second SIGINT raises, or, at_once, the first of them."""

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if at_once or (len(noted) > 1 and number == signal.SIGINT):
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class Execution:
    """One sweep at work.

    waiting: runs that are not known to be over. at_work: those that were started. deaths: of a run's processes.
    end: why nothing more is started.
    """

    planner: Planner
    folder: SweepFolder
    waiting: list[PlannedRun]
    at_work: dict[Job, PlannedRun] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    signals: list[int] = field(default_factory=list)
    end: BaseException | None = None

    def finish(self, look: Callable[[], None]) -> None:
        """Make all runs that are not over, and wait for those that others make; calls `look` again and again.

        Raises:
            Stopped: by a signal.
            RunFailure: the launcher starts nothing.
            OSError: the disk is full.
        """
        launcher = self.planner.launcher
        try:
            with signals_noted(self.signals, at_once=launcher.in_this_process):
                while self.at_work or (self.waiting and self.end is None):
                    look()
                    if self.signals:
                        self.stop(Stopped(self.signals[0]))
                    if self.end is not None or not self.start():
                        time.sleep(launcher.look_seconds if self.at_work else LOOK_SECONDS)
                    for job in [job for job in self.at_work if job.done()]:
                        self.settle(self.at_work.pop(job), job)
        except BaseException as error:  # a second Ctrl-C among them
            self.stop(Stopped(self.signals[0]) if isinstance(error, KeyboardInterrupt) else error)
        if self.end is not None:
            raise self.end

    def start(self) -> bool:
        """Start as many runs as have a place and are free; returns whether there are any.

        Raises:
            RunFailure: the launcher starts nothing.
        """
        planner, batch = self.planner, list[PlannedRun]()
        for run in list(self.waiting):
            if len(batch) + len(self.at_work) >= planner.jobs and not planner.launcher.queues:
                break
            if (standing := self.folder.look(run.entry)).state != "running":
                self.waiting.remove(run)
                batch += [] if standing.over else [run]
        tasks = [RunTask(run.entry, run.prepared, Path.cwd(), planner.devices) for run in batch]
        try:
            started = planner.launcher.start(tasks, planner.jobs, self.folder.notes.absolute()) if tasks else []
        except Exception as error:  # whatever a launcher raises
            said = " ".join(f"{type(error).__name__}: {error}".split())[:500].rstrip(".")
            raise RunFailure(f"the launcher has started nothing ({said}): see its settings") from error
        self.at_work |= zip(started, batch, strict=True)
        return bool(batch)

    def settle(self, run: PlannedRun, job: Job) -> None:
        """See how a run has ended; one whose process has died is tried once more, and then marked as failed."""
        try:
            status, how = job.result(), ""
        except Exception as error:  # whatever a launcher raises for a process that has died
            status, how = 1, " ".join(str(error).split())[:500]
        self.waiting.append(run)
        if status == DISK_FULL:
            self.stop(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        elif status >= 128 and self.planner.launcher.in_this_process:  # the signal was for the sweep
            self.stop(Stopped((self.signals or [status - 128])[0]))
        standing = self.folder.look(run.entry)
        if self.end is not None or standing.over or status == HELD or status >= 128:
            return
        self.deaths[run.entry.run] += 1
        if self.deaths[run.entry.run] == TRIES:
            cause = f"its process ended without a word, twice ({how or status}); where memory is short, give it more"
            self.folder.note_failure(run.entry, cause)
            if run.prepared.directory.path.is_dir():
                run.prepared.directory.write_status("failed", standing.step, run.entry.steps, cause)

    def stop(self, end: BaseException) -> None:
        """Start nothing more, and let all runs end behind a checkpoint."""
        if self.end is None:
            self.end = end
            for job in self.at_work:
                job.cancel()
