"""Figures as pages show them, one by one or in groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports matplotlib
    from normbench.show.figures.figure import FigureGroup


@dataclass(frozen=True)
class ShownFigure:
    """A figure as a page shows it.

    Attributes:
        name: of its files, without a suffix.
        title: in words.
        caption: the sentences below it.
        svg: ready to stand in a page.
        place: the folder of its files, from the page on.
        wide: whether it is as wide as the page.
        group: to which several in a row belong; None for a single one.
    """

    name: str
    title: str
    caption: str
    svg: str
    place: str
    wide: bool
    group: FigureGroup | None


def by_group(figures: Iterable[ShownFigure]) -> list[tuple[FigureGroup | None, list[ShownFigure]]]:
    """Return figures with the group that they belong to, several in a row together; None for single ones."""
    found = []
    for group, own in groupby(figures, key=lambda figure: figure.group):
        found.append((group, list(own)))
    return found
