"""What the numbers say, in plain sentences, each with the table that shows it.

Nothing is called a difference unless Holm's corrected p is below 0.05; where none is found, the sentence says how large
one may still be, and how large it would have had to be to be found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from normbench.analysis.comparisons import LEARNING_RATE, Comparison, shortened, without_rate
from normbench.analysis.measures import Metric, rounded_up
from normbench.analysis.power import detectable_difference
from normbench.analysis.records import Arm, Run, Study
from normbench.analysis.statistics import equivalence
from normbench.analysis.tabulated import chance, decimals_of, fixed, span

MOST = 8  # sentences of a kind; the table has the others


@dataclass(frozen=True)
class Sentence:
    """One sentence, and the anchor of the table behind it."""

    text: str
    table: str


def verdict(study: Study, comparisons: Sequence[Comparison], margin: float | None = None) -> tuple[Sentence, ...]:
    """All sentences: differences, where none was found, what cannot be said, and what did not finish.

    margin: in the metric's unit; differences within it do not matter.
    """
    sentences = [
        *(Sentence(text, "differences") for text in compared_words(comparisons, margin)),
        *(Sentence(text, "costs") for text in at_most(list(diverged_words(study)))),
        *(Sentence(text, "lost") for text in failed_words(study)),
    ]
    if not comparisons:
        why = "there is one arm" if len(study.arms) == 1 else "no arm has a baseline that differs in nothing else"
        sentences.insert(0, Sentence(f"Nothing is compared: {why}.", "arms"))
    return tuple(sentences)


def at_most(texts: list[str]) -> list[str]:
    """The first ones, and how many more there are."""
    more = len(texts) - MOST
    return texts if more <= 0 else [*texts[:MOST], f"{more} more of this kind are in the table."]


# ---- differences


def compared_words(comparisons: Sequence[Comparison], margin: float | None) -> Iterator[str]:
    """What is said of the comparisons."""
    real = sorted((one for one in comparisons if one.real), key=lambda one: -abs(one.paired.mean if one.paired else 0))
    yield from at_most([different(one, margin) for one in real])
    open_ones = [one for one in comparisons if one.interval and not one.real]
    yield from [alike(one, margin) for one in open_ones] if len(open_ones) <= MOST else several_alike(open_ones)
    single = [one for one in comparisons if one.n == 1]
    if single:
        yield too_few(single, len(comparisons))
    apart = [one.arm.name for one in comparisons if one.n == 0]
    if apart:
        yield f"{shortened(apart)}: no seed has finished both there and in the baseline, so nothing can be said."


def different(one: Comparison, margin: float | None) -> str:
    """A difference that was found."""
    assert one.paired is not None
    amount = size(abs(one.paired.mean), one.metric)
    way = "lower" if one.paired.mean < 0 else "higher"
    worth = "better" if one.better else "worse"
    text = (
        f"{one.arm.name} is {worth} than {one.baseline.name}: its {one.metric.words} is {amount} {way} "
        f"(95 %: {span(one.interval, decimals_of(one.metric), sign=True)}; {seeds_of(one)}, "
        f"p {equals(one.corrected)} after Holm)"
    )
    if margin is not None and one.interval and min(abs(one.interval.lower), abs(one.interval.upper)) <= margin:
        text += f"; it may be within the margin of {size(margin, one.metric)}"
    return f"{text}."


def seeds_of(one: Comparison) -> str:
    """How many seeds there are, and of how many."""
    return f"{one.n} of {one.n + len(one.unpaired)} seeds" if one.unpaired else count(one.n, "seed")


def equals(p: float | None) -> str:
    """A p value with its sign."""
    return text if (text := chance(p)).startswith("<") else f"= {text}"


def alike(one: Comparison, margin: float | None) -> str:
    """A difference that was not found."""
    assert one.paired is not None and one.interval is not None
    bound = size(rounded_up(one.interval.reach, 2), one.metric, exact=False)
    evidence = f"({seeds_of(one)}, 95 %)"
    pair = f"{one.arm.name} and {one.baseline.name}"
    if one.paired.sd == 0:
        return f"{pair} end with the same {one.metric.words} in each of {count(one.n, 'seed')}."
    would = f"one of {could(one)} would have been, four times in five"
    if margin is None:
        return f"{pair} do not differ by more than {bound} {evidence}; no difference was found, and {would}."
    words = size(margin, one.metric, exact=False)
    if equivalence(one.paired, margin).holds:
        return f"{pair} are the same within the margin of {words}: they do not differ by more than {bound} {evidence}."
    return (
        f"{pair}: no difference was found, but they may differ by up to {bound} {evidence}, more than the margin of "
        f"{words}; {would}."
    )


def could(one: Comparison) -> str:
    """The smallest difference that could have been shown."""
    return size(rounded_up(one.detectable or 0.0, 2), one.metric, exact=False)


def several_alike(ones: Sequence[Comparison]) -> Iterator[str]:
    """Many differences that were not found."""
    widest = max(ones, key=lambda one: one.interval.reach if one.interval else 0.0)
    assert widest.interval is not None
    fewest, most = min(one.n for one in ones), max(one.n for one in ones)
    seeds = count(fewest, "seed") if fewest == most else f"{fewest} to {most} seeds"
    baselines = list(dict.fromkeys(one.baseline.name for one in ones))
    yield (
        f"No difference from {shortened(baselines, 3)} was found for {len(ones)} arms: "
        f"{shortened([one.arm.name for one in ones])} ({seeds} each). They differ by at most "
        f"{size(rounded_up(widest.interval.reach, 2), widest.metric, exact=False)} (95 %, the widest: "
        f"{widest.arm.name}, where one of {could(widest)} would have been found four times in five)."
    )


def too_few(ones: Sequence[Comparison], family: int) -> str:
    """What is said where there is one seed."""
    told = [
        f"with {n} of {fixed(found, 1)}"
        for n in (3, 5, 10)
        if (found := detectable_difference(n, 1.0, family=family)) is not None
    ]
    names = shortened([one.arm.name for one in ones])
    whose = "With one seed for each arm" if len(ones) == family else f"{names}: with one seed"
    return (
        f"{whose} nothing can be said about differences: add at least 2 seeds. Found four times in five is a "
        f"difference, in standard deviations of the paired differences, {', '.join(told)} "
        f"({count(family, 'comparison')})."
    ).replace("with 3 of", "with 3 seeds of")


def size(value: float, metric: Metric, exact: bool = True) -> str:
    """An amount with its unit."""
    number = fixed(value, decimals_of(metric)) if exact else f"{value:.6f}".rstrip("0").rstrip(".")
    return f"{number} {metric.unit}"


def count(number: int, word: str) -> str:
    """Such as `5 seeds`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


# ---- runs that did not finish


def diverged_words(study: Study) -> Iterator[str]:
    """Which arms diverged, and from which learning rate on."""
    families: dict[str, list[Arm]] = {}
    several = LEARNING_RATE in study.varied and len(study.varied) > 1
    for arm in study.arms:
        families.setdefault(without_rate(arm).name if several else arm.name, []).append(arm)
    for name, arms in families.items():
        rates = [float(arm.settings[LEARNING_RATE]) for arm in arms if several and any(map(diverged, arm.runs))]
        lowest = min(rates, default=-math.inf)
        runs = [run for arm in arms if not several or float(arm.settings[LEARNING_RATE]) >= lowest for run in arm.runs]
        ended = [run for run in runs if run.ended]
        if gone := sum(map(diverged, runs)):
            where = f" at lr ≥ {lowest:g}" if several else ""
            yield f"{name} diverged in {gone} of {count(len(ended), 'run')}{where}."


def diverged(run: Run) -> bool:
    """Whether it diverged."""
    return run.status == "diverged"


def failed_words(study: Study) -> Iterator[str]:
    """Which runs the machine ended."""
    for status, words in (("out_of_memory", "ran out of memory"), ("failed", "failed")):
        lost = [(run, arm.name) for arm in study.arms for run in arm.runs if run.status == status]
        if lost:
            yield f"{count(len(lost), 'run')} {words}: {shortened(list(dict.fromkeys(name for _, name in lost)), 6)}."
