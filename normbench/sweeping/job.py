"""What is done with one configuration where a launcher has brought it: claim the run, make it, note how it ended."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from normbench.errors import HeldElsewhere, RunFailure, UsageError, is_disk_full
from normbench.sweeping.folder import SweepFolder, command

if TYPE_CHECKING:
    from omegaconf import DictConfig

# How a job ended. done: the run has a result, or had one. elsewhere: another process is at work on it.
# stopped: the sweep is being stopped, nothing was begun. interrupted: a signal has ended it behind a checkpoint.
# full: the disk is. unwritable: nothing can be noted in the folder.
Outcome = Literal["done", "failed", "elsewhere", "stopped", "interrupted", "full", "unwritable"]

MOST_DETAILS = 20_000  # characters
POISONED = 70  # exit status of a worker whose GPU answers no more


@dataclass(frozen=True)
class Job:
    """A task of a launcher's, called with a configuration.

    folder: of the runs, absolute. sweep: whose claims these are. here: where the words' relative paths begin.
    parent: the process with which the job is to end; None: it goes on without it. devices: to be handed out.
    """

    folder: Path
    sweep: str
    here: Path
    parent: int | None
    devices: tuple[str, ...]
    own_process: bool

    def __call__(self, config: DictConfig) -> Outcome:
        from normbench.compose import composed_by_launcher

        os.chdir(self.here)
        composition, run = composed_by_launcher("train", config)
        try:
            outcome = self.work(run, composition)
        except OSError as error:  # of the claims or of the failures: what a run raises is its own
            outcome = "full" if is_disk_full(error) else "unwritable"
        if self.is_orphan():
            os._exit(0)  # a worker of joblib's would wait for more, for minutes
        return outcome

    def work(self, run: str, composition: Any) -> Outcome:
        """Make a run unless it is done, claimed or the sweep is being stopped."""
        runs = SweepFolder(self.folder, self.sweep)
        if self.is_to_stop():
            return "stopped"
        if (claim := runs.claims.take(run)) is None:
            return "elsewhere"
        with signals_noted(), claim.kept(self.is_to_stop, stop_this_process):
            if runs.run(run).ended() is not None:
                return "done"
            outcome = self.attempt(runs, run, composition)
            if outcome == "interrupted" and not self.own_process:  # the signal was for the sweep
                ask_to_stop(self.folder, self.sweep)
            if outcome == "failed" and self.own_process and is_poisoned():
                claim.release()
                os._exit(POISONED)  # a new worker takes its place
        return outcome

    def is_to_stop(self) -> bool:
        """Whether the sweep is being stopped, or has ended without a word."""
        return self.is_orphan() or stop_file(self.folder, self.sweep).exists()

    def is_orphan(self) -> bool:
        """Whether this process has outlived the sweep that started it, and with which it is to end."""
        return self.parent is not None and self.parent not in (os.getpid(), os.getppid())

    def attempt(self, runs: SweepFolder, run: str, composition: Any) -> Outcome:
        """Make a run; a failure is noted, whatever it is."""
        words, output = composition.overrides, io.StringIO()
        cause, details = "", ""
        try:
            with as_train(words), redirect_stdout(output), redirect_stderr(output):
                status = self.train(composition, self.folder / run)
            if status >= 128:
                return "interrupted"
            return "done"
        except KeyboardInterrupt:
            return "interrupted"
        except HeldElsewhere:
            return "elsewhere"
        except (UsageError, RunFailure) as error:
            if is_disk_full(error.__cause__):
                return "full"
            cause = str(error)
        except (Exception, SystemExit) as error:  # a fault of ours or of a user's class must not end the other runs
            cause, details = f"{type(error).__name__}: {error}", traceback.format_exc()
        finally:
            clear_memory()
        runs.failures.note(run, cause, command(words), (output.getvalue() + details)[-MOST_DETAILS:])
        return "failed"

    def train(self, composition: Any, planned: Path) -> int:
        """`normbench train` with these words, in the planned directory; returns its exit status."""
        from normbench.request import check_settings, settled, wanted
        from normbench.run import train
        from normbench.sweeping.gpus import handed_out

        tree, choices = wanted(settled(composition))
        check_settings(tree)
        with handed_out(self.devices) as device:
            return train({**tree, "quiet": True, "device": device or tree["device"]}, choices, planned=planned)


def stop_file(folder: Path, sweep: str) -> Path:
    """The file whose presence asks a sweep's jobs to stop."""
    return folder / ".sweep" / "stop" / sweep


def ask_to_stop(folder: Path, sweep: str) -> None:
    """Let a sweep's jobs stop, wherever they are."""
    file = stop_file(folder, sweep)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def stop_this_process() -> None:
    """Ask the run of this process to end behind a checkpoint."""
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def signals_noted() -> Iterator[None]:
    """Before and behind the run's own watch over signals, let one only tell the sweep, where that is this process."""
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        if callable(before[number]) and before[number] is not signal.default_int_handler:
            before[number](number, frame)

    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):  # not the main thread, as a launcher may have it
                before[number] = signal.getsignal(number)
                stack.callback(signal.signal, number, signal.signal(number, note))
        yield


@contextmanager
def as_train(words: Sequence[str]) -> Iterator[None]:
    """Let the run's record name the command that repeats it."""
    before = sys.argv
    sys.argv = ["normbench", "train", *words]
    try:
        yield
    finally:
        sys.argv = before


def clear_memory() -> None:
    """Give back what a run has held, since the worker goes on to the next."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def is_poisoned() -> bool:
    """Whether this process can use its GPU no more, as after an assertion in a kernel."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
