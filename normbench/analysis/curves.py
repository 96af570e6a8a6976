"""What a run has logged: metrics.jsonl as a curve for each tag, up to a line that is torn."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from normbench.rundir import read_bytes


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
        lines = [line for line in read_bytes(path).split(b"\n") if line.strip()]
    except OSError as error:
        return Recorded({}, damage=f"metrics.jsonl cannot be read ({error.strerror})")
    try:
        return Recorded(curves_of(lines))
    except UNREADABLE:
        good = next(place for place, line in enumerate(lines) if not readable(line))
    if good == len(lines) - 1:
        return Recorded(curves_of(lines[:good]), torn=f"the last line of metrics.jsonl, {len(lines)}, is torn")
    damage = f"metrics.jsonl is damaged at line {good + 1} of {len(lines)}"
    return Recorded(curves_of(lines[:good]), damage=damage)


UNREADABLE = (ValueError, TypeError, KeyError, OverflowError, AttributeError, RecursionError)


def readable(line: bytes) -> bool:
    """Say whether a line is a mapping from tags to numbers, with a step."""
    try:
        curves_of([line])
    except UNREADABLE:
        return False
    return True


def curves_of(lines: Sequence[bytes]) -> dict[str, Curve]:
    """Return a curve for each tag; all lines are parsed at once, which takes a third of the time.

    Raises:
        UNREADABLE: a line cannot be read.
    """
    steps, values = defaultdict(list), defaultdict(list)
    for entry in json.loads(b"[%s]" % b",".join(lines)):
        step = int(entry.pop("step"))
        for tag, value in entry.items():
            steps[tag].append(step)
            values[tag].append(value)
    return {tag: Curve(np.array(steps[tag]), np.array(own, dtype=float)) for tag, own in values.items()}
