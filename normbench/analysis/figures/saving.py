"""A figure as files: SVG, PNG and the data behind it."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np

from normbench.analysis.figures.canvas import Drawing
from normbench.analysis.figures.palette import dark_rules
from normbench.rundir import write_bytes

DOTS_PER_INCH = 200
PACKED = 3  # of 9: twice as fast as the usual 6, for a file that is a tenth larger

# Only where the file is looked at by itself: a page that holds the figure has rules of its own, see `dark_rules`.
BY_ITSELF = "@media screen and (prefers-color-scheme:dark){%s}"

# The colour of a marker's outline, which each use of it says again: there, rules for a dark page find it.
OUTLINE = re.compile(r'(<path id="[^"]+" d="[^"]*" style=")stroke: #[0-9a-f]{6};? ?')


@dataclass(frozen=True)
class Figure:
    """A figure that is written.

    title, caption, alt: for a page. data: a CSV with exactly what is drawn.
    """

    name: str
    title: str
    caption: str
    alt: str
    svg: Path
    png: Path
    data: Path


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
    return Figure(drawing.name, drawing.title, drawing.caption, drawing.alt, svg, png, data)


def svg_bytes(drawing: Drawing) -> bytes:
    """SVG without a background, ready to stand in a page: no prolog, and ids that no other figure has."""
    buffer = io.BytesIO()
    if drawing.canvas.get_layout_engine() is not None:
        drawing.canvas.draw_without_rendering()
        drawing.canvas.set_layout_engine(None)  # it has its layout, and keeps it in both files
    drawing.canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return tidied(buffer.getvalue().decode(), drawing.name, drawing.alt).encode()


def tidied(text: str, name: str, alt: str) -> str:
    """What matplotlib has written, without comments (which hold words of a person's), scoped to this figure."""
    text = re.sub(r"<!--.*?-->\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'\b(xlink:href="|url\()#', rf"\1#{name}-", text)
    text = OUTLINE.sub(r"\1", text)
    rules = BY_ITSELF % dark_rules("svg.nb-figure:root", text)
    text = text.replace('<style type="text/css">*{', f'<style type="text/css">{rules}.nb-figure *{{')
    return text.replace("<svg ", f'<svg class="nb-figure" role="img" aria-label={quoteattr(alt)} ', 1)


def png_bytes(drawing: Drawing) -> bytes:
    """PNG on white, at twice the size; without the fourth channel, which on white says nothing, it is soon packed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure = drawing.canvas
    figure.set_dpi(DOTS_PER_INCH)
    figure.set_facecolor("white")
    agg = FigureCanvasAgg(figure)
    agg.draw()
    buffer = io.BytesIO()
    image = Image.fromarray(np.asarray(agg.buffer_rgba())[..., :3])
    image.save(buffer, "png", compress_level=PACKED, dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
    return buffer.getvalue()


def csv_bytes(drawing: Drawing) -> bytes:
    """The data with all digits; what is not a finite number is empty."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(drawing.columns)
    writer.writerows([[cell(value) for value in row] for row in drawing.rows])
    return buffer.getvalue().encode()


def cell(value: Any) -> str:
    """One value; numbers of numpy as Python's own."""
    if value is None or isinstance(value, str):
        return value or ""
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, float):
        return repr(number) if math.isfinite(number) else ""
    return str(number)
