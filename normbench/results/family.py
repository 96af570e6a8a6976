"""Every test that a report speaks of, corrected as one family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from normbench.evidence.arms import Arm
from normbench.evidence.measures import Metric
from normbench.evidence.study import RecordedStudy
from normbench.results.comparisons import (
    Baseline,
    Comparison,
    Survival,
    compare_all,
    compare_survivals,
    with_corrected_p,
)
from normbench.results.designs import Contrast, find_contrasts
from normbench.results.scaling import Ladder, find_ladders
from normbench.results.statistics import holm


@dataclass(frozen=True)
class Judgement:
    """All tests of a study.

    Attributes:
        comparisons: of how arms end.
        contrasts: of what crossed factors do.
        survivals: of how many runs were lost.
        ladders: of how differences change with the size of the model.
    """

    comparisons: tuple[Comparison, ...]
    contrasts: tuple[Contrast, ...]
    survivals: tuple[Survival, ...]
    ladders: tuple[Ladder, ...]

    @property
    def claims(self) -> bool:
        """Tell whether anything is called a difference."""
        tests = (*self.comparisons, *self.contrasts, *self.survivals, *self.ladders)
        return any(one.real for one in tests)


def judge(study: RecordedStudy, arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> Judgement:
    """Make every test that a report speaks of; p is corrected over all of them after Holm.

    arms: those that are compared, each at its best learning rate where that was a choice.
    """
    compared = compare_all(arms, baseline, metric)
    ladders = find_ladders(compared)
    sizes = set[str]()
    for ladder in ladders:
        sizes.update(ladder.rungs[0].settings)
    crossed = find_contrasts(study, arms, baseline, metric, without_slopes=sizes)
    survived = compare_survivals(arms, baseline)
    every_test = (*compared, *crossed, *survived, *ladders)
    corrected = holm([one.p_before_holm for one in every_test])
    tests_with_p = len(corrected) - corrected.count(None)
    family = max(tests_with_p, 1)
    ends = list(accumulate([len(compared), len(crossed), len(survived)]))
    return Judgement(
        with_corrected_p(compared, corrected[: ends[0]], family),
        with_corrected_p(crossed, corrected[ends[0] : ends[1]], family),
        with_corrected_p(survived, corrected[ends[1] : ends[2]], family),
        with_corrected_p(ladders, corrected[ends[2] :], family),
    )
