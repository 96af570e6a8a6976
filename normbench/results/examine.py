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
from normbench.evidence.arms import LEARNING_RATE, Arm, Baseline, Pair, pairs_of, partner
from normbench.evidence.baselines import given_baseline, usual_baseline
from normbench.evidence.frame import activations_frame
from normbench.evidence.measures import Metric, final_values
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import RecordedStudy, choose_contenders, read_studies
from normbench.evidence.yardstick import Yardstick, choose_yardstick
from normbench.results.answer import (
    Answer,
    ArmEnd,
    ArmResult,
    Factor,
    Held,
    Question,
    Stuck,
)
from normbench.results.causes import causes_of, next_steps, read_probes
from normbench.results.caveats import Case, differences_of_schemes, find_caveats
from normbench.results.comparisons import compare_all, in_two_groups
from normbench.results.family import Family, correct, make_tests
from normbench.results.result import Difference
from normbench.results.statistics import mean_interval
from normbench.results.worth import Worth, worth_of
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
        family: the results in the primary metric, corrected together.
        blocks: what probes measured by block, as `activations_frame` has it, of all arms of the study.
        answer: all that a report says.
    """

    study: RecordedStudy
    baseline: Arm
    arms: tuple[Arm, ...]
    rates_chosen: bool
    yardstick: Yardstick
    family: Family
    blocks: pd.DataFrame
    answer: Answer

    @property
    def pairs(self) -> list[Pair]:
        """Return every arm that is compared with another, and that other one."""
        return pairs_of(self.arms, dict(self.baseline.settings))


def examine_all(
    folders: Sequence[Path], request: Request | None = None, missing: Mapping[str, str] | None = None
) -> list[Examination]:
    """Find out what the runs below some folders say, task by task.

    missing: for each planned run without a directory why it failed, empty where that is not known.

    Raises:
        UsageError: a folder is not there, no run has ended, or the baseline is not an arm of some task.
    """
    request = request or Request()
    examinations = []
    for study in read_studies(folders):
        baseline = given_baseline(study, request.baseline) if request.baseline else usual_baseline(study)
        examinations.append(examine(study, baseline, request, missing))
    return examinations


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
    family = make_tests(study, arms, baseline, yardstick.primary, margin)
    others = list[Difference]()
    for metric in yardstick.metrics[1:]:
        others += correct(compare_all(arms, baseline, metric))
    blocks = activations_frame(study.arms)
    compared_blocks = activations_frame(arms) if rates_chosen else blocks
    readings_of = {arm.name: read_probes(arm, compared_blocks) for arm in arms}
    case = Case(
        study=study,
        arms=arms,
        differences=family.differences,
        ladders=family.scaling,
        missing=missing or {},
        chosen_by_what_is_reported=rates_chosen and not yardstick.primary.tag.endswith("/test"),
    )
    answer = Answer(
        question=state_question(study, yardstick.primary, margin),
        baseline=baseline,
        metrics=yardstick.metrics,
        arms=state_arms(study, arms, yardstick.metrics),
        differences=family.differences,
        others=tuple(others),
        effects=family.effects,
        losses=family.losses,
        causes=causes_of(arms, readings_of, family.differences),
        caveats=find_caveats(case),
        next=next_steps(study, arms, readings_of, family.differences, margin),
        damaged=dict(study.damaged),
        missing=dict(missing or {}),
        scaling=family.scaling,
        worth=state_worth(arms, baseline, yardstick.primary),
    )
    return Examination(
        study=study,
        baseline=Arm(baseline),
        arms=arms,
        rates_chosen=rates_chosen,
        yardstick=yardstick,
        family=family,
        blocks=blocks,
        answer=answer,
    )


def state_worth(arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> tuple[Worth, ...]:
    """Return what arms take to the losses of their baselines; nothing where losses are of no interest.

    metric: by which arms are judged.
    """
    if metric.in_doublings:
        return ()
    return tuple(worth_of(arm, other) for arm, other in pairs_of(arms, baseline))


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
    value_by_words: dict[str, Any] = {}
    for run in study.runs:
        value = study.value_of(run, key)
        value_by_words.setdefault(in_words(value), value)
    return tuple(value_by_words.values())


def state_held(study: RecordedStudy) -> tuple[Held, ...]:
    """Return how long, on which batches and at which rates runs train, unless that is what varies."""
    perhaps_held = (
        ("steps", "trainer.steps", facts.steps),
        ("batch", "data.batch_size", facts.batch),
        ("rate", LEARNING_RATE, facts.rate),
    )
    held = []
    for what, key, read in perhaps_held:
        if key not in study.varied:
            values = facts.distinct(study.runs, read)
            goes_with = facts.goes_with(study, read)
            if key == LEARNING_RATE and goes_with and study.chosen_for_each_seed:
                goes_with = "seed"  # and with the arm: each of its seeds has a rate that was chosen for it
            held.append(Held(what, values, goes_with))
    return tuple(held)


# ---- arms


def state_arms(study: RecordedStudy, compared: Sequence[Arm], metrics: Sequence[Metric]) -> tuple[ArmResult, ...]:
    """Return how each arm of a study ended.

    compared: the arms that are compared; one that was chosen among learning rates is named without its rate there.
    """
    results = []
    for arm in study.arms:
        names = [contender.name for contender in compared if contender.runs is arm.runs]
        compared_as = names[0] if names else None
        results.append(state_arm(arm, compared_as, metrics))
    return tuple(results)


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


def state_result(arm: Arm, metric: Metric) -> ArmEnd:
    """Return how an arm ended in a metric."""
    seeds = facts.seeds_of(arm.finished)
    values = final_values(arm.finished, metric)
    if in_two_groups(arm, metric, seeds):
        values = []
    mean, interval = mean_interval(values, metric.bounds)
    return ArmEnd(metric.tag, len(values), or_nan(mean), interval)


def or_nan(value: float | None) -> float:
    """Return a number; NaN for None, and always the same NaN, so that what is read from JSON is equal."""
    return math.nan if value is None or math.isnan(value) else float(value)
