"""How signals stop a command: what is at work is left at once, or at its next pause where it must not be left anywhere.

A person or a cluster gives seconds between a signal and the end of a command, so each moment of a command is of one of
three kinds. By default a signal raises `Stopped` where it finds the command: files are written whole or not at all, so
nothing is lost but what is being computed. Inside `hold_stops` it waits until the work asks for it with `check_stop`,
as between two steps of training, after which a checkpoint is written. Inside `allow_stops` it raises again, as within
an evaluation, of which nothing is kept before its end.

Python calls a handler between two of its own instructions, and so not while an operator of torch or another library's
code is at work. Where that takes longer than PATIENCE, a thread ends the process as a kill does, which the files of
normbench bear at any moment; but not inside `hold_stops`, where a checkpoint is still to be written.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

# What terminals, people, Slurm, PBS, LSF, HTCondor and Grid Engine send before they kill.
ALWAYS = (signal.SIGINT, signal.SIGTERM)
UNLESS_TAKEN = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)  # nohup ignores the first one

PATIENCE = 4.5  # seconds between a signal and the end of what has not heard it
TICK = 0.05  # seconds between two looks at whether the command has ended meanwhile
THREAD = "stops"  # the name of the thread that looks


class Stopped(KeyboardInterrupt):
    """A signal has asked for a stop, and what was at work has been left.

    Attributes:
        number: of the signal.
        status: the exit status of a process that it ends.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.status = 128 + number


@dataclass
class Stops:
    """What has come to this process.

    Attributes:
        noted: the signals, the first one first.
        waits: whether a signal waits until it is asked for.
        held: whether work is under way that would be lost if the process ended at once.
        together: whether processes decide together, so that none may stop by itself.
        raised: whether `Stopped` was raised.
        heard: whether whoever ends the command has caught it.
        before: the handlers in whose place ours are; empty where nobody listens.
    """

    noted: list[int] = field(default_factory=list)
    waits: bool = False
    held: bool = False
    together: bool = False
    raised: bool = False
    heard: bool = False
    before: dict[int, Any] = field(default_factory=dict)


state = Stops()  # another one for each command


def stop_asked() -> int:
    """Return the first signal that has come, 0 for none."""
    return state.noted[0] if state.noted else 0


def stop(number: int) -> None:
    """Leave what is at work, for a signal that has come to this process or to another one that works with it.

    Raises:
        Stopped: always.
    """
    state.raised = True
    raise Stopped(number)


def check_stop() -> None:
    """Leave what is at work if a signal has come.

    Raises:
        Stopped: one has.
    """
    if state.noted:
        stop(state.noted[0])


def heed_stop() -> None:
    """Note that the command is about to end: from here on nothing but another Ctrl-C hastens it."""
    state.raised = True
    state.heard = True


def note(number: int, frame: FrameType | None) -> None:
    """Take a signal, as Python's handlers do.

    Raises:
        Stopped: it need not wait.
        KeyboardInterrupt: it is a further Ctrl-C, which never waits.
    """
    state.noted.append(number)
    if number == signal.SIGINT and len(state.noted) > 1:
        raise KeyboardInterrupt
    if not state.waits and not state.raised:
        stop(number)


@contextmanager
def hear_stops() -> Iterator[None]:
    """Let signals raise `Stopped` inside the `with`; one inside another is the same as the outer one."""
    global state
    if state.before or threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [*ALWAYS]
    for number in UNLESS_TAKEN:
        if signal.getsignal(number) == signal.SIG_DFL:
            numbers.append(number)
    state = Stops()
    with end_if_unheard(state):
        try:
            for number in numbers:
                state.before[number] = signal.signal(number, note)
            yield
        finally:
            stop_hearing()
            state = Stops()  # so that no later work in this process stops for a signal to this command


def stop_hearing() -> None:
    """Give signals back to those that had them; one that comes meanwhile is too late to stop anything."""
    state.raised = True
    for number, handler in state.before.items():
        signal.signal(number, handler)
    state.before = {}


@contextmanager
def hold_stops(together: bool = False) -> Iterator[None]:
    """Let signals wait inside the `with` until they are asked for, at the latest until its end.

    Args:
        together: processes decide together, each about all, so that nothing inside may be left by one alone.

    Raises:
        Stopped: one has come, and nobody has asked for it.
    """
    before = state.waits, state.held, state.together
    state.waits = state.held = True
    state.together = state.together or together
    try:
        yield
    finally:
        state.waits, state.held, state.together = before
    if not state.waits and not state.raised:
        check_stop()


@contextmanager
def allow_stops(nothing_to_lose: bool = False) -> Iterator[None]:
    """Let signals raise inside the `with` although they wait around it: nothing inside is kept before its end.

    Args:
        nothing_to_lose: what is around it loses nothing either if the process ends at once.

    Raises:
        Stopped: one has come.
    """
    if state.together:
        yield
        return
    before = state.waits, state.held
    try:
        state.waits = False
        state.held = state.held and not nothing_to_lose
        if not state.raised:
            check_stop()
        yield
    finally:
        state.waits, state.held = before


# ---- signals that are not heard


@contextmanager
def end_if_unheard(stops: Stops) -> Iterator[None]:
    """End the process if a signal comes inside the `with` and is not heard within PATIENCE.

    The system writes the number of each signal into a pipe at once, whatever Python is doing.

    Args:
        stops: of the command.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, args=[reading, stops], name=THREAD, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)  # which ends the thread


def watch(reading: int, stops: Stops) -> None:
    """Wait for signals, and end the process where one is not heard.

    Args:
        reading: the end of a pipe, from which the numbers of signals come; it is closed at the end.
        stops: of the command that is at work.
    """
    with open(reading, "rb", buffering=0) as pipe:
        while numbers := pipe.read(64):
            asked = [number for number in numbers if number in stops.before]
            if not asked:
                continue
            deadline = time.monotonic() + PATIENCE
            while stops.before and time.monotonic() < deadline:
                time.sleep(TICK)
            if is_unheard(stops):
                end_process(asked[0])


def is_unheard(stops: Stops) -> bool:
    """Tell whether a signal that has come is not heard: it was to raise, and nobody has caught what it raised."""
    if not stops.before or stops.heard:
        return False
    is_held = stops.held and not stops.raised
    return not is_held


def end_process(number: int) -> None:
    """End this process as a kill does, with the exit status of a signal."""
    with suppress(OSError):
        os.write(2, b"normbench: stopped\n")
    os._exit(128 + number)


def forget_in_fork() -> None:
    """Let signals end a forked process as they end others: it has none of the threads, and the pipe is not its own."""
    if state.before:
        signal.set_wakeup_fd(-1)
        stop_hearing()


os.register_at_fork(after_in_child=forget_in_fork)
