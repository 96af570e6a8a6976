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
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import torch

from normbench.config.groups import find_own_classes
from normbench.errors import HeldElsewhere, RunFailure, explain, is_disk_full
from normbench.runs.plan import Run, check_unchanged
from normbench.runs.stack import train_stack
from normbench.runs.train import train
from normbench.stopping import Stopped, allow_stops, check_stop, hear_stops, heed_stop, hold_stops, stop_asked
from normbench.sweep.folder import LOOK_SECONDS, SweepFolder, View, say
from normbench.sweep.launchers import StartedJob
from normbench.sweep.plan import PlannedRun, Planner

# What a task returns: 0 (the folder says how the run has ended), 128 + the signal that has ended it, or one of these.
# From HELD on a run was stopped, and has not died.
DISK_FULL = 3
HELD = 128  # another process has the run: as if it had been stopped, which is not a death

TICK = 0.02  # seconds between two looks at our own processes
TRIES = 2  # of a run whose process dies


@dataclass(frozen=True)
class RunTask:
    """Makes one run, or a stack of several as one model, wherever a launcher has brought it.

    A failure is noted, whatever it is.

    Attributes:
        stack: the runs, one for each seed.
        todo: which of them are not over, by their indices.
        here: where relative paths begin.
        timeout: minutes after which it has failed.
    """

    stack: Sequence[PlannedRun]
    todo: Sequence[int]
    device: str
    here: Path
    timeout: float | None = None

    def __call__(self) -> int:
        with hear_stops():
            os.chdir(self.here)
            find_own_classes()
            runs: list[Run] = []
            for index in self.todo:
                run = self.stack[index].prepared
                runs.append(replace(run, device=torch.device(self.device), loaded=None))
            return self.make(runs, io.StringIO())

    def make(self, runs: Sequence[Run], output: io.StringIO) -> int:
        """Make the runs of the stack that are not over; return what a task returns.

        Args:
            runs: those runs.
            output: takes what they print.
        """
        try:
            with (
                allow_stops(nothing_to_lose=True),
                redirect_stdout(output),
                redirect_stderr(output),
                limit_time(self.timeout),
            ):
                for run in runs:
                    check_unchanged(run)
                if runs[0].stack > 1:
                    seeds = [planned.seed for planned in self.stack]
                    return train_stack(runs, seeds)
                return train(runs[0])
        except Stopped as stopped:
            heed_stop()
            return stopped.status
        except HeldElsewhere:
            return HELD
        except BaseException as error:  # a fault of ours or of a user's class must not end the other runs
            if stop_asked() and isinstance(error, KeyboardInterrupt):  # another Ctrl-C
                return 128 + stop_asked()
            if is_disk_full(error) or is_disk_full(error.__cause__):
                return DISK_FULL
            details = output.getvalue() + traceback.format_exc()
            try:
                note_failures(runs, explain(error), details)
            except OSError:  # nor is there room for the notes
                return DISK_FULL
            return 0


def note_failures(runs: Sequence[Run], cause: str, details: str) -> None:
    """Note why runs have failed: those that have no result."""
    for run in runs:
        path = run.directory.path
        if not run.directory.read_result():
            SweepFolder(path.parent).note_failure(path.name, cause, details)


@contextmanager
def limit_time(minutes: float | None) -> Iterator[None]:
    """End what takes longer than so many minutes inside the `with`, whatever it waits for.

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
    """One sweep whose runs are being made.

    Attributes:
        waiting: stacks of runs that are not known to be over.
        timeout: minutes that each may take.
        at_work: the tasks that were started, by the launcher's job for each.
        deaths: how often a run's process has died.
    """

    planner: Planner
    folder: SweepFolder
    waiting: list[Sequence[PlannedRun]]
    timeout: float | None = None
    at_work: dict[StartedJob, RunTask] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)

    def finish(self, view: View) -> None:
        """Make all runs that are not over, and wait for those that others make, in view of a person.

        Raises:
            Stopped: by a signal.
            RunFailure: the launcher starts nothing.
            OSError: the disk is full.
        """
        with hear_stops(), hold_stops():
            try:
                while self.at_work or self.waiting:
                    view.show()
                    check_stop()
                    if not self.start():
                        is_near = self.at_work and not self.planner.launcher.elsewhere
                        time.sleep(TICK if is_near else LOOK_SECONDS)
                    ended = [job for job in self.at_work if job.done()]
                    for job in ended:
                        task = self.at_work.pop(job)
                        self.handle_end(job, task.stack)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    heed_stop()
                self.stop(view)
                raise

    def stop(self, view: View) -> None:
        """End all running tasks, each after a checkpoint, or at once after another Ctrl-C."""
        try:
            for job in self.at_work:
                job.cancel()
            left = [job for job in self.at_work if not job.done()]
            number = len(left)
            if left:
                runs = "1 run" if number == 1 else f"{number} runs"
                cure = "Ctrl-C again kills what is left"
                say(view.console, f"stopping: waiting for {runs} to write a checkpoint; {cure}")
            while not all(job.done() for job in left):
                time.sleep(TICK)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for job in self.at_work:
                kill = getattr(job, "kill", job.cancel)
                kill()

    def start(self) -> bool:
        """Start as many runs as there is room for and no other process has; return whether there were any.

        Raises:
            RunFailure: the launcher starts nothing.
        """
        launcher = self.planner.launcher
        tasks = self.next_tasks()
        if not tasks:
            return False
        try:
            jobs = launcher.start(tasks, self.planner.jobs, self.folder.notes.absolute())
        except RunFailure:
            raise
        except Exception as error:  # whatever else a launcher raises
            raise RunFailure(f"the launcher has started nothing ({explain(error)}): see its settings") from error
        self.at_work |= zip(jobs, tasks, strict=True)
        return True

    def next_tasks(self) -> list[RunTask]:
        """Return tasks for the stacks that can be started now, each on the device with the fewest runs.

        They no longer wait then; a stack of which another process has a run goes on waiting.
        """
        tasks: list[RunTask] = []
        for stack in list(self.waiting):
            used = [task.device for task in (*self.at_work.values(), *tasks)]
            is_full = len(used) >= self.planner.jobs
            if is_full and not self.planner.launcher.elsewhere:
                break
            standings = [self.folder.read_standing(run) for run in stack]
            if any(standing.state == "running" for standing in standings):
                continue
            self.waiting.remove(stack)
            todo = [index for index, standing in enumerate(standings) if not standing.over]
            if todo:
                device = min(self.planner.devices, key=used.count)
                tasks.append(RunTask(stack, todo, device, Path.cwd(), self.timeout))
        return tasks

    def handle_end(self, job: StartedJob, stack: Sequence[PlannedRun]) -> None:
        """See how runs have ended; those whose process has died are tried once more, and then marked as failed.

        Raises:
            OSError: the disk is full.
        """
        how = ""
        try:
            status = job.result()
        except Exception as error:  # whatever a launcher raises for a process that has died
            status = 1
            how = " ".join(str(error).split())[:500]
        if status == DISK_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        standings = [self.folder.read_standing(run) for run in stack]
        if not all(standing.over for standing in standings):
            self.waiting.append(stack)
        for run, standing in zip(stack, standings, strict=True):
            if standing.over:
                continue
            has_died = standing.state != "running" and status < HELD
            if has_died:
                self.deaths[run.run] += 1
            if self.deaths[run.run] == TRIES:
                self.mark_failed(run, standing.step, how or str(status))

    def mark_failed(self, run: PlannedRun, step: int, how: str) -> None:
        """Note that the process of a run has died as often as it is tried.

        Args:
            step: at which it died last.
            how: what is known of its end.
        """
        cause = f"its process died twice without an error message ({how}); it may have run out of memory"
        self.folder.note_failure(run.run, cause)
        directory = run.prepared.directory
        if directory.path.is_dir():
            directory.write_status("failed", step, run.steps, cause)
