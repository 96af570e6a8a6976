"""What all figures share in their looks: one style of matplotlib, colours, and which arms stand together in a panel.

Colours, dashes and markers stand in palette.toml, matplotlib's settings in normbench.mplstyle, titles and captions in
captions.py. A norm has the same colour in all figures.
"""

from __future__ import annotations

import logging
import math
import tomllib
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from normbench.config.rules import short_name
from normbench.evidence.arms import Arm, sort_key
from normbench.evidence.labels import config_of, name_settings
from normbench.evidence.run import RecordedRun
from normbench.wording import join_first

Item = TypeVar("Item")
Dash = tuple[float, tuple[float, ...]]  # as matplotlib has it: where it begins, and the lengths of dashes and gaps


@dataclass(frozen=True)
class Stroke:
    """How the line of an arm is drawn, whatever its colour is."""

    dash: Dash
    marker: str


FOLDER = Path(__file__).parent
PALETTE = tomllib.loads((FOLDER / "palette.toml").read_text("utf-8"))


def light_colors(part: str) -> dict[str, str]:
    """Return the colours of a part of the palette on a light page, by their names."""
    colors = {}
    for name, (light, _) in PALETTE["colors"][part].items():
        colors[name] = light
    return colors


def dark_colors() -> dict[str, str]:
    """Return what each colour of the palette becomes on a dark page, by what it is on a light one."""
    dark_of_light = {}
    for part in PALETTE["colors"].values():
        for light, dark in part.values():
            dark_of_light[light] = dark
    return dark_of_light


def placement_strokes() -> dict[str, Stroke]:
    """Return the dashes and the marker of each placement that normbench has."""
    strokes = {}
    for name, (dashes, marker) in PALETTE["placements"].items():
        strokes[name] = Stroke((0, tuple(dashes)), marker)
    return strokes


DARK: Mapping[str, str] = dark_colors()
INK, FAINT = light_colors("page").values()
NORMS: Mapping[str, str] = light_colors("norms")
OWN = list(light_colors("own").values())
SEQUENCE = list(light_colors("sequence").values())

PLACEMENTS: Mapping[str, Stroke] = placement_strokes()
STROKES = tuple(PLACEMENTS.values())

COLUMN = 3.5  # inches: a column of a printed page, and of a web page on a phone
SALT = "normbench"  # of ids in an SVG, as normbench.mplstyle has it; no style but ours has this one

TOGETHER = 6  # so many lines can be told apart in one panel by colour and dashes alone
MOST_TOGETHER = 8  # so many share a panel before they are divided, as they may be named at their ends, or in a legend
MOST_PANELS = 12  # are drawn; a caption says where there would have been more
UNDER_WAY = ("running", "interrupted")

NOT_RECORDED = "nothing of the kind was recorded"  # why an arm may be missing in a figure
SEPARATOR = " · "  # between the settings in an arm's name


# ---- colours, and matplotlib's settings


def colors_of(key: str, values: Iterable[Any]) -> dict[Any, str]:
    """Return the colour, on a light page, of each value that a setting has in a study.

    Our norms and placements have the same colours in every study; a person's own follow in alphabetical order. Numbers
    take colours from a sequence, other words those of our norms, in order.
    """
    ordered = sorted(set(values), key=sort_key)
    if all(isinstance(value, int | float) for value in ordered):
        return sequence_colors(ordered)
    named: Iterable[Any] = ordered
    if key == "norm":
        named = NORMS
    elif key == "placement":
        named = PLACEMENTS
    colors = dict(zip(named, NORMS.values(), strict=False))
    others = [value for value in ordered if value not in colors]
    colors.update(zip(others, cycle(OWN), strict=False))
    return colors


def sequence_colors(numbers: Sequence[float]) -> dict[Any, str]:
    """Return colours along a sequence for numbers, which are sorted."""
    last = len(SEQUENCE) - 1
    step = last / max(len(numbers) - 1, 1)
    colors = {}
    for place, value in enumerate(numbers):
        colors[value] = SEQUENCE[round(place * step)]
    return colors


def dark_rules(scope: str, drawn: str | None = None) -> str:
    """Return CSS that recolours figures for a dark page.

    scope: selects what holds the figures, such as `.dark`. drawn: an SVG, to return only the rules for its colours.
    """
    rules = []
    for light, dark in DARK.items():
        for paint in ("fill", "stroke"):
            if drawn is None or f"{paint}: {light}" in drawn:
                rules.append(f'{scope} [style*="{paint}: {light}"]{{{paint}:{dark}!important}}')
    return "".join(rules)


@contextmanager
def use_our_style(width: float = COLUMN) -> Iterator[None]:
    """Set matplotlib to our style, whatever a person's own settings are, and back to them at the end.

    width: of the figures that are begun meanwhile, in inches. Where our style is set already, only the width is set:
    to set all takes a tenth of the time of a drawing.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would tell where it keeps its fonts
    from matplotlib import rc_context, rc_file, rcParams

    if rcParams["svg.hashsalt"] == SALT:
        before = rcParams["figure.figsize"]
        rcParams["figure.figsize"] = width, width
        try:
            yield
        finally:
            rcParams["figure.figsize"] = before
        return
    with rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for a letter that the font lacks
        rc_file(FOLDER / "normbench.mplstyle")
        rcParams["figure.figsize"] = width, width
        yield


# ---- which arms, in which panel, and how each looks there


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
    """Arms that are drawn over each other. title: what they have in common; empty where there is only one panel."""

    title: str
    entries: Sequence[Entry]

    @property
    def names(self) -> list[str]:
        """Return the names of its arms."""
        return [entry.arm.name for entry in self.entries]


def panels_of(arms: Sequence[Arm], drawn: Container[str] | None = None) -> list[Panel]:
    """Return the panels of a figure: arms that differ only in what colours tell share one; all arms do if they are few.

    In a panel each arm has a marker of its own, and so have two of one colour dashes of their own. Dashes tell what
    colours do not, or, for a print in grey, the same. More words than can be told apart stand in several panels.

    drawn: the names of the arms that are drawn, where not all are. The others count for the looks, which are then the
    same in all figures.
    """
    color_key, other_keys = keys_of_looks(arms)
    values, titles = [], []
    for arm in arms:
        settings = {**config_of(arm), **arm.settings}
        values.append(settings.get(color_key))
        titles.append(name_settings(arm, other_keys))
    colors = colors_of(color_key, values)
    ordered = sorted(colors.keys() & values, key=sort_key)
    distinct_titles = list(dict.fromkeys(titles))
    are_together = len(arms) <= TOGETHER or not other_keys
    gathered: dict[str, list[Entry]] = {}
    for place, arm in enumerate(arms):
        value, title = values[place], titles[place]
        color_place = ordered.index(value)
        if are_together:
            label = name_settings(arm, list(arm.settings))
            dash_place = distinct_titles.index(title) if other_keys else color_place
            dash = PLACEMENTS.get(title, stroke_at(dash_place)).dash
            marker = stroke_at(place).marker
            title = ""
        else:
            label = name_settings(arm, [color_key])
            dash = stroke_at(color_place).dash
            marker = stroke_at(color_place).marker
        entry = Entry(arm, label, colors[value], dash, marker)
        gathered.setdefault(title, []).append(entry)
    are_numbers = all(isinstance(value, int | float) for value in values)
    panels: list[Panel] = []
    for title, entries in gathered.items():
        shown = tell_apart(entries)
        if drawn is not None:
            shown = [entry for entry in shown if entry.arm.name in drawn]
        panels += [Panel(title, shown)] if are_numbers else divide(title, shown)
    return [panel for panel in panels if panel.entries]


def tell_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Return the arms of a panel so that two of one colour share neither dashes nor marker, as long as these last."""
    told_apart: list[Entry] = []
    for entry in entries:
        dashes, markers = [], []  # of its colour
        for other in told_apart:
            if other.color == entry.color:
                dashes.append(other.dash)
                markers.append(other.marker)
        free = []
        for stroke in STROKES:
            if stroke.dash not in dashes and stroke.marker not in markers:
                free.append(stroke)
        if free and entry.dash in dashes:
            entry = replace(entry, dash=free[0].dash)
        if free and entry.marker in markers:
            entry = replace(entry, marker=free[0].marker)
        told_apart.append(entry)
    return told_apart


def divide(title: str, entries: Sequence[Entry]) -> list[Panel]:
    """Return arms as one panel, or, where they are more than can be told apart, as several of about as many each."""
    if len(entries) <= MOST_TOGETHER:
        return [Panel(title, entries)]
    panels: list[Panel] = []
    for entries_of_panel in split_evenly(entries, TOGETHER):
        words = f"{entries_of_panel[0].label} to {entries_of_panel[-1].label}"
        if title:
            words = f"{title}{SEPARATOR}{words}"
        panels.append(Panel(words, entries_of_panel))
    return panels


def split_evenly(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """Return items, in their order, as the fewest parts of at most `most`, whose lengths differ by at most one."""
    number = math.ceil(len(items) / most)
    parts = []
    for place in range(number):
        start = len(items) * place // number
        stop = len(items) * (place + 1) // number
        parts.append(items[start:stop])
    return parts


def keys_of_looks(arms: Sequence[Arm]) -> tuple[str, list[str]]:
    """Return the setting that colours tell, the norm where it varies, and all others that vary."""
    keys: dict[str, None] = {}  # each once, in their order
    for arm in arms:
        keys.update(dict.fromkeys(arm.settings))
    varied = []
    for key in keys:
        values = {arm.settings.get(key) for arm in arms}
        if len(values) > 1:
            varied.append(key)
    color_key = "norm"
    if varied and "norm" not in varied:
        color_key = varied[0]
    return color_key, [key for key in varied if key != color_key]


def stroke_at(number: int) -> Stroke:
    """Return the stroke of a number; after the last stroke comes the first again."""
    return STROKES[number % len(STROKES)]


def runs_shown(arm: Arm) -> list[RecordedRun]:
    """Return the runs that figures show of an arm: those that finished; else those under way, or that diverged."""
    for statuses in (("finished",), UNDER_WAY, ("diverged",)):
        runs = [run for run in arm.runs if run.status in statuses]
        if runs:
            return runs
    return []


# ---- what is not in a figure, and why


def take_first(found: Sequence[Item], most: int, words: str) -> tuple[Sequence[Item], list[str]]:
    """Return the first things found, which are drawn, and a sentence for the caption where there are more."""
    if len(found) <= most:
        return found, []
    return found[:most], [f"The first {most} of {len(found)} {words}."]


def names_in(panels: Sequence[Panel]) -> list[str]:
    """Return the names of the arms in some panels."""
    names = []
    for panel in panels:
        names += panel.names
    return names


def tell_absent(
    arms: Sequence[Arm],
    data: pd.DataFrame,
    cut: Sequence[str] = (),
    lacks: str = NOT_RECORDED,
) -> list[str]:
    """Return a sentence for a caption on the arms that are not in a figure, and why; nothing where all are.

    data: what is drawn. cut: names of arms for which there is no room. lacks: why an arm with results may be missing.
    """
    missing: dict[str, list[str]] = {}
    for arm in arms:
        if is_named(arm, cut):
            why = "no room"
        elif not is_drawn(arm, data):
            why = without_result(arm) or lacks
        else:
            continue
        missing.setdefault(why, []).append(arm.name)
    words = []
    for why, names in missing.items():
        words.append(f"{join_first(names, TOGETHER)} ({why})")
    return [f"Not shown: {'; '.join(words)}."] if words else []


def is_drawn(arm: Arm, data: pd.DataFrame) -> bool:
    """Tell whether an arm is in the data: a row names it by some of its settings, and columns tell the others."""
    value = data["mean"] if "mean" in data else data["difference"]  # where something is drawn
    is_shown = value.notna()
    if "diverged" in data:
        is_shown |= data["diverged"] > 0
    drawn = data[is_shown]
    for key, value_of_arm in arm.settings.items():
        column = short_name(key)
        if column in drawn:
            drawn = drawn[drawn[column] == value_of_arm]
    names = {*drawn["arm"]}
    if "baseline" in drawn:
        names |= {*drawn["baseline"]}
    return is_named(arm, names)


def is_named(arm: Arm, names: Iterable[str]) -> bool:
    """Tell whether some name is an arm's, or has what the arm has in some of its settings."""
    parts_of_arm = set(arm.name.split(SEPARATOR))
    return any(parts_of_arm.issuperset(name.split(SEPARATOR)) for name in names)


def without_result(arm: Arm) -> str:
    """Write how the runs of an arm ended where none finished; empty where one did."""
    ended = Counter(run.status.replace("_", " ") for run in arm.runs)
    if ended["finished"]:
        return ""
    counts = []
    for status, number in ended.items():
        counts.append(f"{number} {status}")
    return f"no run finished: {', '.join(counts)}"
