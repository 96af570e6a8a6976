"""What the sentences of results rest on: p, signed ranks, what one seed decides, and what was corrected.

It is read after all of the sentences, by those who want to check them.
"""

from __future__ import annotations

from collections.abc import Sequence

from normbench.results.comparisons import ENOUGH_SEEDS
from normbench.results.result import Difference, FactorEffect, LostRuns, Scaling
from normbench.results.rows import StudyResult
from normbench.results.rules import Verdict
from normbench.results.statistics import ALPHA, FEWEST_RANKS
from normbench.tell.phrases import corrected_p, corrections, in_number, p_before_correction, pair
from normbench.wording import equals, p_value

CALLED = (Verdict.DIFFERENT, Verdict.POSSIBLE)

# Verdicts that one seed may have turned.
RESTING_ON_A_SEED = (Verdict.DIFFERENT, Verdict.POSSIBLE, Verdict.UNKNOWN, Verdict.ALIKE)


def detail_of_difference(difference: Difference) -> str:
    """Say what the verdict on one comparison rests on: p, the test of signed ranks, and what one seed decides."""
    parts = []
    if difference.verdict in CALLED:
        parts.append(p_of_verdict(difference))
        if difference.n < ENOUGH_SEEDS and difference.ranked_p is not None:
            parts.append(f"signed ranks {p_value(difference.ranked_p)}")
    if difference.verdict == Verdict.FLATTERED and difference.ranked_p is not None:
        parts.append(f"with lost runs ranked last, p {equals(difference.ranked_p)} (signed ranks)")
    rests_on_a_seed = difference.verdict in RESTING_ON_A_SEED and (difference.real or difference.skewed)
    if rests_on_a_seed and difference.deciding:
        parts.append(say_deciding(difference, difference.deciding.seed))
    return f"{pair(difference)}: {'; '.join(parts)}." if parts else ""


def p_of_verdict(result: Difference | StudyResult) -> str:
    """Write the p behind what is a difference, or may be one."""
    if result.verdict == Verdict.POSSIBLE:
        return f"p {equals(result.p)}; after correction for {corrections(result)} p {equals(result.corrected)}"
    return corrected_p(result)


def say_deciding(difference: Difference, seed: int) -> str:
    """Name the seed without which the verdict would be another, and no p without it, which would invite to drop it."""
    if difference.real:
        return f"it rests on seed {seed}, without which it would not be certain: look at its run"
    return f"it rests on seed {seed}, an outlier: look at its run"


def detail_of_study(result: StudyResult) -> str:
    """Say what the verdict on a comparison of a study rests on: p, also where nothing was found."""
    if result.p is None or result.corrected is None or result.interval is None:
        return ""
    return f"{pair(result)}{in_number(result)}: {p_of_verdict(result)}."


def detail_of_effect(effect: FactorEffect, name: str) -> str:
    """Say what an effect rests on; nothing where it was not tested. name: of the effect."""
    if effect.p is None:
        return ""
    p = corrected_p(effect) if effect.real else p_before_correction(effect)
    return f"{name}, {pair(effect)}: {p}."


def detail_of_scaling(scaling: Scaling) -> str:
    """Say what a change with the size of the model, and its bend, rest on; nothing where none was found."""
    parts = []
    is_told = scaling.p is None or scaling.p < ALPHA
    if scaling.interval is not None and is_told:
        parts.append(corrected_p(scaling) if scaling.real else p_before_correction(scaling))
    if bends(scaling):
        parts.append(f"bend, p {equals(scaling.bend_p)}")
    return f"Change with size, {pair(scaling)}: {'; '.join(parts)}." if parts else ""


def bends(scaling: Scaling) -> bool:
    """Tell whether a line does not describe the differences."""
    return scaling.bend_p is not None and scaling.bend_p < ALPHA


def detail_of_losses(losses: LostRuns, worse: str, better: str) -> str:
    """Say what the verdict on lost runs rests on. worse, better: the arm that lost more, and the other."""
    p = corrected_p(losses) if losses.real else p_before_correction(losses)
    return f"Lost runs, {worse} and {better}: Fisher's exact test, {p}."


def say_assumptions(differences: Sequence[Difference]) -> list[str]:
    """Say what is assumed of few seeds, where a difference was found or may have been."""
    ranks_of_few_seeds = []
    for difference in differences:
        if difference.verdict in CALLED and difference.n < ENOUGH_SEEDS:
            ranks_of_few_seeds.append(difference.ranks)
    if not ranks_of_few_seeds:
        return []
    limit = ""
    if min(ranks_of_few_seeds) < FEWEST_RANKS:
        limit = "; with five ranks or fewer its p cannot be below 0.05"
    return [
        f"With fewer than {ENOUGH_SEEDS} seeds, p and the interval hold where differences by seed are Gaussian, which "
        "so few cannot show; where they are skewed, false alarms are more frequent. The test of signed ranks, whose p "
        f"is not corrected, assumes symmetry alone{limit}."
    ]
