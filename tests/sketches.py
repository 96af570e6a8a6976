"""Figures of made runs, for tests: written, or only composed."""

from __future__ import annotations

import csv
from pathlib import Path

from normbench.analysis.comparisons import usual_baseline
from normbench.analysis.figures import Figure, drawings
from normbench.analysis.figures.style import Drawing, our_style, svg_bytes
from normbench.analysis.records import read_study


def sketched(folder: Path) -> dict[str, Drawing]:
    """All figures of a study, not written: nothing is rendered, which is most of the work."""
    study = read_study([folder])
    with our_style():
        return {drawing.name: drawing for drawing in drawings(study, usual_baseline(study)) if drawing}


def rendered(drawing: Drawing) -> str:
    """The SVG of a figure."""
    with our_style():
        return svg_bytes(drawing).decode()


def chosen(figure: Figure | Drawing, **having: str) -> list[dict[str, str]]:
    """The rows of a figure's data that have some values."""
    text = figure.data.read_text("utf-8") if isinstance(figure, Figure) else figure.data.to_csv(index=False)
    return [row for row in csv.DictReader(text.splitlines()) if having.items() <= row.items()]
