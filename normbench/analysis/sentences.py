"""The sentences of an answer: a function for each kind of what is asked, found, unfair, and to be done next.

Nothing is called a difference unless its p, corrected after Holm, is below 0.05; where none is found, the sentence says
how large one may still be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from normbench.analysis.answers import (
    Answer,
    ArmDifference,
    ArmResult,
    Cause,
    Effect,
    EffectKind,
    Losses,
    NextStep,
    Paired,
    Question,
    Reason,
    ReasonKind,
    Remedy,
    StatedTest,
    StepKind,
    Stuck,
    Verdict,
)
from normbench.analysis.comparisons import ENOUGH
from normbench.analysis.facts import sizes
from normbench.analysis.records import LEARNED, LEARNED_RIGHT, LEARNING_RATE, name_arm, shortened
from normbench.analysis.statistics import ALPHA, FEWEST_RANKS, Interval, detectable_difference
from normbench.analysis.wording import (
    bound,
    chance,
    count,
    fixed,
    in_words,
    one_line,
    plain,
    precision,
    span,
    with_unit,
)
from normbench.record.directory import ENDED

MOST = 8  # sentences of an answer; the tables have the others
FEW = 3  # comparisons in which nothing was found have a sentence each
FEW_STUCK = 2  # arms that did not train have a sentence each
FEW_STEPS = 2  # effects in which nothing was found have a sentence each
MOST_CAUSES = 3  # of differences
MOST_VALUES = 4  # of a setting
NEXT_TO = 0.001  # levels closer than this share of them are the same

# What can be said of differences, in this order: of one, of none, and nothing.
FOUND = (
    Verdict.DIFFERENT,
    Verdict.FLATTERED,
    Verdict.POSSIBLE,
    Verdict.CONSTANT,
    Verdict.TORN,
    Verdict.UNTRAINED,
)
NOT_FOUND = (Verdict.SAME, Verdict.WITHIN, Verdict.UNKNOWN, Verdict.ALIKE)


class Statement(NamedTuple):
    """A sentence of an answer, and the key of the table behind it."""

    text: str
    table: str


# ---- all of it


def say(answer: Answer) -> list[Statement]:
    """Say what did not train, what differs, where no difference was found, and what did not finish.

    Of many the largest of each kind are told, and how many more there are.
    """
    found, nothing = say_differences(answer.differences, answer.question.margin)
    effects = say_effects(answer.effects)
    told: list[tuple[str, Sequence[str]]] = [
        ("arms", say_stuck(compared_arms(answer) or {arm.name: arm for arm in answer.arms})),
        ("costs", say_losses(answer.losses)),
        *(("designs", kind) for kind in effects),
        *(("differences", kind) for kind in found),
        ("differences", say_assumptions(answer.differences)),
        ("designs", say_open_effects(answer.effects)),
        ("differences", nothing),
        ("arms", [] if answer.differences else [say_not_compared(len(answer.arms))]),
        ("costs", say_diverged(answer.arms)),
        ("lost", say_lost(answer.arms)),
    ]
    most = shares([len(kind) for _, kind in told])
    statements = []
    for (table, kind), number in zip(told, most, strict=True):
        statements += [Statement(one_line(text), table) for text in first_of(kind, number)]
    return statements


def compared_arms(answer: Answer) -> dict[str, ArmResult]:
    """Return the arms that are compared, by what they are called there, in the order of the comparisons."""
    by_name = {arm.compared_as: arm for arm in answer.arms}
    found = {}
    for one in answer.differences:
        for name in (one.arm, one.baseline):
            found[name] = by_name[name]
    return found


def shares(lengths: Sequence[int]) -> list[int]:
    """Return how many sentences of each kind are told: the first of each, and of the next ones what there is room for.

    lengths: how many there are of each kind.
    """
    by_rank = sorted((rank, place) for place, length in enumerate(lengths) for rank in range(length))
    told = [0] * len(lengths)
    for number, (rank, place) in enumerate(by_rank):
        if rank == 0 or number < MOST:
            told[place] += 1
    return told


def first_of(texts: Sequence[str], most: int) -> list[str]:
    """Return the first ones, the last of which says how many more there are."""
    if most >= len(texts):
        return [*texts]
    left = len(texts) - most
    more = f" {left} more of this kind {'is' if left == 1 else 'are'} in the tables."
    return [*texts[: most - 1], texts[most - 1] + more]


# ---- arms that did not train


def say_stuck(arms: Mapping[str, ArmResult]) -> list[str]:
    """Name the arms that did not train, or some of whose runs did not. arms: by what they are called."""
    never = {name: arm for name, arm in arms.items() if not arm.trained}
    texts = []
    if len(never) > FEW_STUCK:
        stuck = [run for arm in never.values() for run in arm.stuck]
        ends = [run.loss for run in stuck]
        texts.append(
            f"{len(never)} of {len(arms)} arms did not train, and are not compared ({', '.join(never)}): their "
            f"validation losses end at {fixed(min(ends), 3)} to {fixed(max(ends), 3)} nats, {missed(stuck[0])}."
        )
    for name, arm in arms.items():
        if arm.stuck and (arm.trained or len(never) <= FEW_STUCK):
            texts.append(say_stuck_arm(name, arm))
    return texts


def say_stuck_arm(name: str, arm: ArmResult) -> str:
    """Say in how many runs an arm did not train."""
    ends = sorted(run.loss for run in arm.stuck)
    finished = arm.statuses["finished"]
    some = "" if len(ends) == finished else f" in {len(ends)} of {finished} runs"
    on_average = " on average" if len(ends) > 1 else ""
    return (
        f"{name} did not train{some}: its validation loss ends at {fixed(sum(ends) / len(ends), 3)} nats"
        f"{on_average}, {missed(arm.stuck[0])}."
    )


def missed(run: Stuck) -> str:
    """Say what a run has missed: the rule of `RecordedRun.trained`."""
    loss, accuracy = run.constant_loss, run.constant_accuracy
    words = "" if loss is None else f"not {100 * LEARNED:.0f} % below the {fixed(loss, 3)} of a constant guess"
    if accuracy is None:
        return words
    if loss is not None:
        words += ","
    guess = "a constant guess" if loss is None else "one"
    return (
        f"{words} and it does not make {100 * LEARNED_RIGHT:.0f} % fewer errors than {guess}, which is right in "
        f"{fixed(100 * accuracy, 1)} % of all cases"
    ).strip()


# ---- runs that were lost


def say_losses(ones: Sequence[Losses]) -> list[str]:
    """Name the arms that lose more runs than their baselines, or fewer."""
    return [say_loss(one) for one in ones if one.counted and one.p is not None and one.p < ALPHA]


def say_loss(one: Losses) -> str:
    """Say which side loses more runs."""
    shares = [lost / runs for lost, runs in zip(one.lost, one.runs, strict=True)]
    names = (one.arm, one.baseline)
    worse, better = (0, 1) if shares[0] > shares[1] else (1, 0)
    ways = []
    if one.diverged:
        ways.append("diverged")
    if one.stuck:
        ways.append("did not train")
    if one.real:
        verb = "trains"
        evidence = f"p {equals(one.corrected)}" + (" after Holm" if one.family > 1 else "")
    else:
        verb = "may train"
        evidence = f"p {equals(one.p)}; not certain after correction for {corrections(one)}"
    return (
        f"{names[worse]} {verb} less often than {names[better]}: {one.lost[worse]} of {count(one.runs[worse], 'run')} "
        f"{' or '.join(ways)}, against {one.lost[better] or 'none'} of {one.runs[better]} (Fisher's exact test, "
        f"{evidence})."
    )


def say_diverged(arms: Sequence[ArmResult]) -> list[str]:
    """Name the arms of which runs diverged."""
    texts = []
    for arm in arms:
        gone = arm.statuses.get("diverged", 0)
        if gone:
            ended = sum(arm.statuses.get(status, 0) for status in ENDED)
            texts.append(f"{arm.name} diverged in {gone} of {count(ended, 'run')}.")
    return texts


def say_lost(arms: Sequence[ArmResult]) -> list[str]:
    """Name the arms of which runs ran out of memory or failed."""
    texts = []
    for status, how in (("out_of_memory", "ran out of memory"), ("failed", "failed")):
        names = [arm.name for arm in arms if status in arm.statuses]
        if names:
            lost = sum(arm.statuses.get(status, 0) for arm in arms)
            texts.append(f"{count(lost, 'run')} {how}: {shortened(names, 6)}.")
    return texts


# ---- differences


def say_differences(ones: Sequence[ArmDifference], margin: float | None) -> tuple[list[list[str]], list[str]]:
    """Say what the differences are, kind by kind, the largest first; and, beside them, where none was found.

    margin: in the metric's unit; differences within it do not matter.
    """
    ordered = sorted(ones, key=lambda one: -abs(one.mean) if one.n > 1 else 0.0)
    by_verdict = {verdict: [one for one in ordered if one.verdict == verdict] for verdict in Verdict}
    found = []
    for verdict in FOUND:
        own = by_verdict[verdict]
        if verdict != Verdict.UNTRAINED or len(own) <= FEW_STUCK:  # of many arms the first sentence says so
            found.append([SENTENCES[verdict](one, margin) for one in own])
        else:
            found.append([])
    alike = [one for verdict in NOT_FOUND for one in by_verdict[verdict]]
    untold = []
    if by_verdict[Verdict.ONE_SEED]:
        untold.append(say_one_seed(by_verdict[Verdict.ONE_SEED], ones))
    if by_verdict[Verdict.NO_SEED]:
        untold.append(say_no_seed(by_verdict[Verdict.NO_SEED]))
    if len(alike) > FEW:
        return found, [*untold, say_alike_all(alike)]
    return found, [*(SENTENCES[one.verdict](one, margin) for one in alike), *untold]


def say_untrained(one: ArmDifference, margin: float | None) -> str:
    """Say that two arms are not compared, as one of them did not train."""
    if len(one.untrained) > 1:
        return f"{pair(one)} are not compared: neither of them trained."
    (stuck,) = one.untrained
    words = f"{pair(one)} are not compared: {stuck} did not train"
    if one.n:
        is_higher = (one.mean < 0) == (stuck == one.baseline)
        because = ", which is why" if one.metric.judges and one.p is not None and one.p < ALPHA else ";"
        words += f"{because} its {one.metric.words} is {amount(one)} {'higher' if is_higher else 'lower'}"
    return words + "."


def say_different(one: ArmDifference, margin: float | None) -> str:
    """Say what a difference is."""
    holm = " after Holm" if one.family > 1 else ""
    return (
        f"{one.arm} is {compared(one)} {one.baseline}: {measured(one)}, p {equals(one.corrected)}{holm}{ranks(one)})"
        f"{survivors(one)}{against(one, margin)}{decides(one)}."
    )


def say_flattered(one: ArmDifference, margin: float | None) -> str:
    """Say that the arm which looks better has lost more runs."""
    ours, theirs = one.lost if one.better else reversed(one.lost)
    better, other = (one.arm, one.baseline) if one.better else (one.baseline, one.arm)
    ranked = "" if one.ranked_p is None else f"; with lost runs ranked last, p {equals(one.ranked_p)} (signed ranks)"
    return (
        f"{better} is not called better than {other}, as it lost {ours} of {count(one.tried, 'seed')} and {other} "
        f"{theirs or 'none'}: on the {count(one.n, 'seed')} that survived in both, the {one.metric.words} of {one.arm} "
        f"is {amount(one)} {way(one)}{ranked}."
    )


def say_possible(one: ArmDifference, margin: float | None) -> str:
    """Say what may be a difference."""
    return (
        f"{one.arm} may be {compared(one)} {one.baseline}: {measured(one)}, p {equals(one.p)}{ranks(one)})"
        f"{survivors(one)}{against(one, margin)}; not certain after correction for {corrections(one)} "
        f"(p {equals(one.corrected)}): repeat it with new seeds{decides(one)}."
    )


def say_assumptions(ones: Sequence[ArmDifference]) -> list[str]:
    """Say what is assumed of few seeds, where a difference was found or may have been."""
    told = (Verdict.DIFFERENT, Verdict.POSSIBLE)
    ranks = [one.ranks for one in ones if one.verdict in told and one.n < ENOUGH]
    if not ranks:
        return []
    limit = "; with five ranks or fewer its p cannot be below 0.05" if min(ranks) < FEWEST_RANKS else ""
    return [
        f"With fewer than {ENOUGH} seeds, p and the interval hold where differences by seed are Gaussian, which so few "
        "cannot show; where they are skewed, false alarms are more frequent. The test of signed ranks, whose p is not "
        f"corrected, assumes symmetry alone{limit}."
    ]


def say_torn(one: ArmDifference, margin: float | None) -> str:
    """Say that the runs of an arm end in two groups."""
    first = one.torn[0]
    arms = " and of ".join(group.arm for group in one.torn)
    which = f" runs of {first.arm}" if len(one.torn) > 1 else ""
    return (
        f"{pair(one)}: no mean, interval or p is given, as the runs of {arms} end in two groups far apart: "
        f"{first.trained} of {first.runs}{which} trained, and the others did not."
    )


def say_constant(one: ArmDifference, margin: float | None) -> str:
    """Say that a difference is the same in each seed."""
    size = with_unit(fixed(abs(one.mean), precision(one.mean, None)), one.metric.unit)
    return (
        f"{pair(one)} differ by the same {size} in {each_seed(one)} ({one.arm} is {way(one)} in {one.metric.words}), "
        "so the spread is not known: add seeds."
    )


# ---- no difference


def say_alike_all(ones: Sequence[ArmDifference]) -> str:
    """Say in one sentence that no difference was found in many comparisons."""
    reach = [one.interval.reach for one in ones if one.interval]
    some = ""
    if reach:
        some = f"; there may be some of up to {with_unit(bound(max(reach)), ones[0].metric.unit)} (95 % in each)"
    return f"No difference was found in {len(ones)} comparisons ({shortened([one.arm for one in ones], 4)}){some}."


def say_same(one: ArmDifference, margin: float | None) -> str:
    """Say that both ended the same."""
    return f"{pair(one)} end with the same {one.metric.words} in {each_seed(one)}."


def say_within(one: ArmDifference, margin: float | None) -> str:
    """Say that a difference is too small to matter."""
    return (
        f"{pair(one)} are the same within {the_margin(margin, one)}: they do not differ by more than {reach_of(one)}."
    )


def say_unknown(one: ArmDifference, margin: float | None) -> str:
    """Say that there are too few seeds."""
    most = f"{reach_of(one)}{beyond(one, margin)}"
    return f"{pair(one)}: too few seeds to tell; they may differ by up to {most}{decides(one)}."


def say_alike(one: ArmDifference, margin: float | None) -> str:
    """Say that no difference was found, and how large one may be."""
    if margin is None:
        return f"{pair(one)} do not differ by more than {reach_of(one)}{decides(one)}."
    return (
        f"{pair(one)}: no difference was found, but they may differ by up to {reach_of(one)}{beyond(one, margin)}"
        f"{decides(one)}."
    )


# ---- effects of factors


def say_effects(found: Sequence[Effect]) -> list[list[str]]:
    """Say which effects differ or may, kind by kind, the largest first; not of one seed."""
    shown = [one for one in by_size(found) if not is_open(one)]
    return [[say_effect(one) for one in shown if one.kind == kind] for kind in EffectKind]


def say_open_effects(found: Sequence[Effect]) -> list[str]:
    """Say where no difference was found, once for each step."""
    by_step = defaultdict[str, list[Effect]](list)
    for one in by_size(found):
        if is_open(one):
            by_step[step_of(one)].append(one)
    if len(by_step) <= FEW_STEPS:
        return [say_open_effect(step, by_step[step]) for step in sorted(by_step, key=str.lower)]
    steps = shortened([*by_step], 4).replace("The ", "the ").replace("Each ", "each ")
    number = sum(len(own) for own in by_step.values())
    return [f"No difference was found in {number} comparisons of effects: {steps}."]


def by_size(found: Sequence[Effect]) -> list[Effect]:
    """Return what several seeds tell of, what is real first, then the largest."""
    several = [one for one in found if one.n > 1]
    return sorted(several, key=lambda one: (not one.real, -abs(one.mean)))


def is_open(one: Effect) -> bool:
    """Say whether no difference was found."""
    return one.p is not None and one.p >= ALPHA


def say_open_effect(step: str, ones: Sequence[Effect]) -> str:
    """Say that no difference was found in what a step does, and how large one may be."""
    first = ones[0]
    effect = "in its effect " if first.kind in (EffectKind.CHANGE, EffectKind.SLOPE) else ""
    arms = shortened([one.arm for one in ones], 6)
    reach = max((one.interval.reach for one in ones if one.interval), default=None)
    if reach is None:
        most, confidence = "", ""
    elif first.kind == EffectKind.LARGEST:
        most, confidence = f"; it may be up to {bound(2**reach)} times", ", 95 %"
    else:
        most, confidence = f"; it may be up to {with_unit(bound(reach), first.metric.unit)}", ", 95 %"
    return (
        f"{step}: no difference {effect}was found between {first.baseline} and {arms}{most} "
        f"({seeds_of(first)}{confidence})."
    )


def say_effect(one: Effect) -> str:
    """Say what a factor does to one arm that it does not do to the other."""
    if one.kind == EffectKind.LARGEST:
        return say_largest(one)
    if one.kind == EffectKind.AREA:
        return say_area(one)
    if one.kind == EffectKind.SENSITIVITY:
        return say_sensitivity(one)
    return say_change(one)


def say_largest(one: Effect) -> str:
    """Say up to which level both arms train."""
    (winner, gains), (loser, losses) = sides(one)
    word = word_of(one)
    is_rate = word == "learning rate"
    name, levels = ("lr", "rates") if is_rate else (word, "values")
    words = f"{winner} trains up to {name} {levels_of(one, gains)}, {loser} up to {levels_of(one, losses)}"
    gap = gap_of(one)
    if gap is None:
        return f"{words}, in each of {count(one.n, 'seed')}."
    times = fixed(2 ** abs(one.mean), 1)
    return f"{words}, at {levels} {times} times as large {evidence(one, span(gap.powers, 1))}."


def say_area(one: Effect) -> str:
    """Say in how much of a grid both arms train."""
    (winner, gains), (loser, losses) = sides(one)
    return (
        f"{winner} trains in {share(gains)} % of the grid of {word_of(one)}, {loser} in {share(losses)} %: "
        f"{amount(one)} more {evidence(one)}."
    )


def say_sensitivity(one: Effect) -> str:
    """Say which arm is more sensitive to the learning rate."""
    (winner, gains), (loser, losses) = sides(one)
    return (
        f"{loser} {'is' if one.real else 'may be'} {amount(one)} more sensitive to the learning rate than {winner} "
        f"{evidence(one)}: on average over the rates its loss is {mean_size(one, losses)} above that at its best rate, "
        f"against {mean_size(one, gains)}."
    )


def say_change(one: Effect) -> str:
    """Say which arm takes to a change, or to each doubling, better."""
    (winner, gains), (loser, losses) = sides(one)
    helps = (sum(gains) < 0) == one.metric.lower_is_better
    more, less = (winner, loser) if helps else (loser, winner)
    if one.metric.judges:
        verb = "help" if helps else "harm"
    else:
        verb = "lower" if helps else "raise"
        more = f"the {one.metric.words} of {more}"
        less = f"that of {less}"
    verb = f"{verb}s" if one.real else f"may {verb}"
    other_way = "" if direction(losses) == direction(gains) else f"{direction(losses)} "
    return (
        f"{step_of(one)} {verb} {more} by {amount(one)} more than {less} {evidence(one)}: the "
        f"{one.metric.words} of {winner} {direction(gains)} by {mean_size(one, gains)}, that of {loser} {other_way}by "
        f"{mean_size(one, losses)}."
    )


def sides(one: Effect) -> list[tuple[str, tuple[float, ...]]]:
    """Return the names of arm and baseline, each with the effects on it, the one that gains more first."""
    more_is_better = one.kind == EffectKind.LARGEST or not one.metric.lower_is_better
    found = [(one.arm, one.own), (one.baseline, one.other)]
    return found if (one.mean > 0) == more_is_better else found[::-1]


def word_of(one: Effect) -> str:
    """Name the factor."""
    return "learning rate" if one.factor == LEARNING_RATE else one.factor.rpartition(".")[2]


def step_of(one: Effect) -> str:
    """Name what has the effect, such as `warmup=0.1 instead of 0`."""
    if one.kind == EffectKind.CHANGE:
        return f"{name_arm({one.factor: one.levels[-1]})} instead of {in_words(one.levels[0])}"
    if one.kind == EffectKind.SLOPE:
        return f"Each doubling of {word_of(one)}"
    if one.kind == EffectKind.LARGEST:
        return f"The largest {word_of(one)} that trains"
    if one.kind == EffectKind.AREA:
        return f"The share of the grid of {word_of(one)} that trains"
    return "The sensitivity to the learning rate"


def gap_of(one: Effect) -> Interval | None:
    """Return the interval of a difference as that of a size, from whichever side it is one."""
    interval = one.interval
    return Interval(-interval.upper, -interval.lower) if interval and one.mean < 0 else interval


def evidence(one: Effect, ratios: str = "") -> str:
    """Write interval, seeds and p, in brackets. ratios: the interval, where it is one of ratios."""
    words = ""
    if one.interval:
        words += f"95 %: {ratios or span(gap_of(one), precision(one.mean, one.interval))}; "
    words += seeds_of(one)
    if one.real:
        words += f", p {equals(one.corrected)}" + (" after Holm" if one.family > 1 else "")
    elif one.p is not None:
        words += f", p {equals(one.p)}; not certain after correction for {one.family} tests"
    return f"({words})"


def share(shares: Sequence[float]) -> str:
    """Write the mean of percentages."""
    return fixed(sum(shares) / len(shares), 0)


def mean_size(one: Effect, effects: Sequence[float]) -> str:
    """Write the size of the mean of effects."""
    return fixed(abs(sum(effects) / one.n), precision(one.mean, one.interval))


def direction(effects: Sequence[float]) -> str:
    """Say where effects lead."""
    return "falls" if sum(effects) < 0 else "rises"


def levels_of(one: Effect, effects: Sequence[float]) -> str:
    """Write the levels up to which seeds train. effects: their logarithms to base 2."""
    low, high = 2 ** min(effects), 2 ** max(effects)
    if high < (1 - NEXT_TO) * one.levels[0]:
        return "none"
    words = plain(float(f"{high:.3g}"))
    if low < (1 - NEXT_TO) * high:
        words = f"{plain(float(f'{low:.3g}'))} to {words}"
    return f"{words} (the largest tried)" if low > (1 - NEXT_TO) * one.levels[-1] else words


# ---- nothing can be said


def say_one_seed(ones: Sequence[ArmDifference], every: Sequence[ArmDifference]) -> str:
    """Say that one seed shows nothing, and what more would show. every: all comparisons."""
    if max(one.tried for one in every) == 1:
        words = "With one seed for each arm nothing can be said about differences:"
    else:
        words = f"{arms_of(ones)}: one seed has finished both there and in the baseline, so nothing can be said:"
    few, more, many = (fixed(detectable_difference(n, 1.0, family=len(every)), 1) for n in (3, 5, 10))
    return (
        f"{words} add at least 2 seeds. To be found four times in five, a difference must be {few} times the standard "
        f"deviation of the differences by seed with 3 seeds, {more} times with 5, {many} times with 10 "
        f"({count(len(every), 'comparison')})."
    )


def say_no_seed(ones: Sequence[ArmDifference]) -> str:
    """Say that no seed has a result in both arms."""
    return f"{arms_of(ones)}: no seed has a result both there and in the baseline, so there are no values to compare."


def say_not_compared(arms: int) -> str:
    """Say that nothing is compared. arms: how many there are."""
    why = "there is one arm" if arms == 1 else "no arm has a baseline that differs in nothing else"
    return f"Nothing is compared: {why}."


Sentence = Callable[[ArmDifference, float | None], str]

# The sentence of each verdict that has one for each comparison; the others have one for all of them.
SENTENCES: dict[Verdict, Sentence] = {
    Verdict.DIFFERENT: say_different,
    Verdict.FLATTERED: say_flattered,
    Verdict.POSSIBLE: say_possible,
    Verdict.CONSTANT: say_constant,
    Verdict.TORN: say_torn,
    Verdict.UNTRAINED: say_untrained,
    Verdict.SAME: say_same,
    Verdict.WITHIN: say_within,
    Verdict.UNKNOWN: say_unknown,
    Verdict.ALIKE: say_alike,
}


# ---- parts of sentences


def corrections(one: StatedTest) -> str:
    """Say what p is corrected for."""
    return "more learning rates" if one.family == 1 else f"{one.family} tests"


def equals(p: float | None) -> str:
    """Write a p value where `p` stands before it, such as `= 0.031`."""
    words = chance(p)
    return words if words.startswith("<") else f"= {words}"


def pair(one: StatedTest) -> str:
    """Name both arms."""
    return f"{one.arm} and {one.baseline}"


def compared(one: ArmDifference) -> str:
    """Say what an arm is, compared with its baseline."""
    if not one.metric.judges:
        return "different from"
    return "better than" if one.better else "worse than"


def amount(one: Paired) -> str:
    """Write the size of a mean, with its unit."""
    return with_unit(fixed(abs(one.mean), precision(one.mean, one.interval)), one.metric.unit)


def way(one: Paired) -> str:
    """Say on which side of the baseline an arm is."""
    return "lower" if one.mean < 0 else "higher"


def arms_of(ones: Sequence[ArmDifference]) -> str:
    """Name the arms of some comparisons."""
    return shortened([one.arm for one in ones])


def the_margin(margin: float | None, one: ArmDifference) -> str:
    """Name the margin."""
    return f"the margin of {with_unit(plain(margin or 0.0), one.metric.unit)}"


def survivors(one: ArmDifference, comma: str = ",") -> str:
    """Say that other seeds were lost."""
    return f"{comma} among the seeds that survived" if one.survived else ""


def each_seed(one: ArmDifference) -> str:
    """Name all seeds that are compared."""
    return f"each of {count(one.n, 'seed')}" + (" that survived" if one.survived else "")


def measured(one: ArmDifference) -> str:
    """Write a difference and its interval, up to where p stands."""
    places = precision(one.mean, one.interval)
    return (
        f"its {one.metric.words} is {amount(one)} {way(one)} (95 %: {span(one.interval, places, True)}; {seeds_of(one)}"
    )


def seeds_of(one: Paired) -> str:
    """Say how many seeds are compared, and of how many."""
    return f"{one.n} of {one.tried} seeds" if one.n < one.tried else count(one.n, "seed")


def ranks(one: ArmDifference) -> str:
    """Write p of the test that needs no Gaussian, beside that of the one that does."""
    return f"; signed ranks {chance(one.ranked_p)}" if one.n < ENOUGH and one.ranked_p is not None else ""


def decides(one: ArmDifference) -> str:
    """Name the one seed that decides."""
    if not one.deciding or not (one.real or one.skewed):
        return ""
    seed, p = one.deciding.seed, equals(one.deciding.p)
    uncorrected = " before correction" if one.family > 1 else ""
    if one.real:
        return f"; seed {seed} decides: without it, p {p}{uncorrected}"
    return f"; seed {seed} is an outlier: without it, p {p}{uncorrected}; look at its run"


def reach_of(one: ArmDifference) -> str:
    """Write how large a difference may be at most, and from how many seeds that is known."""
    reach = one.interval.reach if one.interval else None
    return f"{with_unit(bound(reach), one.metric.unit)}{survivors(one, '')} ({seeds_of(one)}, 95 %)"


def against(one: ArmDifference, margin: float | None) -> str:
    """Say how a difference compares with the margin."""
    if margin is None or one.interval is None:
        return ""
    if one.interval.reach <= margin:
        return f"; it is within {the_margin(margin, one)}"
    if min(abs(one.interval.lower), abs(one.interval.upper)) <= margin:
        return f"; it may be within {the_margin(margin, one)}"
    return ""


def beyond(one: ArmDifference, margin: float | None) -> str:
    """Say that a difference may be larger than the margin."""
    return "" if margin is None else f", more than {the_margin(margin, one)}"


# ---- the question


def say_question(question: Question) -> tuple[str, str]:
    """Say what was asked, and what was held equal."""
    return one_line(say_asked(question)), one_line(say_held(question))


def say_asked(question: Question) -> str:
    """Say what varies, and on what."""
    model, data = (shortened(options, MOST_VALUES) for options in (question.model, question.data))
    if not question.varied:
        return f"How does the model {model} with {shortened(question.norm, MOST_VALUES)} end on {data}?"
    keys = [factor.key for factor in question.varied]
    words = []
    for factor in question.varied:
        values = shortened([in_words(value) for value in factor.values], MOST_VALUES)
        words.append(f"{factor.key} ({values})")
    *others, last = words
    factors = f"{', '.join(others)} and {last}" if others else last
    verb = "do" if others else "does"
    of_model = "" if "model" in keys else f" of the model {model}"
    on_data = "" if "data" in keys else f" on {data}"
    return f"What {verb} {factors} do to the final {question.metric.words}{of_model}{on_data}?"


def say_held(question: Question) -> str:
    """Say what is held equal, what goes with what varies, and what was set by hand."""
    words = {"steps": "{} steps", "batch": "batches of {}", "rate": "a learning rate of {}"}
    equal = []
    following = defaultdict[str, list[str]](list)
    for held in question.held:
        text = words[held.what].format(shortened(held.values, MOST_VALUES))
        if held.goes_with:
            following[held.goes_with].append(text)
        else:
            equal.append(text)
    equal += [f"{sizes(question.parameters)} parameters", f"{count(len(question.seeds), 'seed')} for each arm"]
    sentences = [f"Held equal: {'; '.join(equal)}."]
    sentences += [f"Goes with {keys}: {'; '.join(own)}." for keys, own in following.items()]
    if question.by_hand:
        sentences.append(f"Set by hand: {' '.join(question.by_hand)}. All else is as it is by default.")
    else:
        sentences.append("No setting was changed by hand.")
    return " ".join(sentences)


# ---- why


def say_why(causes: Sequence[Cause]) -> list[str]:
    """Say why arms did not train, once for all that have the same reasons, and what goes along with differences."""
    alike = defaultdict[str, list[str]](list)
    for cause in causes:
        if cause.baseline is None:
            alike[say_reasons(cause)].append(cause.arm)
    texts = [f"{', '.join(arms)} did not train: {reasons}." for reasons, arms in alike.items()]
    between = [cause for cause in causes if cause.baseline is not None]
    for cause in between[:MOST_CAUSES]:
        texts.append(
            f"With {cause.arm} in the place of {cause.baseline}, at the end of training, {say_reasons(cause)} (what "
            "goes along with a difference need not be its cause)."
        )
    return [one_line(text) for text in texts]


def say_reasons(cause: Cause) -> str:
    """Say what probes show of an arm."""
    parts = []
    for reason in cause.reasons:
        text = say_reason(reason)
        if reason.kind == ReasonKind.SATURATED and cause.baseline is None:
            text = f"at the end {text}"
        parts.append(text)
    return "; ".join(parts) or "the runs were not probed, so nothing shows why"


def say_reason(reason: Reason) -> str:
    """Say one thing that probes show."""
    seen = {name: f"{value:.2g}" for name, value in reason.evidence.items()}
    if reason.kind == ReasonKind.SMALL_STREAM:
        text = f"the stream enters the first norm with RMS {seen['entering']}"
        if "passed" in seen:
            text += f", where its bounded function is linear and passes on values of RMS {seen['passed']}"
        return text
    if reason.kind == ReasonKind.SATURATED:
        share = 100 * reason.evidence["saturated"]
        return f"up to {share:.0f} % of what enters the norms of a block is at their bound"
    if reason.kind == ReasonKind.VANISHING:
        inside, outside = seen["in_blocks"], seen["gradient"]
        return f"gradients vanish: their norm is {inside} in all blocks together, and {outside} outside of them"
    if reason.kind == ReasonKind.VANISHING_DOWN:
        last, first = seen["last_gradient"], seen["first_gradient"]
        return (
            f"gradients vanish on their way down: their norm is {last} in the last block and {first} in the first one"
        )
    if reason.kind == ReasonKind.STANDING:
        return "the training loss no longer falls"
    if reason.kind == ReasonKind.FALLING:
        return "the training loss still falls at the end"
    names = {
        ReasonKind.STREAM: "the stream leaves the last block with RMS",
        ReasonKind.FIRST_GRADIENT: "the gradient norm of the first block is",
        ReasonKind.LAST_GRADIENT: "the gradient norm of the last block is",
    }
    return f"{names[reason.kind]} {seen['arm']} instead of {seen['baseline']}"


# ---- what to do next

REMEDIES = {
    Remedy.LARGER_STREAM: (
        "model.embedding_scale=unit or a larger norm.alpha0, so that the norm does not read values near 0"
    ),
    Remedy.WARMUP: "a longer schedule.warmup, and a smaller optim.lr",
    Remedy.STEPS: "more trainer.steps",
    Remedy.OTHER_RATES: "other learning rates, smaller and larger ones",
}

LOOKS = (
    "Looking again after each addition makes false alarms more frequent (17 % where two seeds at a time are added, "
    "from 3 to 15): decide beforehand how often to look, K times in all, and call a difference only where p is below "
    "0.05 / K."
)


def say_next(answer: Answer) -> list[str]:
    """Say what to do now, and with which commands; once for all arms that the same may make train."""
    alike = defaultdict[tuple[Remedy, ...], list[str]](list)
    for step in answer.next:
        if step.kind == StepKind.MAKE_TRAIN:
            alike[step.remedies].append(step.arm)
    texts = []
    for step in answer.next:
        if step.kind == StepKind.MAKE_TRAIN:
            arms = alike.pop(step.remedies, [])
            if arms:
                texts.append(say_remedies(arms, step.remedies))
        else:
            texts.append(say_step(step, answer.question.metric.unit))
    return [one_line(text) for text in texts]


def say_remedies(arms: Sequence[str], remedies: Sequence[Remedy]) -> str:
    """Say what may make arms train."""
    return f"To make {', '.join(arms)} train, try {'; '.join(REMEDIES[remedy] for remedy in remedies)}."


def say_step(step: NextStep, unit: str) -> str:
    """Say what to do. unit: of the size of a difference."""
    if step.kind == StepKind.FINISH:
        return f"Finish the runs that have not ended: {step.command}."
    if step.kind == StepKind.ADD_SEEDS:
        gain = f"would show a difference of {with_unit(plain(step.size or 0.0), unit)} four times in five"
        return f"{count(step.seeds, 'more seed')} {gain}: {step.command}. {LOOKS}"
    if step.kind == StepKind.PILOT:
        return f"More seeds show how much seeds differ by themselves: {step.command}. {LOOKS}"
    if step.kind == StepKind.OWN_RATES:
        return f"See whether it holds where each arm has a learning rate of its own: {step.command}."
    command = f": {step.command}" if step.command else ""
    return f"See whether it holds in longer runs, of twice as many steps{command}."
