"""How studies write what they have found: numbers, sentences, and tables."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from normbench.evidence.labels import label_of
from normbench.results.rows import ResultCell, ResultTable, Stated, StudyResult, Value, correct_tests, corrected_like
from normbench.results.rules import Verdict
from normbench.results.statistics import Interval, exp2, mean_interval
from normbench.show.tables import Table
from normbench.wording import NONE, p_value

# Heads of columns.
MEAN = "mean"
INTERVAL = "95 % interval"
ITS_INTERVAL = "its 95 % interval"  # of the difference
P = "p"
FACTOR = "detectable factor"

MOST = 6  # sentences of a finding; the tables have the rest
LARGEST = 1e3  # detectable factor that is written
DETECTABLE = (
    "A ratio that is smaller or larger by the detectable factor is found by so many seeds four times in five, after "
    "this correction."
)
TOO_FEW = f"A factor above {LARGEST:,.0f} is not written: more seeds make it smaller."


def write(tables: Sequence[Table | ResultTable], told: Sequence[Stated]) -> tuple[list[Table], list[str]]:
    """Write what a study states in tables and sentences, with p corrected over all of it."""
    tests = correct_tests(tables, told)
    written = []
    for table in tables:
        written.append(write_table(table, tests) if isinstance(table, ResultTable) else table)
    sentences = [tell(one, tests) for one in told]
    return written, sentences


# ---- numbers


def number(value: float, sign: bool = False) -> str:
    """Write a number with three significant digits."""
    if not np.isfinite(value):
        return NONE
    written = f"{value:+.3g}" if sign else f"{value:.3g}"
    return written.replace("-", "−")


def span(ends: Interval | None, sign: bool = False) -> str:
    """Write an interval; a dash where there is none."""
    if ends is None or not np.isfinite(ends).all():
        return NONE
    return f"{number(ends.lower, sign)} to {number(ends.upper, sign)}"


def in_unit(mean: float, ends: Interval | None, ratio: bool) -> tuple[float, Interval | None]:
    """Return a mean and its interval; with `ratio` these are logarithms to base 2, and ratios are returned."""
    if not ratio:
        return mean, ends
    ratios = None if ends is None else ends.as_ratios
    return exp2(mean), ratios


def show_value(value: Any) -> str:
    """Write a coordinate."""
    return number(value) if isinstance(value, float) else str(value)


# ---- sentences


def tell(one: Stated, tests: Mapping[Hashable, StudyResult]) -> str:
    """Write a sentence. tests: all of the study, corrected."""
    if isinstance(one, StudyResult):
        return tell_difference(corrected_like(one, tests))
    if isinstance(one, Value):
        return tell_value(one)
    return one


def tell_difference(one: StudyResult) -> str:
    """Say how large a difference is and whether it can be told from none: whether its corrected p is below 0.05."""
    mean, ends = in_unit(one.mean, one.interval, one.ratio)
    size = f"{number(mean, sign=True)} {one.unit}".rstrip()
    if one.ratio:
        size = f"{number(mean)} times"
    if ends is not None:
        size += f" (95 % {span(ends, sign=not one.ratio)}, {one.n} seeds)"
    return f"{one.what}: {size}: {tell_verdict(one)}."


def tell_verdict(one: StudyResult) -> str:
    """Say what is known of a difference."""
    if one.verdict == Verdict.SAME:
        return "no difference in any seed"
    if one.p is None or one.corrected is None or one.interval is None:
        return why_unknown(one.n)
    holm = " after Holm" if one.family > 1 else ""
    if one.verdict == Verdict.DIFFERENT:
        return f"a difference, {write_p(one.corrected)}{holm}"
    if one.verdict == Verdict.POSSIBLE:
        found = f"not certain, {write_p(one.p)} by itself and {p_value(one.corrected)} after Holm"
        return f"{found}; repeat it with new seeds"
    return f"no difference can be told, {write_p(one.corrected)}{holm}; more seeds would narrow the interval"


def write_p(p: float) -> str:
    """Write `p = 0.012`, or `p < 0.001`."""
    return f"p = {p_value(p)}".replace("= <", "<")


def tell_value(one: Value) -> str:
    """Say how large a number is, and with which of its references that is consistent."""
    mean, interval = mean_interval(list(one.values.values()))
    mean, ends = in_unit(mean, interval, one.ratio)
    size = f"{one.what} {number(mean)} {one.unit}".rstrip()
    seeds = len(one.values)
    if ends is None:
        return f"{size}: {why_unknown(seeds)}."
    size += f" (95 % {span(ends)}, {seeds} seeds)"
    if not one.references:
        return f"{size}."
    return f"{size}: {consistent_with(ends, one.references)}."


def consistent_with(ends: Interval, references: Mapping[str, float]) -> str:
    """Say with which of some references an interval is consistent: those that lie in it."""
    within, without = [], []
    for name, value in references.items():
        if ends.lower <= value <= ends.upper:
            within.append(name)
        else:
            without.append(name)
    if not within:
        return "not consistent with " + " or ".join(without)
    told = "consistent with " + ", and with ".join(within)
    if len(within) > 1:
        return f"{told}; more seeds would tell them apart"
    if without:
        return f"{told}, and not with {' or '.join(without)}"
    return told


def why_unknown(seeds: int) -> str:
    """Say why a mean over so many seeds has no interval."""
    if seeds == 1:
        return "one seed, which says nothing about how seeds differ; give several, such as seed=0,1,2"
    return "the same in all seeds, whose spread is therefore not known"


def first_sentences(sentences: Sequence[str]) -> list[str]:
    """Return the first sentences of a finding, and how many more its tables stand for."""
    more = len(sentences) - MOST
    first = list(sentences[:MOST])
    if more > 0:
        first.append(f"{more} more of this kind are in the tables.")
    return first


# ---- tables


def rows_table(key: str, title: str, rows: Sequence[Mapping[str, Any]], heads: int = 1, *notes: str) -> Table:
    """Return rows as a table, numbers with three digits. heads: how many of the first columns are words."""
    cells = []
    for row in rows:
        written = {name: show_value(value) for name, value in row.items()}
        cells.append(written)
    return Table(key, title, pd.DataFrame(cells), notes, heads)


def write_table(findings: ResultTable, tests: Mapping[Hashable, StudyResult]) -> Table:
    """Write a table of findings, without the columns in which nothing is known. tests: all of the study, corrected."""
    lines = findings.lines
    columns = {"arm": [label_of(line.arm) for line in lines]}
    for place, name in enumerate(findings.by):
        head = findings.columns[name].words if name in findings.columns else name
        columns[head] = [show_value(line.place[place]) for line in lines]
    metrics = list(lines[0].cells) if lines else []
    if metrics:
        first = metrics[0]
        counts = []
        for line in lines:
            seeds = line.cells[first].finding.values
            counts.append(str(len(seeds)))
        if len(set(counts)) > 1:
            columns["seeds"] = counts
    differences = list[StudyResult]()
    for metric in metrics:
        cells = []
        for line in lines:
            cell = correct_cell(line.cells[metric], tests)
            cells.append(cell)
            if cell.difference is not None:
                differences.append(cell.difference)
        columns.update(write_columns(findings.columns[metric].label, cells, are_several=len(metrics) > 1))
    notes = list(findings.notes)
    if differences:
        notes += notes_on(findings, differences)
    return Table(findings.key, findings.title, pd.DataFrame(columns), tuple(notes), heads=1 + len(findings.by))


def correct_cell(cell: ResultCell, tests: Mapping[Hashable, StudyResult]) -> ResultCell:
    """Return a cell whose difference has p as it is corrected in the tests of its study."""
    if cell.difference is None:
        return cell
    return replace(cell, difference=corrected_like(cell.difference, tests))


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
    ratio = cell.finding.ratio
    mean, ends = in_unit(*cell.finding.summary, ratio)
    difference = "ratio" if ratio else "difference"
    written = {MEAN: number(mean), INTERVAL: span(ends), difference: NONE, ITS_INTERVAL: NONE, P: NONE}
    if ratio:
        written[FACTOR] = NONE
    one = cell.difference
    if one is None:
        return written
    mean, ends = in_unit(one.mean, one.interval, ratio)
    written[difference] = number(mean, sign=not ratio)
    written[ITS_INTERVAL] = span(ends, sign=not ratio)
    written[P] = p_value(one.corrected)
    if ratio and one.detectable_factor is not None and not is_factor_large(one):
        written[FACTOR] = number(one.detectable_factor)
    return written


def is_factor_large(one: StudyResult) -> bool:
    """Tell whether the detectable factor is beyond all measure."""
    factor = one.detectable_factor
    return factor is not None and factor > LARGEST


def notes_on(findings: ResultTable, differences: Sequence[StudyResult]) -> list[str]:
    """Say how the differences in a table were taken, and for how many tests p is corrected."""
    against = ", ".join(f"{name}={word}" for name, word in findings.baseline.items())
    means = "Geometric means" if findings.ratio else "Means"
    what = "ratios to" if findings.ratio else "differences from"
    notes = [
        f"{means} over {findings.seeds} seeds with Student's 95 % interval; {what} the arm with {against} are paired "
        "by seed."
    ]
    are_corrected = any(one.corrected is not None for one in differences)
    have_factors = any(one.detectable_factor is not None for one in differences)
    if are_corrected:
        family = differences[0].family
        if family == 1:
            tests = "the one test of this study"
        else:
            tests = f"the {family} tests of this study, its finding included"
        notes.append(f"p values, but not intervals, are corrected by Holm's method for {tests}.")
    if findings.ratio and have_factors:
        notes.append(DETECTABLE)
        if any(is_factor_large(one) for one in differences):
            notes.append(TOO_FEW)
    return notes
