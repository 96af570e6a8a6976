"""The sentences of differences: one for each verdict, or one for many comparisons of the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from normbench.results.comparisons import ENOUGH_SEEDS
from normbench.results.result import Difference
from normbench.results.rules import Verdict
from normbench.results.statistics import ALPHA, FEWEST_RANKS, detectable_difference
from normbench.tell.phrases import Said, amount, corrected_p, corrections, lower_or_higher, pair, seeds_of
from normbench.wording import bound, count, equals, fixed, join_first, p_value, plain, precision, span, with_unit

FEW = 3  # comparisons in which nothing was found have a sentence each
FEW_UNTRAINED = 2  # comparisons with an arm that did not train have a sentence each
MOST_ALIKE = 4  # arms that are named where many are alike

# What can be said of differences, in this order: of one, and of none.
FOUND = (
    Verdict.DIFFERENT,
    Verdict.FLATTERED,
    Verdict.POSSIBLE,
    Verdict.CONSTANT,
    Verdict.TORN,
    Verdict.UNTRAINED,
)
NOT_FOUND = (Verdict.SAME, Verdict.WITHIN, Verdict.UNKNOWN, Verdict.ALIKE)

# Verdicts that one seed may have turned.
RESTING_ON_A_SEED = (Verdict.DIFFERENT, Verdict.POSSIBLE, Verdict.UNKNOWN, Verdict.ALIKE)


def say_found(differences: Sequence[Difference], margin: float | None) -> list[list[Said]]:
    """Say what the differences are, kind by kind, the largest first.

    margin: in the metric's unit; differences within it do not matter.
    """
    ordered = largest_first(differences)
    found = []
    for verdict in FOUND:
        own = [one for one in ordered if one.verdict == verdict]
        if verdict == Verdict.UNTRAINED and len(own) > FEW_UNTRAINED:  # one sentence on stuck arms says it for all
            own = []
        found.append([say_difference(one, margin) for one in own])
    return found


def say_not_found(differences: Sequence[Difference], margin: float | None) -> list[Said]:
    """Say where no difference was found, and where nothing can be said. margin: as `say_found` has it."""
    ordered = largest_first(differences)
    by_verdict = defaultdict[Verdict, list[Difference]](list)
    for one in ordered:
        by_verdict[one.verdict].append(one)
    undecided = []
    if by_verdict[Verdict.ONE_SEED]:
        undecided.append(Said(say_one_seed(by_verdict[Verdict.ONE_SEED], differences)))
    if by_verdict[Verdict.NO_SEED]:
        undecided.append(Said(say_no_seed(by_verdict[Verdict.NO_SEED])))
    alike = []
    for verdict in NOT_FOUND:
        alike += by_verdict[verdict]
    if len(alike) > FEW:
        return [*undecided, Said(say_alike_all(alike))]
    told = [say_difference(one, margin) for one in alike]
    return [*told, *undecided]


def largest_first(differences: Sequence[Difference]) -> list[Difference]:
    """Return differences by their size; those of one seed, of which nothing is known, last."""
    return sorted(differences, key=lambda one: -abs(one.mean) if one.n > 1 else 0.0)


def say_difference(one: Difference, margin: float | None) -> Said:
    """Say what one comparison shows, and what that rests on."""
    return Said(say_verdict(one, margin), say_detail(one))


def say_verdict(one: Difference, margin: float | None) -> str:
    """Say what one comparison shows, by its verdict; ONE_SEED and NO_SEED have a sentence for all of theirs."""
    match one.verdict:
        case Verdict.DIFFERENT:
            return say_different(one, margin)
        case Verdict.FLATTERED:
            return say_flattered(one)
        case Verdict.POSSIBLE:
            return say_possible(one, margin)
        case Verdict.CONSTANT:
            return say_constant(one)
        case Verdict.TORN:
            return say_torn(one)
        case Verdict.UNTRAINED:
            return say_untrained(one)
        case Verdict.SAME:
            return f"{pair(one)} end with the same {one.metric.words} in {each_seed(one)}."
        case Verdict.WITHIN:
            within = name_margin(margin, one)
            return f"{pair(one)} are the same within {within}: they do not differ by more than {reach_of(one)}."
        case Verdict.UNKNOWN:
            most = f"{reach_of(one)}{beyond(one, margin)}"
            return f"{pair(one)}: too few seeds to tell; they may differ by up to {most}."
        case Verdict.ALIKE:
            return say_alike(one, margin)
    raise ValueError(f"{one.verdict} has no sentence for one comparison")


def say_detail(one: Difference) -> str:
    """Say what the verdict on one comparison rests on: p, the test of signed ranks, and what one seed decides."""
    parts = []
    if one.verdict == Verdict.DIFFERENT:
        parts.append(corrected_p(one))
    elif one.verdict == Verdict.POSSIBLE:
        parts.append(f"p {equals(one.p)}; after correction for {corrections(one)} p {equals(one.corrected)}")
    if parts and one.n < ENOUGH_SEEDS and one.ranked_p is not None:
        parts.append(f"signed ranks {p_value(one.ranked_p)}")
    if one.verdict == Verdict.FLATTERED and one.ranked_p is not None:
        parts.append(f"with lost runs ranked last, p {equals(one.ranked_p)} (signed ranks)")
    if one.verdict in RESTING_ON_A_SEED and one.deciding and (one.real or one.skewed):
        parts.append(say_deciding(one, one.deciding.seed))
    return f"{pair(one)}: {'; '.join(parts)}." if parts else ""


def say_deciding(one: Difference, seed: int) -> str:
    """Name the seed without which the verdict would be another, and no p without it, which would invite to drop it."""
    if one.real:
        return f"it rests on seed {seed}, without which it would not be certain: look at its run"
    return f"it rests on seed {seed}, an outlier: look at its run"


# ---- a difference, or what may be one


def say_different(one: Difference, margin: float | None) -> str:
    """Say what a difference is, and first of one that does not matter that it does not."""
    if is_within(one, margin):
        same = f"{pair(one)} are the same within {name_margin(margin, one)}, though not equal"
        size = measured(one, whose=f"{one.arm}'s")
        return f"{same}: {size}{survivors(one)}."
    words = f"{one.arm} is {better_or_worse(one)} {one.baseline}: {measured(one)}"
    return f"{words}{survivors(one)}{against(one, margin)}."


def say_flattered(one: Difference) -> str:
    """Say that the arm which looks better has lost more runs."""
    lost_by_arm, lost_by_baseline = one.lost
    if one.better:
        better, other = one.arm, one.baseline
        lost_by_better, lost_by_other = lost_by_arm, lost_by_baseline
    else:
        better, other = one.baseline, one.arm
        lost_by_better, lost_by_other = lost_by_baseline, lost_by_arm
    return (
        f"{better} is not called better than {other}, as it lost {lost_by_better} of {count(one.tried, 'seed')} and "
        f"{other} {lost_by_other or 'none'}: on the {count(one.n, 'seed')} that survived in both, the "
        f"{one.metric.words} of {one.arm} is {amount(one)} {lower_or_higher(one)}."
    )


def say_possible(one: Difference, margin: float | None) -> str:
    """Say what may be a difference."""
    words = f"{one.arm} may be {better_or_worse(one)} {one.baseline}: {measured(one)}{survivors(one)}"
    uncertain = f"not certain after correction for {corrections(one)}: repeat it with new seeds"
    return f"{words}{against(one, margin)}; {uncertain}."


def say_constant(one: Difference) -> str:
    """Say that a difference is the same in each seed."""
    digits = precision(one.mean, None)
    size = with_unit(fixed(abs(one.mean), digits), one.metric.unit)
    return (
        f"{pair(one)} differ by the same {size} in {each_seed(one)} ({one.arm} is {lower_or_higher(one)} in "
        f"{one.metric.words}), so the spread is not known: add seeds."
    )


def say_torn(one: Difference) -> str:
    """Say that the runs of an arm end in two groups."""
    first = one.torn[0]
    arms = " and of ".join(group.arm for group in one.torn)
    which = f" runs of {first.arm}" if len(one.torn) > 1 else ""
    return (
        f"{pair(one)}: no mean, interval or p is given, as the runs of {arms} end in two groups far apart: "
        f"{first.trained} of {first.runs}{which} trained, and the others did not."
    )


def say_untrained(one: Difference) -> str:
    """Say that two arms are not compared, as one of them did not train."""
    if len(one.untrained) > 1:
        return f"{pair(one)} are not compared: neither of them trained."
    (stuck,) = one.untrained
    words = f"{pair(one)} are not compared: {stuck} did not train"
    if one.n:
        baseline_is_higher = one.mean < 0
        is_higher = baseline_is_higher == (stuck == one.baseline)
        is_clear = one.metric.judges and one.p is not None and one.p < ALPHA
        because = ", which is why" if is_clear else ";"
        where = "higher" if is_higher else "lower"
        words += f"{because} its {one.metric.words} is {amount(one)} {where}"
    return f"{words}."


def say_assumptions(differences: Sequence[Difference]) -> list[str]:
    """Say what is assumed of few seeds, where a difference was found or may have been."""
    ranks_of_few_seeds = []
    for one in differences:
        is_told = one.verdict in (Verdict.DIFFERENT, Verdict.POSSIBLE)
        if is_told and one.n < ENOUGH_SEEDS:
            ranks_of_few_seeds.append(one.ranks)
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


# ---- no difference


def say_alike(one: Difference, margin: float | None) -> str:
    """Say that no difference was found, and how large one may be."""
    if margin is None:
        return f"{pair(one)} do not differ by more than {reach_of(one)}."
    most = f"{reach_of(one)}{beyond(one, margin)}"
    return f"{pair(one)}: no difference was found, but they may differ by up to {most}."


def say_alike_all(differences: Sequence[Difference]) -> str:
    """Say in one sentence that no difference was found in many comparisons."""
    arms = join_first([one.arm for one in differences], MOST_ALIKE)
    reach = [one.interval.reach for one in differences if one.interval]
    some = ""
    if reach:
        most = with_unit(bound(max(reach)), differences[0].metric.unit)
        some = f"; there may be some of up to {most} (95 % in each)"
    return f"No difference was found in {len(differences)} comparisons ({arms}){some}."


# ---- nothing can be said


def say_one_seed(differences: Sequence[Difference], every: Sequence[Difference]) -> str:
    """Say that one seed shows nothing, and what more would show. every: all comparisons."""
    if max(one.tried for one in every) == 1:
        words = "With one seed for each arm nothing can be said about differences:"
    else:
        words = (
            f"{name_arms(differences)}: one seed has finished both there and in the baseline, so nothing can be said:"
        )

    def detectable(n: int) -> str:
        """Write the difference that n seeds can show, in standard deviations of the differences by seed."""
        return fixed(detectable_difference(n, 1.0, family=len(every)), 1)

    return (
        f"{words} add at least 2 seeds. To be found four times in five, a difference must be {detectable(3)} times the "
        f"standard deviation of the differences by seed with 3 seeds, {detectable(5)} times with 5, {detectable(10)} "
        f"times with 10 ({count(len(every), 'comparison')})."
    )


def say_no_seed(differences: Sequence[Difference]) -> str:
    """Say that no seed has a result in both arms."""
    arms = name_arms(differences)
    return f"{arms}: no seed has a result both there and in the baseline, so there are no values to compare."


def say_not_compared(arms: int) -> str:
    """Say that nothing is compared. arms: how many there are."""
    why = "there is one arm" if arms == 1 else "no arm has a baseline that differs in nothing else"
    return f"Nothing is compared: {why}."


# ---- parts of sentences


def better_or_worse(one: Difference) -> str:
    """Say whether an arm is better than its baseline or worse; or different, where the metric does not judge."""
    if not one.metric.judges:
        return "different from"
    return "better than" if one.better else "worse than"


def name_arms(differences: Sequence[Difference]) -> str:
    """Name the arms of some comparisons."""
    return join_first([one.arm for one in differences])


def each_seed(one: Difference) -> str:
    """Name all seeds that are compared."""
    survived = " that survived" if one.survived else ""
    return f"each of {count(one.n, 'seed')}{survived}"


def survivors(one: Difference) -> str:
    """Say that other seeds were lost."""
    return ", among the seeds that survived" if one.survived else ""


def measured(one: Difference, whose: str = "its") -> str:
    """Write a difference, its interval, and on how many seeds it was measured."""
    interval = span(one.interval, precision(one.mean, one.interval), sign=True)
    return f"{whose} {one.metric.words} is {amount(one)} {lower_or_higher(one)} (95 %: {interval}; {seeds_of(one)})"


def reach_of(one: Difference) -> str:
    """Write how large a difference may be at most, and by how many seeds that is known."""
    reach = one.interval.reach if one.interval else None
    most = with_unit(bound(reach), one.metric.unit)
    survived = " among the seeds that survived" if one.survived else ""
    return f"{most}{survived} ({seeds_of(one)}, 95 %)"


def name_margin(margin: float | None, one: Difference) -> str:
    """Name the margin."""
    return f"the margin of {with_unit(plain(margin or 0.0), one.metric.unit)}"


def against(one: Difference, margin: float | None) -> str:
    """Say how a difference compares with the margin."""
    if margin is None or one.interval is None:
        return ""
    least = min(abs(one.interval.lower), abs(one.interval.upper))
    if is_within(one, margin):
        return f"; it is within {name_margin(margin, one)}"
    if least <= margin:
        return f"; it may be within {name_margin(margin, one)}"
    return ""


def is_within(one: Difference, margin: float | None) -> bool:
    """Tell whether a difference is surely too small to matter. margin: None where nobody has said what matters."""
    return margin is not None and one.interval is not None and one.interval.reach <= margin


def beyond(one: Difference, margin: float | None) -> str:
    """Say that a difference may be larger than the margin."""
    return "" if margin is None else f", more than {name_margin(margin, one)}"
