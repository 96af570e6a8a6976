"""Runs of normbench in forked processes that say where they are, and can end themselves at a chosen place.

Importing torch takes seconds, so multiprocessing's server imports everything once, and forks a child for each run. A
child writes each place that it passes (`evaluation > batch`, `checkpoint > half of a write to checkpoint.pt`) to a file
before it goes on, so the file says where a kill fell.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import itertools
import multiprocessing
import multiprocessing.util
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import wraps
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 120.0  # seconds for anything
PRELOADED = ["pytest", "conftest", "torch_of_tests", "normbench.cli", "normbench.runs.train"]
PRELOADED += ["normbench.config.compose", "normbench.data", "normbench.norms", "normbench.placements", "well_read"]
PRELOADED += ["normbench.sweep.sweep", "normbench.sweep.work"]
PRELOADED += ["torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo"]  # which several processes need


@dataclass(frozen=True)
class Trap:
    """At the nth passage of a place that contains `place`, a child sends itself signals or limits its memory.

    signals: in this order. memory: bytes that it may take from then on.
    """

    place: str
    nth: int = 1
    signals: tuple[int, ...] = (signal.SIGKILL,)
    memory: int | None = None


@dataclass(frozen=True)
class Child:
    """A run at work, or over."""

    process: BaseProcess
    output_file: Path
    places_file: Path

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def output(self) -> str:
        """What it has printed on both streams."""
        return self.output_file.read_text()

    @property
    def places(self) -> list[str]:
        """The places that it has passed, the last one last."""
        return self.places_file.read_text().splitlines()

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def status(self) -> int | None:
        """Its exit status; negative: the signal that ended it; None: it is at work."""
        return self.process.exitcode

    def wait(self) -> int:
        """Return its exit status, once it has ended."""
        self.process.join(4 * PATIENCE)
        assert self.status is not None, f"still at work:\n{self.output}"
        return self.status

    def wait_for(self, line: str) -> bool:
        """Return whether it passes a place before it ends, as soon as that is known."""
        # whether it has ended is asked first: what it wrote before its end is read behind it
        self.poll(lambda: self.status is not None or line in self.places_file.read_text())
        return line in self.places_file.read_text()

    def wait_until_held(self) -> None:
        """Return when its trap's SIGSTOP holds it: one that is told to go on before that would wait for ever."""
        self.poll(lambda: self.status is not None or "State:\tT" in Path(f"/proc/{self.pid}/status").read_text())
        assert self.status is None, f"ended:\n{self.output}"

    def poll(self, condition: Callable[[], bool]) -> None:
        assert poll(condition), f"still waiting:\n{self.output}"


def poll(condition: Callable[[], bool]) -> bool:
    """Return whether a condition comes true, as soon as it does."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


class Server:
    """Starts runs, each in a process of its own.

    composed: a folder in which they leave what Hydra has composed for each other.
    """

    def __init__(self, folder: Path, composed: Path | None = None) -> None:
        self.folder, self.numbers = folder, itertools.count()
        self.composed = composed or folder / "composed"
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(Path(__file__).parent))  # where it finds `well_read`
            forkserver.ensure_running()

    def start(
        self,
        words: list[str],
        cwd: Path,
        trap: Trap | None = None,
        environment: dict[str, str] | None = None,
        alone: bool = False,
    ) -> Child:
        """Start `normbench` with these words.

        environment: variables that it has beside those of the tests. alone: it leads a session, forks runs from a
        server of its own, and notes no places.
        """
        number = next(self.numbers)
        output, places = (self.folder / f"{number}.{kind}" for kind in ("output", "places"))
        for file in (output, places):
            file.touch()
        given = words, cwd, output, places, self.composed, trap, environment or {}, alone
        process = self.context.Process(target=be_child, args=given)
        process.start()
        return Child(process, output, places)


# ---- in a child


def be_child(
    words: list[str],
    cwd: Path,
    output: Path,
    places: Path,
    composed: Path,
    trap: Trap | None,
    environment: dict[str, str],
    alone: bool,
) -> None:
    """Run one command as a process of its own would; does not return.

    composed: a folder in which children leave what Hydra has composed for each other.
    """
    if alone:
        leave_server()
    from composing import share_compositions
    from conftest import draw_for_pages_alone

    from normbench.cli import main
    from normbench.record import machine

    status = 1
    gc.freeze()  # else each collection walks through all that the server has imported: a fifth of a run's time
    try:
        stream = os.open(output, os.O_WRONLY | os.O_APPEND)
        for number in (1, 2):
            os.dup2(stream, number)
        os.environ |= {"COLUMNS": "200", **environment}
        os.chdir(cwd)
        machine.CHECKOUT = cwd  # as of an installed package, whatever of this checkout is not committed
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests that were started by nohup ignore
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a sweep that has started the server blocks signals meanwhile
        share_compositions(composed)
        if words[0] == "report" or "sweep.report=true" in words:
            draw_for_pages_alone(pytest.MonkeyPatch())  # for good: this process ends with the command
        if not alone:
            watch(Places(places, trap))
        sys.argv = ["normbench", *words]
        status = main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        if alone:
            atexit._run_exitfuncs()
        os._exit(status)


def leave_server() -> None:
    """Let this process be as one that a shell has started: it knows of no server, and leads a session.

    A server that it starts is a fork of it, since all that a server imports is there.
    """
    os.setsid()
    multiprocessing.process._parent_process = None
    multiprocessing.current_process()._config.pop("tempdir", None)
    vars(forkserver._forkserver).update(vars(forkserver.ForkServer()))
    vars(multiprocessing.util)["spawnv_passfds"] = fork_python


def fork_python(path: str, args: list[str], kept: list[int]) -> int:
    """Run what a Python would that is given `args`, code among them, in a fork of this process; return its number.

    kept: descriptors that it inherits.
    """
    number = os.fork()
    if number:
        return number
    try:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler if each is signal.SIGINT else signal.SIG_DFL)
        open_ones = [int(name) for name in os.listdir("/proc/self/fd")]
        for descriptor in open_ones:
            if descriptor > 2 and descriptor not in kept:
                with suppress(OSError):
                    os.close(descriptor)
        exec(args[args.index("-c") + 1], {"__name__": "__main__"})
    except SystemExit:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class Places:
    """Where a process is, on record, and what happens to it there."""

    def __init__(self, record: Path, trap: Trap | None) -> None:
        self.record, self.trap, self.passed = os.open(record, os.O_WRONLY | os.O_APPEND), trap, 0
        self.inside: list[str] = []

    def note(self, line: str) -> None:
        os.write(self.record, f"{line}\n".encode())

    def passage(self, name: str, before: Callable[[], object] = lambda: None) -> None:
        """The process is about to do something; `before` is done first where the trap lies."""
        place = " > ".join([*self.inside, name])
        self.note(place)
        if self.trap is None or self.trap.place not in place:
            return
        self.passed += 1
        if self.passed != self.trap.nth:
            return
        before()
        self.note(f"trapped: {place}")
        if self.trap.memory is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + self.trap.memory,) * 2)
            return
        for number in self.trap.signals:
            os.kill(os.getpid(), number)

    @contextmanager
    def within(self, name: str, done: str = "") -> Iterator[None]:
        """Name a part while it runs, and note what it has done when it has ended well."""
        self.inside.append(name)
        try:
            self.passage("begin")
            yield
        finally:
            self.inside.pop()
        if done:
            self.note(done)


def watch(places: Places) -> None:
    """Make normbench note where it is: which part is at work, each file operation, each batch."""
    from normbench import build, types
    from normbench.record import directory, files, loggers
    from normbench.runs import session
    from normbench.training import checkpoint, evaluation, loop, step

    def part(owner: Any, **names: str) -> None:
        for function, name in names.items():
            trace(owner, function, lambda *_, name=name, **__: places.within(name))

    def ahead(owner: Any, function: str, describe: Callable[..., str]) -> None:
        trace(owner, function, lambda *args, **options: nullcontext(places.passage(describe(*args, **options))))

    trace(checkpoint.Checkpoints, "save", lambda _, state: places.within("checkpoint", f"saved {state['step']}"))
    part(checkpoint.Checkpoints, save_best="best weights")
    part(loop.Loop, evaluate="evaluation", train_step="training", log="logging")
    part(build, start_model="building")
    part(session, truncate_metrics="truncating metrics", truncate_events="truncating events")
    part(session, copy_record="copying")
    part(session.Session, prepare="preparation", finish="finish")
    for module in (step, evaluation):
        ahead(module, "to_device", lambda *_: "batch")
    ahead(types.Task, "totals", lambda *_, **__: "loss")
    ahead(step.nn.utils, "get_total_norm", lambda *_: "gradients")
    ahead(os, "replace", lambda source, target: f"rename to {final_name(target)}")
    ahead(os, "unlink", lambda path, **_: f"unlink {final_name(path)}")
    ahead(os, "fsync", lambda descriptor: f"fsync {final_name(os.readlink(f'/proc/self/fd/{descriptor}'))}")
    for module in (directory, files, loggers):
        vars(module)["open"] = lambda path, mode="r": TracedFile(places, builtins.open(path, mode))  # noqa: SIM115 (its user closes it)


def trace(owner: Any, name: str, context: Callable[..., AbstractContextManager[None]]) -> None:
    """Let each call of a function run inside what `context` returns for its arguments."""
    function = getattr(owner, name)

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with context(*args, **options):
            return function(*args, **options)

    setattr(owner, name, call)


def final_name(path: str | Path) -> str:
    """A file's name, where it is temporary the one that it is to have; the same for each run's directory and events."""
    name = Path(path).name
    if name.startswith((".events", "events")):
        return "events"
    if name.endswith(".tmp"):
        return name[1:].rsplit(".", 2)[0]
    return "the directory" if Path(path).is_dir() else name


class TracedFile:
    """A binary file with a place before and in the middle of each write."""

    def __init__(self, places: Places, file: Any) -> None:
        self._places, self._file = places, file
        self._name = final_name(file.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> TracedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self._places.passage(f"write to {self._name}", self._file.flush)
        self._file.write(data[:half])
        self._places.passage(f"half of a write to {self._name}", self._file.flush)
        self._file.write(data[half:])
        return len(data)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)
