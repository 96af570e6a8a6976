"""The sentences of scaling: whether a difference grows or vanishes with the size of the model, and what lies beyond."""

from __future__ import annotations

from collections.abc import Sequence

from normbench.results.result import Scaling
from normbench.results.statistics import ALPHA
from normbench.tell.phrases import Said, corrected_p, corrections, pair, seeds_of
from normbench.wording import bound, equals, fixed, join_first, precision, rounded_count, span, with_unit

MOST_LEFT_OUT = 4  # arms


def say_scaling(found: Sequence[Scaling]) -> list[Said]:
    """Say how differences change with the size of the model: those that surely do first, then the largest changes."""
    several = [one for one in found if one.n > 1]
    ordered = sorted(several, key=lambda one: (not one.real, shows_nothing(one), -abs(one.mean)))
    sentences = []
    for one in ordered:
        change = say_no_change(one) if shows_nothing(one) else say_change(one)
        text = f"{change} {say_extrapolated(one)}{say_bend(one)}{say_left_out(one)}"
        sentences.append(Said(text, say_detail(one)))
    return sentences


def shows_nothing(one: Scaling) -> bool:
    """Tell whether a change was tested and none was found."""
    return one.p is not None and one.p >= ALPHA


def say_change(one: Scaling) -> str:
    """Say from where to where a difference goes with the size of the model."""
    start, end = one.at_smallest.mean, one.at_largest.mean
    if start * end < 0:
        verb = "change its sign"
        certain = "changes its sign"
    elif abs(end) > abs(start):
        verb, certain = "grow", "grows"
    else:
        verb, certain = "shrink", "shrinks"
    verb = certain if one.p is None or one.real else f"may {verb}"
    digits = precision(one.mean, one.interval)
    smallest = rounded_count(one.sizes[0].parameters)
    largest = rounded_count(one.sizes[-1].parameters)
    change = with_unit(fixed(one.mean, digits, sign=True), one.metric.unit)
    return (
        f"The difference between {one.arm} and {one.baseline} in the {one.metric.words} {verb} with the size of the "
        f"model: {one.arm} less {one.baseline} goes from {fixed(start, digits, sign=True)} at {smallest} parameters to "
        f"{fixed(end, digits, sign=True)} at {largest} on the fitted line, by {change} for each tenfold "
        f"({write_evidence(one)})."
    )


def say_no_change(one: Scaling) -> str:
    """Say that no change with the size of the model was found, and how large one may be."""
    smallest = rounded_count(one.sizes[0].parameters)
    largest = rounded_count(one.sizes[-1].parameters)
    text = (
        f"No change of the difference between {one.arm} and {one.baseline} in the {one.metric.words} with the size of "
        f"the model was found, over {len(one.sizes)} sizes from {smallest} to {largest} parameters"
    )
    if one.interval is None:
        return f"{text} ({seeds_of(one)})."
    most = with_unit(bound(one.interval.reach), one.metric.unit)
    return f"{text}; it may be up to {most} for each tenfold ({seeds_of(one)}, 95 %)."


def say_extrapolated(one: Scaling) -> str:
    """Say what the difference would be where no model was trained."""
    beyond = one.extrapolated
    digits = precision(beyond.mean, beyond.interval)
    value = with_unit(fixed(beyond.mean, digits, sign=True), one.metric.unit)
    interval = ""
    if beyond.interval:
        interval = f" (95 %: {span(beyond.interval, digits, sign=True)})"
    return (
        f"Extrapolated to {rounded_count(beyond.parameters)} parameters, a decade beyond the largest model that was "
        f"trained, it would be {value}{interval} if the line went on."
    )


def say_bend(one: Scaling) -> str:
    """Say that a line does not describe the differences, where that is seen."""
    return " But it bends, so the line is no guide beyond these sizes." if bends(one) else ""


def bends(one: Scaling) -> bool:
    """Tell whether a line does not describe the differences."""
    return one.bend_p is not None and one.bend_p < ALPHA


def say_left_out(one: Scaling) -> str:
    """Say at which sizes nothing could be compared."""
    if not one.left_out:
        return ""
    arms = join_first(one.left_out, MOST_LEFT_OUT)
    return f" Left out, as one of the two did not train there or no seed finished in both: {arms}."


def write_evidence(one: Scaling) -> str:
    """Write interval and seeds."""
    if one.interval is None:
        return f"the same in each of {seeds_of(one)}"
    interval = span(one.interval, precision(one.mean, one.interval), sign=True)
    words = f"95 %: {interval}; {seeds_of(one)}"
    return words if one.real else f"{words}; not certain after correction for {corrections(one)}"


def say_detail(one: Scaling) -> str:
    """Say what a change with the size of the model, and its bend, rest on; nothing where none was found."""
    parts = []
    if one.interval is not None and not shows_nothing(one):
        parts.append(corrected_p(one) if one.real else f"p {equals(one.p)} before correction")
    if bends(one):
        parts.append(f"bend, p {equals(one.bend_p)}")
    return f"Change with size, {pair(one)}: {'; '.join(parts)}." if parts else ""
