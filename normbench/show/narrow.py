"""Tables in the width of a terminal, without cut words: what is too wide goes above, below, or into another part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table as Grid
from rich.text import Text

from normbench.show.tables import Table

GAP = 2  # letters between columns: padding, and where the box has a line
SPAN = re.compile(r" (?=\[)")  # before an interval
KEPT_TOGETHER = "\N{NO-BREAK SPACE}"


def grids(table: Table, width: int) -> Iterator[tuple[str, Grid]]:
    """Yield a table as parts that fit into a width, as far as words allow, each with the title above it.

    What is the same in all rows goes into the title. Where that is not enough intervals get a line of their own, a
    column of words that follows from the others before it is left out, as a page has it, and the columns of numbers
    are spread over several parts, each of which begins with the words.

    Args:
        table: with rows.
        width: in letters.
    """
    if not fits(table.frame, width):
        table = with_constants_above(table)
    frame = table.frame
    if not fits(frame, width):
        frame = with_intervals_below(frame, table.heads)
    heads = list(frame.columns[: table.heads])
    if least_width(frame) > width:
        heads = leave_out(frame, heads, width)
    for number, columns in enumerate(parts(frame, heads, list(frame.columns[table.heads :]), width)):
        yield "" if number else table.title, grid_of(frame[columns], len(heads), width)


# ---- how wide


def words_of(frame: pd.DataFrame, column: str) -> list[str]:
    """Return the heading and the cells of a column."""
    return [str(column), *map(str, frame[column])]


def most(frame: pd.DataFrame, column: str) -> int:
    """Return the width of a column whose lines are not broken."""
    return max(cell_len(line) for cell in words_of(frame, column) for line in cell.split("\n"))


def least(frame: pd.DataFrame, column: str) -> int:
    """Return the width of the longest word of a column."""
    return max(cell_len(word) for cell in words_of(frame, column) for word in re.split(r"[ \n]", cell))


def total(widths: Sequence[int]) -> int:
    """Return the width of a table with columns so wide."""
    return sum(widths) + GAP * max(0, len(widths) - 1)


def fits(frame: pd.DataFrame, width: int) -> bool:
    """Tell whether a table fits without another break."""
    return total([most(frame, column) for column in frame]) <= width


def least_width(frame: pd.DataFrame) -> int:
    """Return the least width of a table whose words are whole."""
    return total([least(frame, column) for column in frame])


# ---- what makes it narrower


def with_constants_above(table: Table) -> Table:
    """Return a table without the columns of words that are the same in all rows; the title has them."""
    frame = table.frame
    heads = frame.columns[: table.heads]
    constant = [column for column in heads if len(frame) > 1 and frame[column].nunique() == 1]
    if len(constant) == len(heads):
        constant = constant[:-1]
    values = [f"{column} {frame[column].iloc[0]}" for column in constant]
    title = "; ".join([table.title, *values])
    return replace(table, title=title, frame=frame.drop(columns=constant), heads=table.heads - len(constant))


def with_intervals_below(frame: pd.DataFrame, heads: int) -> pd.DataFrame:
    """Return a table in whose cells an interval is a line of its own. heads: how many columns are words."""
    frame = frame.copy()
    for column in frame.columns[heads:]:
        frame[column] = [break_before_interval(str(cell)) for cell in frame[column]]
    return frame


def break_before_interval(cell: str) -> str:
    """Return a cell with a line for its number and one for its interval."""
    number, *intervals = SPAN.split(cell, maxsplit=1)
    return "\n".join([number, *(interval.replace(" ", KEPT_TOGETHER) for interval in intervals)])


def leave_out(frame: pd.DataFrame, heads: Sequence[str], width: int) -> list[str]:
    """Return the columns of words without the widest ones that tell no rows apart, as long as the table is too wide."""
    kept = list(heads)
    numbers = [column for column in frame if column not in heads]
    for column in sorted(heads, key=lambda column: -least(frame, column)):
        others = [other for other in kept if other != column]
        if least_width(frame[[*kept, *numbers]]) <= width:
            break
        if others and frame[others].drop_duplicates().shape[0] == frame[kept].drop_duplicates().shape[0]:
            kept = others
    return kept


def parts(frame: pd.DataFrame, heads: Sequence[str], numbers: Sequence[str], width: int) -> Iterator[list[str]]:
    """Yield the columns of each part: all words, and as many columns of numbers as fit beside them, at least one."""
    part = list(heads)
    for column in numbers:
        if len(part) > len(heads) and least_width(frame[[*part, column]]) > width:
            yield part
            part = list(heads)
        part.append(column)
    yield part


# ---- drawn


def grid_of(frame: pd.DataFrame, heads: int, width: int) -> Grid:
    """Return what rich prints. heads: how many columns are words, on the left."""
    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    widths = shared_width(frame, width)
    for place, column in enumerate(frame.columns):
        justify = "left" if place < heads else "right"
        grid.add_column(Text(str(column)), justify=justify, overflow="fold", width=widths[place])  # type: ignore[arg-type]
    for row in frame.itertuples(index=False, name=None):
        grid.add_row(*[Text(str(cell)) for cell in row])
    return grid


def shared_width(frame: pd.DataFrame, width: int) -> list[int]:
    """Return the width of each column: of the longest word at least, and of what is left as much as lines need."""
    widths = [least(frame, column) for column in frame]
    wanted = [most(frame, column) for column in frame]
    left = width - total(widths)
    while left > 0 and widths != wanted:
        place = max(range(len(widths)), key=lambda place: wanted[place] / widths[place])
        widths[place] += 1
        left -= 1
    return widths
