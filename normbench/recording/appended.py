"""A file that only grows."""

from __future__ import annotations

import os
from pathlib import Path

from normbench.rundir import sync_directory


class AppendedFile:
    """Appends whole records to a file; each is with the operating system when `write` returns.

    So nothing is lost when the process is killed, a reader sees a record at once, and no background thread can swallow
    an error. What a full disk did not take stays buffered and goes out first when there is room again: the file is
    never damaged in its middle.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab")  # noqa: SIM115 (closed by close)
        sync_directory(path.parent)

    def write(self, record: bytes) -> None:
        """Append.

        Raises:
            OSError: the disk is full (ENOSPC).
        """
        self._file.write(record)
        self._file.flush()

    def sync(self) -> None:
        """Return when everything is on disk; raises OSError (ENOSPC) when it is full."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Put everything on disk and close the file; it is closed also when that fails with an OSError."""
        if self._file.closed:
            return
        try:
            self.sync()
        finally:
            self._file.close()
