"""The figures of a report, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

from normbench.evidence.arms import Arm, Baseline
from normbench.evidence.facts import ran_as
from normbench.evidence.measures import Metric
from normbench.evidence.study import RecordedStudy, choose_contenders
from normbench.evidence.yardstick import metrics_of
from normbench.results.family import Family, make_tests
from normbench.show.figures.differences import draw_forest
from normbench.show.figures.figure import Figure
from normbench.show.figures.finals import (
    draw_interactions,
    draw_learning_rates,
    draw_search,
    draw_step_times,
    draw_survival,
    mean_of_groups,
)
from normbench.show.figures.lines import QUANTITIES, draw_lines, is_of_loss
from normbench.show.figures.maps import draw_maps
from normbench.show.figures.sizes import draw_sizes
from normbench.show.figures.style import COLUMN, TOGETHER, UNDER_WAY, runs_shown, use_our_style
from normbench.wording import join_first


def draw_all(
    study: RecordedStudy,
    baseline: Baseline,
    metrics: Sequence[Metric] = (),
    width: float = COLUMN,
    family: Family | None = None,
) -> list[Figure]:
    """Draw every figure that a study can fill, in the order of a report.

    Args:
        study: the runs.
        baseline: the settings in which the partner of an arm differs from it.
        metrics: by which the arms are judged, the primary one first; by default those that suit the task.
        width: of each figure, in inches.
        family: the results in the primary metric; by default they are tested.
    """
    arms, chosen = choose_contenders(study, baseline)
    primary, *others = metrics or metrics_of(study)
    tests = family or make_tests(study, arms, baseline, primary)
    note = " Each arm at its learning rate of the best mean validation loss." if chosen else ""
    of_lines = note + not_finished(arms) + mean_of_groups(arms, primary)
    of_loss = f" The arms are judged by the final {primary.words}, not by this loss." if others else ""
    ran = ran_as(arms)
    of_time = f" The norms ran as {ran}." if ran else ""
    figures: list[Figure] = []
    with use_our_style(width):
        figures += draw_interactions(arms, baseline, primary, note)
        figures += draw_survival(arms, baseline, note)
        figures += draw_maps(study, primary)
        figures += draw_forest(tests.differences, arms, note)
        figures += draw_sizes(tests.scaling, arms, note)
        if others:
            figures += draw_lines("bleu-val-epochs", arms, of_lines)
            figures += draw_lines("accuracy-val-steps", arms, of_lines)
        for name in QUANTITIES:
            if is_of_loss(name):
                own_note = of_lines + of_loss
                if name.endswith("time"):
                    own_note += of_time
                figures += draw_lines(name, arms, own_note)
        figures += draw_search(study)
        figures += draw_learning_rates(study, primary)
        figures += draw_step_times(arms, primary, note + of_time)
        for name in QUANTITIES:
            if not name.startswith(("loss", "accuracy", "bleu")):
                figures += draw_lines(name, arms, of_lines)
    return figures


def not_finished(arms: Sequence[Arm]) -> str:
    """Return a sentence on the arms that are drawn by runs still under way; empty where there are none."""
    names = []
    for arm in arms:
        if any(run.status in UNDER_WAY for run in runs_shown(arm)):
            names.append(arm.name)
    return f" Not finished yet: {join_first(names, TOGETHER)}." if names else ""
