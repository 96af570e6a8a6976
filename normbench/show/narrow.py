"""Tables in the width of a terminal, without cut numbers: what is too wide goes above, below, or into another part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table as Grid
from rich.text import Text

from normbench.show.tables import Table

GAP = 2  # letters between columns: padding, and where the box has a line
SPAN = re.compile(r" (?=\[)")  # before an interval
KEPT_TOGETHER = "\N{NO-BREAK SPACE}"
SOME = 8  # letters that a column of words has at least where numbers need the room


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        cells: from the top.
        is_head: whether it is words, which may be folded anywhere, and not numbers, which may not.
    """

    name: str
    cells: tuple[str, ...]
    is_head: bool

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the heading and the cells."""
        return (self.name, *self.cells)

    @property
    def most(self) -> int:
        """Return its width where no line is broken."""
        return max(cell_len(line) for text in self.texts for line in text.split("\n"))

    @property
    def least(self) -> int:
        """Return the width of its longest word."""
        return max(1, *(cell_len(word) for text in self.texts for word in re.split(r"[ \n]", text)))


def grids(table: Table, width: int) -> Iterator[tuple[str, Grid, str]]:
    """Yield a table as parts that fit into a width, each with the title above it and what is to be said below it.

    What is the same in all rows goes into the title. Where that is not enough intervals get a line of their own, words
    that others of their row stand for, and do so in several rows, go below, and the columns of numbers are spread over
    several parts, each of which begins with the words. Words as long as the terminal is wide are folded.

    Args:
        table: with rows.
        width: in letters.
    """
    columns = columns_of(table)
    title = table.title
    if not fits(columns, width):
        columns, same = without_constants(columns)
        title = "; ".join([title, *same])
    if not fits(columns, width):
        columns = [column if column.is_head else with_intervals_below(column) for column in columns]
    below = list[str]()
    for column in sorted(columns, key=lambda column: -column.least):
        if total([one.least for one in columns]) > width and column.is_head:
            columns, said = without_follower(columns, column)
            below += said
    all_parts = list(parts(columns, width))
    for number, part in enumerate(all_parts):
        is_last = number == len(all_parts) - 1
        yield f"{title} (continued)" if number else title, grid_of(part, width), "\n".join(below) if is_last else ""


def columns_of(table: Table) -> list[Column]:
    """Return the columns of a table."""
    cells = list(zip(*table.rows, strict=True))
    return [
        Column(str(name), tuple(map(str, cells[place])), place < table.heads)
        for place, name in enumerate(table.frame.columns)
    ]


def total(widths: Sequence[int]) -> int:
    """Return the width of a table with columns so wide."""
    return sum(widths) + GAP * max(0, len(widths) - 1)


def fits(columns: Sequence[Column], width: int) -> bool:
    """Tell whether a table fits without another break."""
    return total([column.most for column in columns]) <= width


def without_constants(columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
    """Return a table without the columns of words that are the same in all of several rows, and these as phrases."""
    heads = [column for column in columns if column.is_head]
    constant = [column for column in heads if len(column.cells) > 1 and len(set(column.cells)) == 1]
    if len(constant) == len(heads):
        constant = constant[:-1]
    kept = [column for column in columns if not any(column is other for other in constant)]
    return kept, [f"{column.name} = {column.cells[0]}" for column in constant]


def without_follower(columns: Sequence[Column], follower: Column) -> tuple[list[Column], list[str]]:
    """Return a table without a column of words that follows from others, and a line that says how.

    The table stays as it is where the column does not, or where the others are different in each row, so that they
    stand for nothing but the row.
    """
    leading = [column for column in columns if column.is_head and column is not follower]
    for column in list(leading):
        fewer = [other for other in leading if other is not column]
        if follows(follower, fewer):
            leading = fewer
    pairs = dict(zip(rows_of(leading), follower.cells, strict=False))  # none where nothing leads
    if not pairs or not follows(follower, leading) or len(pairs) == len(follower.cells):
        return list(columns), []
    said = "; ".join(f"{words} ({' '.join(of)})" for of, words in pairs.items())
    return [column for column in columns if column is not follower], [f"{follower.name}: {said}"]


def follows(follower: Column, leading: Sequence[Column]) -> bool:
    """Tell whether rows that are alike in some columns are alike in another."""
    both = rows_of([*leading, follower])
    return len({row[:-1] for row in both}) == len(set(both))


def rows_of(columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """Return the cells of some columns, row by row; none of no column."""
    return list(zip(*(column.cells for column in columns), strict=True))


def with_intervals_below(column: Column) -> Column:
    """Return a column in whose cells an interval is a line of its own."""
    return replace(column, cells=tuple(map(break_before_interval, column.cells)))


def break_before_interval(cell: str) -> str:
    """Return a cell with a line for its number and one for its interval."""
    number, *intervals = SPAN.split(cell, maxsplit=1)
    return "\n".join([number, *(interval.replace(" ", KEPT_TOGETHER) for interval in intervals)])


def parts(columns: Sequence[Column], width: int) -> Iterator[list[Column]]:
    """Yield the columns of each part: all words, and as many columns of numbers as fit beside them, at least one."""
    heads = [column for column in columns if column.is_head]
    part = list(heads)
    for column in columns:
        if column.is_head:
            continue
        if len(part) > len(heads) and total([one.least for one in (*part, column)]) > width:
            yield part
            part = list(heads)
        part.append(column)
    yield part


def grid_of(columns: Sequence[Column], width: int) -> Grid:
    """Return what rich prints."""
    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, letters in zip(columns, shared_width(columns, width), strict=True):
        justify: JustifyMethod = "left" if column.is_head else "right"
        grid.add_column(Text(column.name), justify=justify, overflow="fold", width=letters)
    for row in rows_of(columns):
        grid.add_row(*map(Text, row))
    return grid


def shared_width(columns: Sequence[Column], width: int) -> list[int]:
    """Return the width of each column: that of its longest word, and of what is left as much as its lines need.

    Where the longest words do not fit side by side, the widest columns of words have less.
    """
    widths = [column.least for column in columns]
    heads = [place for place, column in enumerate(columns) if column.is_head]
    while total(widths) > width and any(widths[place] > SOME for place in heads):
        widths[max(heads, key=lambda place: widths[place])] -= 1
    wanted = [max(column.most, letters) for column, letters in zip(columns, widths, strict=True)]
    while total(widths) < width and widths != wanted:
        place = max(range(len(widths)), key=lambda place: wanted[place] / widths[place])
        widths[place] += 1
    return widths
