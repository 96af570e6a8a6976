"""The tables of studies: numbers of arms with their intervals, differences and p, and rows as they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from normbench.evidence.labels import label_of
from normbench.results.rows import ResultCell, ResultTable, StudyResult
from normbench.show.tables import Table
from normbench.wording import NONE, compact, compact_span, p_value, whole

# Heads of columns.
MEAN = "mean"
INTERVAL = "95 % interval"
ITS_INTERVAL = "its 95 % interval"  # of the difference
P = "p"
FACTOR = "detectable factor"

LARGEST = 1e3  # detectable factor that is written
DETECTABLE = (
    "A ratio that is smaller or larger by the detectable factor is found by so many seeds four times in five, after "
    "this correction."
)
TOO_FEW = f"A factor above {whole(LARGEST)} is not written: more seeds make it smaller."


def show_value(value: Any) -> str:
    """Write a coordinate."""
    return compact(value) if isinstance(value, float) else str(value)


def rows_table(key: str, title: str, rows: Sequence[Mapping[str, Any]], heads: int = 1, *notes: str) -> Table:
    """Return rows as a table, numbers with three digits. heads: how many of the first columns are words."""
    cells = []
    for row in rows:
        cells.append({name: show_value(value) for name, value in row.items()})
    return Table(key, title, pd.DataFrame(cells), notes, heads)


def write_table(table: ResultTable) -> Table:
    """Write a table of results, without the columns in which nothing is known."""
    lines = table.lines
    columns = {"arm": [label_of(line.arm) for line in lines]}
    for place, name in enumerate(table.by):
        head = table.columns[name].words if name in table.columns else name
        columns[head] = [show_value(line.place[place]) for line in lines]
    metrics = list(lines[0].cells) if lines else []
    if metrics:
        first = metrics[0]
        counts = [str(len(line.cells[first].number.values)) for line in lines]
        if len(set(counts)) > 1:
            columns["seeds"] = counts
    for metric in metrics:
        cells = [line.cells[metric] for line in lines]
        columns.update(write_columns(table.columns[metric].label, cells, are_several=len(metrics) > 1))
    notes = (*table.notes, *notes_on(table))
    return Table(table.key, table.title, pd.DataFrame(columns), notes, heads=1 + len(table.by))


def write_columns(label: str, cells: Sequence[ResultCell], are_several: bool) -> dict[str, list[str]]:
    """Write the columns of one number, without those in which nothing is known.

    Args:
        label: the number, in words.
        cells: one for each line of the table.
        are_several: whether the table has other numbers too, so that each column says of which it is.
    """
    written = pd.DataFrame([write_cell(cell) for cell in cells])
    columns = {}
    for head in written:
        texts = written[head].tolist()
        if head == FACTOR:
            is_known = any(cell.difference is not None and cell.difference.sd for cell in cells)
        else:
            is_known = any(text != NONE for text in texts)
        if not is_known:
            continue
        if head == MEAN:
            columns[label] = texts
        elif are_several:
            columns[f"{label}: {head}"] = texts
        else:
            columns[str(head)] = texts
    return columns


def write_cell(cell: ResultCell) -> dict[str, str]:
    """Write a mean, its interval, the difference from the baseline with its interval, and p, by their heads."""
    ratio = cell.number.ratio
    mean, interval = cell.number.summary
    difference_head = "ratio" if ratio else "difference"
    written = {
        MEAN: compact(mean),
        INTERVAL: compact_span(interval),
        difference_head: NONE,
        ITS_INTERVAL: NONE,
        P: NONE,
    }
    if ratio:
        written[FACTOR] = NONE
    difference = cell.difference
    if difference is None:
        return written
    mean, interval = difference.summary
    written[difference_head] = compact(mean, sign=not ratio)
    written[ITS_INTERVAL] = compact_span(interval, sign=not ratio)
    written[P] = p_value(difference.corrected)
    if ratio and difference.detectable_factor is not None and not is_factor_large(difference):
        written[FACTOR] = compact(difference.detectable_factor)
    return written


def is_factor_large(result: StudyResult) -> bool:
    """Tell whether the detectable factor is beyond all measure."""
    factor = result.detectable_factor
    return factor is not None and factor > LARGEST


def notes_on(table: ResultTable) -> list[str]:
    """Say how the differences in a table were taken, and for how many tests p is corrected; nothing without them."""
    differences = table.differences
    if not differences:
        return []
    against = ", ".join(f"{name}={word}" for name, word in table.baseline.items())
    means = "Geometric means" if table.ratio else "Means"
    what = "ratios to" if table.ratio else "differences from"
    notes = [
        f"{means} over {table.seeds} seeds with Student's 95 % interval; {what} the arm with {against} are paired "
        "by seed."
    ]
    are_corrected = any(result.corrected is not None for result in differences)
    have_factors = any(result.detectable_factor is not None for result in differences)
    if are_corrected:
        family = differences[0].family
        if family == 1:
            tests = "the one test of this study"
        else:
            tests = f"the {family} tests of this study, its finding included"
        notes.append(f"p values, but not intervals, are corrected by Holm's method for {tests}.")
    if table.ratio and have_factors:
        notes.append(DETECTABLE)
        if any(is_factor_large(result) for result in differences):
            notes.append(TOO_FEW)
    return notes
