"""What fills templates, and how words are written for Markdown, HTML and LaTeX."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from normbench.results.rules import OF_SIGN
from normbench.show.safe import is_formula
from normbench.wording import count, one_line

if TYPE_CHECKING:
    from normbench.results.caveat import Caveat
    from normbench.show.tables import Table

TEMPLATES = Path(__file__).parent / "templates"

# What Markdown, or HTML in it, would take for its own.
MARKED = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]#|~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})

# What LaTeX would take for its own, or does not know.
TEX = str.maketrans({mark: f"\\{mark}" for mark in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"})
TEX |= str.maketrans({"^": r"\textasciicircum{}", "−": "$-$", "→": r"$\to$", "·": r"$\cdot$", "×": r"$\times$"})
TEX |= str.maketrans({"<": "$<$", ">": "$>$", "≤": r"$\leq$", "≥": r"$\geq$", "²": "$^2$", "√": r"$\surd$"})
TEX |= str.maketrans({"←": r"$\leftarrow$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "½": r"$\frac{1}{2}$"})
TEX |= str.maketrans({"µ": r"$\mu$", "Δ": r"$\Delta$", "∞": r"$\infty$", "≈": r"$\approx$"})
TEX |= str.maketrans({"†": r"\dag{}", "‡": r"\ddag{}"})
TEX |= {0x2080 + digit: f"$_{digit}$" for digit in range(10)}  # subscripts, as in α₀

# A command in a sentence of HTML, without the full stop after it.
COMMAND = re.compile(r"normbench (sweep|train)( --resume \S*[^\s.])?( (&#39;)?[\w.@+-]+=\S*[^\s.])*")

# How verdicts look, each a cell or a badge of its own.
MOODS = dict.fromkeys(["better", "the same", "within the margin", "reproduced", "parity"], "good")
MOODS |= dict.fromkeys(["worse", "contradicted"], "bad")
MOODS |= dict.fromkeys(["perhaps better", "perhaps worse", "not reproduced", "not settled", *OF_SIGN], "mild")


def tex(text: Any) -> str:
    """Write words for LaTeX, which has a command for each Greek letter but none for letters of other scripts."""
    return "".join(tex_letter(letter) for letter in str(text))


def tex_letter(letter: str) -> str:
    """Write one letter for LaTeX: as U+ and its number where it has none."""
    if letter.isascii() or ord(letter) in TEX:
        return letter.translate(TEX)
    name = unicodedata.name(letter, "")
    if name.startswith("LATIN ") or letter in "–—…‘’“”°±":
        return letter
    greek = name.removeprefix("GREEK SMALL LETTER ")
    if greek != name and greek.isalpha() and greek != "OMICRON":
        return rf"$\{greek.lower().replace('lamda', 'lambda')}$"
    return f"U+{ord(letter):04X}"


# ---- templates


@cache
def environment() -> Environment:
    """Return what renders the templates; HTML escapes all words, Markdown those that pass the filter `md`."""
    renderer = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    renderer.filters |= {"tex": tex, "code": mark_commands, "cell": cell, "md": markdown, "mood": MOODS.get}
    renderer.filters |= {"count": count, "titles": list_titles, "kinds": list_kinds}
    return renderer


def list_titles(tables: Sequence[Table]) -> str:
    """Say how many tables there are, and name them."""
    titles = "; ".join(table.title for table in tables)
    return f"{count(len(tables), 'table')}: {titles}"


def list_kinds(caveats: Sequence[Caveat]) -> str:
    """Say how many caveats there are, and name their kinds, each once."""
    kinds = dict.fromkeys(str(caveat.kind) for caveat in caveats)
    return f"{count(len(caveats), 'caveat')}: {', '.join(kinds)}"


def mark_commands(text: Any) -> Markup:
    """Return a text for HTML, with its commands marked as such."""
    return Markup(COMMAND.sub(r"<code>\g<0></code>", str(escape(text))))


def markdown(text: Any) -> str:
    """Return a text for Markdown, with its special characters escaped."""
    return one_line(str(text)).translate(MARKED)


def cell(text: Any) -> str:
    """Return a text for a cell of a table in Markdown, which no spreadsheet takes for a formula."""
    return f"\\{markdown(text)}" if is_formula(text) else markdown(text)
