"""The one style of all figures: colours, dashes and markers, matplotlib's settings, words, and the files of a figure.

Colours, dashes and markers stand in palette.toml, matplotlib's settings in normbench.mplstyle, titles and captions in
captions.toml. A norm has the same colour in all figures.
"""

from __future__ import annotations

import io
import logging
import re
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import quoteattr

from normbench.analysis.records import in_order
from normbench.rundir import write_bytes

if TYPE_CHECKING:
    import pandas as pd
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


class Drawing(NamedTuple):
    """A figure that is not written yet. title, caption, alt: for a page. data: exactly what is drawn."""

    name: str
    title: str
    caption: str
    alt: str
    canvas: Canvas
    data: pd.DataFrame


class Figure(NamedTuple):
    """A figure that is written: as SVG, as PNG, and the data behind it as CSV."""

    name: str
    title: str
    caption: str
    alt: str
    svg: Path
    png: Path
    data: Path


def described(
    name: str, kind: str, canvas: Canvas, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str, **facts: Any
) -> Drawing:
    """Return a figure with its data and the words that captions.toml has for its kind; note: the caption's end."""
    import pandas as pd
    from jinja2 import Template

    texts = [" ".join(Template(text).render(facts).split()) for text in CAPTIONS[kind].values()]
    title, caption, alt = (text[0].upper() + text[1:] for text in texts)
    return Drawing(name, title, caption + note, alt, canvas, pd.DataFrame(rows, columns=list(columns), dtype=object))


def save(drawing: Drawing, out: Path) -> Figure:
    """Write a figure's three files into a folder, each of them whole or not at all; the PNG is 1,400 pixels wide.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    out.mkdir(parents=True, exist_ok=True)
    svg, png, data = (out / f"{drawing.name}.{suffix}" for suffix in ("svg", "png", "csv"))
    write_bytes(svg, svg_bytes(drawing))
    buffer = io.BytesIO()  # packed in half the usual time to a file that is a tenth larger
    drawing.canvas.savefig(buffer, format="png", dpi=200, facecolor="white", pil_kwargs={"compress_level": 3})
    write_bytes(png, buffer.getvalue())
    write_bytes(data, drawing.data.to_csv(index=False, lineterminator="\n").encode())
    return Figure(*drawing[:4], svg, png, data)


def svg_bytes(drawing: Drawing) -> bytes:
    """Return SVG without a background, ready to stand in a page: no prolog, and ids that no other figure has.

    The rules for a dark page hold where the file is looked at by itself: a page that holds the figure has its own.
    Comments, which hold words of a person's, go. Each use of a marker says its outline's colour again, where rules
    find it, so the marker itself does not.
    """
    buffer, name = io.BytesIO(), drawing.name
    if (layout := drawing.canvas.get_layout_engine()) is not None:
        layout.execute(drawing.canvas)
        drawing.canvas.set_layout_engine(None)  # it keeps this layout in both files
    drawing.canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode()
    text = re.sub(r"<!--.*?-->\s*|\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'\b(xlink:href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r'(<path id="[^"]+" d="[^"]*" style=")stroke: #[0-9a-f]{6};? ?', r"\1", text)
    rules = f"@media screen and (prefers-color-scheme:dark){{{dark_rules('svg.nb-figure:root', text)}}}"
    text = text.replace('<style type="text/css">*{', f'<style type="text/css">{rules}.nb-figure *{{')
    attributes = f'class="nb-figure" role="img" aria-label={quoteattr(drawing.alt)}'
    return text.replace("<svg ", f"<svg {attributes} ", 1).encode()
