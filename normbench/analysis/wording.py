"""How a report writes numbers, and the sentences of its verdict, whose words are in templates/sentences.jinja."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from normbench.analysis.comparisons import LEARNING_RATE, Comparison, without_rate
from normbench.analysis.measures import rounded_up
from normbench.analysis.records import Arm, Run, Study, shortened
from normbench.analysis.statistics import ALPHA, Interval, detectable_difference

NONE = "–"
LEAST_P = 0.001  # below it, how small is of no interest
SHORT = 8  # characters of a commit or a fingerprint that tell it
MOST = 8  # sentences of a kind; the table has the others
TEMPLATES = Path(__file__).parent / "templates"

# What Markdown, or HTML in it, would take for its own.
MARKED = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]#|~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})

# What can be said of a comparison with two seeds or more, in this order; of the second row, one sentence for many.
DIFFERENT = ("different", "possible", "constant")
NOT_DIFFERENT = ("same", "within", "unknown", "alike")


def fixed(value: float | None, digits: int, sign: bool = False) -> str:
    """Write a number with so many decimals."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def significant(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits, without an exponent."""
    if not math.isfinite(value) or value == 0:
        return NONE if value else "0"
    return f"{value:,.{decimals(value, digits)}f}"


def decimals(value: float, digits: int) -> int:
    """Return the decimals with which a number other than 0 has so many significant digits."""
    return max(digits - 1 - math.floor(math.log10(abs(value))), 0)


def bound(value: float | None) -> str:
    """Write a size that is not exceeded: two significant digits, rounded up."""
    if value is None or not math.isfinite(value):
        return NONE
    return plain(rounded_up(value, 2))


def plain(value: float) -> str:
    """Write a number as short as can be, without an exponent."""
    text = f"{value:.15f}" if abs(value) < 1e-4 else f"{value:.12g}" if abs(value) < 1e12 else f"{value:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def chance(p: float | None) -> str:
    """Write a p value; one below 5 % is never rounded up to it."""
    if p is None:
        return NONE
    if p < LEAST_P:
        return f"< {LEAST_P:g}"
    return next(text for digits in range(3, 18) if (text := f"{p:.{digits}f}") and (float(text) < ALPHA) == (p < ALPHA))


def equals(p: float | None) -> str:
    """Write a p value behind its sign."""
    return text if (text := chance(p)).startswith("<") else f"= {text}"


def precision(mean: float, interval: Interval | None) -> int:
    """Return the decimals of a difference and its interval.

    Two significant digits of the interval's half width, and no more than four of the mean; but so many that an interval
    which does not reach 0 does not seem to.
    """
    half = (interval.upper - interval.lower) / 2 if interval else 0.0
    if not interval or not half:
        return decimals(mean, 2) if mean else 0
    places = min(decimals(half, 2), decimals(mean, 4)) if mean else decimals(half, 2)
    clear = interval.lower * interval.upper > 0
    return max(places, decimals(min(abs(interval.lower), abs(interval.upper)), 1)) if clear else places


def span(interval: Interval | None, digits: int, sign: bool = False) -> str:
    """Write an interval, its ends rounded away from its middle."""
    if interval is None:
        return NONE
    unit = 10.0**digits
    lower, upper = math.floor(round(interval.lower * unit, 6)) / unit, math.ceil(round(interval.upper * unit, 6)) / unit
    return f"{fixed(lower, digits, sign)} to {fixed(upper, digits, sign)}"


def duration(seconds: float) -> str:
    """Write a time in a unit that suits it."""
    if not math.isfinite(seconds):
        return NONE
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{significant(seconds / size)} {unit}"
    return f"{significant(seconds)} s"


def count(number: int, word: str) -> str:
    """Write a number of things, such as `5 seeds`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def short_commit(commit: str) -> str:
    """Return a commit's first digits, and whether there were changes."""
    head, plus, changes = commit.partition("+")
    return head[:SHORT] + plus + changes


def seeds_each(ones: Sequence[Comparison]) -> str:
    """Say how many seeds several comparisons have, and which have fewer."""
    most = max(one.n for one in ones)
    fewer = [f"{one.arm.name} {one.n}" for one in ones if one.n < most]
    return f"{count(most, 'seed')} each" + (f", but {shortened(fewer, 6)}" if fewer else "")


def every(runs: Iterable[Run], read: Callable[[Run], str]) -> str:
    """Write all that is read of runs, once each."""
    found = dict.fromkeys(" ".join(read(run).split()) for run in runs)
    return shortened([text for text in found if text], 4)


# ---- sentences


@cache
def environment() -> Environment:
    """Return the templates; in the page every word is escaped, in the text those behind the filter `md`."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name == "report.html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    writers = [fixed, significant, bound, plain, equals, precision, span, duration, count, shortened, seeds_each]
    writers += [every, short_commit, detectable_difference]
    found.globals |= {writer.__name__: writer for writer in writers}
    found.filters["md"] = lambda text: " ".join(str(text).split()).translate(MARKED)
    return found


def paragraphs(template: str, macro: str, *about: Any) -> tuple[str, ...]:
    """Return what a macro of a template says, paragraph by paragraph."""
    text = getattr(environment().get_template(template).module, macro)(*about)
    return tuple(" ".join(part.split()) for part in text.split("\n\n") if part.strip())


def say(macro: str, *about: Any) -> str:
    """Return a sentence of sentences.jinja."""
    return " ".join(paragraphs("sentences.jinja", macro, *about))


def notes_on(table: str, **about: Any) -> tuple[str, ...]:
    """Return what stands under a table, by notes.jinja."""
    return paragraphs("notes.jinja", table, about)


def verdict(study: Study, comparisons: Sequence[Comparison], margin: float | None) -> list[tuple[str, str]]:
    """Return what differs, where no difference was found, what cannot be said, and what did not finish.

    Each sentence comes with the key of the table behind it.
    """
    return [
        *([] if comparisons else [(say("not_compared", len(study.arms)), "arms")]),
        *((text, "differences") for text in compared_words(comparisons, margin)),
        *((text, "costs") for text in at_most(list(diverged_words(study)))),
        *((text, "lost") for text in failed_words(study)),
    ]


def compared_words(comparisons: Sequence[Comparison], margin: float | None) -> Iterator[str]:
    """Say what the comparisons show: a sentence for each, or one for many that show no difference.

    margin: in the metric's unit; differences within it do not matter.
    """
    groups: dict[str, list[Comparison]] = {}
    for one in comparisons:
        groups.setdefault(one.verdict(margin), []).append(one)
    many = sum(len(groups.get(kind, ())) for kind in NOT_DIFFERENT) > MOST
    for kind in DIFFERENT:  # the largest first
        found = sorted(groups.get(kind, ()), key=lambda one: -abs(one.paired.mean))
        yield from at_most([say(kind, one, margin) for one in found])
    for kind in NOT_DIFFERENT:
        found = groups.get(kind, [])
        if many and len(found) > 1:
            yield say(f"several_{kind}", found, margin)
        else:
            yield from at_most([say(kind, one, margin) for one in found])
    for kind in ("one_seed", "no_seed"):
        if kind in groups:
            yield say(kind, groups[kind], comparisons)


def at_most(texts: Sequence[str]) -> list[str]:
    """Return the first ones, and how many more there are."""
    more = len(texts) - MOST
    return list(texts) if more <= 0 else [*texts[:MOST], f"{more} more of this kind are in the table."]


def diverged_words(study: Study) -> Iterator[str]:
    """Say which arms diverged, and from which learning rate on."""
    families: dict[str, list[Arm]] = {}
    several = LEARNING_RATE in study.varied and len(study.varied) > 1
    for arm in study.arms:
        families.setdefault(without_rate(arm).name if several else arm.name, []).append(arm)
    for name, arms in families.items():
        gone = [(arm, run) for arm in arms for run in arm.runs if run.status == "diverged"]
        if gone:
            lowest = min(float(arm.settings[LEARNING_RATE]) for arm, _ in gone) if several else None
            from_there = [arm for arm in arms if lowest is None or float(arm.settings[LEARNING_RATE]) >= lowest]
            yield say("diverged", name, len(gone), sum(run.ended for arm in from_there for run in arm.runs), lowest)


def failed_words(study: Study) -> Iterator[str]:
    """Say which runs the machine ended."""
    for status, words in (("out_of_memory", "ran out of memory"), ("failed", "failed")):
        if names := [arm.name for arm in study.arms for run in arm.runs if run.status == status]:
            yield say("lost", len(names), words, list(dict.fromkeys(names)))
