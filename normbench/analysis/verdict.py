"""What a report says first: plain sentences, each with the table that shows it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from normbench.analysis.comparisons import LEARNING_RATE, Comparison, shortened, without_rate
from normbench.analysis.records import Arm, Run, Study
from normbench.analysis.sentences import at_most, compared_words
from normbench.analysis.wording import count


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
