"""The figures of a report, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from normbench.analysis.comparisons import Baseline, compare_all, contenders, usual_baseline
from normbench.analysis.figures.finals import forest, heat_map, learning_rates, step_time_against
from normbench.analysis.figures.lines import QUANTITIES, draw_lines
from normbench.analysis.figures.panels import TOGETHER, UNDER_WAY, members
from normbench.analysis.figures.style import Drawing, Figure, dark_rules, our_style, save
from normbench.analysis.measures import metrics_of
from normbench.analysis.records import Study, shortened

__all__ = ["Figure", "dark_rules", "draw_all"]


def draw_all(study: Study, out: Path, baseline: Baseline | None = None) -> list[Figure]:
    """Write every figure that a study can fill into a folder.

    baseline: with what the forest plot compares; the usual one where none is given.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    with our_style():
        return [save(drawing, out) for drawing in drawings(study, baseline or usual_baseline(study)) if drawing]


def drawings(study: Study, baseline: Baseline) -> Iterator[Drawing | None]:
    """Draw each figure, in the report's order, so that one is in memory; None for one that the study cannot fill."""
    arms, chosen = contenders(study, baseline)
    primary, *others = metrics_of(study)
    note = " Each arm at its learning rate of the best mean validation loss." if chosen else ""
    unfinished = [arm.name for arm in arms if any(run.status in UNDER_WAY for run in members(arm))]
    along = note + (f" Not finished yet: {shortened(unfinished, TOGETHER)}." if unfinished else "")
    judged = f" The arms are judged by the final {primary.words}, not by this loss." if others else ""
    yield from (draw_lines(name, arms, along + judged) for name in QUANTITIES if name.startswith("loss"))
    yield learning_rates(study, primary)
    yield heat_map(arms, primary, note)
    yield forest(compare_all(arms, baseline, primary), arms, note)
    yield step_time_against(arms, primary, note)
    yield from (draw_lines(name, arms, along) for name in QUANTITIES if not name.startswith("loss"))
