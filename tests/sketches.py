"""Figures of made runs, for tests."""

from __future__ import annotations

import csv
from pathlib import Path

from made_runs import read_study

from normbench.analysis.comparisons import Baseline, usual_baseline
from normbench.analysis.figures import draw_all
from normbench.analysis.figures.style import Figure


def sketched(folder: Path, baseline: Baseline | None = None) -> dict[str, Figure]:
    """All figures of a study by name; none is rendered, which is most of the work."""
    study = read_study([folder])
    return {figure.name: figure for figure in draw_all(study, baseline or usual_baseline(study))}


def chosen(figure: Figure, **having: str) -> list[dict[str, str]]:
    """The rows of a figure's data that have some values."""
    rows = csv.DictReader(figure.data.to_csv(index=False).splitlines())
    return [row for row in rows if having.items() <= row.items()]
