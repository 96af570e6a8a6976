"""Which arms a figure shows, in which panel each stands, and how it looks there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normbench.analysis.figures.palette import (
    PLACEMENTS,
    STYLES,
    WORDS,
    Dash,
    norm_color,
    number_color,
    placement_style,
)
from normbench.analysis.records import Arm, Run, setting

# So many lines can be told apart in one panel by colour and dashes alone.
TOGETHER = 6

UNDER_WAY = ("running", "interrupted")

# So many panels are drawn; a caption says where there would have been more.
MOST_PANELS = 12


@dataclass(frozen=True)
class Entry:
    """An arm in a panel. label: its words there. color: on a light page."""

    arm: Arm
    label: str
    color: str
    dash: Dash
    marker: str


@dataclass(frozen=True)
class Panel:
    """Arms that are drawn over each other; title: what they have in common, empty where there is only one panel."""

    title: str
    entries: tuple[Entry, ...]


def panels_of(arms: Sequence[Arm], together: int = TOGETHER) -> tuple[Panel, ...]:
    """Arms by what they have in common but for the colour: norms share a panel, placements only where arms are few.

    together: up to so many arms stand in one panel.
    """
    varied = varied_among(arms)
    color_key = "norm" if "norm" in varied else next(iter(varied), "norm")
    rest = tuple(key for key in varied if key != color_key)
    if len(arms) <= together or not rest:
        return (Panel("", tuple(entry(arm, arms, color_key, rest, alone=True) for arm in arms)),)
    found: dict[str, list[Entry]] = {}
    for arm in arms:
        found.setdefault(words(arm, rest), []).append(entry(arm, arms, color_key, rest, alone=False))
    return tuple(Panel(title, tuple(entries)) for title, entries in found.items())


def shown(panels: Sequence[Panel], most: int = MOST_PANELS) -> tuple[tuple[Panel, ...], str]:
    """The panels that are drawn, and a sentence for the caption where there are more."""
    note = f" The first {most} of {len(panels)} panels." if len(panels) > most else ""
    return tuple(panels[:most]), note


def entry(arm: Arm, arms: Sequence[Arm], color_key: str, rest: Sequence[str], *, alone: bool) -> Entry:
    """How an arm looks; alone: in the only panel, where dashes tell what colours do not."""
    dash, marker = style(arm, arms, rest)
    label = arm.name if alone else words(arm, [color_key])
    return Entry(arm, label, color(arm, arms, color_key), dash if alone and rest else "solid", marker)


def color(arm: Arm, arms: Sequence[Arm], key: str) -> str:
    """By norm; else along a sequence for numbers, and by a table for words."""
    value = value_of(arm, key)
    if key == "norm":
        return norm_color(str(value), {str(value_of(other, key)) for other in arms})
    values = ordered({value_of(other, key) for other in arms})
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        return number_color(values.index(value), len(values))
    known = list(PLACEMENTS) if key == "placement" else values
    place = known.index(value) if value in known else len(known) + values.index(value)
    return WORDS[place % len(WORDS)]


def style(arm: Arm, arms: Sequence[Arm], rest: Sequence[str]) -> tuple[Dash, str]:
    """Dashes and marker: by placement; in turn for whatever else is not told by colours."""
    if not rest or rest == ("placement",):
        return placement_style(str(value_of(arm, "placement")))
    titles = list(dict.fromkeys(words(other, rest) for other in arms))
    return STYLES[titles.index(words(arm, rest)) % len(STYLES)]


def varied_among(arms: Sequence[Arm]) -> tuple[str, ...]:
    """The settings in which some arms differ, in the study's order."""
    keys = list(arms[0].settings) if arms else []
    return tuple(key for key in keys if len({arm.settings.get(key) for arm in arms}) > 1)


def value_of(arm: Arm, key: str) -> Any:
    """What an arm has for a setting, also one that does not vary."""
    return arm.settings[key] if key in arm.settings else setting(arm.runs[0], key)


def words(arm: Arm, keys: Sequence[str]) -> str:
    """Some of an arm's settings as its name has them."""
    return Arm({key: value_of(arm, key) for key in keys}, ()).name


def ordered(values: set[Any]) -> list[Any]:
    """Numbers by size before words by alphabet."""
    return sorted(
        values, key=lambda value: (isinstance(value, str), value if isinstance(value, int | float) else 0, str(value))
    )


def members(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs that stand for an arm: those that finished; without any, those under way; else those that diverged."""
    for statuses in (("finished",), UNDER_WAY, ("diverged",)):
        if found := tuple(run for run in runs if run.status in statuses):
            return found
    return ()


def under_way(arms: Sequence[Arm]) -> str:
    """A sentence for the caption of curves on the arms that stand there by runs that have not finished."""
    names = [arm.name for arm in arms if any(run.status in UNDER_WAY for run in members(arm.runs))]
    more = f" and {len(names) - TOGETHER} more" if len(names) > TOGETHER else ""
    return f" Not finished yet: {', '.join(names[:TOGETHER])}{more}." if names else ""


def diverged(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Those that diverged."""
    return tuple(run for run in runs if run.status == "diverged")
