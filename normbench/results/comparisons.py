"""Each arm against its baseline, seed by seed: how they end, and how many runs they lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial

from normbench.evidence.arms import Arm, Baseline, pairs_of
from normbench.evidence.measures import Metric, final, final_values
from normbench.evidence.run import OVER, WITHOUT_RESULT, RecordedRun
from normbench.results.result import Difference, LostRuns, TwoGroups
from normbench.results.statistics import ALPHA, Sample, least_fisher_p, paired_difference, signed_rank_p

ENOUGH_SEEDS = 10  # seeds from which on skewed differences hardly mislead a t test


def compare_all(
    arms: Sequence[Arm], baseline: Baseline, metric: Metric, margin: float | None = None
) -> tuple[Difference, ...]:
    """Return how every arm that has a partner differs from it; nothing is corrected yet.

    Args:
        arms: those that are compared.
        baseline: the settings in which a partner differs from its arm.
        metric: in which runs ended.
        margin: in the metric's unit; differences within it do not matter.
    """
    return tuple(compare(arm, other, metric, margin) for arm, other in pairs_of(arms, baseline))


def compare(arm: Arm, baseline: Arm, metric: Metric, margin: float | None = None) -> Difference:
    """Return how an arm ends less how its baseline does, over the seeds that finished in both."""
    end = partial(final, metric=metric)
    sample = paired_difference(by_seed(arm.runs, end), by_seed(baseline.runs, end))
    sides = (arm, baseline)
    torn = [two_groups_of(side) for side in sides if in_two_groups(side, metric, sample.seeds)]
    runs = (*arm.runs, *baseline.runs)
    survived = any(run.status in WITHOUT_RESULT and run.seed not in sample.seeds for run in runs)
    lost_by_arm, lost_by_baseline = lost_seeds(arm, baseline)
    ranked = rank_lost_seeds(sample, metric, len(lost_by_arm - lost_by_baseline), len(lost_by_baseline - lost_by_arm))
    ends = final_values(runs, metric)
    untrained = [side.name for side in sides if not side.trained]
    is_tested = not (untrained or torn)
    return Difference(
        values=sample.values,
        resolution=sample.resolution,
        seeds=sample.seeds,
        arm=arm.name,
        baseline=baseline.name,
        choices=choices_of(arm, baseline),
        metric=metric,
        tried=len(arm.seeds | baseline.seeds),
        margin=margin,
        spread=max(ends) - min(ends) if ends else math.inf,
        untrained=tuple(untrained),
        torn=tuple(torn),
        survived=survived,
        lost=(len(lost_by_arm), len(lost_by_baseline)),
        ranks=len(ranked),
        ranked_p=signed_rank_p(ranked, sample.resolution) if is_tested else None,
    )


def choices_of(arm: Arm, baseline: Arm) -> int:
    """Return what p is multiplied by where one arm had more learning rates to choose from than the other."""
    return 1 + abs(arm.rates_tried - baseline.rates_tried)


def lost_seeds(arm: Arm, baseline: Arm) -> tuple[set[int], set[int]]:
    """Return the seeds that an arm and its baseline lost, of those that have ended in both."""
    ends_of_arm, ends_of_baseline = ends_by_seed(arm), ends_by_seed(baseline)
    by_arm, by_baseline = set[int](), set[int]()
    for seed in ends_of_arm.keys() & ends_of_baseline.keys():
        if ends_of_arm[seed] in WITHOUT_RESULT:
            by_arm.add(seed)
        if ends_of_baseline[seed] in WITHOUT_RESULT:
            by_baseline.add(seed)
    return by_arm, by_baseline


def rank_lost_seeds(sample: Sample, metric: Metric, lost_by_arm: int, lost_by_baseline: int) -> tuple[float, ...]:
    """Return the values of the signed-rank test, in which a seed that only one side lost counts as its worst."""
    worst = math.inf if metric.lower_is_better else -math.inf
    return (*sample.values, *[worst] * lost_by_arm, *[-worst] * lost_by_baseline)


def ends_by_seed(arm: Arm) -> dict[int, str]:
    """Return the status of the runs of an arm that have ended, by seed."""
    ends = {}
    for run in arm.runs:
        if run.status in OVER:
            ends[run.seed] = run.status
    return ends


def in_two_groups(arm: Arm, metric: Metric, seeds: Collection[int]) -> bool:
    """Tell whether some runs of an arm did not train, and end further from the others than either group is wide."""
    stuck_runs, trained_runs = list[RecordedRun](), list[RecordedRun]()
    for run in arm.runs:
        trained = run.trained if run.seed in seeds else None
        if trained:
            trained_runs.append(run)
        elif trained is False:
            stuck_runs.append(run)
    stuck = final_values(stuck_runs, metric)
    others = final_values(trained_runs, metric)
    if not stuck or not others:
        return False
    gap = max(min(stuck) - max(others), min(others) - max(stuck))
    width = max(max(stuck) - min(stuck), max(others) - min(others))
    return gap > width


def two_groups_of(arm: Arm) -> TwoGroups:
    """Return how many runs of an arm trained, among those of which this is known."""
    judged = [run.trained for run in arm.runs if run.trained is not None]
    return TwoGroups(arm.name, sum(judged), len(judged))


# ---- runs that diverged or did not train


def compare_lost_runs(arms: Sequence[Arm], baseline: Baseline) -> tuple[LostRuns, ...]:
    """Return for every arm that has a partner how many runs the two lost; nothing is corrected yet."""
    results = []
    for arm, other in pairs_of(arms, baseline):
        lost_by_arm, lost_by_baseline = were_lost(arm), were_lost(other)
        lost = (sum(lost_by_arm), sum(lost_by_baseline))
        runs = (len(lost_by_arm), len(lost_by_baseline))
        result = LostRuns(
            arm=arm.name,
            baseline=other.name,
            choices=choices_of(arm, other),
            lost=lost,
            runs=runs,
            counted=min(runs) > 0 and least_fisher_p(lost, runs) < ALPHA,
            diverged=any(run.status == "diverged" for run in (*arm.runs, *other.runs)),
            stuck=bool(arm.stuck or other.stuck),
        )
        results.append(result)
    return tuple(results)


def were_lost(arm: Arm) -> list[bool]:
    """Return for each run that finished or diverged whether it was lost: it diverged, or did not train."""
    lost = []
    for run in arm.runs:
        if run.ended:
            lost.append(run.status == "diverged" or run.trained is False)
    return lost


def by_seed(runs: Sequence[RecordedRun], measure: Callable[[RecordedRun], float]) -> dict[int, float]:
    """Return what is measured of runs, where it is not NaN; of several with one seed their mean."""
    measured = dict[int, list[float]]()
    for run in runs:
        value = measure(run)
        if not math.isnan(value):
            measured.setdefault(run.seed, []).append(value)
    means = {}
    for seed, values in sorted(measured.items()):
        mean = sum(values) / len(values)
        if not math.isnan(mean):  # as of ∞ and −∞
            means[seed] = mean
    return means
