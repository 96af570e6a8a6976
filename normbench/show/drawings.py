"""The blocks of arms as their runs have drawn them, where arms differ in what is drawn."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from normbench.config.rules import is_rule
from normbench.evidence.study import RecordedStudy
from normbench.settings import printable

DRAWN = ("scheme", "placement")  # the settings of which a drawing shows what they are; and rules


@dataclass(frozen=True)
class DrawnArms:
    """Arms whose blocks look the same.

    Attributes:
        arms: their names.
        text: each kind of block once, for letters of one width.
        columns: how wide it is, in letters.
    """

    arms: tuple[str, ...]
    text: str
    columns: int


def draw_arms(study: RecordedStudy) -> list[DrawnArms]:
    """Return the blocks of the arms of a study, each drawing once; none where arms do not differ in what is drawn.

    Runs of older versions have no drawing.
    """
    if not any(key in DRAWN or is_rule(key) for key in study.varied):
        return []
    arms_of = defaultdict[str, list[str]](list)
    for arm in study.arms:
        drawing = arm.runs[0].drawing
        if drawing:
            arms_of[printable(drawing)].append(arm.name)
    drawn_arms = []
    for text, names in arms_of.items():
        columns = max(len(line) for line in text.splitlines())
        drawn_arms.append(DrawnArms(tuple(names), text, columns))
    return drawn_arms
