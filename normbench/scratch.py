"""Folders in the temporary folder, locked as long as their process lives; what a killed one left, the next removes."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import parent_process
from multiprocessing.util import get_temp_dir
from pathlib import Path

MARK = "normbench.lock"  # says that a folder is ours; its process locks it as long as it lives
DRY = "normbench-"  # how the folder of a dry run begins; multiprocessing's begin with pymp-


@cache
def scratch() -> tuple[Path, int | None]:
    """Return multiprocessing's folder of this process, which goes when it ends, and its lock.

    A process that multiprocessing has started shares the folder of the one that started it, which outlives it: it
    locks nothing.
    """
    clear_all()
    folder = Path(get_temp_dir())
    return folder, mark(folder) if parent_process() is None else None


@contextmanager
def make_dry_folder() -> Iterator[Path]:
    """Give a folder for what a dry run writes, which is removed after it."""
    clear_all()
    with tempfile.TemporaryDirectory(prefix=DRY) as folder:
        lock = mark(Path(folder))
        try:
            yield Path(folder)
        finally:
            os.close(lock)


def mark(folder: Path) -> int:
    """Mark a folder as ours and return its lock, which holds as long as it is open."""
    new = folder / f"{MARK}.new"
    lock = os.open(new, os.O_WRONLY | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.replace(new, folder / MARK)  # where it can be seen, it is locked
    return lock


def clear_all() -> None:
    """Remove the folders of processes that were killed."""
    for begun in ("pymp-", DRY):
        for left in Path(tempfile.gettempdir()).glob(f"{begun}*/{MARK}"):
            with suppress(OSError):  # it is somebody else's, or its process is at work
                clear(left)


def clear(left: Path) -> None:
    """Remove the folder of a process that is gone, if this user has marked it.

    Args:
        left: its mark, or what somebody else has put there: a pipe, which nobody may wait for, or a link.

    Raises:
        OSError: the process is not gone, or the folder may not be removed.
    """
    lock = os.open(left, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        found = os.fstat(lock)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent)
    finally:
        os.close(lock)
