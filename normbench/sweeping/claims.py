"""Who works on which run: claims that several sweeps on one folder, on one or many machines, respect.

A run's claims are the numbered files of a folder of its own, of which the highest counts. A claim is made by giving a
finished file the next free number (`link`, which exactly one contender can do), so a dead owner's is taken over by
whoever links the number behind it. Files are never deleted or renamed: a number that came back could be taken twice.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from normbench.rundir import read_json, write_json
from normbench.sweeping.repeating import repeated

BEAT_SECONDS = 5.0  # between two signs of life of an owner
DEAD_SECONDS = 60.0  # without one: the owner is dead
LOOK_SECONDS = 0.5  # between two looks at what may end a run


@dataclass(frozen=True)
class Owner:
    """Who has claimed a run.

    machine: as far as process numbers mean the same. started: of the process, so that another process with its number
    is not taken for it. sweep: which one it works for. token: of this very claim. released: the owner has let go.
    """

    machine: str
    host: str
    pid: int
    started: str
    sweep: str
    token: str
    released: bool = False

    @property
    def lives(self) -> bool | None:
        """Whether its process is there; None: it is on another machine."""
        if self.machine != this_machine():
            return None
        return started(self.pid) == self.started


@dataclass(frozen=True)
class Claim:
    """A run that this process works on."""

    path: Path
    owner: Owner

    def release(self) -> None:
        """Let go of the run."""
        with suppress(OSError):  # a full disk: the owner's end says the same
            write_json(self.path, asdict(replace(self.owner, released=True)))

    @property
    def lost(self) -> bool:
        """Whether another process has taken the run over, which it does after a long silence."""
        return highest(self.path.parent) > int(self.path.stem)

    @contextmanager
    def kept(self, end: Callable[[], bool], stop: Callable[[], None]) -> Iterator[None]:
        """Give signs of life while this lasts, and call `stop` once a second as long as `end` says so; then let go."""
        looks = itertools.count(1)

        def look() -> None:
            number = next(looks)
            if number % round(BEAT_SECONDS / LOOK_SECONDS) == 0:
                with suppress(OSError):
                    os.utime(self.path)
            if number % 2 == 0 and (end() or self.lost):
                stop()

        try:
            with repeated(LOOK_SECONDS, look):
                yield
        finally:
            self.release()


class Claims:
    """The claims on the runs of a folder, as one sweep makes them."""

    def __init__(self, folder: Path, sweep: str) -> None:
        self.folder, self.sweep = folder, sweep

    def take(self, run: str) -> Claim | None:
        """Claim a run; None: another process is at work on it."""
        folder = self.folder / run
        folder.mkdir(parents=True, exist_ok=True)
        mine = Owner(
            this_machine(), socket.gethostname(), os.getpid(), started(os.getpid()), self.sweep, uuid.uuid4().hex
        )
        draft = folder / f".{mine.token}.tmp"
        draft.write_text(json.dumps(asdict(mine), indent=2) + "\n")
        try:
            number = highest(folder)
            if number and not is_free(folder / f"{number}.json", draft.stat().st_mtime):
                return None
            path = folder / f"{number + 1}.json"
            os.link(draft, path)
            return Claim(path, mine)
        except FileExistsError:  # another contender was faster
            return None
        finally:
            draft.unlink(missing_ok=True)

    def number(self, run: str) -> int:
        """How often a run has been claimed."""
        return highest(self.folder / run)

    def deaths(self, run: str) -> int:
        """How often a process of this sweep has ended without letting go of a run that nobody is at work on now."""
        owners = [read_owner(self.folder / run / f"{number + 1}.json") for number in range(self.number(run))]
        return sum(owner is not None and owner.sweep == self.sweep and not owner.released for owner in owners)

    def at_work(self, run: str) -> Owner | None:
        """Who works on a run; None: nobody, or a damaged claim tells nothing."""
        number = self.number(run)
        owner = read_owner(self.folder / run / f"{number}.json") if number else None
        if owner is None or owner.released or owner.lives is False:
            return None
        if owner.lives is None and not self.has_sign_of_life(run):
            return None
        return owner

    def has_sign_of_life(self, run: str) -> bool:
        """Whether a run's claim was touched lately, by the clock of the file system that all machines share."""
        folder = self.folder / run
        probe = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            probe.touch()
            return not is_silent(folder / f"{highest(folder)}.json", probe.stat().st_mtime)
        except OSError:  # read only: by the clock of this machine
            return True
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)


def highest(folder: Path) -> int:
    """The number of the claim that counts; 0: there is none."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return 0
    return max((int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()), default=0)


def is_free(path: Path, now: float) -> bool:
    """Whether what a claim claims may be claimed: it is released, or its owner dead."""
    owner = read_owner(path)
    if owner is None:
        return is_silent(path, now)
    return owner.released or (is_silent(path, now) if owner.lives is None else not owner.lives)


def is_silent(path: Path, now: float) -> bool:
    """Whether a claim's owner has given no sign of life for long; `now` by the file system's own clock."""
    return now - path.stat().st_mtime > DEAD_SECONDS


def read_owner(path: Path) -> Owner | None:
    """A claim's owner; None where the file is damaged."""
    try:
        return Owner(**(read_json(path) or {}))
    except TypeError:
        return None


@cache
def this_machine() -> str:
    """What tells apart machines, and containers of one machine, whose process numbers mean different processes."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # Linux
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def started(pid: int) -> str:
    """When a process was started, in the system's own unit; empty: there is no such process, or it is over."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        state, *fields = text.rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except FileNotFoundError:
        return started_elsewhere(pid) if not Path("/proc/self/stat").exists() else ""
    except OSError:  # it ended while it was read
        return ""


def started_elsewhere(pid: int) -> str:
    """Where there is no /proc: only whether the process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "there"
