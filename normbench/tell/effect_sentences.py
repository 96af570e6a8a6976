"""The sentences of effects: what a factor does to an arm that it does not do to the baseline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from normbench.config.rules import short_name
from normbench.evidence.arms import LEARNING_RATE, name_arm
from normbench.results.result import EffectKind, FactorEffect
from normbench.results.statistics import ALPHA, Interval
from normbench.tell.phrases import Said, amount, corrected_p, pair, seeds_of
from normbench.wording import bound, count, equals, fixed, in_words, join_first, plain, precision, span, with_unit

FEW_EFFECTS = 2  # effects in which nothing was found have a sentence each
MOST_EFFECTS = 4  # that are named where many show nothing
MOST_ARMS = 6  # that are named where an effect shows nothing in them
NEXT_TO = 0.001  # levels closer than this share of them are the same


def say_effects(found: Sequence[FactorEffect]) -> list[list[Said]]:
    """Say which effects differ or may differ, kind by kind, the largest first; nothing of effects in one seed."""
    shown = [one for one in by_size(found) if not shows_nothing(one)]
    kinds = []
    for kind in EffectKind:
        own = [one for one in shown if one.kind == kind]
        kinds.append([Said(say_effect(one), say_detail(one)) for one in own])
    return kinds


def say_effects_not_found(found: Sequence[FactorEffect]) -> list[str]:
    """Say where no difference was found, once for all arms with the same effect."""
    by_name = defaultdict[str, list[FactorEffect]](list)
    for one in by_size(found):
        if shows_nothing(one):
            by_name[name_effect(one)].append(one)
    if len(by_name) <= FEW_EFFECTS:
        sentences = []
        for name in sorted(by_name, key=str.lower):
            sentences.append(say_effect_not_found(name, by_name[name]))
        return sentences
    names = join_first([*by_name], MOST_EFFECTS)
    names = names.replace("The ", "the ").replace("Each ", "each ")  # as they do not begin the sentence
    number = sum(map(len, by_name.values()))
    return [f"No difference was found in {number} comparisons of effects: {names}."]


def by_size(found: Sequence[FactorEffect]) -> list[FactorEffect]:
    """Return the effects in several seeds, those that may be called differences first, then the largest."""
    several = [one for one in found if one.n > 1]
    return sorted(several, key=lambda one: (not one.real, -abs(one.mean)))


def shows_nothing(one: FactorEffect) -> bool:
    """Tell whether an effect on an arm was tested and no difference was found."""
    return one.p is not None and one.p >= ALPHA


# ---- one effect


def say_effect(one: FactorEffect) -> str:
    """Say what a factor does to one arm that it does not do to the other."""
    if one.kind == EffectKind.LARGEST:
        return say_largest(one)
    if one.kind == EffectKind.AREA:
        return say_area(one)
    if one.kind == EffectKind.SENSITIVITY:
        return say_sensitivity(one)
    return say_change(one)


def say_largest(one: FactorEffect) -> str:
    """Say up to which level both arms train."""
    better, worse = sides(one)
    word = word_of(one)
    is_rate = word == "learning rate"
    name, levels = ("lr", "rates") if is_rate else (word, "values")
    best, least = write_levels(one, better.effects), write_levels(one, worse.effects)
    words = f"{better.arm} trains up to {name} {best}, {worse.arm} up to {least}"
    gap = gap_of(one)
    if gap is None:
        return f"{words}, in each of {count(one.n, 'seed')}."
    times = fixed(2 ** abs(one.mean), 1)
    evidence = write_evidence(one, span(gap.as_ratios, 1))
    return f"{words}, at {levels} {times} times as large {evidence}."


def say_area(one: FactorEffect) -> str:
    """Say in how much of a grid both arms train."""
    better, worse = sides(one)
    return (
        f"{better.arm} trains in {mean_share(better.effects)} % of the grid of {word_of(one)}, {worse.arm} in "
        f"{mean_share(worse.effects)} %: {amount(one)} more {write_evidence(one)}."
    )


def say_sensitivity(one: FactorEffect) -> str:
    """Say which arm is more sensitive to the learning rate."""
    better, worse = sides(one)
    verb = "is" if one.real else "may be"
    return (
        f"{worse.arm} {verb} {amount(one)} more sensitive to the learning rate than {better.arm} {write_evidence(one)}"
        f": on average over the rates its loss is {mean_size(one, worse.effects)} above that at its best rate, against "
        f"{mean_size(one, better.effects)}."
    )


def say_change(one: FactorEffect) -> str:
    """Say which arm a change, or each doubling, helps or harms more."""
    better, worse = sides(one)
    helps = (sum(better.effects) < 0) == one.metric.lower_is_better
    more, less = (better.arm, worse.arm) if helps else (worse.arm, better.arm)
    if one.metric.judges:
        verb = "help" if helps else "harm"
    else:
        verb = "lower" if helps else "raise"
        more = f"the {one.metric.words} of {more}"
        less = f"that of {less}"
    verb = f"{verb}s" if one.real else f"may {verb}"
    moves, other_moves = direction(better.effects), direction(worse.effects)
    other_way = "" if other_moves == moves else f"{other_moves} "
    return (
        f"{name_effect(one)} {verb} {more} by {amount(one)} more than {less} {write_evidence(one)}: the "
        f"{one.metric.words} of {better.arm} {moves} by {mean_size(one, better.effects)}, that of {worse.arm} "
        f"{other_way}by {mean_size(one, worse.effects)}."
    )


def say_effect_not_found(name: str, effects: Sequence[FactorEffect]) -> str:
    """Say that no difference was found in an effect on arms, and how large one may be. name: of the effect."""
    first = effects[0]
    effect = "in its effect " if first.kind in (EffectKind.CHANGE, EffectKind.SLOPE) else ""
    arms = join_first([one.arm for one in effects], MOST_ARMS)
    reach = max((one.interval.reach for one in effects if one.interval), default=None)
    if reach is None:
        most, confidence = "", ""
    elif first.kind == EffectKind.LARGEST:
        most, confidence = f"; it may be up to {bound(2**reach)} times", ", 95 %"
    else:
        size = with_unit(bound(reach), first.metric.unit)
        most, confidence = f"; it may be up to {size}", ", 95 %"
    return (
        f"{name}: no difference {effect}was found between {first.baseline} and {arms}{most} "
        f"({seeds_of(first)}{confidence})."
    )


# ---- parts of sentences


class Side(NamedTuple):
    """An arm or its baseline, by its name, and the effects on it, by seed."""

    arm: str
    effects: tuple[float, ...]


def sides(one: FactorEffect) -> tuple[Side, Side]:
    """Return the arm and its baseline, first the one for which the effects are better."""
    arm = Side(one.arm, one.own)
    baseline = Side(one.baseline, one.other)
    more_is_better = one.kind == EffectKind.LARGEST or not one.metric.lower_is_better
    arm_is_better = (one.mean > 0) == more_is_better
    return (arm, baseline) if arm_is_better else (baseline, arm)


def word_of(one: FactorEffect) -> str:
    """Name the factor."""
    return "learning rate" if one.factor == LEARNING_RATE else short_name(one.factor)


def name_effect(one: FactorEffect) -> str:
    """Name an effect by what has it, such as `warmup=0.1 instead of 0`."""
    if one.kind == EffectKind.CHANGE:
        usual, changed = one.levels[0], one.levels[-1]
        return f"{name_arm({one.factor: changed})} instead of {in_words(usual)}"
    if one.kind == EffectKind.SLOPE:
        return f"Each doubling of {word_of(one)}"
    if one.kind == EffectKind.LARGEST:
        return f"The largest {word_of(one)} that trains"
    if one.kind == EffectKind.AREA:
        return f"The share of the grid of {word_of(one)} that trains"
    return "The sensitivity to the learning rate"


def gap_of(one: FactorEffect) -> Interval | None:
    """Return the interval of a difference with the sign that makes its mean positive."""
    interval = one.interval
    if interval and one.mean < 0:
        return Interval(-interval.upper, -interval.lower)
    return interval


def write_evidence(one: FactorEffect, ratios: str = "") -> str:
    """Write interval and seeds, in brackets. ratios: the interval, where it is one of ratios."""
    words = ""
    if one.interval:
        interval = ratios or span(gap_of(one), precision(one.mean, one.interval))
        words += f"95 %: {interval}; "
    words += seeds_of(one)
    if one.p is not None and not one.real:
        words += f"; not certain after correction for {one.family} tests"
    return f"({words})"


def say_detail(one: FactorEffect) -> str:
    """Say what an effect rests on; nothing where it was not tested."""
    if one.p is None:
        return ""
    p = corrected_p(one) if one.real else f"p {equals(one.p)} before correction"
    return f"{name_effect(one)}, {pair(one)}: {p}."


def mean_share(shares: Sequence[float]) -> str:
    """Write the mean of percentages."""
    return fixed(sum(shares) / len(shares), 0)


def mean_size(one: FactorEffect, effects: Sequence[float]) -> str:
    """Write the size of the mean of effects."""
    mean = sum(effects) / one.n
    return fixed(abs(mean), precision(one.mean, one.interval))


def direction(effects: Sequence[float]) -> str:
    """Say whether a metric falls or rises, by the sum of some effects on it."""
    return "falls" if sum(effects) < 0 else "rises"


def write_levels(one: FactorEffect, effects: Sequence[float]) -> str:
    """Write the levels up to which seeds train. effects: their logarithms to base 2."""
    low, high = 2 ** min(effects), 2 ** max(effects)
    lowest_tried, largest_tried = one.levels[0], one.levels[-1]
    if high < (1 - NEXT_TO) * lowest_tried:
        return "none"
    words = plain(float(f"{high:.3g}"))
    if low < (1 - NEXT_TO) * high:
        lowest = plain(float(f"{low:.3g}"))
        words = f"{lowest} to {words}"
    if low > (1 - NEXT_TO) * largest_tried:
        words += " (the largest tried)"
    return words
