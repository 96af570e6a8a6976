"""`metrics.jsonl`: one JSON object a logged step, which is what analysis reads."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from normbench.recording.appended import AppendedFile
from normbench.recording.sink import Sink
from normbench.rundir import write_atomically


class JsonLinesSink(Sink):
    """Appends `{"step": 10, "loss/train": 2.31, ...}` for each call of `scalars`.

    JSON has no NaN and no infinity: a number that is not finite is written as null.
    """

    def __init__(self, path: Path) -> None:
        self._file = AppendedFile(path)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        finite = {tag: value if math.isfinite(value) else None for tag, value in values.items()}
        self._file.write(json.dumps({"step": step, **finite}, allow_nan=False).encode() + b"\n")

    def flush(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def truncate_metrics(path: Path, last_step: int) -> None:
    """Drop what was logged after `last_step` (atomically), and a last line torn by a kill.

    Raises:
        OSError: the disk is full; the file is as before.
    """
    if not path.exists():
        return

    def write(file: IO[bytes]) -> None:
        file.writelines(_lines_until(path, last_step))

    write_atomically(path, write)


def _lines_until(path: Path, last_step: int) -> Iterator[bytes]:
    with open(path, "rb") as lines:
        for line in lines:
            if not line.endswith(b"\n") or _step(line) > last_step:
                return
            yield line


def _step(line: bytes) -> float:
    """The line's step; infinite where it cannot be read."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
