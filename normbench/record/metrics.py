"""`metrics.jsonl`: its lines read again, and cut where a run goes on."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from normbench.record.files import keep_damaged, read_bytes, write_atomically

UNREADABLE = math.inf


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


def truncate_metrics(path: Path, last_step: int) -> str:
    """Drop what was logged after `last_step` (atomically), and a last line torn by a kill.

    Other lines that cannot be read are dropped too: then the file stays beside it, and what is returned says so.
    """
    lines = logged_lines(path) if path.exists() else []
    said = keep_damaged(path) if any(step == UNREADABLE for _, step, _ in lines[:-1]) else ""
    if lines:
        kept = [line + b"\n" for line, step, _ in lines if step <= last_step]
        write_atomically(path, lambda file: file.writelines(kept))
    return said
