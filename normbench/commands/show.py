"""`normbench show`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normbench.catalog import GROUPS, options
from normbench.commands.pages import columns
from normbench.commands.train import checked, extended
from normbench.config import KEYS, OPEN_SECTIONS, is_known
from normbench.keys import show
from normbench.request import find_own_classes
from normbench.rundir import RunDirectory

if TYPE_CHECKING:  # imports Hydra: behind every mistake that the words alone show
    from normbench.compose import Composition

COLUMNS = ("key", "value", "unit", "allowed", "from")
MOST = (24, 14, 10, None, None)  # characters of a column on a terminal; the last two share the rest
UNSHOWN = ("_partial_", "_recursive_", "_convert_")  # Hydra's, the same for every class
CLASS = "package.module.Class"


@dataclass(frozen=True)
class Section:
    """A section of the configuration: its heading, and a row for each key, as COLUMNS says."""

    heading: str
    rows: tuple[tuple[str, ...], ...]


def run(words: list[str]) -> int:
    """Print the resolved configuration of `train`, with what is allowed and where each value comes from."""
    composition = checked(words, traced=True)
    if composition is not None:
        (show_table if sys.stdout.isatty() else print_lines)(list(sections(composition)))
    return 0


def sections(composition: Composition) -> Iterator[Section]:
    """The configuration by sections, first the keys that belong to none."""
    tree, origin = resolved(composition)
    alone = {name: value for name, value in tree.items() if not isinstance(value, Mapping)}
    yield Section("the run", (*choice("experiment", composition), *rows(alone, "", origin)))
    for name, values in tree.items():
        if isinstance(values, Mapping):
            line = options(name).get(composition.groups.get(name, ""), "")
            heading = f"{name}: {line}" if line else name
            yield Section(heading, (*choice(name, composition), *rows(values, f"{name}.", origin)))


def choice(group: str, composition: Composition) -> Iterator[tuple[str, ...]]:
    """The row of a group: its option, the other ones, and who chose it; none for what is no group."""
    assert composition.origins is not None
    if group in GROUPS:
        option = composition.groups.get(group, "None")
        chosen = "null" if option == "None" else option
        yield group, chosen, "", f"normbench list {group}", composition.origins.of(group)


def resolved(composition: Composition) -> tuple[Mapping[str, Any], Callable[[str], str]]:
    """What `train` would take, and what tells where the value at a path comes from."""
    assert composition.origins is not None
    if composition.tree["extend"] is not None:
        parent = RunDirectory(Path(composition.tree["extend"]))
        tree, _ = extended(composition, parent)
        return tree, lambda path: "command line" if composition.overridden(path) else str(parent.config)
    if any(composition.overridden(f"{section}._target_") for section in OPEN_SECTIONS):
        find_own_classes()
        from normbench.assembly import adopt_targets  # imports torch: only the class itself tells what it takes

        return adopt_targets(composition.tree, composition.overridden), composition.origins.of
    return composition.tree, composition.origins.of


def rows(values: Mapping[str, Any], prefix: str, origin: Callable[[str], str]) -> Iterator[tuple[str, ...]]:
    """Key, value, unit, what is allowed, and where it comes from."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from rows(value, f"{path}.", origin)
        elif name not in UNSHOWN:
            key = KEYS.get(path) if is_known(path, values) else None
            unit, allowed = (key.unit, replace(key, unit="").allowed) if key else ("", "")
            yield path, show(value), unit, CLASS if name == "_target_" else allowed, origin(path)


def print_lines(parts: list[Section]) -> None:
    """A line for each key, for a file or another program: keys are whole, and nothing is wrapped."""
    table = columns([COLUMNS, *(row for part in parts for row in part.rows)])
    print("\n".join(table))


def show_table(parts: list[Section]) -> None:
    """A table for each section, in the width of the terminal; its heading says what the keys begin with."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    shown = [replace(part, rows=tuple((row[0].rpartition(".")[2], *row[1:]) for row in part.rows)) for part in parts]
    widest = [max(len(row[place]) for part in shown for row in part.rows) for place in range(len(COLUMNS))]
    for part in shown:
        table = Table(
            box=SIMPLE_HEAD,
            expand=True,
            padding=0,
            pad_edge=False,
            title=Text(part.heading, "bold"),
            title_justify="left",
        )
        for name, width, most in zip(COLUMNS, widest, MOST, strict=True):
            table.add_column(name, width=most and min(width, most), ratio=None if most else 1, overflow="fold")
        for row in part.rows:
            table.add_row(*map(Text, row))
        console.print(table)
