"""A report's tables and figures for LaTeX: a few narrow tables for the text of a paper, and all for an appendix.

None is wider than a page of one column.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from normbench.show.shown import ShownFigure
from normbench.show.tables import Table
from normbench.show.templating import tex
from normbench.tell.references import split_at_citations

ROOM = 342.0  # points: the lines of article at its usual size, of 345 pt, and a little to spare
CHARACTER = 4.25  # points, of a letter in \footnotesize, which has 8 pt
BETWEEN = 8.0  # points between two columns: \tabcolsep is set to half of it
MOST_ROWS = 30  # of a table on one page
HEADING, CELL = 12, 24  # characters, from which on a heading or a cell is broken where it has spaces

SIZE = r"width=\columnwidth,height=0.8\textheight,keepaspectratio"  # of a drawing
FIGURES_IN_TEXT = ("differences", "learning-rates", "learning-rate-search")  # the appendix has the others

# The tables and columns that stand in the text, by what their headings begin with; the appendix has all.
SLIM: dict[str, tuple[str, ...]] = {
    "arms": (),  # the first SLIM_RESULTS
    "differences": ("arm", "against", "difference", "95 % interval", "p", "p after Holm"),
    "search": (),  # all
    "rates": ("arm", "best rate", "loss there", "sensitivity", "lost or did not train"),
}
SLIM_RESULTS = 4


def break_lines(text: str, most: int, side: str, level: str = "t") -> str:
    """Write words for a cell, in several lines where they are long.

    side: `l` or `r`, at which the lines are flush. level: `t` or `b`, which of the lines is level with other cells.
    """
    lines = textwrap.wrap(text, most, break_long_words=False, break_on_hyphens=False) or [""]
    if len(lines) == 1:
        return tex(text)
    return rf"\begin{{tabular}}[{level}]{{@{{}}{side}@{{}}}}" + r"\\".join(map(tex, lines)) + r"\end{tabular}"


def width_of(heading: str, cells: Sequence[str]) -> float:
    """Estimate the points that a column takes."""
    lines = textwrap.wrap(heading, HEADING, break_long_words=False, break_on_hyphens=False)
    for cell in cells:
        lines += textwrap.wrap(cell, CELL, break_long_words=False, break_on_hyphens=False)
    return CHARACTER * max(map(len, lines), default=0) + BETWEEN


def parts_of(table: Table) -> list[list[int]]:
    """Return the places of the columns in parts that fit on a page; each part begins with the columns of words."""
    widths = []
    for place, name in enumerate(table.frame.columns):
        cells = table.frame.iloc[:, place].map(str)
        widths.append(width_of(str(name), cells.tolist()))
    heads = list(range(table.heads))
    room_beside_heads = ROOM - sum(widths[: table.heads])
    parts = [[*heads]]
    room = room_beside_heads
    for place in range(table.heads, len(widths)):
        is_first = len(parts[-1]) == len(heads)
        if widths[place] > room and not is_first:
            parts.append([*heads])
            room = room_beside_heads
        parts[-1].append(place)
        room -= widths[place]
    return parts


def table_for(table: Table) -> str:
    """Write a table, in several parts where it is too wide or too long for a page."""
    frames = []
    for columns in parts_of(table):
        for start in range(0, len(table.frame), MOST_ROWS):
            frames.append(table.frame.iloc[start : start + MOST_ROWS, columns])
    parts = []
    for number, frame in enumerate(frames, start=1):
        parts.append(part_for(table, frame, number, len(frames)))
    return "\n".join(parts)


def part_for(table: Table, frame: pd.DataFrame, number: int, of: int) -> str:
    """Write some columns and rows of a table."""
    words = table.heads
    sides = "l" * words + "r" * (frame.shape[1] - words)
    headings = []
    for name, side in zip(frame.columns, sides, strict=True):
        headings.append(break_lines(str(name), HEADING, side, "b"))
    rows = []
    for cells in frame.itertuples(index=False, name=None):
        row = []
        for cell, side in zip(cells, sides, strict=True):
            row.append(break_lines(str(cell), CELL, side))
        rows.append(join_cells(row))
    title, label = table.title, f"tab:{table.key}"
    if of > 1:
        title += f" ({number} of {of})"
    if number > 1:
        label += f"-{number}"
    headed = " ".join(map(str, frame.columns))
    warnings = [warning for warning in table.warnings if warning[0] in headed]  # the others are of other parts
    lines = [
        r"\begin{table}[htbp]",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{tex(title)}}}\label{{{label}}}",
        r"\vspace{4pt}",
        rf"\begin{{tabular}}{{@{{}}{sides}@{{}}}}",
        r"\toprule",
        join_cells(headings),
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        *[rf"\par\vspace{{4pt}}\parbox{{\linewidth}}{{\scriptsize {tex(warning)}}}" for warning in warnings],
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def join_cells(cells: Sequence[str]) -> str:
    """Write a row."""
    return " & ".join(cells) + r" \\"


def in_text(tables: Sequence[Table]) -> str:
    """Write the tables for the text of a paper: those of the results and of the differences, with a few columns."""
    written = []
    for table in tables:
        if table.key not in SLIM:
            continue
        names = [str(name).partition(",")[0] for name in table.frame]
        wanted = SLIM[table.key] or names
        places = [place for place, name in enumerate(names) if name in wanted]
        if table.key == "arms":
            places = places[:SLIM_RESULTS]
        if len(places) > table.heads:  # else they are names of arms alone, as none has a mean
            frame = table.frame.iloc[:, places]
            short = replace(table, key=f"{table.key}-short", frame=frame, marked=())
            written.append(table_for(short))
    return "\n".join(written)


def in_appendix(tables: Sequence[Table]) -> str:
    """Write all tables, for an appendix."""
    return "\n".join(table_for(table) for table in tables if table.key != "lost")


def prose(text: str) -> str:
    """Write sentences, with a citation for each pair of brackets that names works and nothing else."""
    written = ""
    for words, works in split_at_citations(text):
        written += tex(words)
        if works:
            keys = ",".join(work.key for work in works)
            written += rf"~\citep{{{keys}}}"
    return written


def cited_in(page: str) -> set[str]:
    """Return the keys of the works that a page cites."""
    keys = set[str]()
    for some in re.findall(r"\\citep\{(.+?)\}", page):
        keys.update(some.split(","))
    return keys


def figure_for(figure: ShownFigure) -> str:
    """Write a figure, whose caption begins with its title, as the drawing has none."""
    lines = [
        r"\begin{figure}[htbp]",
        r"\centering",
        rf"\includegraphics[{SIZE}]{{figures/{figure.name}.pdf}}",
        rf"\caption{{{prose(f'{figure.title}. {figure.caption}')}}}\label{{fig:{figure.name}}}",
        r"\end{figure}",
    ]
    return "\n".join(lines) + "\n"


def written_figures(figures: Sequence[ShownFigure], in_text: bool) -> str:
    """Write the figures for the text of a paper, or all others, for an appendix."""
    written = [figure_for(figure) for figure in figures if (figure.name in FIGURES_IN_TEXT) == in_text]
    return "\n".join(written)
