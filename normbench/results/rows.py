"""What the rows of a study show: numbers of arms by seed, their differences, and p corrected over all that is stated.

Rows are a table: the settings of the arm, the seed, and what was measured of it at some coordinates.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from normbench.evidence.arms import Arm
from normbench.evidence.labels import label_of
from normbench.evidence.measures import Metric
from normbench.results.family import correct
from normbench.results.result import Paired
from normbench.results.statistics import (
    Interval,
    detectable_difference,
    exp2,
    mean_interval,
    paired_difference,
)


@dataclass(frozen=True)
class Column:
    """What a measured number is.

    Attributes:
        words: as a table's head or an axis has it.
        scale: of an axis, linear or log.
    """

    words: str
    unit: str = ""
    scale: str = "linear"

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
    found = pd.Series(True, index=rows.index)
    for key, value in settings.items():
        is_missing = value is None or value != value
        found &= rows[key].isna() if is_missing else rows[key] == value
    return found


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
        """Return the mean over seeds and Student's 95 % interval."""
        return mean_interval(list(self.values.values()))


def mean_by_seed(rows: pd.DataFrame, metric: str, arm: Arm, ratio: bool = False) -> SeedValues:
    """Return the mean of a number for each seed, over the rows of an arm that have it."""
    own = rows[is_arm(rows, arm.settings)]
    if ratio:
        positive = own[metric].where(own[metric] > 0)
        own = own.assign(**{metric: np.log2(positive)})
    own = own.dropna(subset=[metric])
    means = own.groupby("seed")[metric].mean()
    values = {int(seed): float(value) for seed, value in means.items()}
    return SeedValues(arm, metric, values, frozenset(own.index), ratio)


# ---- differences


@dataclass(frozen=True, kw_only=True)
class StudyResult(Paired):
    """A difference of two findings, seed by seed; what can be said of it waits until all tests of the study are known.

    Attributes:
        what: the difference, in words that begin its sentence.
        ratio: whether the values are logarithms to base 2, and are told as a ratio.
        of: the metric and the rows that it compares, which tell it from other tests with the same numbers.
    """

    what: str = ""
    ratio: bool = False
    of: Hashable = None

    @property
    def unit(self) -> str:
        """Return the unit of the difference."""
        return self.metric.unit

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


def difference_of(mine: SeedValues, theirs: SeedValues, what: str = "", unit: str = "") -> StudyResult:
    """Return a finding less another, paired by seed. what: the difference, in words that begin its sentence."""
    sample = paired_difference(mine.values, theirs.values)
    return StudyResult(
        values=sample.values,
        resolution=sample.resolution,
        seeds=sample.seeds,
        arm=label_of(mine.arm),
        baseline=label_of(theirs.arm),
        metric=Metric(mine.metric, unit=unit, judges=False),
        tried=len(mine.values.keys() | theirs.values.keys()),
        what=what,
        ratio=mine.ratio,
        of=(mine.metric, mine.ratio, mine.rows, theirs.rows),
    )


def compare_with_baseline(
    rows: pd.DataFrame, metric: str, baseline: Mapping[str, Any], what: str, unit: str = "", ratio: bool = False
) -> list[StudyResult]:
    """Return how a number of each arm differs from that of its baseline, paired by seed.

    That is the arm with the baseline's settings which is like it in all else.

    Args:
        rows: of a study.
        metric: the column of the number.
        baseline: the settings of the other arm.
        what: the number, in words that begin each sentence.
        unit: of the number.
        ratio: take ratios and geometric means.
    """
    found = []
    for arm in arms_of(rows):
        other = baseline_of(arm, baseline)
        if other is None:
            continue
        words = f"{what}, {label_of(arm)} against {label_of(other)}"
        mine = mean_by_seed(rows, metric, arm, ratio)
        theirs = mean_by_seed(rows, metric, other, ratio)
        found.append(difference_of(mine, theirs, words, unit))
    return [one for one in found if one.n]


def compare_kinds(
    rows: pd.DataFrame, first: pd.Series, second: pd.Series, metric: str, what: str, unit: str
) -> list[StudyResult]:
    """Return how a number differs within each arm between two kinds of its rows, paired by seed.

    Args:
        rows: of a study.
        first: which of them are of the first kind.
        second: which are of the second, whose numbers are taken from those of the first.
        metric: the column of the number.
        what: the difference, in words that begin each sentence.
        unit: of the number.
    """
    found = []
    for arm in arms_of(rows):
        mine = mean_by_seed(rows[first], metric, arm)
        theirs = mean_by_seed(rows[second], metric, arm)
        found.append(difference_of(mine, theirs, f"{what}, {label_of(arm)}", unit))
    return [one for one in found if one.n]


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


def values_of(rows: pd.DataFrame, metric: str, what: str, unit: str = "", ratio: bool = False) -> list[Value]:
    """Return a number of each arm, to be told."""
    found = []
    for arm in arms_of(rows):
        finding = mean_by_seed(rows, metric, arm, ratio)
        if finding.values:
            found.append(Value(f"{what}, {label_of(arm)}:", finding.values, unit, ratio))
    return found


# What a study says it has found; words are said as they are.
Stated = str | Value | StudyResult


# ---- tables


@dataclass(frozen=True)
class ResultCell:
    """What a table has of one arm at one place. difference: from its baseline, where there is one."""

    finding: SeedValues
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
    """A table of findings before it is written, which waits until all tests of the study are known.

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
        found = []
        for line in self.lines:
            for cell in line.cells.values():
                if cell.difference is not None:
                    found.append(cell.difference)
        return found


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
    for place, own in groups_of(rows, by):
        for arm in arms:
            if not is_arm(own, arm.settings).any():
                continue
            other = baseline_of(arm, baseline) if seeds > 1 else None
            cells = {}
            for metric in values:
                cells[metric] = compare_cell(own, metric, arm, other, ratio)
            lines.append(ResultLine(arm, place, cells))
    return ResultTable(key, title, columns, by, baseline, ratio, seeds, lines, notes)


def compare_cell(rows: pd.DataFrame, metric: str, arm: Arm, other: Arm | None, ratio: bool) -> ResultCell:
    """Return a number of an arm, with its difference from another arm that has rows too."""
    mine = mean_by_seed(rows, metric, arm, ratio)
    if other is None:
        return ResultCell(mine, None)
    theirs = mean_by_seed(rows, metric, other, ratio)
    if not theirs.values:
        return ResultCell(mine, None)
    return ResultCell(mine, difference_of(mine, theirs))


def groups_of(rows: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield rows by some coordinates, all at once where there are none."""
    if not by:
        yield (), rows
        return
    for place, own in rows.groupby(list(by), dropna=False, sort=False):
        yield tuple(place), own


# ---- one family of tests


def correct_tests(tables: Sequence[object], told: Sequence[Stated]) -> dict[Hashable, StudyResult]:
    """Return each test that a study states, by its `test`, with p corrected after Holm (1979) over all of them.

    A test that is stated several times counts once; different tests count each, even if their numbers agree.
    """
    stated = [result for result in told if isinstance(result, StudyResult)]
    for table in tables:
        if isinstance(table, ResultTable):
            stated += table.differences
    tests = {result.test: result for result in stated}
    return dict(zip(tests, correct(list(tests.values())), strict=True))


def corrected_like(result: StudyResult, tests: Mapping[Hashable, StudyResult]) -> StudyResult:
    """Return a result with p and verdict as they are in the tests of its study, which may have other words for it."""
    test = tests[result.test]
    return replace(result, corrected=test.corrected, family=test.family, verdict=test.verdict)
