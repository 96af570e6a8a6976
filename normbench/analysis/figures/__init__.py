"""The figures of a report, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

from normbench.analysis.comparisons import Baseline, Comparison, compare_all, contenders
from normbench.analysis.figures.finals import (
    forest,
    interactions,
    learning_rates,
    mean_of_groups,
    search,
    step_time_against,
    survival,
)
from normbench.analysis.figures.lines import QUANTITIES, draw_lines
from normbench.analysis.figures.maps import maps
from normbench.analysis.figures.style import COLUMN, TOGETHER, UNDER_WAY, Figure, members, our_style
from normbench.analysis.measures import Metric, metrics_of, ran_as
from normbench.analysis.records import Arm, RecordedStudy, shortened


def draw_all(
    study: RecordedStudy,
    baseline: Baseline,
    metrics: Sequence[Metric] = (),
    width: float = COLUMN,
    comparisons: Sequence[Comparison] | None = None,
) -> list[Figure]:
    """Draw every figure that a study can fill, width inches wide; baseline: with what the forest plot compares.

    comparisons: as they are corrected in what they belong to; by default they are all that is stated.
    """
    arms, chosen = contenders(study, baseline)
    primary, *others = metrics or metrics_of(study)
    note = " Each arm at its learning rate of the best mean validation loss." if chosen else ""
    along = note + not_finished(arms) + mean_of_groups(arms, primary)
    judged = f" The arms are judged by the final {primary.words}, not by this loss." if others else ""
    words = ran_as(arms)
    ran = f" The norms ran as {words}." if words else ""
    if comparisons is None:
        comparisons = compare_all(arms, baseline, primary)
    with our_style(width):
        figures = [
            *interactions(arms, baseline, primary, note),
            *survival(arms, baseline, note),
            *maps(study, primary),
            *forest(comparisons, arms, note),
        ]
        if others:
            figures += draw_lines("bleu-val-epochs", arms, along)
            figures += draw_lines("accuracy-val-steps", arms, along)
        for name in QUANTITIES:
            if name.startswith("loss"):
                of_time = ran if name.endswith("time") else ""
                figures += draw_lines(name, arms, along + judged + of_time)
        figures += search(study)
        figures += learning_rates(study, primary)
        figures += step_time_against(arms, primary, note + ran)
        for name in QUANTITIES:
            if not name.startswith(("loss", "accuracy", "bleu")):
                figures += draw_lines(name, arms, along)
    return figures


def not_finished(arms: Sequence[Arm]) -> str:
    """Return a sentence on the arms of which runs that are under way are drawn; empty where there are none."""
    names = [arm.name for arm in arms if any(run.status in UNDER_WAY for run in members(arm))]
    return f" Not finished yet: {shortened(names, TOGETHER)}." if names else ""
