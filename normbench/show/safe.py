"""Checks of what a report takes from others: that drawings only draw, and that cells compute nothing."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pandas as pd

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
ElementTree.register_namespace("", SVG.strip("{}"))  # a drawing is written again without a prefix, as HTML wants it
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")

# All that a drawing may be made of: shapes, words, and how they look. What is not here is refused.
ELEMENTS = {
    "svg", "g", "defs", "style", "title", "desc", "clipPath", "use", "image", "path", "rect", "circle", "ellipse",
    "line", "polyline", "polygon", "text", "tspan",
}  # fmt: skip
LOOKS = {
    "fill", "fill-opacity", "fill-rule", "stroke", "stroke-width", "stroke-opacity", "stroke-linejoin",
    "stroke-linecap", "stroke-dasharray", "stroke-dashoffset", "stroke-miterlimit", "opacity", "clip-path", "clip-rule",
    "font", "font-family", "font-size", "font-style", "font-weight", "text-anchor",
}  # fmt: skip
PLACES = {
    "x", "y", "x1", "x2", "y1", "y2", "dx", "dy", "cx", "cy", "r", "rx", "ry", "d", "points", "width", "height",
    "viewBox", "preserveAspectRatio", "transform", "version", "id", "role", "type", "aria-label", "aria-labelledby",
    "aria-hidden", "data-arm",
}  # fmt: skip

VALUE = r"[\w\s#%.,'()!+-]*"
LOOK = rf"\s*(?:{'|'.join(sorted(LOOKS))})\s*:(?!\s*url\((?!#)){VALUE}"
LOOKING = rf"(?:{LOOK};)*(?:{LOOK})?\s*"
RULE = rf'\s*(?:svg)?\.nb-figure[\w\s:*="#\[\]-]*\{{{LOOKING}\}}\s*'
LOOK_OF_ONE = re.compile(VALUE)
STYLE = re.compile(LOOKING)
SHEET = re.compile(rf"(?:@media screen and \(prefers-color-scheme:\s?dark\)\s?\{{(?:{RULE})*\}})?(?:{RULE})*")
HREF = re.compile(r"#[\w.-]+|data:image/png;base64,[\w+/=\s]*")
CLASS = re.compile(r"nb-[\w-]+( nb-[\w-]+)*")
PATTERNS = {"style": STYLE, "class": CLASS, "href": HREF, LINK: HREF} | dict.fromkeys(LOOKS, LOOK_OF_ONE)  # of values
OTHER_REFERENCE = re.compile(r"(?!url\(#)(?i:url\()")  # to elsewhere, or written in another way

# A cell that begins like this is a formula to a spreadsheet, unless it is a number or goes from one to another.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
FIGURE = r"[+-]?([\d.,]+(e[+-]?\d+)?|inf|nan)"
NUMBERS = re.compile(rf"{FIGURE}( to {FIGURE})?( ?%)?", re.IGNORECASE)


def check_drawing(text: str) -> None:
    """Refuse an SVG that may do more than draw: scripts, forms, links, files from elsewhere, rules for the whole page.

    Raises:
        ValueError: it may; the message says what it holds.
    """
    if not text.startswith("<svg ") or "<!" in text or "<?" in text:
        raise ValueError("a figure is more than a drawing: it has a declaration or a comment")
    try:
        parts = [*ElementTree.fromstring(text).iter()]
    except ElementTree.ParseError as error:
        raise ValueError(f"a figure cannot be read: {error}") from error
    for part in parts:
        name = part.tag.removeprefix(SVG)
        if name == part.tag or name not in ELEMENTS:
            raise ValueError(f"a figure is more than a drawing: it has <{name}>")
        if name in ("title", "desc") and len(part):  # HTML reads what is in them as parts of the page
            raise ValueError(f"a figure is more than a drawing: its <{name}> has more than words")
        if name == "style" and not SHEET.fullmatch(part.text or ""):
            raise ValueError("a figure is more than a drawing: it has rules for more than itself")
        for key, value in part.attrib.items():
            if not is_harmless(key, value):
                word = key.rpartition("}")[2]
                raise ValueError(f"a figure is more than a drawing: it has {word}={value[:40]!r}")


def is_harmless(key: str, value: str) -> bool:
    """Tell whether an attribute says only what a drawing looks like, or refers to what it holds itself."""
    pattern = PATTERNS.get(key)
    if pattern is None:
        return key in PLACES
    return pattern.fullmatch(value) is not None and not OTHER_REFERENCE.search(value)


def for_page(text: str, within: str) -> str:
    """Return an SVG that only draws as it may stand in a page: it changes nothing there but itself.

    Its rules go, as the page has its own for all drawings. Ids and what refers to them get a word in front of them.
    within: the word.
    """
    drawing = ElementTree.fromstring(text)
    for part in [*drawing.iter()]:
        for rules in part.findall(f"{SVG}style"):
            part.remove(rules)
        for key, value in part.items():
            part.set(key, prefix_ids(within, key, value))
    return ElementTree.tostring(drawing, encoding="unicode")


def prefix_ids(within: str, key: str, value: str) -> str:
    """Return the value of an attribute with a word in front of each id that it names."""
    if key in ("id", "aria-labelledby"):
        return " ".join(f"{within}-{name}" for name in value.split())
    if key in ("href", LINK):
        return re.sub("^#", f"#{within}-", value)
    if key == "style" or key in LOOKS:
        return value.replace("url(#", f"url(#{within}-")
    return value


def is_formula(cell: Any) -> bool:
    """Tell whether a spreadsheet would compute a cell."""
    return isinstance(cell, str) and cell.startswith(FORMULA) and not NUMBERS.fullmatch(cell)


def to_csv(frame: pd.DataFrame, **how: Any) -> bytes:
    """Return a table as CSV; what a spreadsheet would compute is quoted by an apostrophe, as they do themselves.

    how: as pandas has it.
    """
    frame = frame.rename(columns={name: f"'{name}" for name in frame if is_formula(name)})
    for name in frame.select_dtypes(exclude=["number", "bool", "datetime"]):
        computed = frame[name].map(is_formula).astype(bool)
        if computed.any():
            quoted = "'" + frame[name].astype(str)
            frame = frame.assign(**{name: frame[name].astype(object).mask(computed, quoted)})
    return frame.to_csv(index=False, **how).encode()
