"""What a run has logged: metrics.jsonl as a curve for each tag, up to a line that is torn."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    alike: dict[tuple[str, ...], list[np.ndarray]] = defaultdict(list)  # the values of lines that have the same tags
    torn = damage = ""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            int(entry["step"])
            values = np.array([*entry.values()], dtype=float)
        except (ValueError, TypeError, KeyError, OverflowError):
            if number == len(lines):
                torn = f"the last line of metrics.jsonl, {number}, is torn"
            else:
                damage = f"metrics.jsonl is damaged at line {number} of {len(lines)}"
            break
        alike[tuple(entry)].append(values)
    return Recorded(curves_of(alike), torn, damage)


def curves_of(alike: Mapping[tuple[str, ...], Sequence[np.ndarray]]) -> dict[str, Curve]:
    """Return a curve for each tag; alike: the values of lines, by their tags."""
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for tags, rows in alike.items():
        values = dict(zip(tags, np.stack(rows, axis=1), strict=True))
        steps = values.pop("step")
        for tag, own in values.items():
            parts[tag].append(np.stack([steps, own]))
    curves = {}
    for tag, found in parts.items():
        steps, own = np.concatenate(found, axis=1)
        order = np.argsort(steps, kind="stable")
        curves[tag] = Curve(steps[order].astype(np.int64), own[order])
    return curves
