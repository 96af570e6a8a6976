"""The one style of all figures: colours, dashes and markers, matplotlib's settings, words, and a figure as SVG and PNG.

Colours, dashes and markers stand in palette.toml, matplotlib's settings in normbench.mplstyle, titles and captions in
captions.toml. A norm has the same colour in all figures.
"""

from __future__ import annotations

import io
import logging
import re
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

import pandas as pd
from jinja2 import Template

from normbench.analysis.records import in_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

FOLDER = Path(__file__).parent
CAPTIONS = tomllib.loads((FOLDER / "captions.toml").read_text("utf-8"))
PALETTE = tomllib.loads((FOLDER / "palette.toml").read_text("utf-8"))
COLORS = PALETTE["colors"]
DARK: Mapping[str, str] = dict(pair for colors in COLORS.values() for pair in colors.values())
INK, FAINT, EMPTY = (light for light, _ in COLORS["page"].values())
NORMS: Mapping[str, str] = {name: light for name, (light, _) in COLORS["norms"].items()}
OWN, SEQUENCE = ([light for light, _ in COLORS[part].values()] for part in ("own", "sequence"))

Dash = tuple[float, tuple[float, ...]]
PLACEMENTS: Mapping[str, tuple[Dash, str]] = {
    name: ((0, tuple(dashes)), marker) for name, (dashes, marker) in PALETTE["placements"].items()
}
DASHES = tuple(PLACEMENTS.values())


def colors_of(key: str, values: Iterable[Any]) -> dict[Any, str]:
    """Return the colour, on a light page, of each value that a setting has in a study.

    Our norms and placements have theirs in every study, a person's own follow in the order of the alphabet. Numbers
    stand along a sequence, other words in the order of our norms' colours.
    """
    found = sorted(set(values), key=in_order)
    if all(isinstance(value, int | float) for value in found):
        step = (len(SEQUENCE) - 1) / max(len(found) - 1, 1)
        return {value: SEQUENCE[round(place * step)] for place, value in enumerate(found)}
    ours = {"norm": NORMS, "placement": PLACEMENTS}.get(key, found)
    colors = dict(zip(ours, NORMS.values(), strict=False))
    return colors | dict(zip([value for value in found if value not in colors], cycle(OWN), strict=False))


def dark_rules(scope: str, drawn: str | None = None) -> str:
    """Return CSS that recolours the figures for a dark page; scope: selects what holds them, such as `.dark`.

    drawn: an SVG, for the rules of its colours alone. A viewer that knows no such rules shows those of a light page.
    """
    return "".join(
        f'{scope} [style*="{paint}: {light}"]{{{paint}:{dark}!important}}'
        for light, dark in DARK.items()
        for paint in ("fill", "stroke")
        if drawn is None or f"{paint}: {light}" in drawn
    )


@contextmanager
def our_style() -> Iterator[None]:
    """Set matplotlib to our style, whatever a person's own settings are, and back to them at the end."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would tell where it keeps its fonts
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for a letter that the font lacks
        matplotlib.rc_file(FOLDER / "normbench.mplstyle")
        yield


@dataclass(frozen=True)
class Figure:
    """A figure. title, caption, alt: for a page. data: exactly what is drawn, for a CSV."""

    name: str
    title: str
    caption: str
    alt: str
    canvas: Canvas
    data: pd.DataFrame

    @cached_property
    @our_style()
    def svg(self) -> str:
        """Draw it without a background, ready to stand in a page: no prolog, and ids that no other figure has.

        The rules for a dark page hold where the file is looked at by itself: a page that holds the figure has its own.
        Comments, which hold words of a person's, go. Each use of a marker says its outline's colour again, where rules
        find it, so the marker itself does not.
        """
        buffer = io.BytesIO()
        self.canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = buffer.getvalue().decode()
        text = re.sub(r"<!--.*?-->\s*|\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
        text = re.sub(r'\bid="([^"]+)"', rf'id="{self.name}-\1"', text)
        text = re.sub(r'\b(xlink:href="|url\()#', rf"\1#{self.name}-", text)
        text = re.sub(r'(<path id="[^"]+" d="[^"]*" style=")stroke: #[0-9a-f]{6};? ?', r"\1", text)
        rules = f"@media screen and (prefers-color-scheme:dark){{{dark_rules('svg.nb-figure:root', text)}}}"
        text = text.replace('<style type="text/css">*{', f'<style type="text/css">{rules}.nb-figure *{{')
        attributes = f'class="nb-figure" role="img" aria-label={quoteattr(self.alt)}'
        return text.replace("<svg ", f"<svg {attributes} ", 1)

    @cached_property
    @our_style()
    def png(self) -> bytes:
        """Draw it 1,400 pixels wide on white; packed in half the usual time, a tenth larger."""
        buffer = io.BytesIO()
        self.canvas.savefig(buffer, format="png", dpi=200, facecolor="white", pil_kwargs={"compress_level": 3})
        return buffer.getvalue()

    def files(self) -> dict[str, bytes]:
        """Return the content of its files, by name."""
        table = self.data.to_csv(index=False, lineterminator="\n")
        return {f"{self.name}.svg": self.svg.encode(), f"{self.name}.png": self.png, f"{self.name}.csv": table.encode()}


def described(name: str, kind: str, canvas: Canvas, data: pd.DataFrame, note: str, **facts: Any) -> Figure:
    """Return a finished drawing with the words that captions.toml has for its kind; note: the caption's end."""
    texts = [" ".join(Template(text).render(facts).split()) for text in CAPTIONS[kind].values()]
    title, caption, alt = (text[0].upper() + text[1:] for text in texts)
    return Figure(name, title, caption + note, alt, canvas, data)
