"""The one style of all figures: colours, dashes and markers, matplotlib's settings, words, and the files of a figure.

The colours stand in palette.toml, matplotlib's settings in normbench.mplstyle, titles and captions in captions.toml.
A norm has the same colour in all figures.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from xml.sax.saxutils import quoteattr

from normbench.rundir import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

FOLDER = Path(__file__).parent
CAPTIONS = tomllib.loads((FOLDER / "captions.toml").read_text("utf-8"))
PALETTE = tomllib.loads((FOLDER / "palette.toml").read_text("utf-8"))
DARK: Mapping[str, str] = dict(pair for colors in PALETTE.values() for pair in colors.values())
INK, FAINT, EMPTY = (light for light, _ in PALETTE["page"].values())
NORMS: Mapping[str, str] = {name: light for name, (light, _) in PALETTE["norms"].items()}
OWN, SEQUENCE = ([light for light, _ in PALETTE[part].values()] for part in ("own", "sequence"))

Dash = Literal["solid", "none"] | tuple[float, tuple[float, ...]]

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
DASHES = tuple(PLACEMENTS.values())

# ---- colours and dashes


def colors_of(key: str, values: Iterable[Any]) -> dict[Any, str]:
    """Return the colour, on a light page, of each value that a setting has in a study.

    Our norms have theirs in every study. A person's own has one that follows from its name, or the next that no norm
    before it in the alphabet has taken. Numbers stand along a sequence, other words in the order of our norms' colours.
    """
    found = list(dict.fromkeys(values))
    if key == "norm":
        taken = dict(NORMS)
        for name in sorted(set(found).difference(NORMS), key=str):
            start = stable_number(str(name)) % len(OWN)
            turned = OWN[start:] + OWN[:start]
            taken[name] = next((color for color in turned if color not in taken.values()), turned[0])
        return taken
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in found):
        step = (len(SEQUENCE) - 1) / max(len(found) - 1, 1)
        return {value: SEQUENCE[round(place * step)] for place, value in enumerate(sorted(found))}
    order = dict.fromkeys([*PLACEMENTS, *found] if key == "placement" else found)
    return {value: list(NORMS.values())[place % len(NORMS)] for place, value in enumerate(order)}


def dashes_of(placement: str) -> tuple[Dash, str]:
    """Return a placement's dashes and marker, in whatever study it is."""
    return PLACEMENTS.get(placement) or DASHES[stable_number(placement) % len(DASHES)]


def stable_number(name: str) -> int:
    """Return a number that a name has in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


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

    with matplotlib.rc_context():
        matplotlib.rc_file(FOLDER / "normbench.mplstyle")
        yield


# ---- words and files


class Drawing(NamedTuple):
    """A figure that is not written yet. title, caption, alt: for a page. columns, rows: exactly the data drawn."""

    name: str
    title: str
    caption: str
    alt: str
    canvas: Canvas
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Figure:
    """A figure that is written: as SVG, as PNG, and the data behind it as CSV."""

    name: str
    title: str
    caption: str
    alt: str
    svg: Path
    png: Path
    data: Path


def describe(kind: str, note: str, **facts: object) -> tuple[str, str, str]:
    """Return title, caption and alternative text of a kind of figure; note: what the caption ends with."""
    title, caption, alt = (" ".join(template.render(facts).split()) for template in templates(kind))
    return title, caption + note, alt


@cache
def templates(kind: str) -> list[Any]:
    """Return what captions.toml says of a kind of figure."""
    from jinja2 import Template

    return [Template(text) for text in CAPTIONS[kind].values()]


def save(drawing: Drawing, out: Path) -> Figure:
    """Write a figure's three files into a folder, each of them whole or not at all.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    out.mkdir(parents=True, exist_ok=True)
    svg, png, data = (out / f"{drawing.name}.{suffix}" for suffix in ("svg", "png", "csv"))
    write_bytes(svg, svg_bytes(drawing))
    write_bytes(png, png_bytes(drawing))
    write_bytes(data, csv_bytes(drawing))
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


def png_bytes(drawing: Drawing) -> bytes:
    """Return PNG on white, 1,400 pixels wide; packed in half the usual time to a file that is a tenth larger."""
    buffer = io.BytesIO()
    drawing.canvas.savefig(buffer, format="png", dpi=200, facecolor="white", pil_kwargs={"compress_level": 3})
    return buffer.getvalue()


def csv_bytes(drawing: Drawing) -> bytes:
    """Return the data with all digits; what is not a finite number is empty."""
    import pandas as pd

    frame = pd.DataFrame(drawing.rows, columns=list(drawing.columns), dtype=object)
    return frame.replace([float("inf"), float("-inf")], None).to_csv(index=False, lineterminator="\n").encode()
