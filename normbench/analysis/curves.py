"""What a run has logged: metrics.jsonl as a curve for each tag, quickly, and up to a line that is torn."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json


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


# The steps of one kind of line, and the values of each of its tags.
Table = tuple[np.ndarray, dict[str, np.ndarray]]


def read_recorded(path: Path) -> Recorded:
    """What a metrics.jsonl holds; empty lines are nothing."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        return Recorded({}, damage=f"metrics.jsonl cannot be read ({error.strerror})")
    while lines and not lines[-1].strip():
        lines.pop()
    filled = [line for line in lines if line and not line.isspace()]
    try:
        return Recorded(joined([table for alike in of_one_length(filled) for table in read_tables(alike)]))
    except (ValueError, TypeError, KeyError, OverflowError, pa.ArrowException):
        return read_line_by_line(lines)


def of_one_length(lines: Sequence[bytes]) -> Iterable[list[bytes]]:
    """The lines with the same number of tags, which nearly always are the same tags."""
    counts = np.array([line.count(b'"') for line in lines])
    for count in np.unique(counts):
        yield list(compress(lines, (counts == count).tolist()))


def read_tables(lines: Sequence[bytes]) -> Sequence[Table]:
    """Lines with as many tags.

    Raises:
        ValueError, TypeError, KeyError, OverflowError, ArrowException: a line is torn, or holds something else.
    """
    content = b"\n".join(lines)
    options = arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1)
    table = arrow_json.read_json(pa.BufferReader(content), options)
    if any(column.null_count for column in table.columns):  # not finite, or a tag that some of the lines do not have
        return tables_of(lines)
    if len(table) != len(lines):
        raise ValueError("several objects in a line")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    steps = columns.pop("step").astype(np.int64, casting="same_kind")
    return [(steps, {tag: values.astype(float, casting="safe") for tag, values in columns.items()})]


def tables_of(lines: Sequence[bytes]) -> Sequence[Table]:
    """The same, with Python's json: a table for the lines of each kind.

    Raises:
        ValueError, TypeError, KeyError, OverflowError: as there.
    """
    kinds: dict[tuple[str, ...], list[dict[str, float | None]]] = defaultdict(list)
    for line in lines:
        entry = json.loads(line)
        kinds[tuple(entry)].append(entry)
    return [
        (
            np.array([int(entry["step"] or 0) for entry in entries]),
            {tag: np.array([entry[tag] for entry in entries], dtype=float) for tag in tags if tag != "step"},
        )
        for tags, entries in kinds.items()
    ]


def joined(tables: Sequence[Table]) -> dict[str, Curve]:
    """The tables as a curve for each tag, by step; tags of the same lines share their steps."""
    having: dict[str, list[int]] = defaultdict(list)
    for number, (_, columns) in enumerate(tables):
        for tag in columns:
            having[tag].append(number)
    orders: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
    curves = {}
    for tag, numbers in having.items():
        if (key := tuple(numbers)) not in orders:
            steps = np.concatenate([tables[number][0] for number in numbers])
            order = np.argsort(steps, kind="stable")
            orders[key] = order, steps[order]
        order, steps = orders[key]
        curves[tag] = Curve(steps, np.concatenate([tables[number][1][tag] for number in numbers])[order])
    return curves


def read_line_by_line(lines: Sequence[bytes]) -> Recorded:
    """What the lines hold up to the first one that cannot be read, and what is wrong with that one."""
    found: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    torn = damage = ""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            step = int(entry.pop("step"))
            values = {tag: float("nan") if value is None else float(value) for tag, value in entry.items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            if number == len(lines):
                torn = f"the last line of metrics.jsonl, {number}, is torn"
            else:
                damage = f"metrics.jsonl is damaged at line {number} of {len(lines)}"
            break
        for tag, value in values.items():
            found[tag][0].append(step)
            found[tag][1].append(value)
    curves = {tag: Curve(np.array(steps), np.array(values)) for tag, (steps, values) in found.items()}
    return Recorded(curves, torn, damage)
