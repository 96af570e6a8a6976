"""Families of tests, corrected after Holm: all that a report speaks of, and all claims that are registered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from normbench.evidence.arms import Arm, Baseline
from normbench.evidence.measures import Metric
from normbench.evidence.study import RecordedStudy
from normbench.results.claimed import ClaimedEffect, Corrected
from normbench.results.comparisons import compare_all, compare_lost_runs
from normbench.results.designs import find_effects
from normbench.results.result import Difference, FactorEffect, LostRuns, Result, Scaling
from normbench.results.rules import IN_FAVOUR, OF_SIGN, Verdict
from normbench.results.scaling import find_ladders
from normbench.results.statistics import ALPHA, holm

SomeResult = TypeVar("SomeResult", bound=Result)


@dataclass(frozen=True)
class Family:
    """All results of a study that are corrected together.

    Attributes:
        differences: of how arms end.
        effects: of crossed factors.
        losses: how many runs were lost.
        scaling: how differences change with the size of the model.
    """

    differences: tuple[Difference, ...]
    effects: tuple[FactorEffect, ...]
    losses: tuple[LostRuns, ...]
    scaling: tuple[Scaling, ...]


def make_tests(
    study: RecordedStudy, arms: Sequence[Arm], baseline: Baseline, metric: Metric, margin: float | None = None
) -> Family:
    """Make every test that a report speaks of; p is corrected over all of them after Holm.

    Args:
        study: the runs.
        arms: those that are compared, each at its best learning rate where that was a choice.
        baseline: the settings in which the partner of an arm differs from it.
        metric: in which runs ended.
        margin: in the metric's unit; differences within it do not matter.
    """
    differences = compare_all(arms, baseline, metric, margin)
    ladders = find_ladders(arms, baseline, differences)
    settings_of_sizes = set[str]()
    for ladder in ladders:
        settings_of_sizes.update(ladder.sizes[0].settings)
    effects = find_effects(study, arms, baseline, metric, without_slopes=settings_of_sizes)
    losses = compare_lost_runs(arms, baseline)
    p_values = list[float | None]()
    for results in (differences, effects, losses, ladders):
        p_values += [result.p_before_holm for result in results]
    size = size_of_family(p_values)
    corrected = iter(holm(p_values))
    return Family(
        settle(differences, corrected, size),
        settle(effects, corrected, size),
        settle(losses, corrected, size),
        settle(ladders, corrected, size),
    )


def correct(results: Sequence[SomeResult]) -> tuple[SomeResult, ...]:
    """Return results with p corrected over all of them after Holm (1979), and with their verdicts."""
    p_values = [result.p_before_holm for result in results]
    return settle(results, iter(holm(p_values)), size_of_family(p_values))


def size_of_family(p_values: Sequence[float | None]) -> int:
    """Return how many tests correct each other: those that have p."""
    return max(len(p_values) - p_values.count(None), 1)


def settle(results: Sequence[SomeResult], corrected: Iterator[float | None], family: int) -> tuple[SomeResult, ...]:
    """Return results with their corrected p, and with the verdicts that it leaves. corrected: the next are theirs."""
    settled = []
    for result in results:
        p = next(corrected)
        with_p = replace(result, corrected=None if result.p is None else p, family=family)
        settled.append(replace(with_p, verdict=with_p.judge()))
    return tuple(settled)


# ---- claims


def correct_verdicts(effects: Mapping[str, ClaimedEffect | None]) -> dict[str, Corrected]:
    """Return the verdicts on all registered claims, corrected after Holm (1979), by name.

    effects: by name, None for a claim that is not judged: its p is 1, so that what is run chooses nothing.

    What speaks for claims is one family, what contradicts them another, and the signs of effects, where they are told
    apart from their sizes, a third, each at 5 %. A verdict that correction does not leave is inconclusive, or that of
    the sign alone where that is left; "not reproduced" is kept, as it claims nothing new.
    """
    names = list(effects)
    p_values = holm([1.0 if effect is None else effect.p for effect in effects.values()])
    opposites = holm([1.0 if effect is None else effect.p_against for effect in effects.values()])
    signs = holm([1.0 if effect is None else effect.p_of_sign for effect in effects.values()])
    corrected = dict[str, Corrected]()
    for name, p, p_against, p_of_sign in zip(names, p_values, opposites, signs, strict=True):
        assert p is not None and p_against is not None and p_of_sign is not None
        effect = effects[name]
        verdict = None if effect is None else keep(effect.verdict, p, p_against, has_sign=p_of_sign <= ALPHA)
        corrected[name] = Corrected(p, p_against, verdict, p_of_sign)
    return corrected


def keep(verdict: Verdict, p: float, p_against: float, *, has_sign: bool = False) -> Verdict:
    """Return a verdict, or what is left of it once p is corrected. has_sign: whether the effect's sign is left."""
    if verdict in IN_FAVOUR and p > ALPHA:
        return Verdict.SIZE_UNSETTLED if has_sign else Verdict.INCONCLUSIVE
    if verdict is Verdict.CONTRADICTED and p_against > ALPHA:
        return Verdict.OPPOSITE_UNSETTLED if has_sign else Verdict.INCONCLUSIVE
    if verdict in OF_SIGN and not has_sign:
        return Verdict.INCONCLUSIVE
    return verdict
