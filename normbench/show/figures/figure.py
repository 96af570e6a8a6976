"""A figure and its words, and its files: SVG for pages, PDF for papers, and a CSV of exactly what is drawn."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from xml.sax.saxutils import escape, quoteattr

import pandas as pd

from normbench.show.figures.style import COLUMN, dark_rules, use_our_style
from normbench.show.safe import to_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Figure:
    """A figure with its words.

    Attributes:
        name: of its files, without a suffix.
        title: in words.
        sentences: of its caption. A page says each of them once, below the first figure of which it holds.
        alt: what it shows, for those who cannot see it.
        canvas: the figure of matplotlib.
        data: exactly what is drawn, for a CSV.
    """

    name: str
    title: str
    sentences: Sequence[str]
    alt: str
    canvas: Canvas
    data: pd.DataFrame

    @property
    def caption(self) -> str:
        """Return its caption where it stands alone."""
        return " ".join(self.sentences)

    @cached_property
    @use_our_style()
    def svg(self) -> str:
        """Return its drawing without background, ready for a page: without a prolog, and with ids of its own."""
        buffer = io.BytesIO()
        self.canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        return finish_svg(buffer.getvalue().decode(), self.name, self.alt)

    @use_our_style()
    def render(self, suffix: str, **how: Any) -> bytes:
        """Return its drawing on white in another format; words are shapes, as fonts would take twice the time."""
        from matplotlib.patheffects import Normal
        from matplotlib.text import Text

        words = self.canvas.findobj(Text) if suffix == "pdf" else []
        for text in words:
            text.set_path_effects([Normal()])
        buffer = io.BytesIO()
        self.canvas.savefig(buffer, format=suffix, facecolor="white", **how)
        for text in words:
            text.set_path_effects([])
        return buffer.getvalue()

    @use_our_style()
    def files(self) -> dict[str, bytes]:
        """Return the content of its files, by name."""
        return {
            f"{self.name}.svg": self.svg.encode(),
            f"{self.name}.csv": to_csv(self.data, lineterminator="\n"),
            f"{self.name}.pdf": self.render("pdf", metadata={"CreationDate": None}),
        }


def is_wide(figure: Figure) -> bool:
    """Tell whether a figure needs more than a column of a page."""
    return bool(figure.canvas.get_figwidth() > COLUMN)


# ---- an SVG of matplotlib's, as it may stand in a page


def finish_svg(drawing: str, name: str, alt: str) -> str:
    """Return an SVG of matplotlib's as it may stand in a page.

    Its rules for a dark page hold where the file is opened by itself; a page that holds the figure has its own.
    Comments are removed, as they hold a person's words. A marker loses the colour of its outline, which each use of it
    has again, where rules find it.
    """
    text = drawing[drawing.index("<svg") :]
    text = re.sub(r"<!--.*?-->\s*|\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="(arm [^"]*)">', begin_group, text)
    text = re.sub(r'\bid="(arm [^"]*)"', name_arm, text)  # of an empty band, no group
    text = with_ids(text, name)
    text = re.sub(r'(<path id="[^"]+" d="[^"]*" style=")stroke: #[0-9a-f]{6};? ?', r"\1", text)
    rules = f"@media screen and (prefers-color-scheme:dark){{{dark_rules('svg.nb-figure:root', text)}}}"
    text = text.replace('<style type="text/css">*{', f'<style type="text/css">{rules}.nb-figure *{{')
    attributes = f'class="nb-figure" role="img" aria-label={quoteattr(alt)}'
    return text.replace("<svg ", f"<svg {attributes} ", 1)


def begin_group(found: re.Match[str]) -> str:
    """Return the beginning of a group of an SVG that has an arm's name and value as its title."""
    name, value = split_gid(found[1])
    title = escape(f"{name} {value}")
    return f"<g data-arm={quoteattr(name)}><title>{title}</title>"


def name_arm(found: re.Match[str]) -> str:
    """Return the attribute that names the arm of what is drawn."""
    name, _ = split_gid(found[1])
    return f"data-arm={quoteattr(name)}"


def split_gid(gid: str) -> tuple[str, str]:
    """Return the name and the value of an arm that `gid_of` has joined."""
    arm, _, value = gid.removeprefix("arm ").partition(" | ")
    return unquote(arm), unquote(value)


def with_ids(svg: str, within: str) -> str:
    """Return an SVG with a word in front of its ids, so that no other in a page has them. within: the word."""
    named = re.sub(r'\bid="([^"]+)"', rf'id="{within}-\1"', svg)
    return re.sub(r'\b(xlink:href="|url\()#', rf"\1#{within}-", named)
