"""One plain sentence for each verdict, of reports and studies: what is better or worse, and by how much.

p, the test of ranks and what was corrected are told after the sentences, by `details`. A report compares two arms; a
study may also compare two kinds of what it has measured of one arm. `designs` tells of factors that were crossed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from normbench.results.result import Difference, LostRuns, Paired
from normbench.results.rows import Stated, StudyResult, Value
from normbench.results.rules import Verdict
from normbench.results.statistics import ALPHA, Interval, detectable_difference, exp2
from normbench.tell.details import (
    detail_of_difference,
    detail_of_losses,
    detail_of_study,
)
from normbench.tell.phrases import (
    Said,
    amount,
    evidence,
    in_number,
    interval_of,
    lower_or_higher,
    pair,
    seeds_of,
    uncertain,
)
from normbench.wording import (
    bound,
    count,
    estimate,
    fixed,
    join_first,
    plain,
    with_unit,
)

FEW = 3  # comparisons in which nothing was found have a sentence each
FEW_UNTRAINED = 2  # comparisons with an arm that did not train have a sentence each
MOST_ALIKE = 4  # arms that are named where many are alike
MOST_OF_STUDY = 6  # sentences of a study; its tables have the rest

# What can be said of differences, in this order: where there is one, and where there is none.
WITH_DIFFERENCE = (
    Verdict.DIFFERENT,
    Verdict.FLATTERED,
    Verdict.POSSIBLE,
    Verdict.CONSTANT,
    Verdict.TORN,
    Verdict.UNTRAINED,
)
WITHOUT_DIFFERENCE = (Verdict.SAME, Verdict.WITHIN, Verdict.UNKNOWN, Verdict.ALIKE)


# ---- the differences of a report


def say_found(differences: Sequence[Difference]) -> list[list[Said]]:
    """Say what the differences are, kind by kind, the largest first."""
    ordered = largest_first(differences)
    kinds = []
    for verdict in WITH_DIFFERENCE:
        alike = [difference for difference in ordered if difference.verdict == verdict]
        if verdict == Verdict.UNTRAINED and len(alike) > FEW_UNTRAINED:
            alike = []  # one sentence on arms that did not train says it for all
        kinds.append([say_difference(difference) for difference in alike])
    return kinds


def say_not_found(differences: Sequence[Difference]) -> list[Said]:
    """Say where no difference was found, and where nothing can be said."""
    by_verdict = defaultdict[Verdict, list[Difference]](list)
    for difference in largest_first(differences):
        by_verdict[difference.verdict].append(difference)
    undecided = []
    if by_verdict[Verdict.ONE_SEED]:
        undecided.append(Said(say_one_seed(by_verdict[Verdict.ONE_SEED], differences)))
    if by_verdict[Verdict.NO_SEED]:
        undecided.append(Said(say_no_seed(by_verdict[Verdict.NO_SEED])))
    alike = []
    for verdict in WITHOUT_DIFFERENCE:
        alike += by_verdict[verdict]
    if len(alike) > FEW:
        return [*undecided, Said(say_alike_all(alike))]
    return [*map(say_difference, alike), *undecided]


def largest_first(differences: Sequence[Difference]) -> list[Difference]:
    """Return differences by their size; those of one seed, of which nothing is known, last."""
    return sorted(differences, key=lambda difference: -abs(difference.mean) if difference.n > 1 else 0.0)


def say_difference(difference: Difference) -> Said:
    """Say what one comparison shows, and what that rests on."""
    return Said(say_verdict(difference), detail_of_difference(difference))


# ---- what a study states


def say_stated(stated: Sequence[Stated]) -> list[Said]:
    """Say what a study states, a sentence for each."""
    return [say_one_stated(statement) for statement in stated]


def say_one_stated(stated: Stated) -> Said:
    """Say a comparison or a number of a study; words are said as they are."""
    if isinstance(stated, StudyResult):
        return Said(say_verdict(stated), detail_of_study(stated))
    if isinstance(stated, Value):
        return Said(say_value(stated))
    return Said(stated)


def first_of_study(sentences: Sequence[Said]) -> list[Said]:
    """Return the first sentences of a study, and how many more its tables stand for."""
    shown = list(sentences[:MOST_OF_STUDY])
    more = len(sentences) - MOST_OF_STUDY
    if more > 0:
        shown.append(Said(f"{more} more of this kind are in the tables."))
    return shown


def say_value(value: Value) -> str:
    """Say how large a number is, and with which of its references that is consistent."""
    mean, interval = value.summary
    size, ends = estimate(mean, interval)
    words = f"{value.what} {size} {value.unit}".rstrip()
    seeds = count(len(value.values), "seed")
    if interval is None:
        if len(value.values) == 1:
            return f"{words} in one seed, which says nothing about how seeds differ: add seeds, such as seed=0,1,2."
        return f"{words} in each of {seeds}, so the spread is not known: add seeds."
    words += f" (95 %: {ends}; {seeds})"
    if not value.references:
        return f"{words}."
    return f"{words}: {consistent_with(interval, value.references)}."


def consistent_with(interval: Interval, references: Mapping[str, float]) -> str:
    """Say with which of some references an interval is consistent: those that lie in it."""
    within, without = [], []
    for name, reference in references.items():
        if interval.lower <= reference <= interval.upper:
            within.append(name)
        else:
            without.append(name)
    if not within:
        return "not consistent with " + " or ".join(without)
    words = "consistent with " + ", and with ".join(within)
    if len(within) > 1:
        return f"{words}; more seeds would tell them apart"
    if without:
        return f"{words}, and not with {' or '.join(without)}"
    return words


# ---- one comparison, by its verdict


def say_verdict(result: Difference | StudyResult) -> str:
    """Say what one comparison shows; of a report's, ONE_SEED and NO_SEED have a sentence for all of theirs."""
    if isinstance(result, Difference):
        match result.verdict:
            case Verdict.FLATTERED:
                return say_flattered(result)
            case Verdict.TORN:
                return say_torn(result)
            case Verdict.UNTRAINED:
                return say_untrained(result)
    match result.verdict:
        case Verdict.DIFFERENT:
            return say_different(result)
        case Verdict.POSSIBLE:
            return say_possible(result)
        case Verdict.CONSTANT:
            return say_constant(result)
        case Verdict.SAME:
            return say_same(result)
        case Verdict.WITHIN:
            most = reach_of(result)
            return f"{pair(result)} are the same within {name_margin(result)}: they do not differ by more than {most}."
        case Verdict.UNKNOWN:
            return say_unknown(result)
        case Verdict.ALIKE:
            return say_alike(result)
        case Verdict.ONE_SEED:
            return say_single(result)
    raise ValueError(f"{result.verdict} has no sentence for one comparison")


def say_different(result: Difference | StudyResult) -> str:
    """Say what a difference is, and first of one that does not matter that it does not."""
    if is_within(result):
        same = f"{pair(result)} are the same within {name_margin(result)}, though not equal"
        size = measured(result, whose=f"{result.arm}'s")
        return f"{same}: {size} {evidence(result, interval_of(result))}{survivors(result)}."
    return f"{say_compared(result, 'is')}{survivors(result)}{against(result)}."


def say_possible(result: Difference | StudyResult) -> str:
    """Say what may be a difference."""
    words = f"{say_compared(result, 'may be')}{survivors(result)}{against(result)}"
    return f"{words}; {uncertain(result)}: repeat it with new seeds."


def say_compared(result: Difference | StudyResult, verb: str) -> str:
    """Say which side is better, or lower where neither is, by how much, and on how many seeds."""
    known_by = evidence(result, interval_of(result))
    if isinstance(result, StudyResult) and result.kinds:
        first, second = result.kinds
        what = f"{result.arm}: the {result.metric.words} {verb} {lower_or_higher(result)} {first} than {second}"
        return f"{what}, by {amount(result)} {known_by}"
    side = f"{result.arm} {verb} {word_of_side(result)} than {result.baseline}"
    if result.metric.judges:
        return f"{side}: {measured(result)} {known_by}"
    return f"{side} in the {result.metric.words}, by {by_article(result)} {known_by}"


def say_constant(result: Difference | StudyResult) -> str:
    """Say that a difference is the same in each seed."""
    where = f"({result.arm} is {lower_or_higher(result)} in the {result.metric.words})"
    if isinstance(result, StudyResult) and result.kinds:
        where = f"({lower_or_higher(result)} {result.kinds[0]})"
    return (
        f"{pair(result)} differ by the same {amount(result)} in {each_seed(result)} {where}, so the spread is not "
        "known: add seeds."
    )


def say_same(result: Difference | StudyResult) -> str:
    """Say that two arms end the same in each seed."""
    if isinstance(result, StudyResult) and result.kinds:
        first, second = result.kinds
        return f"{result.arm}: the {result.metric.words} is the same {first} and {second} in {each_seed(result)}."
    verb = "have" if isinstance(result, StudyResult) else "end with"
    return f"{pair(result)} {verb} the same {result.metric.words} in {each_seed(result)}."


def say_unknown(result: Difference | StudyResult) -> str:
    """Say that there are too few seeds to tell, and how large a difference may be."""
    most = f"{reach_of(result)}{beyond(result)}"
    if isinstance(result, StudyResult) and result.kinds:
        first, second = result.kinds
        what = f"the {result.metric.words} {first} and {second}"
        return f"{result.arm}: too few seeds to tell; {what} may differ by up to {most}."
    return f"{pair(result)}: too few seeds to tell; they may differ{in_number(result)} by up to {most}."


def say_alike(result: Difference | StudyResult) -> str:
    """Say that no difference was found, and how large one may be."""
    if isinstance(result, StudyResult) and result.kinds:
        first, second = result.kinds
        what = f"the {result.metric.words} {first} and {second}"
        return f"{result.arm}: {what} do not differ by more than {reach_of(result)}."
    if margin_of(result) is None:
        return f"{pair(result)} do not differ{in_number(result)} by more than {reach_of(result)}."
    most = f"{reach_of(result)}{beyond(result)}"
    return f"{pair(result)}: no difference was found, but they may differ by up to {most}."


def say_single(result: Difference | StudyResult) -> str:
    """Say that one seed decides nothing, and what it shows."""
    if isinstance(result, StudyResult) and result.kinds:
        shown = f"it is {lower_or_higher(result)} {result.kinds[0]}, by {amount(result)}"
    else:
        shown = f"{result.arm} is {lower_or_higher(result)} in the {result.metric.words}, by {by_article(result)}"
    return f"{pair(result)}: one seed cannot tell; in it {shown}. Add seeds, such as seed=0,1,2."


def say_flattered(difference: Difference) -> str:
    """Say that the arm which looks better has lost more runs."""
    lost_by_arm, lost_by_baseline = difference.lost
    if difference.better:
        better, other = difference.arm, difference.baseline
        lost_by_better, lost_by_other = lost_by_arm, lost_by_baseline
    else:
        better, other = difference.baseline, difference.arm
        lost_by_better, lost_by_other = lost_by_baseline, lost_by_arm
    return (
        f"{better} is not called better than {other}, as it lost {lost_by_better} of "
        f"{count(difference.tried, 'seed')} and {other} {lost_by_other or 'none'}: on the "
        f"{count(difference.n, 'seed')} that survived in both, the {difference.metric.words} of {difference.arm} is "
        f"{amount(difference)} {lower_or_higher(difference)}."
    )


def say_torn(difference: Difference) -> str:
    """Say that the runs of an arm end in two groups."""
    first = difference.torn[0]
    arms = " and of ".join(group.arm for group in difference.torn)
    which = f" runs of {first.arm}" if len(difference.torn) > 1 else ""
    return (
        f"{pair(difference)}: no mean, interval or p is given, as the runs of {arms} end in two groups far apart: "
        f"{first.trained} of {first.runs}{which} trained, and the others did not."
    )


def say_untrained(difference: Difference) -> str:
    """Say that two arms are not compared, as one of them did not train."""
    if len(difference.untrained) > 1:
        return f"{pair(difference)} are not compared: neither of them trained."
    (stuck,) = difference.untrained
    words = f"{pair(difference)} are not compared: {stuck} did not train"
    if difference.n:
        baseline_is_higher = difference.mean < 0
        is_higher = baseline_is_higher == (stuck == difference.baseline)
        interval = difference.interval
        is_clear = difference.metric.judges and interval is not None and (interval.lower > 0 or interval.upper < 0)
        because = ", which is why" if is_clear else ";"
        where = "higher" if is_higher else "lower"
        words += f"{because} its {difference.metric.words} is {amount(difference)} {where}"
    return f"{words}."


# ---- many comparisons in one sentence


def say_alike_all(differences: Sequence[Difference]) -> str:
    """Say in one sentence that no difference was found in many comparisons."""
    arms = join_first([difference.arm for difference in differences], MOST_ALIKE)
    reaches = [difference.interval.reach for difference in differences if difference.interval]
    some = ""
    if reaches:
        most = with_unit(bound(max(reaches)), differences[0].metric.unit)
        some = f"; there may be some of up to {most} (95 % in each)"
    return f"No difference was found in {len(differences)} comparisons ({arms}){some}."


def say_one_seed(differences: Sequence[Difference], every: Sequence[Difference]) -> str:
    """Say that one seed shows nothing, and what more would show. every: all comparisons."""
    if max(difference.tried for difference in every) == 1:
        words = "With one seed for each arm nothing can be said about differences:"
    else:
        arms = name_arms(differences)
        words = f"{arms}: one seed has finished both there and in the baseline, so nothing can be said:"

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


# ---- parts of these sentences


def word_of_side(result: Paired) -> str:
    """Say whether an arm is better or worse than its baseline; lower or higher, where neither is better."""
    if not result.metric.judges:
        return lower_or_higher(result)
    return "better" if result.better else "worse"


def name_arms(differences: Sequence[Difference]) -> str:
    """Name the arms of some comparisons."""
    return join_first([difference.arm for difference in differences])


def by_article(result: Paired) -> str:
    """Write the size of a difference where `by` stands before it: `0.1 nats`, `a factor of 2`."""
    is_ratio = isinstance(result, StudyResult) and result.ratio
    return f"a {amount(result)}" if is_ratio else amount(result)


def measured(result: Paired, whose: str = "its") -> str:
    """Write how large a difference is."""
    if isinstance(result, StudyResult) and result.ratio:
        size, _ = estimate(*result.summary)
        return f"{whose} {result.metric.words} is {size} times as large"
    return f"{whose} {result.metric.words} is {amount(result)} {lower_or_higher(result)}"


def has_survivors(result: Paired) -> bool:
    """Tell whether other seeds were lost, so that those compared are the survivors."""
    return isinstance(result, Difference) and result.survived


def each_seed(result: Paired) -> str:
    """Name all seeds that are compared."""
    survived = " that survived" if has_survivors(result) else ""
    return f"each of {count(result.n, 'seed')}{survived}"


def survivors(result: Paired) -> str:
    """Say that other seeds were lost."""
    return ", among the seeds that survived" if has_survivors(result) else ""


def reach_of(result: Paired) -> str:
    """Write how large a difference may be at most, and by how many seeds that is known."""
    reach = result.interval.reach if result.interval else None
    if isinstance(result, StudyResult) and result.ratio and reach is not None:
        most = f"a factor of {bound(exp2(reach))}"
    else:
        most = with_unit(bound(reach), result.metric.unit)
    survived = " among the seeds that survived" if has_survivors(result) else ""
    return f"{most}{survived} ({seeds_of(result)}, 95 %)"


def margin_of(result: Paired) -> float | None:
    """Return the margin within which differences do not matter; None where nobody has said."""
    return result.margin if isinstance(result, Difference) else None


def name_margin(result: Paired) -> str:
    """Name the margin."""
    return f"the margin of {with_unit(plain(margin_of(result) or 0.0), result.metric.unit)}"


def against(result: Paired) -> str:
    """Say how a difference compares with the margin."""
    margin = margin_of(result)
    if margin is None or result.interval is None:
        return ""
    least = min(abs(result.interval.lower), abs(result.interval.upper))
    if is_within(result):
        return f"; it is within {name_margin(result)}"
    if least <= margin:
        return f"; it may be within {name_margin(result)}"
    return ""


def is_within(result: Paired) -> bool:
    """Tell whether a difference is surely too small to matter."""
    margin = margin_of(result)
    return margin is not None and result.interval is not None and result.interval.reach <= margin


def beyond(result: Paired) -> str:
    """Say that a difference may be larger than the margin."""
    return "" if margin_of(result) is None else f", more than {name_margin(result)}"


# ---- lost runs


def say_losses(every: Sequence[LostRuns]) -> list[Said]:
    """Name the arms that lose more runs than their baselines, or fewer."""
    sentences = []
    for losses in every:
        if losses.counted and losses.p < ALPHA:
            sentences.append(say_loss(losses))
    return sentences


def say_loss(losses: LostRuns) -> Said:
    """Say which side loses more runs, and what that rests on."""
    names = (losses.arm, losses.baseline)
    share_of_arm = losses.lost[0] / losses.runs[0]
    share_of_baseline = losses.lost[1] / losses.runs[1]
    worse, better = (0, 1) if share_of_arm > share_of_baseline else (1, 0)
    ways = []
    if losses.diverged:
        ways.append("diverged")
    if losses.stuck:
        ways.append("did not train")
    verb = "trains" if losses.real else "may train"
    doubt = "" if losses.real else f"; {uncertain(losses)}"
    text = (
        f"{names[worse]} {verb} less often than {names[better]}: {losses.lost[worse]} of "
        f"{count(losses.runs[worse], 'run')} {' or '.join(ways)}, against {losses.lost[better] or 'none'} of "
        f"{losses.runs[better]}{doubt}."
    )
    return Said(text, detail_of_losses(losses, names[worse], names[better]))
