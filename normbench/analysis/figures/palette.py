"""Colours, line styles and markers: a norm has the same colour in all figures, on a light page and a dark one.

Every norm's colour has a contrast of at least 3:1 with its page, and any two differ by ΔE2000 ≥ 11 also as people with
protanopia, deuteranopia or tritanopia see them (Machado et al. 2009); the Okabe–Ito colours, four of which are too pale
for lines on white, come to 10.9.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Literal

# Axes and words, the grid, and fields without a value.
INK, FAINT, EMPTY = "#3b424a", "#c9ced4", "#eef0f2"

# For each norm that normbench has: its colour on a light page.
NORMS: Mapping[str, str] = {
    "batchnorm": "#1f8fe6",
    "dyt": "#0b7058",
    "groupnorm": "#8e1a84",
    "instancenorm": "#f5347f",
    "layernorm": "#1446e6",
    "none": "#8a8f96",
    "prmsnorm": "#a87b0c",
    "rmsnorm": "#98350a",
}

# For words that are not norms' names, in the order in which they are met: the colours above, far apart ones first.
WORDS = ("#1446e6", "#98350a", "#0b7058", "#f5347f", "#a87b0c", "#8e1a84", "#1f8fe6", "#8a8f96")

# For a person's own norms; none is a colour of the table above.
OWN = ("#5c6e00", "#00798c", "#c4421a", "#6a4fcf", "#b0347a", "#4a5d73", "#8c5a3c", "#2f7d32")

# From small numbers to large ones.
SEQUENCE = ("#2a1a8a", "#5b1a9e", "#8a1f93", "#b1307a", "#cf4a5f", "#de6a3d", "#c98410", "#9a8a0a")

# What a colour of a light page becomes on a dark one.
DARK: Mapping[str, str] = {
    INK: "#c3c9d0",
    FAINT: "#3c434b",
    EMPTY: "#262b31",
    "#1f8fe6": "#a4e6fd",
    "#0b7058": "#02c176",
    "#8e1a84": "#c0359f",
    "#f5347f": "#e696b5",
    "#1446e6": "#7491fe",
    "#8a8f96": "#7a776e",
    "#a87b0c": "#f9d81f",
    "#98350a": "#e24102",
    "#5c6e00": "#b5c92e",
    "#00798c": "#35b8cc",
    "#c4421a": "#f07a55",
    "#6a4fcf": "#a08cf5",
    "#b0347a": "#e777b4",
    "#4a5d73": "#93a9c2",
    "#8c5a3c": "#c99a7c",
    "#2f7d32": "#6cc070",
    "#2a1a8a": "#7a6cf0",
    "#5b1a9e": "#9a6bf0",
    "#8a1f93": "#c06be0",
    "#b1307a": "#e070b0",
    "#cf4a5f": "#f0808a",
    "#de6a3d": "#f79a6a",
    "#c98410": "#f5bd4f",
    "#9a8a0a": "#ece36a",
}

Dash = Literal["solid"] | tuple[float, tuple[float, ...]]

# For each placement that normbench has: the line's dashes (lengths in line widths) and the marker.
PLACEMENTS: Mapping[str, tuple[Dash, str]] = {
    "pre": ("solid", "o"),
    "post": ((0, (4, 1.5)), "s"),
    "deep": ((0, (1, 1.2)), "^"),
    "post_inside": ((0, (6, 1.5, 1, 1.5)), "D"),
    "sandwich": ((0, (3, 1.2, 1, 1.2, 1, 1.2)), "v"),
    "parallel": ((0, (8, 2)), "P"),
    "plain": ((0, (2, 3)), "X"),
}
STYLES = tuple(PLACEMENTS.values())


def norm_color(name: str, among: Collection[str] = ()) -> str:
    """A norm's colour on a light page. among: the norms of the study, which share none as long as there are enough.

    A norm of ours has the same in every study. A person's own has one that follows from its name, or the next that
    no norm before it in the alphabet has taken.
    """
    if name in NORMS:
        return NORMS[name]
    taken: dict[str, str] = {}
    for own in sorted({*among, name}.difference(NORMS)):
        start = stable(own) % len(OWN)
        turns = [*OWN[start:], *OWN[:start]]
        taken[own] = next((color for color in turns if color not in taken.values()), turns[0])
    return taken[name]


def placement_style(name: str) -> tuple[Dash, str]:
    """A placement's dashes and marker, in whatever study it is."""
    return PLACEMENTS.get(name) or STYLES[stable(name) % len(STYLES)]


def number_color(place: int, count: int) -> str:
    """The colour of the `place`-th of `count` numbers, from small to large."""
    return SEQUENCE[round(place * (len(SEQUENCE) - 1) / max(count - 1, 1))]


def stable(name: str) -> int:
    """A number that a name has in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def dark_rules(scope: str, drawn: str | None = None) -> str:
    """CSS that recolours the figures for a dark page; scope: selects what holds them, such as `.dark` or `svg.nb`.

    drawn: an SVG, for the rules of its colours alone. A viewer that knows no such rules shows those of a light page.
    """
    return "".join(
        f'{scope} [style*="{paint}: {light}"]{{{paint}:{dark}!important}}'
        for light, dark in DARK.items()
        for paint in ("fill", "stroke")
        if drawn is None or f"{paint}: {light}" in drawn
    )
