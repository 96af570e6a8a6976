"""What a run has logged: metrics.jsonl as a curve for each tag, up to a line that is torn."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# What reading a line raises that is torn, or that holds something else than numbers.
UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Curve:
    """What a run has logged under one tag.

    steps: (n,) integers, increasing. values: (n,) float64; NaN where the number was not finite.
    """

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Recorded:
    """A metrics.jsonl.

    curves: by tag, up to the first line that cannot be read. torn: said where that is the last one, as a kill leaves
    it. damage: said where more lines follow it, or the file itself cannot be read.
    """

    curves: Mapping[str, Curve]
    torn: str = ""
    damage: str = ""


def read_recorded(path: Path) -> Recorded:
    """Return what a metrics.jsonl holds; empty lines are nothing."""
    try:
        lines = path.read_bytes().rstrip().split(b"\n")
    except OSError as error:
        return Recorded({}, damage=f"metrics.jsonl cannot be read ({error.strerror})")
    try:
        return Recorded(curves_of(lines))
    except UNREADABLE:
        broken = next(number for number, line in enumerate(lines) if not readable(line))
    curves = curves_of(lines[:broken])
    if broken + 1 == len(lines):
        return Recorded(curves, torn=f"the last line of metrics.jsonl, {broken + 1}, is torn")
    return Recorded(curves, damage=f"metrics.jsonl is damaged at line {broken + 1} of {len(lines)}")


def readable(line: bytes) -> bool:
    """Return whether a line holds a step and numbers."""
    try:
        curves_of([line])
    except UNREADABLE:
        return False
    return True


def curves_of(lines: Sequence[bytes]) -> dict[str, Curve]:
    """Return a curve for each tag; the lines are read as one list, which is faster than each by itself.

    Raises:
        ValueError, TypeError, AttributeError, OverflowError: a line is torn, or holds something else.
    """
    filled = [line for line in lines if line.strip()]
    entries = json.loads(b"[%b]" % b",".join(filled))
    if len(entries) != len(filled):
        raise ValueError("a line holds no object, or several")
    alike: dict[tuple[str, ...], list[list[float | None]]] = defaultdict(list)
    for entry in entries:
        alike[tuple(entry)].append([*entry.values()])
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for tags, rows in alike.items():
        table = np.array(rows, dtype=float).T
        steps = table[tags.index("step")]
        if not np.isfinite(steps).all():
            raise ValueError("a step is no number")
        for tag, values in zip(tags, table, strict=True):
            parts[tag].append(np.stack([steps, values]))
    parts.pop("step", None)
    curves = {}
    for tag, found in parts.items():
        steps, values = np.concatenate(found, axis=1)
        order = np.argsort(steps, kind="stable")
        curves[tag] = Curve(steps[order].astype(np.int64), values[order])
    return curves
