"""Figures of made runs, for tests: written, or only composed."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from normbench.analysis.comparisons import usual_baseline
from normbench.analysis.figures import Figure, draw_all, drawings
from normbench.analysis.figures.style import Drawing, csv_bytes, our_style, svg_bytes
from normbench.analysis.records import read_study


def drawn(folder: Path, out: Path) -> dict[str, Figure]:
    """All figures of a study, as files."""
    return {figure.name: figure for figure in draw_all(read_study([folder]), out)}


def sketched(folder: Path) -> dict[str, Drawing]:
    """All figures of a study, not written: nothing is rendered, which is most of the work."""
    study = read_study([folder])
    with our_style():
        return {drawing.name: drawing for drawing in drawings(study, usual_baseline(study))}


def rendered(drawing: Drawing) -> str:
    """The SVG of a figure."""
    with our_style():
        return svg_bytes(drawing).decode()


def rows(figure: Figure | Drawing) -> list[dict[str, str]]:
    content = figure.data.read_bytes() if isinstance(figure, Figure) else csv_bytes(figure)
    return list(csv.DictReader(io.StringIO(content.decode())))


def chosen(figure: Figure | Drawing, **having: str) -> list[dict[str, str]]:
    return [row for row in rows(figure) if all(row[key] == value for key, value in having.items())]
