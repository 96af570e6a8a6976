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
from normbench.analysis.records import Study, shortened


def draw_all(
    study: Study,
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
    unfinished = [arm.name for arm in arms if any(run.status in UNDER_WAY for run in members(arm))]
    along = note + (f" Not finished yet: {shortened(unfinished, TOGETHER)}." if unfinished else "")
    along += mean_of_groups(arms, primary)
    judged = f" The arms are judged by the final {primary.words}, not by this loss." if others else ""
    losses = [name for name in QUANTITIES if name.startswith("loss")]
    insides = [name for name in QUANTITIES if not name.startswith(("loss", "accuracy", "bleu"))]
    words = ran_as(arms)
    ran = f" The norms ran as {words}." if words else ""
    with our_style(width):
        drawn = [
            interactions(arms, baseline, primary, note),
            survival(arms, baseline, note),
            maps(study, primary),
            forest(compare_all(arms, baseline, primary) if comparisons is None else comparisons, arms, note),
            *(draw_lines(name, arms, along) for name in ("bleu-val-epochs", "accuracy-val-steps") if others),
            *(draw_lines(name, arms, along + judged + ran * name.endswith("time")) for name in losses),
            search(study),
            learning_rates(study, primary),
            step_time_against(arms, primary, note + ran),
            *(draw_lines(name, arms, along) for name in insides),
        ]
    return [figure for figures in drawn for figure in figures]
