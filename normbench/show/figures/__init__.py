"""The figures of a report, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from normbench.evidence.arms import Arm, Baseline
from normbench.evidence.facts import implementation, ran_as
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
from normbench.show.figures.lines import PROBED, draw_lines
from normbench.show.figures.maps import draw_maps
from normbench.show.figures.sizes import draw_sizes
from normbench.show.figures.style import COLUMN, TOGETHER, UNDER_WAY, runs_shown, use_our_style
from normbench.wording import join_first

# What stands on figures of time.
KERNELS_DIFFER = "Kernels differ: times compare them, not norms."


def draw_all(
    study: RecordedStudy,
    baseline: Baseline,
    metrics: Sequence[Metric] = (),
    width: float = COLUMN,
    family: Family | None = None,
) -> list[Figure]:
    """Draw every figure that a study can fill, in the order of a report: see `plan_figures`."""
    figures: list[Figure] = []
    for draw in plan_figures(study, baseline, metrics, width, family):
        figures += draw()
    return figures


def plan_figures(
    study: RecordedStudy,
    baseline: Baseline,
    metrics: Sequence[Metric] = (),
    width: float = COLUMN,
    family: Family | None = None,
) -> list[Callable[[], list[Figure]]]:
    """Return what draws every figure that a study can fill, in the order of a report; two processes may share it.

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
    rates = ["Each arm at its learning rate of the best mean validation loss."] if chosen else []
    of_lines = [*rates, *not_finished(arms), *mean_of_groups(arms, primary)]
    of_loss = [f"The arms are judged by the final {primary.words}, not by this loss."] if others else []
    ran = ran_as(arms)
    of_time = [f"The norms ran as {ran}."] if ran else []
    on_top = KERNELS_DIFFER if differ_in_kernels(arms) else ""
    plan: list[Callable[[], list[Figure]]] = [
        partial(draw_forest, tests.differences, arms, rates),
        partial(draw_interactions, arms, baseline, primary, rates),
        partial(draw_survival, arms, baseline, rates),
        partial(draw_maps, study, primary),
        partial(draw_sizes, tests.scaling, arms, rates),
    ]
    if others:
        plan.append(partial(draw_lines, "bleu-val-epochs", arms, of_lines))
        plan.append(partial(draw_lines, "accuracy-val-steps", arms, of_lines))
    plan.append(partial(draw_lines, "loss-val-steps", arms, [*of_lines, *of_loss]))
    plan.append(partial(draw_lines, "loss-train-steps", arms, [*of_lines, *of_loss]))
    plan.append(partial(draw_by_time, arms, [*of_lines, *of_loss, *of_time], on_top))
    plan.append(partial(draw_search, study))
    plan.append(partial(draw_learning_rates, study, primary))
    plan.append(partial(draw_step_times, arms, primary, [*rates, *of_time], on_top))
    for name in PROBED:
        plan.append(partial(draw_lines, name, arms, of_lines))
    in_style = use_our_style(width)
    return [in_style(draw) for draw in plan]


def draw_by_time(arms: Sequence[Arm], about: Sequence[str], on_top: str) -> list[Figure]:
    """Draw validation losses by the time of training, or training losses where there are none."""
    return draw_lines("loss-val-time", arms, about, on_top) or draw_lines("loss-train-time", arms, about, on_top)


def differ_in_kernels(arms: Sequence[Arm]) -> bool:
    """Tell whether the norms of runs were computed by more than one implementation."""
    used = {implementation(run) for arm in arms for run in arm.runs}
    return len(used - {""}) > 1


def not_finished(arms: Sequence[Arm]) -> list[str]:
    """Return a sentence on the arms that are drawn by runs still under way; nothing where there are none."""
    names = []
    for arm in arms:
        if any(run.status in UNDER_WAY for run in runs_shown(arm)):
            names.append(arm.name)
    return [f"Not finished yet: {join_first(names, TOGETHER)}."] if names else []
