"""From runs to the answer: what is compared, by what it is judged, and what is found of it, as values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from normbench.evidence import facts
from normbench.evidence.arms import LEARNING_RATE, Arm, Baseline, partner
from normbench.evidence.baselines import given_baseline, usual_baseline
from normbench.evidence.frame import activations_frame
from normbench.evidence.measures import Metric, final_values
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import RecordedStudy, choose_contenders, read_studies
from normbench.evidence.yardstick import Yardstick, choose_yardstick
from normbench.results.answer import (
    Answer,
    ArmDifference,
    ArmResult,
    Deciding,
    DifferenceAtSize,
    Effect,
    Factor,
    Held,
    Losses,
    Question,
    Result,
    Scaling,
    Stuck,
    TwoGroups,
)
from normbench.results.causes import causes_of, next_steps, read_probes
from normbench.results.comparisons import (
    Comparison,
    Survival,
    compare_all,
    in_two_groups,
)
from normbench.results.designs import Contrast
from normbench.results.fairness import differences_of_schemes, find_caveats
from normbench.results.family import Judgement, judge
from normbench.results.scaling import Ladder, Rung
from normbench.results.statistics import Sample, mean_interval
from normbench.wording import in_words


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asks of runs.

    Attributes:
        baseline: words of the arm that others are compared with, such as `norm=layernorm`.
        metric: the tag of the primary metric, by which arms are judged; by default what suits the task.
        margin: the largest difference in it that does not matter.
        target: the validation loss (nats) to which times are measured.
    """

    baseline: str | None = None
    metric: str | None = None
    margin: float | None = None
    target: float | None = None


@dataclass(frozen=True)
class Examination:
    """A study and what is found of it.

    Attributes:
        study: the runs.
        baseline: an arm without runs, whose settings are those in which a partner differs from its arm.
        arms: those that are compared.
        rates_chosen: whether each of them is at the best of several learning rates.
        yardstick: by what the arms are judged.
        judgement: the tests in the primary metric.
        blocks: what probes measured by block, as `activations_frame` has it, of all arms of the study.
        answer: all that a report says.
    """

    study: RecordedStudy
    baseline: Arm
    arms: tuple[Arm, ...]
    rates_chosen: bool
    yardstick: Yardstick
    judgement: Judgement
    blocks: pd.DataFrame
    answer: Answer

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Return the comparisons in the primary metric."""
        return self.judgement.comparisons


def examine_all(
    folders: Sequence[Path], request: Request | None = None, missing: Mapping[str, str] | None = None
) -> list[Examination]:
    """Find out what the runs below some folders say, task by task.

    missing: for each planned run without a directory why it failed, empty where that is not known.

    Raises:
        UsageError: a folder is not there, no run has ended, or the baseline is not an arm of some task.
    """
    request = request or Request()
    found = []
    for study in read_studies(folders):
        baseline = given_baseline(study, request.baseline) if request.baseline else usual_baseline(study)
        found.append(examine(study, baseline, request, missing))
    return found


def examine(
    study: RecordedStudy, baseline: Baseline, request: Request, missing: Mapping[str, str] | None = None
) -> Examination:
    """Find out what a study says.

    baseline: the settings in which the partner of an arm differs from it. missing: for each planned run without a
    directory why it failed, empty where that is not known.
    """
    margin = request.margin
    arms, rates_chosen = choose_contenders(study, baseline)
    partners = {}
    for arm in study.arms:
        other = partner(arm, arms, baseline)
        if other:
            partners[arm.name] = other
    yardstick = choose_yardstick(study, partners, request.target, request.metric)
    judgement = judge(study, arms, baseline, yardstick.primary)
    others = list[Comparison]()
    for metric in yardstick.metrics[1:]:
        others += compare_all(arms, baseline, metric)
    blocks = activations_frame(study.arms)
    compared_blocks = activations_frame(arms) if rates_chosen else blocks
    readings_of = {arm.name: read_probes(arm, compared_blocks) for arm in arms}
    chosen_by_what_is_reported = rates_chosen and not yardstick.primary.tag.endswith("/test")
    caveats = find_caveats(study, chosen_by_what_is_reported, judgement.comparisons, missing, judgement.ladders)
    answer = Answer(
        question=state_question(study, yardstick.primary, margin),
        baseline=baseline,
        metrics=yardstick.metrics,
        arms=state_arms(study, arms, yardstick.metrics),
        differences=tuple(state_difference(one, margin) for one in judgement.comparisons),
        others=tuple(state_difference(one) for one in others),
        effects=tuple(state_effect(one) for one in judgement.contrasts),
        losses=tuple(state_losses(one) for one in judgement.survivals),
        causes=causes_of(arms, readings_of, judgement.comparisons),
        caveats=caveats,
        next=next_steps(study, arms, readings_of, judgement.comparisons, margin),
        damaged=dict(study.damaged),
        missing=dict(missing or {}),
        scaling=tuple(state_scaling(one) for one in judgement.ladders),
    )
    return Examination(
        study=study,
        baseline=Arm(baseline),
        arms=arms,
        rates_chosen=rates_chosen,
        yardstick=yardstick,
        judgement=judgement,
        blocks=blocks,
        answer=answer,
    )


# ---- the question


def state_question(study: RecordedStudy, metric: Metric, margin: float | None) -> Question:
    """Return what was asked of a study."""
    runs = study.runs
    return Question(
        task=study.task,
        metric=metric,
        margin=margin,
        varied=tuple(Factor(key, values_of(study, key)) for key in study.varied),
        data=facts.distinct(runs, facts.option_reader(study, "data")),
        model=facts.distinct(runs, facts.option_reader(study, "model")),
        norm=facts.distinct(runs, facts.option_reader(study, "norm")),
        held=state_held(study),
        parameters=facts.parameters_of(runs),
        seeds=facts.seeds_of(runs),
        by_hand=tuple(facts.given_settings(study)),
        command=study.command(),
        trained=facts.trained_of(runs),
        of_schemes=differences_of_schemes(study),
    )


def values_of(study: RecordedStudy, key: str) -> tuple[Any, ...]:
    """Return the values of a setting, one of those that are written alike."""
    found: dict[str, Any] = {}
    for run in study.runs:
        value = study.value_of(run, key)
        found.setdefault(in_words(value), value)
    return tuple(found.values())


def state_held(study: RecordedStudy) -> tuple[Held, ...]:
    """Return how long, on which batches and at which rates runs train, unless that is what varies."""
    perhaps_held = (
        ("steps", "trainer.steps", facts.steps),
        ("batch", "data.batch_size", facts.batch),
        ("rate", LEARNING_RATE, facts.rate),
    )
    found = []
    for what, key, read in perhaps_held:
        if key not in study.varied:
            values = facts.distinct(study.runs, read)
            found.append(Held(what, values, facts.goes_with(study, read)))
    return tuple(found)


# ---- arms


def state_arms(study: RecordedStudy, compared: Sequence[Arm], metrics: Sequence[Metric]) -> tuple[ArmResult, ...]:
    """Return how each arm of a study ended.

    compared: the arms that are compared; one that was chosen among learning rates is named without its rate there.
    """
    found = []
    for arm in study.arms:
        names = [one.name for one in compared if one.runs is arm.runs]
        compared_as = names[0] if names else None
        found.append(state_arm(arm, compared_as, metrics))
    return tuple(found)


def state_arm(arm: Arm, compared_as: str | None, metrics: Sequence[Metric] = ()) -> ArmResult:
    """Return how the runs of an arm ended."""
    return ArmResult(
        name=arm.name,
        settings=dict(arm.settings),
        compared_as=compared_as,
        seeds=facts.seeds_of(arm.runs),
        statuses=dict(Counter(run.status for run in arm.runs)),
        trained=arm.trained,
        stuck=tuple(state_stuck(run) for run in arm.stuck),
        results=tuple(state_result(arm, metric) for metric in metrics),
    )


def state_stuck(run: RecordedRun) -> Stuck:
    """Return how a run ended that did not train."""
    is_measured = "accuracy/val" in run.metrics
    return Stuck(
        run=run.name,
        loss=or_nan(run.metrics.get("loss/val")),
        constant_loss=run.constant.get("loss/val"),
        constant_accuracy=run.constant.get("accuracy/val") if is_measured else None,
    )


def state_result(arm: Arm, metric: Metric) -> Result:
    """Return how an arm ended in a metric."""
    seeds = facts.seeds_of(arm.finished)
    values = final_values(arm.finished, metric)
    if in_two_groups(arm, metric, seeds):
        values = []
    mean, interval = mean_interval(values, metric.bounds)
    return Result(metric.tag, len(values), or_nan(mean), interval)


# ---- what is tested


def state_pairs(one: Comparison | Contrast | Ladder) -> dict[str, Any]:
    """Return the fields that differences, effects and scaling share, those of `Paired`, by name."""
    return {
        "arm": one.arm.name,
        "baseline": one.baseline.name,
        "metric": one.metric,
        "seeds": one.seeds,
        "values": one.values,
        "tried": len(one.tried),
        "mean": or_nan(one.mean),
        "sd": one.sd,
        "interval": one.interval,
        "p": one.p,
        "corrected": one.corrected,
        "family": one.family,
        "real": one.real,
    }


def state_difference(one: Comparison, margin: float | None = None) -> ArmDifference:
    """Return what is found of the difference between an arm and its baseline."""
    ours, theirs = one.lost
    decided_by = one.decided_by
    untrained = [arm.name for arm in (one.arm, one.baseline) if not arm.trained]
    torn = [state_groups(arm) for arm in one.torn]
    return ArmDifference(
        **state_pairs(one),
        verdict=one.verdict(margin),
        better=one.better,
        effect_size=one.effect_size,
        detectable=one.detectable,
        detectable_interval=one.detectable_interval,
        untrained=tuple(untrained),
        torn=tuple(torn),
        survived=one.survived,
        lost=(len(ours), len(theirs)),
        ranks=len(one.ranked),
        ranked_p=one.ranked_p,
        skewed=one.skewed,
        deciding=Deciding(*decided_by) if decided_by else None,
    )


def state_groups(arm: Arm) -> TwoGroups:
    """Return how many runs of an arm trained, among those of which this is known."""
    judged = [run.trained for run in arm.runs if run.trained is not None]
    return TwoGroups(arm.name, sum(judged), len(judged))


def state_effect(one: Contrast) -> Effect:
    """Return what is found of a factor's effects on an arm and on its baseline."""
    return Effect(
        **state_pairs(one),
        kind=one.kind,
        factor=one.factor,
        levels=tuple(one.levels),
        own=one.own,
        other=one.other,
    )


def state_scaling(one: Ladder) -> Scaling:
    """Return what is found of how a difference changes with the size of the model."""
    return Scaling(
        **state_pairs(one),
        sizes=tuple(state_rung(rung) for rung in one.rungs),
        at_smallest=state_at_size(one.smallest, one.at(one.smallest)),
        at_largest=state_at_size(one.largest, one.at(one.largest)),
        extrapolated=state_at_size(one.further, one.at(one.further)),
        bend_p=one.bend.p,
        left_out=one.left_out,
    )


def state_rung(rung: Rung) -> DifferenceAtSize:
    """Return what was measured at one size."""
    return state_at_size(rung.parameters, rung.sample, rung.settings)


def state_at_size(parameters: float, sample: Sample, settings: Mapping[str, Any] | None = None) -> DifferenceAtSize:
    """Return the difference at a number of parameters. settings: that make the size."""
    return DifferenceAtSize(parameters, sample.values, or_nan(sample.mean), sample.interval, dict(settings or {}))


def state_losses(one: Survival) -> Losses:
    """Return how many runs an arm and its baseline lost."""
    runs = (*one.arm.runs, *one.baseline.runs)
    any_diverged = any(run.status == "diverged" for run in runs)
    any_stuck = bool(one.arm.stuck or one.baseline.stuck)
    return Losses(
        arm=one.arm.name,
        baseline=one.baseline.name,
        lost=one.lost,
        runs=one.runs,
        counted=one.p_before_holm is not None,
        diverged=any_diverged,
        stuck=any_stuck,
        p=one.p,
        corrected=one.corrected,
        family=one.family,
        real=one.real,
    )


def or_nan(value: float | None) -> float:
    """Return a number; NaN for None, and always the same NaN, so that what is read from JSON is equal."""
    return math.nan if value is None or math.isnan(value) else float(value)
