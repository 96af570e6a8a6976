"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

# What the system says when a disk, a quota or a limit on file sizes is used up.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error means that a disk, a quota or a limit on file sizes is used up."""
    return isinstance(error, OSError) and error.errno in DISK_FULL


def write_atomically(path: Path, write: Callable[[IO[bytes]], object], keep: Path | None = None) -> None:
    """Write a file through a temporary one beside it: a crash at any moment leaves the old content or the new.

    keep: where the old content goes. A crash at that very moment leaves it there, and nothing at `path`.

    Raises:
        OSError: the disk is full or not writable; nothing of the attempt stays behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
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


def remove_leftovers(directory: Path) -> None:
    """Delete what processes that were killed while they wrote have left in a directory that nobody else writes to."""
    for temporary in directory.glob(".*.tmp"):
        temporary.unlink(missing_ok=True)


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
