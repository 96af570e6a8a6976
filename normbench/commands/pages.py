"""How the help pages and lists look: names in a column, what they mean beside them, in the width of the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from textwrap import wrap

WIDEST = 120


def page_width() -> int:
    """Columns of the terminal, as far as lines are still easy to read."""
    return min(shutil.get_terminal_size((100, 24)).columns, WIDEST)


def paragraph(text: str, indent: int = 0) -> list[str]:
    """Text in lines of the page's width."""
    margin = " " * indent
    return [
        margin + line
        for line in wrap(text, max(page_width() - indent, 30), break_long_words=False, break_on_hyphens=False)
    ]


def entries(pairs: Iterable[tuple[str, str]], indent: int = 2) -> list[str]:
    """Names, and beside each its text, wrapped within its own column."""
    pairs = list(pairs)
    column = indent + 2 + max(len(name) for name, _ in pairs)
    lines = []
    for name, text in pairs:
        first, *rest = paragraph(text, column) or [""]
        lines += [f"{' ' * indent}{name:<{column - indent}}{first.lstrip()}", *rest]
    return lines


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of words as lines with aligned columns, as wide as they are."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{word:<{width}}" for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
