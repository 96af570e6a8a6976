"""Files that are either whole or not there, read and written inside a folder alone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import yaml
from msgspec import ValidationError, convert

from normbench.errors import UsageError
from normbench.record.forms import FORMS, Form, has_form
from normbench.settings import printable

LARGEST = 1 << 24  # bytes of a JSON or YAML
LONG = 10_000  # characters of a YAML whose depth is looked at first: to libyaml a great one is a crash
DEEPEST = 20  # levels of what it holds


def lock(file: IO[str], kind: int) -> bool:
    """Lock a file unless another process has; return whether it is locked now."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def inside(folder: Path, *parts: str) -> Path:
    """Return a path in a folder, which may be a link itself: whoever has named it knows where it leads.

    Raises:
        UsageError: the path leads out of the folder, by a link in it or by its own name.
    """
    path = folder.joinpath(*parts)
    real_path = Path(os.path.realpath(path))  # `resolve` raises where links go round
    if real_path.is_relative_to(os.path.realpath(folder)):
        return path
    for part in (path, *path.parents):
        if part == folder:
            break
        if part.is_symlink():
            what = f"{part} is a link that leads out of {folder}, to {part.readlink()}, and nothing is written there"
            raise UsageError(f"{what}: move what it leads to into the place of the link, or remove the link")
    raise UsageError(f"{path} leads out of {folder}, and nothing is written there: give another name")


def make_folder(root: Path, *parts: str) -> Path:
    """Make a folder in another one, and all between; return it.

    Raises:
        UsageError: the path leads out of the other one, by a link in it or by its own name.
        OSError: it cannot be made.
    """
    folder = inside(root, *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remove_written(folder: Path, names: Iterable[str]) -> None:
    """Remove files that an earlier record says are ours; of those that it names elsewhere, none."""
    for name in names:
        with suppress(UsageError, OSError):
            path = inside(folder, name)
            if not path.is_dir():
                path.unlink()


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read it.

    Raises:
        OSError: it cannot be read, or whoever reads it would wait for ever: it is a pipe or a device.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(path, "rb")


def read_bytes(path: Path) -> bytes:
    """Return a file's content.

    Raises:
        OSError: as `open_regular` does.
    """
    with open_regular(path) as file:
        return file.read()


def read_json(path: Path) -> dict[str, Any] | None:
    """Return all that a JSON holds, or None where it is missing, damaged, or not of the form of its name."""
    return read_object(path, json.loads)


def read_object(path: Path, parse: Callable[[str], Any]) -> dict[str, Any] | None:
    """Return all that a JSON or YAML holds, or None as `read_json` does."""
    content: dict[str, Any] | None = read_content(path, parse)
    return content if has_form(content, FORMS.get(path.name, dict)) else None


def read_form(path: Path, form: type[Form]) -> Form | None:
    """Return what a JSON holds as a type, or None where it is missing, damaged, or something else."""
    try:
        return convert(read_content(path, json.loads), form, str_keys=True)
    except ValidationError:
        return None


def read_content(path: Path, parse: Callable[[str], Any]) -> Any:
    """Return what a file holds, without characters that steer a terminal; None where it is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        if path.stat().st_size <= LARGEST:
            return sanitize(parse(read_bytes(path).decode()))
    return None


def parse_yaml(text: str) -> Any:
    """Return what a YAML holds, read in C where that is installed.

    Raises:
        ValueError: it has anchors, with which a short text stands for any number of values, or is nested too deep.
        YAMLError: it is not a YAML.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if "&" in text or len(text) > LONG:
        depth = 0
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEEPEST or getattr(event, "anchor", None):
                raise ValueError("a YAML with anchors, or nested too deep")
    return yaml.load(text, loader)


def sanitize(content: Any, depth: int = 0) -> Any:
    """Return content as JSON has it, without characters that steer a terminal.

    Raises:
        ValueError: it is nested too deep.
    """
    if depth > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    if isinstance(content, dict):
        return {printable(str(key)): sanitize(value, depth + 1) for key, value in content.items()}
    if isinstance(content, list):
        return [sanitize(item, depth + 1) for item in content]
    if isinstance(content, bool | int | float | None):
        return content
    return printable(str(content))


def write_atomically(path: Path, write: Callable[[IO[bytes]], object], keep: Path | None = None) -> None:
    """Write a file through a temporary one beside it: a crash at any moment leaves the old content or the new.

    Args:
        keep: where the old content goes. A crash at that very moment leaves it there, and nothing at `path`.

    Raises:
        OSError: the disk is full or not writable; it names `path`, and nothing of the attempt stays behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with blame_for_writing(path):
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
            with suppress(OSError):  # which would hide the first one: where nothing can be written, nothing is left
                temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


@contextmanager
def blame_for_writing(path: Path) -> Iterator[None]:
    """Let an error of the system name the file that is written: it names a temporary one, or on a full disk none."""
    try:
        yield
    except OSError as error:
        if error.filename is None or Path(str(error.filename)).parent == path.parent:
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def write_folder_aside(folder: Path) -> Iterator[Path]:
    """Give a new folder beside one, whose place it takes once all that is written inside is on the disk.

    Args:
        folder: which is not there, or is empty.

    Raises:
        OSError: the disk is full or not writable; nothing of the attempt stays behind, folders above included.
    """
    target = Path(os.path.realpath(folder))
    missing = [parent for parent in target.parents if not parent.exists()]
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        aside.mkdir(parents=True)
        yield aside
        for path in (*aside.rglob("*"), aside):
            sync_directory(path)  # a file likewise
        os.replace(aside, target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        for parent in missing:
            with suppress(OSError):  # not there, or somebody has written into it meanwhile
                parent.rmdir()
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file's whole content, atomically."""
    write_atomically(path, lambda file: file.write(content))


def write_json(path: Path, content: Any) -> None:
    """Write JSON for people and programs, atomically."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_bytes(path, f"{text}\n".encode())


def find_unused(path: Path) -> Path:
    """Return the first of PATH1, PATH2, ... that is not there."""
    number = 1
    while path.with_name(f"{path.name}{number}").exists():
        number += 1
    return path.with_name(f"{path.name}{number}")


def keep_damaged(path: Path, name: str = "") -> str:
    """Keep a damaged file beside the one that replaces it; return a sentence that says so.

    Args:
        name: to keep it under, by default its own.
    """
    kept = find_unused(path.with_name(f"{name or path.name}.damaged"))
    write_bytes(kept, read_bytes(path))
    return f"{path.name} is damaged: what can be read of it stays, and the file as it was is {kept}"


def sync_directory(directory: Path) -> None:
    """Make renames in this directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
