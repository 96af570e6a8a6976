"""The sentences of crossed factors and of sizes of a model: what they do to an arm and not to its baseline."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from normbench.config.rules import short_name
from normbench.evidence.arms import LEARNING_RATE, name_arm
from normbench.results.result import EffectKind, FactorEffect, Scaling
from normbench.results.statistics import ALPHA, Interval
from normbench.tell.details import bends, detail_of_effect, detail_of_scaling
from normbench.tell.phrases import Said, amount, evidence, interval_of, pair, seeds_of, uncertain
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

FEW_EFFECTS = 2  # effects in which nothing was found have a sentence each
MOST_EFFECTS = 4  # that are named where many show nothing
MOST_ARMS = 6  # that are named where an effect shows nothing in them
MOST_LEFT_OUT = 4  # arms of sizes at which nothing could be compared
NEXT_TO = 0.001  # levels closer than this share of them are the same


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
    match effect.kind:
        case EffectKind.CHANGE | EffectKind.SLOPE:
            return say_change(effect)
        case EffectKind.LARGEST:
            return say_largest(effect)
        case EffectKind.AREA:
            return say_area(effect)
        case EffectKind.SENSITIVITY:
            return say_sensitivity(effect)


def say_largest(effect: FactorEffect) -> str:
    """Say up to which level both arms train."""
    better, worse = sides(effect)
    word = word_of_factor(effect)
    is_rate = word == "learning rate"
    name, levels = ("lr", "rates") if is_rate else (word, "values")
    highest = write_levels(effect, better.effects)
    if is_none(effect, 2 ** max(worse.effects)):
        up_to_what = f"at none of the {levels} tried"
    else:
        up_to_what = f"up to {write_levels(effect, worse.effects)}"
    words = f"{better.arm} trains up to {name} {highest}, {worse.arm} {up_to_what}"
    gap = gap_of(effect)
    if gap is None:
        return f"{words}, in each of {count(effect.n, 'seed')}."
    times = fixed(2 ** abs(effect.mean), 1)
    known_by = evidence_of_effect(effect, span(gap.as_ratios, 1))
    counted = ", where none counts as half the lowest" if is_none(effect, 2 ** min(worse.effects)) else ""
    return f"{words}, at {levels} {times} times as large{counted} {known_by}."


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
    elif reach >= widest_difference(first):
        most, confidence = "; it may be as large as the values that were tried can show", ", 95 %"
    elif first.kind == EffectKind.LARGEST:
        most, confidence = f"; it may be up to {bound(2**reach)} times", ", 95 %"
    else:
        size = with_unit(bound(reach), first.metric.unit)
        most, confidence = f"; it may be up to {size}", ", 95 %"
    return (
        f"{name}: no difference {where}was found between {first.baseline} and {arms}{most} "
        f"({seeds_of(first)}{confidence})."
    )


def widest_difference(effect: FactorEffect) -> float:
    """Return the largest difference that can be measured, in the unit of the effects; infinite where nothing bounds it.

    Between an arm that trains at all levels and one that trains at none, it is that from the highest one to half the
    lowest; between shares it is all of the grid.
    """
    match effect.kind:
        case EffectKind.LARGEST:
            return math.log2(max(effect.levels) / (min(effect.levels) / 2))
        case EffectKind.AREA:
            lowest, highest = effect.metric.bounds
            return highest - lowest
        case _:
            return math.inf


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
    match effect.kind:
        case EffectKind.CHANGE:
            usual, changed = effect.levels[0], effect.levels[-1]
            return f"{name_arm({effect.factor: changed})} instead of {in_words(usual)}"
        case EffectKind.SLOPE:
            return f"Each doubling of {word_of_factor(effect)}"
        case EffectKind.LARGEST:
            return f"The largest {word_of_factor(effect)} that trains"
        case EffectKind.AREA:
            return f"The share of the grid of {word_of_factor(effect)} that trains"
        case EffectKind.SENSITIVITY:
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


def is_none(effect: FactorEffect, level: float) -> bool:
    """Tell whether a level stands for none at which a seed trains: half the lowest that was tried."""
    return level < (1 - NEXT_TO) * float(effect.levels[0])


def write_levels(effect: FactorEffect, effects: Sequence[float]) -> str:
    """Write the levels up to which seeds train. effects: their logarithms to base 2."""
    low, high = 2 ** min(effects), 2 ** max(effects)
    largest_tried = effect.levels[-1]
    words = plain(high, digits=3)
    if low < (1 - NEXT_TO) * high:
        words = f"{words}, some seeds at none" if is_none(effect, low) else f"{plain(low, digits=3)} to {words}"
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
