"""The run directory: its files, its name, its status, who holds it, and what machine and code made it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import platform
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from pathlib import Path
from types import NoneType
from typing import IO, Any, Literal

import yaml

from normbench.errors import HeldElsewhere, UsageError
from normbench.settings import printable

Shape = Any  # a type, several, a pattern, a list of one shape, or a mapping from keys to shapes
Status = Literal["running", "interrupted", "finished", "diverged", "failed", "out_of_memory"]
CHOICE_FILE = "lr_choice.json"  # beside the runs of a sweep: the learning rate that it has chosen for each arm
ENDED: tuple[Status, ...] = ("finished", "diverged")
DIGESTS = "digests"  # of a summary: what the files of the run were when it ended
RECORD = ("config.yaml", "environment.json", "metrics.jsonl", "summary.json")  # what a report rests on
EXTENDED = "extended"  # of a session: the runs that this one goes on with

# What must be the same for a continuation to give the same bits.
DECISIVE = ("commit", "cpu", "accelerator", "python", "machine")


def fingerprint(content: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits of whatever changes a run's numbers."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class RunDirectory:
    """One run's directory, which need not be there.

    writes: False in a process that only helps the one that holds the run.
    """

    writes = True

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

    def check_creatable(self) -> None:
        """Refuse a path that cannot be made or written to, without making anything.

        Raises:
            UsageError: it could not.
        """
        existing = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            why = f"{existing} is no folder where you may write"
            raise UsageError(f"outputs={self.path.parent.parent} cannot be written ({why}): give another one")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run, so that no second process works on it, and clear away what a killed one left half written.

        Raises:
            HeldElsewhere: another process holds it.
        """
        if not self.writes:
            yield
            return
        with open(inside(self.path, ".lock"), "a") as lock:
            if not any(locked(lock, fcntl.LOCK_EX, pause) for pause in (0, 0.01, 0.1)):  # `is_held` takes a moment
                pid = (read_json(self.status) or {}).get("pid", "unknown")
                cure = "wait for it, or give this run another name="
                raise HeldElsewhere(f"{self.path} is being written by another process (pid {pid}): {cure}")
            for temporary in self.path.glob(".*.tmp"):  # of processes that were killed while they wrote
                temporary.unlink(missing_ok=True)
            yield

    def is_held(self) -> bool:
        """Return whether a process is at work on the run."""
        with suppress(FileNotFoundError), open(self.path / ".lock") as lock:
            return not locked(lock, fcntl.LOCK_SH)
        return False

    def write_status(self, status: Status, step: int, steps: int, message: str = "") -> None:
        """Write how the run stands (atomically), if there is room: it must not hide what it reports, a full disk."""
        stands = {"status": status, "step": step, "steps": steps, "message": message}
        process = {"pid": os.getpid(), "host": socket.gethostname(), "heartbeat": time.time()}
        with suppress(OSError):
            if self.writes:
                write_json(self.status, stands | process)

    def sessions(self) -> list[dict[str, Any]]:
        """Return the processes that have worked on the run, the first one first."""
        known: list[dict[str, Any]] = (read_json(self.environment) or {"sessions": []})["sessions"]
        return known

    def configuration(self) -> dict[str, Any]:
        """Return the resolved configuration; empty where it cannot be read."""
        return read_object(self.config, parse_yaml) or {}

    def begun_elsewhere(self, now: dict[str, Any]) -> str | None:
        """Return what decides about bits and is not as it was when the run was begun, in one line."""
        first, here = ({**(known.get("packages") or {}), **known} for known in ([*self.sessions(), now][0], now))
        decisive = [*DECISIVE, *now["packages"]]
        changed = [f"{key} was {first.get(key)}, is {here[key]}" for key in decisive if first.get(key) != here[key]]
        what = f"this run was begun elsewhere, so its numbers may differ in the last bits ({'; '.join(changed)})"
        return f"{what}: rerun=true makes it anew and keeps the old one beside it" if changed else None

    def digest(self, name: str, summary: Mapping[str, Any]) -> str:
        """Return the SHA-256 of a file of the record; of the summary, of all but the digests that it holds.

        Raises:
            OSError: the file cannot be read.
        """
        if name == self.summary.name:
            rest = {key: value for key, value in summary.items() if key != DIGESTS}
            content = json.dumps(rest, sort_keys=True).encode()
        else:
            content = read_bytes(self.path / name)
        return hashlib.sha256(content).hexdigest()

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary (atomically), when all other files are as they are to stay."""
        as_read = json.loads(json.dumps(summary))
        write_json(self.summary, {**summary, DIGESTS: {name: self.digest(name, as_read) for name in RECORD}})

    def altered(self, names: Iterable[str] = RECORD) -> list[str]:
        """Return which files of the record are not as the run has left them; none where it has noted no digests.

        Raises:
            OSError, ValueError: the summary cannot be read.
        """
        summary = json.loads(read_bytes(self.summary))
        found, noted = list[str](), summary.get(DIGESTS) or {}
        for name in names if noted else ():
            digest = ""  # of a file that cannot be read
            with suppress(OSError):
                digest = self.digest(name, summary)
            if noted.get(name) != digest:
                found.append(name)
        return found

    def ended(self) -> dict[str, Any] | None:
        """Return the summary of a run that has ended as a result, else None."""
        summary = read_json(self.summary)
        return summary if summary and summary.get("status") in ENDED else None


def extended_runs(sessions: Sequence[Mapping[str, Any]], eval_batches: int | None) -> list[dict[str, Any]]:
    """Return where each run ended that a run goes on with, and on how many batches it was evaluated, the first first.

    sessions, eval_batches: of the run. A record of an older version tells of the last such run alone, and not on how
    many batches: it is taken for one like the run itself.
    """
    if not sessions:
        return []
    noted = sessions[-1].get(EXTENDED)
    if noted is not None:
        return [*noted]
    begun = sessions[0].get("step")
    return [{"steps": begun, "eval_batches": eval_batches}] if begun else []


def locked(file: IO[str], kind: int, pause: float = 0) -> bool:
    """Lock a file unless another process has; returns whether it is locked. pause: seconds before."""
    time.sleep(pause)
    with suppress(BlockingIOError):
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    return False


# ---- files of a folder alone


def inside(folder: Path, *parts: str) -> Path:
    """Return a path in a folder, which may be a link itself: whoever has named it knows where it leads.

    Raises:
        UsageError: the path leads out of the folder, by a link in it or by its own name.
    """
    path = folder.joinpath(*parts)
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):  # `resolve` raises where links go round
        return path
    below = takewhile(lambda part: part != folder, (path, *path.parents))
    link = next((part for part in below if part.is_symlink()), None)
    if link is None:
        raise UsageError(f"{path} leads out of {folder}, and nothing is written there: give another name")
    what = f"{link} is a link that leads out of {folder}, to {link.readlink()}, and nothing is written there"
    raise UsageError(f"{what}: move what it leads to into the place of the link, or remove the link")


def remove_written(folder: Path, names: Iterable[str]) -> None:
    """Remove files that an earlier record says are ours; of those that it names elsewhere, none."""
    for name in names:
        with suppress(UsageError, OSError):
            if not (path := inside(folder, name)).is_dir():
                path.unlink()


# ---- files that are either whole or not there


NUMBER = (int, float, NoneType)
STANDS = {"status": str, "step": int, "steps": int, "message": (str, NoneType)}
OPEN = {"_target_": str}
# One of ours and nothing behind it: words, and in quotes what a shell would take for its own.
COMMAND = re.compile(r"""normbench( ([\w@%+=:,./-]|'[^']*'|"'")+)+""", re.ASCII)
LEDGER = {"operators_a_step": NUMBER, "host_share_of_step": NUMBER, "batches_a_step": NUMBER}
STRETCH = {"steps": int, "eval_batches": (int, NoneType)}
SESSION = {
    "choices": {str: str}, "command": COMMAND, "data": dict, "packages": (dict, NoneType), "task": {"kind": str},
    "step": (int, NoneType), EXTENDED: (NoneType, [STRETCH]),
}  # fmt: skip

# What the files of a run have at least, whoever has written them.
SHAPES: dict[str, Shape] = {
    "config.yaml": {"seed": int, "norm": OPEN, "placement": OPEN, "model": OPEN, "data": OPEN},
    "environment.json": {"sessions": [SESSION]},
    "status.json": STANDS,
    "summary.json": {
        **STANDS, "seed": int, "choices": {str: str}, "metrics": {str: NUMBER}, "step_time": {str: NUMBER},
        "data": dict, "norm_facts": dict, "ledger": LEDGER, DIGESTS: (dict, NoneType),
    },
    CHOICE_FILE: {"arms": [{"arm": {str: str}, "lr": NUMBER}]},
}  # fmt: skip

LARGEST = 1 << 24  # bytes of a JSON or YAML
LONG = 10_000  # characters of a YAML whose depth is looked at first: to libyaml a great one is a crash
DEEPEST = 20  # levels of what it holds
UNREADABLE = math.inf


def fits(content: Any, shape: Shape) -> bool:
    """Tell whether content has a shape: a type, a pattern, a list of one shape, or keys with shapes, `str` for all.

    Of several shapes in a tuple it has one.
    """
    if isinstance(shape, tuple):
        return any(fits(content, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(content, list) and all(fits(item, shape[0]) for item in content)
    if isinstance(shape, dict):
        return isinstance(content, dict) and all(
            all(fits(value, kind) for value in content.values()) if key is str else fits(content.get(key), kind)
            for key, kind in shape.items()
        )
    if isinstance(shape, re.Pattern):
        return isinstance(content, str) and shape.fullmatch(content) is not None
    return isinstance(content, shape)


def read_bytes(path: Path) -> bytes:
    """Return a file's content.

    Raises:
        OSError: it cannot be read, or whoever reads it would wait for ever: it is a pipe or a device.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return path.read_bytes()


def logged_lines(path: Path) -> list[tuple[bytes, float, dict[str, float]]]:
    """Return the lines of a metrics.jsonl, each with its step and its numbers by tag, NaN for those that are null.

    The step of a line that cannot be read is UNREADABLE, behind all others; empty lines are nothing.

    Raises:
        OSError: the file cannot be read.
    """

    def understood(numbers: Any) -> tuple[float, dict[str, float]]:
        try:
            step = int(numbers.pop("step"))
            if set(map(type, numbers.values())) <= {float}:
                return step, numbers
            return step, {tag: math.nan if value is None else float(value) for tag, value in numbers.items()}
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
            return UNREADABLE, {}

    def parsed(text: bytes) -> Any:
        with suppress(ValueError, RecursionError):
            return json.loads(text)

    lines = [line for line in read_bytes(path).splitlines() if line.strip()]
    found = parsed(b"[%s]" % b",".join(lines)) or []  # all at once take a third of the time that one by one take
    found = found if len(found) == len(lines) else map(parsed, lines)
    return [(line, *understood(numbers)) for line, numbers in zip(lines, found, strict=True)]


def read_json(path: Path, shape: Shape | None = None) -> dict[str, Any] | None:
    """Return a JSON object, or None where the file is missing, damaged, or has not the shape of its kind."""
    return read_object(path, json.loads, shape)


def read_object(path: Path, parse: Callable[[str], Any], shape: Shape | None = None) -> dict[str, Any] | None:
    """Return what a JSON or YAML holds, or None where it is missing, damaged, or has not the shape of its kind."""
    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        if path.stat().st_size <= LARGEST:
            content = plain(parse(read_bytes(path).decode()))
            return content if fits(content, shape or SHAPES.get(path.name, {})) else None
    return None


def parse_yaml(text: str) -> Any:
    """Return what a YAML holds, read in C where that is installed.

    Raises:
        ValueError: it has anchors, with which a short text stands for any number of values, or is nested too deep.
        YAMLError: it is none.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, loader) if "&" in text or len(text) > LONG else ():
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST or getattr(event, "anchor", None):
            raise ValueError("a YAML with anchors, or nested too deep")
    return yaml.load(text, loader)


def plain(content: Any, depth: int = 0) -> Any:
    """Return content as JSON has it, without characters that steer a terminal.

    Raises:
        ValueError: it is nested too deep.
    """
    if depth > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    if isinstance(content, dict):
        return {printable(str(key)): plain(value, depth + 1) for key, value in content.items()}
    if isinstance(content, list):
        return [plain(item, depth + 1) for item in content]
    return content if isinstance(content, bool | int | float | None) else printable(str(content))


def write_atomically(path: Path, write: Callable[[IO[bytes]], object], keep: Path | None = None) -> None:
    """Write a file through a temporary one beside it: a crash at any moment leaves the old content or the new.

    keep: where the old content goes. A crash at that very moment leaves it there, and nothing at `path`.

    Raises:
        OSError: the disk is full or not writable; nothing of the attempt stays behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # never through a link
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file's whole content, atomically."""
    write_atomically(path, lambda file: file.write(content))


def unused(path: Path) -> Path:
    """Return the first of PATH1, PATH2, ... that is not there."""
    return next(free for number in count(1) if not (free := path.with_name(f"{path.name}{number}")).exists())


def keep_damaged(path: Path, name: str = "") -> str:
    """Keep a damaged file beside what takes its place; return a sentence that says so. name: to keep it under."""
    kept = unused(path.with_name(f"{name or path.name}.damaged"))
    write_bytes(kept, read_bytes(path))
    return f"{path.name} is damaged: what can be read of it stays, and the file as it was is {kept}"


def sync_directory(directory: Path) -> None:
    """Make renames in this directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write JSON for people and programs, atomically."""
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


# ---- what machine, versions and code make a run


def commit() -> str | None:
    """Return the commit of the code, `+changes` behind it where the checkout differs; None for an installed package."""
    checkout = Path(__file__).parent.parent
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
        return said if (checkout / ".git").exists() else None
    return None


def cpu_name() -> str:
    """Return the processor's model name."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
