"""Every test that a report speaks of, corrected as one family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normbench.analysis.comparisons import (
    Baseline,
    Comparison,
    Survival,
    compare_all,
    compare_survivals,
    with_corrected_p,
)
from normbench.analysis.designs import Contrast, find_contrasts
from normbench.analysis.measures import Metric
from normbench.analysis.records import Arm, RecordedStudy
from normbench.analysis.statistics import holm


@dataclass(frozen=True)
class Judgement:
    """All tests of a study: of how arms end, of what crossed factors do, and of how many runs were lost."""

    comparisons: tuple[Comparison, ...]
    contrasts: tuple[Contrast, ...]
    survivals: tuple[Survival, ...]

    @property
    def claims(self) -> bool:
        """Tell whether anything is called a difference."""
        tests = (*self.comparisons, *self.contrasts, *self.survivals)
        return any(one.real for one in tests)


def judge(study: RecordedStudy, arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> Judgement:
    """Make every test that a report speaks of; p is corrected over all of them after Holm.

    arms: those that are compared, each at its best learning rate where that was a choice.
    """
    compared = compare_all(arms, baseline, metric)
    crossed = find_contrasts(study, arms, baseline, metric)
    survived = compare_survivals(arms, baseline)
    every_test = (*compared, *crossed, *survived)
    corrected = holm([one.p_before_holm for one in every_test])
    tests_with_p = len(corrected) - corrected.count(None)
    family = max(tests_with_p, 1)
    end_of_compared = len(compared)
    end_of_crossed = end_of_compared + len(crossed)
    return Judgement(
        with_corrected_p(compared, corrected[:end_of_compared], family),
        with_corrected_p(crossed, corrected[end_of_compared:end_of_crossed], family),
        with_corrected_p(survived, corrected[end_of_crossed:], family),
    )
