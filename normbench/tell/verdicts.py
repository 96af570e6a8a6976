"""One plain sentence for each verdict, of reports and studies: what is better or worse, and by how much.

p, the test of ranks and what was corrected are told after the sentences, by `details`. What differs between kinds of
results is what they compare: two arms, two kinds of what a study measured, a factor's effects, or sizes of a model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from normbench.config.rules import short_name
from normbench.evidence.arms import LEARNING_RATE, name_arm
from normbench.results.result import Difference, EffectKind, FactorEffect, Losses, Paired, Scaling
from normbench.results.rows import Stated, StudyResult, Value
from normbench.results.rules import Verdict
from normbench.results.statistics import ALPHA, Interval, detectable_difference, exp2
from normbench.tell.details import (
    bends,
    detail_of_difference,
    detail_of_effect,
    detail_of_losses,
    detail_of_scaling,
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
    in_words,
    join_first,
    plain,
    precision,
    rounded_count,
    span,
    with_unit,
)

FEW = 3  # comparisons in which nothing was found have a sentence each
FEW_UNTRAINED = 2  # comparisons with an arm that did not train have a sentence each
FEW_EFFECTS = 2  # effects in which nothing was found have a sentence each
MOST_ALIKE = 4  # arms that are named where many are alike
MOST_EFFECTS = 4  # that are named where many show nothing
MOST_ARMS = 6  # that are named where an effect shows nothing in them
MOST_LEFT_OUT = 4  # arms of sizes at which nothing could be compared
MOST_OF_STUDY = 6  # sentences of a study; its tables have the rest
NEXT_TO = 0.001  # levels closer than this share of them are the same

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
    return [say_one_stated(one) for one in stated]


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
            most = f"{reach_of(result)}{beyond(result)}"
            return f"{pair(result)}: too few seeds to tell; they may differ{in_number(result)} by up to {most}."
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
        what = f"{result.arm}: {result.metric.words} {verb} {lower_or_higher(result)} {first} than {second}"
        return f"{what}, by {amount(result)} {known_by}"
    side = f"{result.arm} {verb} {word_of_side(result)} than {result.baseline}"
    if result.metric.judges:
        return f"{side}: {measured(result)} {known_by}"
    return f"{side} in {result.metric.words}, by {by_article(result)} {known_by}"


def say_constant(result: Difference | StudyResult) -> str:
    """Say that a difference is the same in each seed."""
    where = f"({result.arm} is {lower_or_higher(result)} in {result.metric.words})"
    if isinstance(result, StudyResult) and result.kinds:
        where = f"({lower_or_higher(result)} {result.kinds[0]})"
    return (
        f"{pair(result)} differ by the same {amount(result)} in {each_seed(result)} {where}, so the spread is not "
        "known: add seeds."
    )


def say_same(result: Difference | StudyResult) -> str:
    """Say that two arms end the same in each seed."""
    if isinstance(result, StudyResult) and result.kinds:
        return f"{pair(result)} are the same in {each_seed(result)}."
    verb = "have" if isinstance(result, StudyResult) else "end with"
    return f"{pair(result)} {verb} the same {result.metric.words} in {each_seed(result)}."


def say_alike(result: Difference | StudyResult) -> str:
    """Say that no difference was found, and how large one may be."""
    if margin_of(result) is None:
        return f"{pair(result)} do not differ{in_number(result)} by more than {reach_of(result)}."
    most = f"{reach_of(result)}{beyond(result)}"
    return f"{pair(result)}: no difference was found, but they may differ by up to {most}."


def say_single(result: Difference | StudyResult) -> str:
    """Say that one seed decides nothing, and what it shows."""
    if isinstance(result, StudyResult) and result.kinds:
        shown = f"it is {lower_or_higher(result)} {result.kinds[0]}, by {amount(result)}"
    else:
        shown = f"{result.arm} is {lower_or_higher(result)} in {result.metric.words}, by {by_article(result)}"
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
        is_clear = difference.metric.judges and difference.p is not None and difference.p < ALPHA
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


def say_losses(every: Sequence[Losses]) -> list[Said]:
    """Name the arms that lose more runs than their baselines, or fewer."""
    sentences = []
    for losses in every:
        if losses.counted and losses.p < ALPHA:
            sentences.append(say_loss(losses))
    return sentences


def say_loss(losses: Losses) -> Said:
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


# ---- what a factor does to an arm that it does not do to the baseline


def say_effects(effects: Sequence[FactorEffect]) -> list[list[Said]]:
    """Say which effects differ or may differ, kind by kind, the largest first; nothing of effects in one seed."""
    shown = [effect for effect in by_size(effects) if not shows_nothing(effect)]
    kinds = []
    for kind in EffectKind:
        sentences = []
        for effect in shown:
            if effect.kind == kind:
                sentences.append(Said(say_effect(effect), detail_of_effect(effect, name_effect(effect))))
        kinds.append(sentences)
    return kinds


def say_effects_not_found(effects: Sequence[FactorEffect]) -> list[str]:
    """Say where no difference was found, once for all arms with the same effect."""
    by_name = defaultdict[str, list[FactorEffect]](list)
    for effect in by_size(effects):
        if shows_nothing(effect):
            by_name[name_effect(effect)].append(effect)
    if len(by_name) <= FEW_EFFECTS:
        return [say_effect_not_found(name, by_name[name]) for name in sorted(by_name, key=str.lower)]
    names = join_first([*by_name], MOST_EFFECTS)
    names = names.replace("The ", "the ").replace("Each ", "each ")  # as they do not begin the sentence
    number = sum(map(len, by_name.values()))
    return [f"No difference was found in {number} comparisons of effects: {names}."]


def by_size(effects: Sequence[FactorEffect]) -> list[FactorEffect]:
    """Return the effects in several seeds, those that may be called differences first, then the largest."""
    several = [effect for effect in effects if effect.n > 1]
    return sorted(several, key=lambda effect: (not effect.real, -abs(effect.mean)))


def shows_nothing(result: FactorEffect | Scaling) -> bool:
    """Tell whether an effect on an arm, or a change with size, was tested and no difference was found."""
    return result.p is not None and result.p >= ALPHA


def say_effect(effect: FactorEffect) -> str:
    """Say what a factor does to one arm that it does not do to the other."""
    if effect.kind == EffectKind.LARGEST:
        return say_largest(effect)
    if effect.kind == EffectKind.AREA:
        return say_area(effect)
    if effect.kind == EffectKind.SENSITIVITY:
        return say_sensitivity(effect)
    return say_change(effect)


def say_largest(effect: FactorEffect) -> str:
    """Say up to which level both arms train."""
    better, worse = sides(effect)
    word = word_of_factor(effect)
    is_rate = word == "learning rate"
    name, levels = ("lr", "rates") if is_rate else (word, "values")
    highest = write_levels(effect, better.effects)
    lowest = write_levels(effect, worse.effects)
    words = f"{better.arm} trains up to {name} {highest}, {worse.arm} up to {lowest}"
    gap = gap_of(effect)
    if gap is None:
        return f"{words}, in each of {count(effect.n, 'seed')}."
    times = fixed(2 ** abs(effect.mean), 1)
    known_by = evidence_of_effect(effect, span(gap.as_ratios, 1))
    return f"{words}, at {levels} {times} times as large {known_by}."


def say_area(effect: FactorEffect) -> str:
    """Say in how much of a grid both arms train."""
    better, worse = sides(effect)
    return (
        f"{better.arm} trains in {mean_share(better.effects)} % of the grid of {word_of_factor(effect)}, {worse.arm} "
        f"in {mean_share(worse.effects)} %: {amount(effect)} more {evidence_of_effect(effect)}."
    )


def say_sensitivity(effect: FactorEffect) -> str:
    """Say which arm is more sensitive to the learning rate."""
    better, worse = sides(effect)
    verb = "is" if effect.real else "may be"
    return (
        f"{worse.arm} {verb} {amount(effect)} more sensitive to the learning rate than {better.arm} "
        f"{evidence_of_effect(effect)}: on average over the rates its loss is {mean_size(effect, worse.effects)} above "
        f"that at its best rate, against {mean_size(effect, better.effects)}."
    )


def say_change(effect: FactorEffect) -> str:
    """Say which arm a change, or each doubling, helps or harms more."""
    better, worse = sides(effect)
    metric = effect.metric.words
    helps = (sum(better.effects) < 0) == effect.metric.lower_is_better
    more, less = (better.arm, worse.arm) if helps else (worse.arm, better.arm)
    if effect.metric.judges:
        verb = "help" if helps else "harm"
    else:
        verb = "lower" if helps else "raise"
        more = f"the {metric} of {more}"
        less = f"that of {less}"
    verb = f"{verb}s" if effect.real else f"may {verb}"
    moves, other_moves = direction(better.effects), direction(worse.effects)
    other_way = "" if other_moves == moves else f"{other_moves} "
    return (
        f"{name_effect(effect)} {verb} {more} by {amount(effect)} more than {less} {evidence_of_effect(effect)}: the "
        f"{metric} of {better.arm} {moves} by {mean_size(effect, better.effects)}, that of {worse.arm} "
        f"{other_way}by {mean_size(effect, worse.effects)}."
    )


def say_effect_not_found(name: str, effects: Sequence[FactorEffect]) -> str:
    """Say that no difference was found in an effect on arms, and how large one may be. name: of the effect."""
    first = effects[0]
    where = "in its effect " if first.kind in (EffectKind.CHANGE, EffectKind.SLOPE) else ""
    arms = join_first([effect.arm for effect in effects], MOST_ARMS)
    reach = max((effect.interval.reach for effect in effects if effect.interval), default=None)
    if reach is None:
        most, confidence = "", ""
    elif first.kind == EffectKind.LARGEST:
        most, confidence = f"; it may be up to {bound(2**reach)} times", ", 95 %"
    else:
        size = with_unit(bound(reach), first.metric.unit)
        most, confidence = f"; it may be up to {size}", ", 95 %"
    return (
        f"{name}: no difference {where}was found between {first.baseline} and {arms}{most} "
        f"({seeds_of(first)}{confidence})."
    )


class Side(NamedTuple):
    """An arm or its baseline, by its name, and the effects on it, by seed."""

    arm: str
    effects: tuple[float, ...]


def sides(effect: FactorEffect) -> tuple[Side, Side]:
    """Return the arm and its baseline, first the one for which the effects are better."""
    arm = Side(effect.arm, effect.own)
    baseline = Side(effect.baseline, effect.other)
    more_is_better = effect.kind == EffectKind.LARGEST or not effect.metric.lower_is_better
    arm_is_better = (effect.mean > 0) == more_is_better
    return (arm, baseline) if arm_is_better else (baseline, arm)


def word_of_factor(effect: FactorEffect) -> str:
    """Name the factor."""
    return "learning rate" if effect.factor == LEARNING_RATE else short_name(effect.factor)


def name_effect(effect: FactorEffect) -> str:
    """Name an effect by what has it, such as `warmup=0.1 instead of 0`."""
    if effect.kind == EffectKind.CHANGE:
        usual, changed = effect.levels[0], effect.levels[-1]
        return f"{name_arm({effect.factor: changed})} instead of {in_words(usual)}"
    if effect.kind == EffectKind.SLOPE:
        return f"Each doubling of {word_of_factor(effect)}"
    if effect.kind == EffectKind.LARGEST:
        return f"The largest {word_of_factor(effect)} that trains"
    if effect.kind == EffectKind.AREA:
        return f"The share of the grid of {word_of_factor(effect)} that trains"
    return "The sensitivity to the learning rate"


def gap_of(effect: FactorEffect) -> Interval | None:
    """Return the interval of a difference with the sign that makes its mean positive."""
    interval = effect.interval
    if interval and effect.mean < 0:
        return Interval(-interval.upper, -interval.lower)
    return interval


def evidence_of_effect(effect: FactorEffect, ratios: str = "") -> str:
    """Write interval and seeds, in brackets. ratios: the interval, where it is one of ratios."""
    interval = ratios or span(gap_of(effect), precision(effect.mean, effect.interval))
    is_uncertain = effect.p is not None and not effect.real
    return evidence(effect, interval, uncertain(effect) if is_uncertain else "")


def mean_share(shares: Sequence[float]) -> str:
    """Write the mean of percentages."""
    return fixed(sum(shares) / len(shares), 0)


def mean_size(effect: FactorEffect, effects: Sequence[float]) -> str:
    """Write the size of the mean of effects."""
    mean = sum(effects) / effect.n
    return fixed(abs(mean), precision(effect.mean, effect.interval))


def direction(effects: Sequence[float]) -> str:
    """Say whether a metric falls or rises, by the sum of some effects on it."""
    return "falls" if sum(effects) < 0 else "rises"


def write_levels(effect: FactorEffect, effects: Sequence[float]) -> str:
    """Write the levels up to which seeds train. effects: their logarithms to base 2."""
    low, high = 2 ** min(effects), 2 ** max(effects)
    lowest_tried, largest_tried = effect.levels[0], effect.levels[-1]
    if high < (1 - NEXT_TO) * lowest_tried:
        return "none"
    words = plain(high, digits=3)
    if low < (1 - NEXT_TO) * high:
        words = f"{plain(low, digits=3)} to {words}"
    if low > (1 - NEXT_TO) * largest_tried:
        words += " (the largest tried)"
    return words


# ---- how a difference changes with the size of the model, and what lies beyond


def say_scaling(every: Sequence[Scaling]) -> list[Said]:
    """Say how differences change with the size of the model: those that surely do first, then the largest changes."""
    several = [scaling for scaling in every if scaling.n > 1]
    ordered = sorted(several, key=lambda scaling: (not scaling.real, shows_nothing(scaling), -abs(scaling.mean)))
    sentences = []
    for scaling in ordered:
        change = say_no_scaling(scaling) if shows_nothing(scaling) else say_change_with_size(scaling)
        text = f"{change} {say_extrapolated(scaling)}{say_bend(scaling)}{say_left_out(scaling)}"
        sentences.append(Said(text, detail_of_scaling(scaling)))
    return sentences


def say_change_with_size(scaling: Scaling) -> str:
    """Say from where to where a difference goes with the size of the model."""
    start, end = scaling.at_smallest.mean, scaling.at_largest.mean
    if start * end < 0:
        verb = "change its sign"
        certain = "changes its sign"
    elif abs(end) > abs(start):
        verb, certain = "grow", "grows"
    else:
        verb, certain = "shrink", "shrinks"
    verb = certain if scaling.p is None or scaling.real else f"may {verb}"
    digits = precision(scaling.mean, scaling.interval)
    smallest = rounded_count(scaling.sizes[0].parameters)
    largest = rounded_count(scaling.sizes[-1].parameters)
    change = with_unit(fixed(scaling.mean, digits, sign=True), scaling.metric.unit)
    return (
        f"The difference between {pair(scaling)} in the {scaling.metric.words} {verb} with the size of the "
        f"model: {scaling.arm} less {scaling.baseline} goes from {fixed(start, digits, sign=True)} at {smallest} "
        f"parameters to {fixed(end, digits, sign=True)} at {largest} on the fitted line, by {change} for each tenfold "
        f"{evidence_of_scaling(scaling)}."
    )


def say_no_scaling(scaling: Scaling) -> str:
    """Say that no change with the size of the model was found, and how large one may be."""
    smallest = rounded_count(scaling.sizes[0].parameters)
    largest = rounded_count(scaling.sizes[-1].parameters)
    text = (
        f"No change of the difference between {pair(scaling)} in the {scaling.metric.words} with the size of "
        f"the model was found, over {len(scaling.sizes)} sizes from {smallest} to {largest} parameters"
    )
    if scaling.interval is None:
        return f"{text} ({seeds_of(scaling)})."
    most = with_unit(bound(scaling.interval.reach), scaling.metric.unit)
    return f"{text}; it may be up to {most} for each tenfold ({seeds_of(scaling)}, 95 %)."


def say_extrapolated(scaling: Scaling) -> str:
    """Say what the difference would be where no model was trained."""
    beyond = scaling.extrapolated
    size, ends = estimate(beyond.mean, beyond.interval, sign=True)
    interval = f" (95 %: {ends})" if beyond.interval else ""
    return (
        f"Extrapolated to {rounded_count(beyond.parameters)} parameters, a decade beyond the largest model that was "
        f"trained, it would be {with_unit(size, scaling.metric.unit)}{interval} if the line went on."
    )


def say_bend(scaling: Scaling) -> str:
    """Say that a line does not describe the differences, where that is seen."""
    return " But it bends, so the line is no guide beyond these sizes." if bends(scaling) else ""


def say_left_out(scaling: Scaling) -> str:
    """Say at which sizes nothing could be compared."""
    if not scaling.left_out:
        return ""
    arms = join_first(scaling.left_out, MOST_LEFT_OUT)
    return f" Left out, as one of the two did not train there or no seed finished in both: {arms}."


def evidence_of_scaling(scaling: Scaling) -> str:
    """Write interval and seeds, in brackets."""
    if scaling.interval is None:
        return f"(the same in each of {seeds_of(scaling)})"
    return evidence(scaling, interval_of(scaling), "" if scaling.real else uncertain(scaling))
