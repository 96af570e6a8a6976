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

    The step of a line that cannot be read is UNREADABLE, larger than all others; empty lines are left out.

    Raises:
        OSError: the file cannot be read.
    """
    lines = [line for line in read_bytes(path).splitlines() if line.strip()]
    objects = parse(b"[%s]" % b",".join(lines)) or []  # all at once take a third of the time that one by one take
    if len(objects) != len(lines):
        objects = [parse(line) for line in lines]
    found: list[tuple[bytes, float, dict[str, float]]] = []
    for line, numbers in zip(lines, objects, strict=True):
        step, values = understand(numbers)
        found.append((line, step, values))
    return found


def parse(text: bytes) -> Any:
    """Return what JSON says, or None where it is damaged."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)


def understand(numbers: Any) -> tuple[float, dict[str, float]]:
    """Return the step of a logged object and its numbers by tag; UNREADABLE and none where it is something else."""
    try:
        step = int(numbers.pop("step"))
        if set(map(type, numbers.values())) <= {float}:
            return step, numbers
        return step, {tag: math.nan if value is None else float(value) for tag, value in numbers.items()}
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
        return UNREADABLE, {}


def truncate_metrics(path: Path, last_step: int) -> str:
    """Drop what was logged after `last_step` (atomically), and a last line that a kill has left half written.

    Other lines that cannot be read are dropped too: then the file is kept beside it, and the sentence returned says so.
    """
    if not path.exists():
        return ""
    lines = logged_lines(path)
    if not lines:
        return ""
    damaged = ""
    if any(step == UNREADABLE for _, step, _ in lines[:-1]):
        damaged = keep_damaged(path)
    kept = [line + b"\n" for line, step, _ in lines if step <= last_step]
    write_atomically(path, lambda file: file.writelines(kept))
    return damaged
