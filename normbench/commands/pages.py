"""What there is to choose and to set, as `list`, `show` and the help pages tell it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from click import HelpFormatter, wrap_text

from normbench.catalog import GROUPS, NOTES, SWEEP_GROUPS, options, own_folders
from normbench.config import COMMON_KEYS, KEYS, Tree, is_known, nearest
from normbench.errors import UsageError
from normbench.keys import Key
from normbench.settings import leaves, lookup, show
from normbench.sweeping.settings import SWEEP_KEYS

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


# ---- what there is to choose and to set, as `list`, `show` and help pages tell it

PARTS = ("norm", "placement", "model", "data")
REFUSALS = "refusals"
LISTED = (*PARTS, "experiment", REFUSALS)
MARGIN = " " * 6
HYDRA_KEYS = ("_partial_", "_recursive_", "_convert_")  # the same for every class


def write_list(formatter: HelpFormatter, groups: Sequence[str]) -> None:
    """Write the options of groups, and what is refused and why; by default of the groups that people choose from.

    Raises:
        UsageError: there is no such group.
    """
    known = [*GROUPS, REFUSALS]
    for group in groups:
        if group not in known:
            raise UsageError(f"list {group} is unknown: {nearest(group, known)}allowed are {', '.join(known)}")
    for group in groups or LISTED:
        if group == REFUSALS:
            write_refusals(formatter)
        else:
            write_group(formatter, group, GROUPS[group])
        formatter.write_paragraph()
    if not groups:
        formatter.write_text(f"Also: normbench list GROUP, for {', '.join(sorted({*known} - {*LISTED}))}.")


def write_group(formatter: HelpFormatter, group: str, meaning: str, *folders: Path) -> None:
    """Write the options of a group, a line each, and a note where there is one."""
    formatter.write_text(f"{group}=  {meaning}")
    with formatter.indentation():
        formatter.write_dl(options(group, *folders).items())
        if group in NOTES:
            formatter.write_text(NOTES[group])


def write_refusals(formatter: HelpFormatter) -> None:
    """Write what is refused, and why."""
    from normbench.compatibility import REFUSALS as rules

    formatter.write_text(f"{REFUSALS}  what does not go together, and why; everything else does")
    with formatter.indentation():
        for rule in rules:
            formatter.write_text(f"{rule.what}:")
            reason = wrap_text(f"{rule.reason}; {rule.instead}", formatter.width, MARGIN, MARGIN)
            formatter.write(f"{reason}\n")


def train_page(words: Sequence[str], formatter: HelpFormatter) -> None:
    """Write what can be chosen, and the settings of what the words choose."""
    from normbench.commands.train import read

    folders = own_folders(words)
    settings = [word for word in words if "=" in word and not word.startswith("-")]
    tree, chosen = read(settings + [f"--config-dir={folder}" for folder in folders])
    for group, meaning in GROUPS.items():
        option = chosen.get(group, "None")
        default = "" if option == "None" else f" ({'chosen' if settings else 'default'}: {option})"
        formatter.write_paragraph()
        write_group(formatter, group, f"{meaning}{default}", *folders)
    for part in PARTS:
        own = keys_of({part: tree[part]})
        lines = [(f"{path}={show(value)}", explained(key)) for path, value, key in own if "_target_" not in path]
        if lines:
            with formatter.section(f"Settings of {part}={chosen[part]}"):
                formatter.write_dl(lines)
    with formatter.section("Other keys that people set most (all keys: normbench show)"):
        others = [path for path in COMMON_KEYS if path.partition(".")[0] not in PARTS]
        formatter.write_dl((f"{path}={show(lookup(tree, path))}", explained(KEYS[path])) for path in others)


def sweep_page(words: Sequence[str], formatter: HelpFormatter) -> None:
    """Write what a sweep takes beside `train`'s words."""
    with formatter.section("Several values, in Hydra's grammar"):
        formatter.write_dl(GRAMMAR.items())
    for group, meaning in SWEEP_GROUPS.items():
        formatter.write_paragraph()
        write_group(formatter, group, meaning)
    with formatter.section("Keys (beside these, and the groups, those of normbench train --help)"):
        formatter.write_dl((f"{path}=", explained(key)) for path, key in SWEEP_KEYS.items())


GRAMMAR = {
    "KEY=A,B": "each of the values",
    "KEY=range(0,5)": "numbers from 0 to below 5",
    "GROUP=glob(*)": "all options of a group; glob(*,exclude=none) leaves some out",
    "experiment=NAME": "a study: what its YAML holds under hydra.sweeper.params; the command line wins over it",
}


def explained(key: Key | None) -> str:
    """Return what a key is, and what is allowed."""
    return f"{key.doc} [{key.allowed}]" if key else ""


def keys_of(tree: Tree) -> Iterator[tuple[str, Any, Key | None]]:
    """Yield each key of a configuration with its value and what it may hold, if that is known."""
    for path, value in leaves(tree):
        section, _, name = path.rpartition(".")
        if name not in HYDRA_KEYS:
            values = lookup(tree, section) if section else tree
            yield path, value, KEYS.get(path) if is_known(path, values) else None


def rows(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield key, value, and what is allowed with its unit, for the whole configuration that `train` would take."""
    from normbench.commands.train import read

    tree, chosen = read(words)
    for group in GROUPS:
        option = chosen.get(group, "None")
        yield group, "null" if option == "None" else option, f"normbench list {group}"
    for path, value, key in keys_of(tree):
        yield path, show(value), "package.module.Class" if path.endswith("_target_") else key.allowed if key else ""


def show_table(words: list[str]) -> None:
    """Print the rows: a table in the width of a terminal, for a file or a program without wrapping."""
    table = [("key", "value", "allowed"), *rows(words)]
    if sys.stdout.isatty():
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table

        grid = Table(box=SIMPLE_HEAD, pad_edge=False)
        grid.add_column("key", no_wrap=True)
        grid.add_column("value", overflow="fold", max_width=24)
        grid.add_column("allowed", overflow="fold")
        for row in table[1:]:
            grid.add_row(*row)
        Console(highlight=False, markup=False).print(grid)
    else:
        print("\n".join(columns(table)))
