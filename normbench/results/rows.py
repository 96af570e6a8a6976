"""What the rows of a study show: numbers of arms by seed, their differences, and p corrected over all that is stated.

Rows are a table: the settings of the arm, the seed, and what was measured of it at some coordinates.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from normbench.errors import UsageError
from normbench.evidence.arms import Arm
from normbench.evidence.labels import label_of
from normbench.evidence.measures import Metric
from normbench.results.family import correct
from normbench.results.result import FEWEST_SEEDS, Paired
from normbench.results.rules import Verdict
from normbench.results.statistics import (
    Interval,
    detectable_difference,
    exp2,
    mean_interval,
    paired_difference,
)

BETTER = ("lower", "higher")  # numbers
SomeTable = TypeVar("SomeTable")  # that has no differences


@dataclass(frozen=True)
class Column:
    """What a measured number is.

    Attributes:
        words: as a table's head or an axis has it.
        scale: of an axis, linear or log.
        better: which numbers are better, lower or higher ones; empty where neither are.
    """

    words: str
    unit: str = ""
    scale: str = "linear"
    better: str = ""

    def __post_init__(self) -> None:
        """Refuse a word that says nothing of which numbers are better.

        Raises:
            UsageError: with the words that do.
        """
        if self.better not in ("", *BETTER):
            given = f"the column {self.words} says that {self.better} numbers are better"
            raise UsageError(f"{given}: write {' or '.join(BETTER)}, or nothing where neither are")

    @property
    def label(self) -> str:
        """Return the words with the unit."""
        return f"{self.words} ({self.unit})" if self.unit else self.words


# ---- the arms of rows


def keys_of(rows: pd.DataFrame) -> list[str]:
    """Return the settings of the arms: the columns in front of the seed."""
    return list(rows.columns[: rows.columns.get_loc("seed")])


def is_arm(rows: pd.DataFrame, settings: Mapping[str, Any]) -> pd.Series:
    """Tell of each row whether it has these settings."""
    is_of_arm = pd.Series(True, index=rows.index)
    for key, value in settings.items():
        is_missing = value is None or value != value
        is_of_arm &= rows[key].isna() if is_missing else rows[key] == value
    return is_of_arm


def at_largest(rows: pd.DataFrame, column: str, by: str) -> pd.DataFrame:
    """Return the rows whose value in a column is the largest among those of their kind. by: the column of the kinds."""
    largest = rows.groupby(by)[column].transform("max")
    return rows[rows[column] == largest]


def arms_of(rows: pd.DataFrame, leave_out: Sequence[str] = ()) -> list[Arm]:
    """Return the arms of rows, in their order, by the settings that vary; without the norm where a scheme tells it."""
    keys = [key for key in keys_of(rows) if key not in leave_out]
    varied = [key for key in keys if rows[key].nunique(dropna=False) > 1]
    if {"norm", "scheme"} <= {*varied}:
        norms_of_schemes = rows.groupby("scheme", dropna=False)["norm"].nunique()
        if (norms_of_schemes == 1).all():
            varied.remove("norm")
    if not varied:
        varied = keys[:1]
    arms = []
    for values in rows[varied].drop_duplicates().to_numpy().tolist():
        settings = dict(zip(varied, values, strict=True))
        arms.append(Arm(settings))
    return arms


def baseline_of(arm: Arm, baseline: Mapping[str, Any]) -> Arm | None:
    """Return the arm with the baseline's settings that is like this one in all else; None where it is this one."""
    if not {*baseline} <= {*arm.settings}:
        return None
    other = Arm({**arm.settings, **baseline})
    return None if other.settings == arm.settings else other


# ---- a number by seed


def in_unit(mean: float, interval: Interval | None, ratio: bool) -> tuple[float, Interval | None]:
    """Return a mean and its interval; with `ratio` these are logarithms to base 2, and ratios are returned."""
    if not ratio:
        return mean, interval
    return exp2(mean), None if interval is None else interval.as_ratios


@dataclass(frozen=True)
class SeedValues:
    """A number that was measured of one arm, at one place or as the mean over several.

    Attributes:
        values: by seed; with `ratio` they are logarithms to base 2, whose mean is that of the geometric mean.
        rows: which rows of its study it was taken from, by their index.
    """

    arm: Arm
    metric: str
    values: Mapping[int, float]
    rows: frozenset[Any]
    ratio: bool = False

    @cached_property
    def summary(self) -> tuple[float, Interval | None]:
        """Return the mean over seeds and Student's 95 % interval, in the unit of the number."""
        return in_unit(*mean_interval(list(self.values.values())), self.ratio)


def mean_by_seed(rows: pd.DataFrame, metric: str, arm: Arm, ratio: bool = False) -> SeedValues:
    """Return the mean of a number for each seed, over the rows of an arm that have it."""
    rows_of_arm = rows[is_arm(rows, arm.settings)]
    if ratio:
        positive = rows_of_arm[metric].where(rows_of_arm[metric] > 0)
        rows_of_arm = rows_of_arm.assign(**{metric: np.log2(positive)})
    rows_of_arm = rows_of_arm.dropna(subset=[metric])
    means = rows_of_arm.groupby("seed")[metric].mean()
    values = {int(seed): float(value) for seed, value in means.items()}
    return SeedValues(arm, metric, values, frozenset(rows_of_arm.index), ratio)


# ---- differences


@dataclass(frozen=True, kw_only=True)
class StudyResult(Paired):
    """A difference of two numbers, seed by seed; its verdict waits until all tests of the study are known.

    Attributes:
        what: the difference, in words.
        ratio: whether the values are logarithms to base 2, and are told as a ratio.
        kinds: the kinds of rows of the arm that are compared, the first less the second; None where two arms are.
        of: the metric and the rows that it compares, which tell it from other tests with the same numbers.
        spread: of the numbers of both, from the lowest to the highest.
    """

    what: str = ""
    ratio: bool = False
    kinds: tuple[str, str] | None = None
    of: Hashable = None
    spread: float = 0.0

    def judge(self) -> Verdict:
        """Return what can be said of it, once p is corrected: with seeds enough, how large it is at most."""
        by_values = super().judge()
        if by_values != Verdict.UNKNOWN or self.n < FEWEST_SEEDS:
            return by_values
        assert self.interval is not None  # as its p is known
        return Verdict.UNKNOWN if self.interval.reach > self.spread else Verdict.ALIKE

    @property
    def summary(self) -> tuple[float, Interval | None]:
        """Return the mean over seeds and Student's 95 % interval, in the unit of the difference, or as ratios."""
        return in_unit(self.mean, self.interval, self.ratio)

    @property
    def test(self) -> Hashable:
        """Return what tells this test from others; it is one test where a table and a sentence both state it."""
        return self.of or self.what, self.values, self.resolution, self.seeds

    @property
    def detectable_factor(self) -> float | None:
        """Return the ratio that so many seeds find four times in five, after correction; None without a spread."""
        if not self.sd:
            return None
        return exp2(detectable_difference(self.n, self.sd, family=self.family))


def difference_of(
    first: SeedValues,
    second: SeedValues,
    number: str = "",
    unit: str = "",
    better: str = "",
    kinds: tuple[str, str] | None = None,
) -> StudyResult:
    """Return a number less another, paired by seed.

    Args:
        first: the number of an arm.
        second: that of its baseline, or of other rows of the same arm.
        number: what it is, in words.
        unit: of the number.
        better: as `Column` has it.
        kinds: which rows of one arm are compared, in words.
    """
    sample = paired_difference(first.values, second.values)
    arm, baseline = label_of(first.arm), label_of(second.arm)
    of_both = [*first.values.values(), *second.values.values()]
    what = f"{number[:1].upper()}{number[1:]}"
    if kinds:
        what += f" {kinds[0]}, less that {kinds[1]}, {arm}"
    elif what:
        what += f", {arm} against {baseline}"
    return StudyResult(
        values=sample.values,
        resolution=sample.resolution,
        seeds=sample.seeds,
        spread=max(of_both) - min(of_both) if of_both else 0.0,
        arm=arm,
        baseline=baseline,
        metric=Metric(number or first.metric, unit=unit, judges=bool(better), lower_is_better=better != "higher"),
        tried=len(first.values.keys() | second.values.keys()),
        what=what,
        ratio=first.ratio,
        kinds=kinds,
        of=(first.metric, first.ratio, first.rows, second.rows),
    )


def compare_with_baseline(
    rows: pd.DataFrame,
    metric: str,
    baseline: Mapping[str, Any],
    number: str,
    unit: str = "",
    ratio: bool = False,
    better: str = "",
) -> list[StudyResult]:
    """Return how a number of each arm differs from that of its baseline, paired by seed.

    That is the arm with the baseline's settings which is like it in all else.

    Args:
        rows: of a study.
        metric: the column of the number.
        baseline: the settings of the other arm.
        number: what it is, in words, such as `effective smoothness`.
        unit: of the number.
        ratio: take ratios and geometric means.
        better: as `Column` has it.
    """
    results = []
    for arm in arms_of(rows):
        other = baseline_of(arm, baseline)
        if other is None:
            continue
        of_arm = mean_by_seed(rows, metric, arm, ratio)
        of_other = mean_by_seed(rows, metric, other, ratio)
        results.append(difference_of(of_arm, of_other, number, unit, better))
    return [result for result in results if result.n]


def compare_kinds(
    rows: pd.DataFrame, first: pd.Series, second: pd.Series, metric: str, number: str, kinds: tuple[str, str], unit: str
) -> list[StudyResult]:
    """Return how a number differs within each arm between two kinds of its rows, paired by seed.

    Args:
        rows: of a study.
        first: which of them are of the first kind.
        second: which are of the second, whose numbers are taken from those of the first.
        metric: the column of the number.
        number: what it is, in words.
        kinds: what the two kinds are, in words that stand after the number's.
        unit: of the number.
    """
    results = []
    for arm in arms_of(rows):
        of_first = mean_by_seed(rows[first], metric, arm)
        of_second = mean_by_seed(rows[second], metric, arm)
        results.append(difference_of(of_first, of_second, number, unit, kinds=kinds))
    return [result for result in results if result.n]


@dataclass(frozen=True)
class Value:
    """A number of an arm that a study tells of where there is nothing to compare it with.

    Attributes:
        what: the number, in words that stand in front of it.
        values: by seed; with `ratio` logarithms to base 2.
        references: numbers that it may be consistent with, by their names.
    """

    what: str
    values: Mapping[int, float]
    unit: str = ""
    ratio: bool = False
    references: Mapping[str, float] = field(default_factory=dict)

    @property
    def summary(self) -> tuple[float, Interval | None]:
        """Return the mean over seeds and Student's 95 % interval, in the unit of the number."""
        return in_unit(*mean_interval(list(self.values.values())), self.ratio)


def values_of(rows: pd.DataFrame, metric: str, number: str, unit: str = "", ratio: bool = False) -> list[Value]:
    """Return a number of each arm, to be told. number: what it is, in words."""
    values = []
    for arm in arms_of(rows):
        by_seed = mean_by_seed(rows, metric, arm, ratio)
        if by_seed.values:
            values.append(Value(f"{label_of(arm)}: the {number} is", by_seed.values, unit, ratio))
    return values


# What a study states; words are said as they are.
Stated = str | Value | StudyResult


# ---- tables


@dataclass(frozen=True)
class ResultCell:
    """What a table has of one arm at one place. difference: from its baseline, where there is one."""

    number: SeedValues
    difference: StudyResult | None


@dataclass(frozen=True)
class ResultLine:
    """A line of a table.

    Attributes:
        place: its coordinates.
        cells: by the name of the number.
    """

    arm: Arm
    place: tuple[Any, ...]
    cells: Mapping[str, ResultCell]


@dataclass(frozen=True)
class ResultTable:
    """A table of a study before it is written, which waits until all tests of the study are known.

    Attributes:
        by: coordinates that have a line each.
        baseline: settings of the arm with which each is compared.
        ratio: whether means are geometric, and differences ratios.
        seeds: how many the study has.
    """

    key: str
    title: str
    columns: Mapping[str, Column]
    by: Sequence[str]
    baseline: Mapping[str, Any]
    ratio: bool
    seeds: int
    lines: Sequence[ResultLine]
    notes: Sequence[str] = ()

    @property
    def differences(self) -> list[StudyResult]:
        """Return all differences in the table."""
        differences = []
        for line in self.lines:
            for cell in line.cells.values():
                if cell.difference is not None:
                    differences.append(cell.difference)
        return differences


def compare(
    rows: pd.DataFrame,
    *,
    values: Sequence[str],
    columns: Mapping[str, Column],
    by: Sequence[str] = (),
    baseline: Mapping[str, Any] | None = None,
    key: str = "results",
    title: str = "Results",
    notes: Sequence[str] = (),
    ratio: bool = False,
) -> ResultTable:
    """Return the mean of each arm, and with several seeds its difference from the baseline by seed.

    Args:
        rows: of a study.
        values: the columns of the numbers.
        columns: words and units of all columns.
        by: coordinates that have a line each.
        baseline: settings of the arm with which each is compared, and which is like it in all else.
        key: the anchor of the table.
        title: of the table.
        notes: sentences below it.
        ratio: take geometric means and ratios to the baseline.
    """
    baseline = baseline or {}
    arms = arms_of(rows)
    seeds = rows["seed"].nunique()
    lines = []
    for place, rows_at_place in groups_of(rows, by):
        for arm in arms:
            if not is_arm(rows_at_place, arm.settings).any():
                continue
            other = baseline_of(arm, baseline) if seeds > 1 else None
            cells = {}
            for metric in values:
                cells[metric] = compare_cell(rows_at_place, metric, arm, other, ratio)
            lines.append(ResultLine(arm, place, cells))
    return ResultTable(key, title, columns, by, baseline, ratio, seeds, lines, notes)


def compare_cell(rows: pd.DataFrame, metric: str, arm: Arm, other: Arm | None, ratio: bool) -> ResultCell:
    """Return a number of an arm, with its difference from another arm that has rows too."""
    of_arm = mean_by_seed(rows, metric, arm, ratio)
    if other is None:
        return ResultCell(of_arm, None)
    of_other = mean_by_seed(rows, metric, other, ratio)
    if not of_other.values:
        return ResultCell(of_arm, None)
    return ResultCell(of_arm, difference_of(of_arm, of_other))


def groups_of(rows: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield rows by some coordinates, all at once where there are none."""
    if not by:
        yield (), rows
        return
    for place, rows_at_place in rows.groupby(list(by), dropna=False, sort=False):
        yield tuple(place), rows_at_place


# ---- one family of tests


def correct_stated(
    tables: Sequence[SomeTable | ResultTable], stated: Sequence[Stated]
) -> tuple[list[SomeTable | ResultTable], list[Stated]]:
    """Return what a study states, with p corrected after Holm (1979) over all tests in its tables and sentences.

    A test that is stated several times counts once; different tests count each, even if their numbers agree.
    """
    results = [statement for statement in stated if isinstance(statement, StudyResult)]
    for table in tables:
        if isinstance(table, ResultTable):
            results += table.differences
    tests = {result.test: result for result in results}
    corrected = dict(zip(tests, correct(list(tests.values())), strict=True))
    corrected_tables = []
    for table in tables:
        corrected_tables.append(correct_table(table, corrected) if isinstance(table, ResultTable) else table)
    corrected_stated = []
    for statement in stated:
        corrected_stated.append(
            corrected_like(statement, corrected) if isinstance(statement, StudyResult) else statement
        )
    return corrected_tables, corrected_stated


def correct_table(table: ResultTable, corrected: Mapping[Hashable, StudyResult]) -> ResultTable:
    """Return a table whose differences have p and verdict as they are among the corrected tests of its study."""
    lines = []
    for line in table.lines:
        cells = {}
        for metric, cell in line.cells.items():
            difference = None if cell.difference is None else corrected_like(cell.difference, corrected)
            cells[metric] = ResultCell(cell.number, difference)
        lines.append(replace(line, cells=cells))
    return replace(table, lines=lines)


def corrected_like(result: StudyResult, corrected: Mapping[Hashable, StudyResult]) -> StudyResult:
    """Return a result with p and verdict as its test has them once corrected, which may have other words for it."""
    test = corrected[result.test]
    return replace(result, corrected=test.corrected, family=test.family, verdict=test.verdict)
