"""Figures of made runs, for tests."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from made_runs import read_study

from normbench.evidence.arms import Baseline
from normbench.evidence.baselines import usual_baseline
from normbench.show.figures import draw_all
from normbench.show.figures.figure import Figure


def sketched(folder: Path, baseline: Baseline | None = None) -> dict[str, Figure]:
    """All figures of a study by name; none is rendered, which is most of the work."""
    study = read_study([folder])
    return {figure.name: figure for figure in draw_all(study, baseline or usual_baseline(study))}


def chosen(*figures: Figure, **having: str) -> list[dict[str, str]]:
    """The rows of figures' data that have some values."""
    found = []
    for one in figures:
        lines = one.data.to_csv(index=False).splitlines()
        for row in csv.DictReader(lines):
            if having.items() <= row.items():
                found.append(row)
    return found


def numbers(row: Mapping[str, str], *columns: str) -> list[float]:
    """The numbers of a row in some columns."""
    return [float(row[name]) for name in columns]


def column(rows: Iterable[Mapping[str, str]], name: str) -> list[float]:
    """The numbers of a column."""
    return [float(row[name]) for row in rows]
