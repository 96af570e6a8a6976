"""What a study has found, as values: what its page says in words, and `answer.json` keeps for notebooks and scripts."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normbench.analysis.answers import Verdict, to_plain
from normbench.analysis.statistics import Interval, power
from normbench.analysis.tables import Table
from normbench.studies.findings import Difference, Findings, Told, correct, corrected_like, label_of
from normbench.studies.writing import in_unit

VERSION = 1  # of answer.json: higher when a key changes its name or its meaning


@dataclass(frozen=True)
class Tested:
    """How a number of an arm differs from its baseline's, seed by seed; as a ratio where the number is of that kind.

    corrected: p after Holm over all that the study states: so many tests are its family. real: whether it may be called
    a difference. detectable: the ratio that so many seeds find four times in five.
    """

    arm: str
    baseline: str
    what: str
    unit: str
    ratio: bool
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    mean: float
    interval: Interval | None
    p: float | None
    corrected: float | None
    family: int
    real: bool
    verdict: Verdict
    detectable: float | None


@dataclass(frozen=True)
class Measured:
    """A number of an arm in one of the study's tables: the mean over seeds, a geometric one with `ratio`.

    settings: of the arm. at: the coordinates of the line. difference: from the baseline, where there is one.
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
    difference: Tested | None


@dataclass(frozen=True)
class Answer:
    """All that a study has found. finding: its sentences. differences: those that the sentences tell of."""

    study: str
    command: str
    baseline: Mapping[str, Any]
    finding: tuple[str, ...]
    differences: tuple[Tested, ...]
    measured: tuple[Measured, ...]
    version: int = VERSION

    def to_json(self) -> str:
        """Return it as `answer.json` has it."""
        return json.dumps(to_plain(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def answer_of(
    name: str,
    command: str,
    baseline: Mapping[str, Any],
    tables: Sequence[Table | Findings],
    told: Sequence[Told],
    sentences: Sequence[str],
) -> Answer:
    """Return what a study has found as values. sentences: what is told, in words."""
    tests = correct(tables, told)
    differences = [state_difference(corrected_like(one, tests)) for one in told if isinstance(one, Difference)]
    return Answer(name, command, baseline, tuple(sentences), tuple(differences), tuple(measured_in(tables, tests)))


def measured_in(tables: Sequence[Table | Findings], tests: Mapping[Hashable, Difference]) -> Iterator[Measured]:
    """Yield the numbers in a study's tables. tests: of the study, corrected."""
    for table in tables:
        if not isinstance(table, Findings):
            continue
        for line in table.lines:
            for metric, cell in line.cells.items():
                finding = cell.finding
                mean, interval = in_unit(*finding.summary, finding.ratio)
                difference = None
                if cell.difference is not None:
                    difference = state_difference(corrected_like(cell.difference, tests))
                yield Measured(
                    table=table.key,
                    arm=label_of(line.arm),
                    settings={key: to_python(value) for key, value in line.arm.settings.items()},
                    at={name: to_python(value) for name, value in zip(table.by, line.place, strict=True)},
                    metric=metric,
                    unit=table.columns[metric].unit,
                    ratio=finding.ratio,
                    seeds=tuple(finding.values),
                    values=values_in_unit(tuple(finding.values.values()), finding.ratio),
                    mean=mean,
                    interval=interval,
                    difference=difference,
                )


def state_difference(one: Difference) -> Tested:
    """Return what is said of a difference."""
    mean, interval = in_unit(one.mean, one.interval, one.ratio)
    return Tested(
        arm=label_of(one.arm),
        baseline=label_of(one.baseline),
        what=one.what,
        unit=one.unit,
        ratio=one.ratio,
        seeds=one.seeds,
        values=values_in_unit(one.values, one.ratio),
        mean=mean,
        interval=interval,
        p=one.p,
        corrected=one.corrected,
        family=one.family,
        real=one.real,
        verdict=one.verdict,
        detectable=one.detectable_factor if one.ratio else None,
    )


def values_in_unit(values: tuple[float, ...], ratio: bool) -> tuple[float, ...]:
    """Return values; with `ratio` those whose logarithms to base 2 are given."""
    return tuple(power(value) for value in values) if ratio else values


def to_python(value: Any) -> Any:
    """Return a coordinate as Python's own number or word."""
    return value.item() if isinstance(value, np.generic) else value
