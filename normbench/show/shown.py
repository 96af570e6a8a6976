"""Figures as pages show them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup


@dataclass(frozen=True)
class ShownFigure:
    """A figure as a page shows it.

    Attributes:
        name: of its files, without a suffix.
        title: in words.
        sentences: all that is to be said of it.
        drawing: what shows it in a page.
        files: what a reader may open, as paths from the page on, by the words that link to them.
        wide: whether it is as wide as the page.
    """

    name: str
    title: str
    sentences: Sequence[str]
    drawing: Markup
    files: Mapping[str, str]
    wide: bool

    @property
    def caption(self) -> str:
        """Return the sentences below it."""
        return " ".join(self.sentences)


def say_once(figures: Iterable[ShownFigure]) -> list[ShownFigure]:
    """Return figures that follow each other in a page, with each sentence at the first of which it holds."""
    said = set[str]()
    shown = []
    for figure in figures:
        fresh = [sentence for sentence in figure.sentences if sentence not in said]
        said.update(fresh)
        shown.append(replace(figure, sentences=fresh))
    return shown


def image_of(svg: bytes, alt: str) -> Markup:
    """Return an SVG of anybody's for a page.

    An image runs nothing, loads nothing, and changes nothing around it, whatever its file holds.
    """
    encoded = b64encode(svg).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(alt, encoded)
