"""What a run has logged: metrics.jsonl as a curve for each tag, up to a line that is torn."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


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
    lines = [line for line in lines if line.strip()]
    try:  # all lines at once, in a third of the time
        return Recorded(curves_of(json.loads(b"[%s]" % b",".join(lines))))
    except UNREADABLE:
        return read_damaged(lines)


UNREADABLE = (ValueError, TypeError, KeyError, OverflowError, AttributeError)


def read_damaged(lines: Sequence[bytes]) -> Recorded:
    """Return what lines hold up to the first one that cannot be read."""
    entries: list[dict[str, Any]] = []
    torn = damage = ""
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            curves_of([entry])
        except UNREADABLE:
            if number == len(lines):
                torn = f"the last line of metrics.jsonl, {number}, is torn"
            else:
                damage = f"metrics.jsonl is damaged at line {number} of {len(lines)}"
            break
        entries.append(entry)
    return Recorded(curves_of(entries), torn, damage)


def curves_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Return a curve for each tag of what was logged, a mapping from tags to numbers for each logged step."""
    alike: dict[tuple[str, ...], list[list[Any]]] = defaultdict(list)  # the values of entries that have the same tags
    for entry in entries:
        alike[tuple(entry)].append(list(entry.values()))
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for tags, rows in alike.items():
        values = dict(zip(tags, np.array(rows, dtype=float).T, strict=True))
        steps = values.pop("step")
        if not np.isfinite(steps).all():
            raise ValueError("a step is no number")
        for tag, own in values.items():
            parts[tag].append(np.stack([steps, own]))
    curves = {}
    for tag, found in parts.items():
        steps, own = np.concatenate(found, axis=1)
        order = np.argsort(steps, kind="stable")
        curves[tag] = Curve(steps[order].astype(np.int64), own[order])
    return curves
