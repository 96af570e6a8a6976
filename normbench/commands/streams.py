"""Standard streams that outlive their reader, and write what the terminal has no letters for."""

from __future__ import annotations

import errno
import io
import os
from typing import Any


class Outlet(io.FileIO):
    """A standard stream; once its reader or terminal has gone, as in `normbench list | head`, it leads nowhere."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def steady(stream: Any, number: int) -> io.TextIOWrapper:
    """Return a standard stream that raises no error: not without its reader, nor for letters that it does not have."""
    if stream is None:  # closed, as by >&-
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    raw = Outlet(number, "wb", closefd=False)
    kept = {name: getattr(stream, name) for name in ("encoding", "line_buffering", "write_through") if stream}
    binary = raw if kept.get("write_through") else io.BufferedWriter(raw)  # as python -u asks
    return io.TextIOWrapper(binary, errors="replace", **kept)
