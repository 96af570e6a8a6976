"""What a study has found, as values: `answer.json` keeps them for notebooks and scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normbench.evidence.labels import label_of
from normbench.results.answer import to_plain
from normbench.results.rows import ResultLine, ResultTable, Stated, StudyResult
from normbench.results.statistics import Interval, exp2

VERSION = 1  # of answer.json: higher when a key changes its name or its meaning

PlainResult = Mapping[str, Any]  # as `in_its_unit` has it


@dataclass(frozen=True)
class Measured:
    """A number of an arm in one of the study's tables: the mean over seeds.

    Attributes:
        settings: those of the arm.
        at: the coordinates of the line.
        ratio: whether the mean is a geometric one.
        difference: from the baseline, where there is one.
    """

    table: str
    arm: str
    settings: Mapping[str, Any]
    at: Mapping[str, Any]
    metric: str
    unit: str
    ratio: bool
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    mean: float
    interval: Interval | None
    difference: PlainResult | None


@dataclass(frozen=True)
class StudyAnswer:
    """All that a study has found.

    Attributes:
        finding: its sentences.
        differences: those that the sentences tell of.
        measured: the numbers in its tables.
    """

    study: str
    command: str
    baseline: Mapping[str, Any]
    finding: tuple[str, ...]
    differences: tuple[PlainResult, ...]
    measured: tuple[Measured, ...]
    version: int = VERSION

    def to_json(self) -> str:
        """Return the text of `answer.json`."""
        return json.dumps(to_plain(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def answer_of(
    name: str,
    command: str,
    baseline: Mapping[str, Any],
    tables: Sequence[object],
    stated: Sequence[Stated],
    sentences: Sequence[str],
) -> StudyAnswer:
    """Return what a study has found as values.

    Args:
        name: the word that names the study on the command line.
        command: the line for a shell that makes it.
        baseline: the settings of the arm that others are compared with.
        tables: of the study, p corrected.
        stated: what the study states beside them, p corrected.
        sentences: the same in words.
    """
    differences = [in_its_unit(result) for result in stated if isinstance(result, StudyResult)]
    measured = list[Measured]()
    for table in tables:
        if isinstance(table, ResultTable):
            for line in table.lines:
                measured += numbers_in(table, line)
    return StudyAnswer(name, command, baseline, tuple(sentences), tuple(differences), tuple(measured))


def numbers_in(table: ResultTable, line: ResultLine) -> Iterator[Measured]:
    """Yield the numbers in a line of a table."""
    settings = {key: to_python(value) for key, value in line.arm.settings.items()}
    coordinates = dict(zip(table.by, map(to_python, line.place), strict=True))
    for metric, cell in line.cells.items():
        number = cell.number
        mean, interval = number.summary
        yield Measured(
            table=table.key,
            arm=label_of(line.arm),
            settings=settings,
            at=coordinates,
            metric=metric,
            unit=table.columns[metric].unit,
            ratio=number.ratio,
            seeds=tuple(number.values),
            values=values_in_unit(tuple(number.values.values()), number.ratio),
            mean=mean,
            interval=interval,
            difference=None if cell.difference is None else in_its_unit(cell.difference),
        )


def in_its_unit(result: StudyResult) -> PlainResult:
    """Return what `answer.json` has of a difference; one that is a ratio has ratios, where it holds logarithms.

    `detectable` is the ratio that so many seeds find four times in five, and is None for other differences.
    """
    mean, interval = result.summary
    return {
        "arm": result.arm,
        "baseline": result.baseline,
        "what": result.what,
        "unit": result.metric.unit,
        "ratio": result.ratio,
        "seeds": result.seeds,
        "values": values_in_unit(result.values, result.ratio),
        "mean": mean,
        "interval": interval,
        "p": result.p,
        "corrected": result.corrected,
        "family": result.family,
        "real": result.real,
        "verdict": result.verdict,
        "detectable": result.detectable_factor if result.ratio else None,
    }


def values_in_unit(values: tuple[float, ...], ratio: bool) -> tuple[float, ...]:
    """Return values as they are; with `ratio` they are logarithms to base 2, and the ratios are returned."""
    return tuple(exp2(value) for value in values) if ratio else values


def to_python(value: Any) -> Any:
    """Return a coordinate as Python's own number or word."""
    return value.item() if isinstance(value, np.generic) else value
