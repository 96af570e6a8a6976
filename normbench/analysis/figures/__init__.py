"""The figures of a report, drawn with matplotlib from run directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from normbench.analysis.comparisons import Baseline, compare_all, contenders, usual_baseline
from normbench.analysis.figures.canvas import Drawing, look
from normbench.analysis.figures.depth import depth_figures
from normbench.analysis.figures.forest import forest
from normbench.analysis.figures.heatmap import heat_map
from normbench.analysis.figures.losses import loss_curves
from normbench.analysis.figures.palette import dark_rules
from normbench.analysis.figures.parameters import parameter_figures
from normbench.analysis.figures.rates import learning_rates
from normbench.analysis.figures.saving import Figure, save
from normbench.analysis.figures.selection import under_way
from normbench.analysis.figures.speed import step_time_against
from normbench.analysis.measures import metrics_of
from normbench.analysis.records import Study

__all__ = ["Figure", "dark_rules", "draw_all"]

CHOSEN = " Each arm at its learning rate of the best mean validation loss."
JUDGED = " The arms are judged by the final {}, not by this loss."


def draw_all(study: Study, out: Path, baseline: Baseline | None = None) -> list[Figure]:
    """Every figure that a study can fill, written into a folder.

    baseline: with what the forest plot compares; the usual one where none is given.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    with look():
        return [save(drawing, out) for drawing in drawings(study, baseline or usual_baseline(study))]


def drawings(study: Study, baseline: Baseline) -> Iterator[Drawing]:
    """The figures one after the other, so that only one is in memory."""
    arms, chosen = contenders(study, baseline)
    choice = CHOSEN if chosen else ""
    along = choice + under_way(arms)
    primary, *others = metrics_of(study)
    yield from loss_curves(arms, along + (JUDGED.format(primary.words) if others else ""))
    one_each = (
        lambda: learning_rates(study, primary),
        lambda: heat_map(arms, primary, choice),
        lambda: forest(compare_all(arms, baseline, primary), arms, choice),
        lambda: step_time_against(arms, primary, choice),
    )
    yield from (drawing for draw in one_each if (drawing := draw()) is not None)
    yield from depth_figures(arms, along)
    yield from parameter_figures(arms, along)
