"""Brings the runs of a sweep to their end, whatever happens to one of them, and beside other sweeps on the folder.

The lock of a run's directory says who works on it.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from normbench.config.groups import find_own_classes
from normbench.errors import HeldElsewhere, RunFailure, explain, is_disk_full
from normbench.runs.contexts import stop_signals
from normbench.runs.plan import check_unchanged
from normbench.runs.stack import train_stack
from normbench.runs.train import train
from normbench.sweep.folder import LOOK_SECONDS, SweepFolder, View, say
from normbench.sweep.plan import PlannedRun, Planner

# An exit status of a task, beside 0 (the folder says how the run has ended) and 128 + the signal that has ended it.
DISK_FULL = 3

TICK = 0.02  # seconds between two looks at our own processes
TRIES = 2  # of a run whose process dies


class Stopped(Exception):
    """A signal has ended the sweep, whose name is given."""


@dataclass(frozen=True)
class RunTask:
    """Makes one run, or a stack of several as one model, wherever a launcher has brought it.

    A failure is noted, whatever it is. here: where relative paths begin. timeout: minutes after which it has failed.
    todo: those that are not over, by their places in the stack.
    """

    stack: Sequence[PlannedRun]
    todo: Sequence[int]
    device: str
    here: Path
    timeout: float | None = None

    def __call__(self) -> int:
        os.chdir(self.here)
        find_own_classes()
        planned = [self.stack[place] for place in self.todo]
        runs = [replace(one.prepared, device=torch.device(self.device)) for one in planned]
        output = io.StringIO()
        try:
            with redirect_stdout(output), redirect_stderr(output), time_limit(self.timeout):
                for run in runs:
                    check_unchanged(run)
                return train_stack(runs, [one.seed for one in self.stack]) if runs[0].stack > 1 else train(runs[0])
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except HeldElsewhere:
            return 128  # as if it had been stopped: no death
        except BaseException as error:  # a fault of ours or of a user's class must not end the other runs
            if not (is_disk_full(error) or is_disk_full(error.__cause__)):
                with suppress(OSError):
                    details = output.getvalue() + traceback.format_exc()
                    for run, one in zip(runs, planned, strict=True):
                        if not run.directory.ended():
                            SweepFolder(run.directory.path.parent).note_failure(one.run, explain(error), details)
                    return 0
        return DISK_FULL


@contextmanager
def time_limit(minutes: float | None) -> Iterator[None]:
    """End what takes longer, whatever it waits for.

    Raises:
        RunFailure: it takes longer.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise RunFailure(f"it took longer than sweep.timeout={minutes:g} minutes, and was ended")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 60 * (minutes or 0))  # 0: never
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Execution:
    """One sweep at work.

    waiting: stacks of runs that are not known to be over. timeout: minutes that each may take. at_work: those that were
    started. deaths: of a run's processes.
    """

    planner: Planner
    folder: SweepFolder
    waiting: list[Sequence[PlannedRun]]
    timeout: float | None = None
    at_work: dict[Any, RunTask] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)

    def finish(self, view: View) -> None:
        """Make all runs that are not over, and wait for those that others make, in view of a person.

        Raises:
            Stopped: by a signal.
            RunFailure: the launcher starts nothing.
            OSError: the disk is full.
        """
        with stop_signals() as signals:
            try:
                while self.at_work or self.waiting:
                    view.look()
                    if signals:
                        raise Stopped(signal.Signals(signals[0]).name)
                    if not self.start():
                        time.sleep(LOOK_SECONDS if self.planner.launcher.elsewhere or not self.at_work else TICK)
                    for job in [job for job in self.at_work if job.done()]:
                        self.settle(job, self.at_work.pop(job).stack)
            except BaseException:
                self.stop(view)
                raise

    def stop(self, view: View) -> None:
        """End all runs at work behind checkpoints, or at once after another Ctrl-C."""
        try:
            for job in self.at_work:
                job.cancel()
            if number := sum(not job.done() for job in self.at_work):
                text = "to write a checkpoint; Ctrl-C again kills what is left"
                say(view.console, f"stopping: waiting for {number} run{'s' * (number > 1)} {text}")
            while not all(job.done() for job in self.at_work):
                time.sleep(TICK)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for job in self.at_work:
                getattr(job, "kill", job.cancel)()

    def start(self) -> bool:
        """Start as many runs as have a place and are free; returns whether there are any.

        Raises:
            RunFailure: the launcher starts nothing.
        """
        planner, tasks = self.planner, list[RunTask]()
        for stack in list(self.waiting):
            used = [task.device for task in (*self.at_work.values(), *tasks)]
            if len(used) >= planner.jobs and not planner.launcher.elsewhere:
                break
            standings = [self.folder.look(run) for run in stack]
            if all(standing.state != "running" for standing in standings):
                self.waiting.remove(stack)
                if todo := [place for place, standing in enumerate(standings) if not standing.over]:
                    device = min(planner.devices, key=used.count)
                    tasks.append(RunTask(stack, todo, device, Path.cwd(), self.timeout))
        try:
            started = planner.launcher.start(tasks, planner.jobs, self.folder.notes.absolute()) if tasks else []
        except RunFailure:
            raise
        except Exception as error:  # whatever else a launcher raises
            raise RunFailure(f"the launcher has started nothing ({explain(error)}): see its settings") from error
        self.at_work |= zip(started, tasks, strict=True)
        return bool(tasks)

    def settle(self, job: Any, stack: Sequence[PlannedRun]) -> None:
        """See how runs have ended; those whose process has died are tried once more, and then marked as failed.

        Raises:
            OSError: the disk is full.
        """
        try:
            status, how = job.result(), ""
        except Exception as error:  # whatever a launcher raises for a process that has died
            status, how = 1, " ".join(str(error).split())[:500]
        if status == DISK_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left = [(run, standing) for run in stack if not (standing := self.folder.look(run)).over]
        self.waiting += [stack] * bool(left)
        for run, standing in left:
            self.deaths[run.run] += standing.state != "running" and status not in (128, 128 + signal.SIGTERM)
            if self.deaths[run.run] == TRIES:
                cause = (
                    f"its process died twice without an error message ({how or status}); it may have run out of memory"
                )
                self.folder.note_failure(run.run, cause)
                if run.prepared.directory.path.is_dir():
                    run.prepared.directory.write_status("failed", standing.step, run.steps, cause)
