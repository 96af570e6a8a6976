"""The folder of a sweep in the temporary folder: multiprocessing's own, which the next sweep clears after a kill."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from multiprocessing import parent_process
from multiprocessing.util import get_temp_dir
from pathlib import Path

MARK = "normbench.lock"  # says that a folder is a sweep's, which locks it as long as it lives


@cache
def scratch() -> tuple[Path, int | None]:
    """Return the folder of this process, which goes when it ends, and its lock; those of killed sweeps are removed.

    A process that multiprocessing has started shares the folder of the one that started it, which outlives it: it
    locks nothing.
    """
    for mark in Path(tempfile.gettempdir()).glob(f"pymp-*/{MARK}"):
        with suppress(OSError):  # it is somebody else's, or its sweep is at work
            clear(mark)
    folder = Path(get_temp_dir())
    if parent_process() is not None:
        return folder, None
    lock = os.open(folder / f"{MARK}.new", os.O_WRONLY | os.O_CREAT)  # open as long as this process lives
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.replace(folder / f"{MARK}.new", folder / MARK)  # where it can be seen, it is locked
    return folder, lock


def clear(mark: Path) -> None:
    """Remove the folder of a sweep that is gone.

    Raises:
        OSError: it is not, or the folder may not be removed.
    """
    with mark.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(mark.parent)
