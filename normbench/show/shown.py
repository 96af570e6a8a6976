"""Figures as pages show them, one by one or in groups."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:  # imports matplotlib
    from normbench.show.figures.figure import FigureGroup


@dataclass(frozen=True)
class ShownFigure:
    """A figure as a page shows it.

    Attributes:
        name: of its files, without a suffix.
        title: in words.
        caption: the sentences below it.
        drawing: what shows it in a page.
        files: what a reader may open, as paths from the page on, by the words that link to them.
        wide: whether it is as wide as the page.
        group: to which several in a row belong; None for a single one.
    """

    name: str
    title: str
    caption: str
    drawing: Markup
    files: Mapping[str, str]
    wide: bool
    group: FigureGroup | None

    @property
    def family(self) -> str:
        """Return the name of its group, or its own where it is a single one."""
        return self.group.name if self.group else self.name


def image_of(svg: bytes, alt: str) -> Markup:
    """Return an SVG of anybody's for a page.

    An image runs nothing, loads nothing, and changes nothing around it, whatever its file holds.
    """
    encoded = b64encode(svg).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(alt, encoded)


def by_group(figures: Iterable[ShownFigure]) -> list[tuple[FigureGroup | None, list[ShownFigure]]]:
    """Return figures with the group that they belong to, several in a row together; None for single ones."""
    found = []
    for group, own in groupby(figures, key=lambda figure: figure.group):
        found.append((group, list(own)))
    return found
