"""`normbench compare`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from normbench.commands.pages import entries, paragraph
from normbench.commands.parser import Parser
from normbench.commands.report import show_verdict
from normbench.errors import UsageError
from normbench.glance import scalar
from normbench.keys import Key

if TYPE_CHECKING:  # imports pandas and scipy: behind every mistake that the words alone show
    from normbench.analysis.tables import Table

# Flags: what each may be.
FLAGS: dict[str, Key] = {
    "in": Key("where arms are looked for; by default outputs", (str, NoneType)),
    "margin": Key("a difference that does not matter, in nats or percentage points", (float, NoneType), low=0),
    "difference": Key(
        "with --plan: the difference that is to be found, in nats or percentage points", (float, NoneType), above=0
    ),
}
PLAN = "--plan"

EXAMPLES = """\
examples:
  normbench compare "rmsnorm pre" "layernorm pre" --in outputs/norms_lm
  normbench compare outputs/first outputs/second
  normbench compare --plan rmsnorm layernorm --in outputs/pilot --difference 0.01"""


def run(words: list[str]) -> int:
    """Print what two arms differ in and whether the difference is real, or how many seeds one needs."""
    settings = parsed(words)
    from normbench.analysis.compare import plan, read_pair, settings_table
    from normbench.analysis.report import examine

    study = read_pair(settings.first, settings.second, Path(os.path.expanduser(settings.folder)))
    report = examine(study, dict(study.arms[1].settings), margin=settings.margin)
    if settings.plan:
        show(plan(report.comparisons[0], settings.difference))
        return 0
    show(settings_table(*study.arms))
    for table in report.tables:
        if table.key.startswith(("arms", "differences", "step-times")):
            show(table.transposed())
    show_verdict(report)
    return 0


def show(table: Table) -> None:
    """Print a table with its notes; names of arms and settings stay as they are, whatever brackets they have."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console(highlight=False)
    if table.rows:
        console.print(Text(table.title, style="bold"))
        grid = Grid()
        for place, column in enumerate(table.frame.columns):
            grid.add_column(Text(column), justify="left" if place < table.heads else "right", overflow="fold")
        for row in table.rows:
            grid.add_row(*map(Text, row))
        console.print(grid)
    for note in table.notes:
        print("\n".join(paragraph(note, indent=2)))
    print()


def parsed(words: list[str]) -> argparse.Namespace:
    """Read the words as settings, each checked.

    Raises:
        UsageError: an unknown flag, or a value that is not allowed.
    """
    parser = Parser("compare")
    parser.add_argument("first", metavar="A")
    parser.add_argument("second", metavar="B")
    parser.add_argument("--in", dest="folder", default="outputs")
    parser.add_argument(PLAN, action="store_true")
    for name in ("margin", "difference"):
        parser.add_argument(f"--{name}")
    settings = parser.parse_intermixed_args(words)
    for name in ("margin", "difference"):
        given: Any = getattr(settings, name)
        if given is not None:
            setattr(settings, name, FLAGS[name].check(f"--{name}", scalar(given)))
    if settings.difference is not None and not settings.plan:
        raise UsageError("--difference is what a plan is for: add --plan, or leave it out")
    return settings


def help_text(words: list[str]) -> str:
    """Return the page of `normbench compare --help`."""
    what = (
        "Says what two arms differ in, whether the difference between them is real, and how large it may be, seed by "
        "seed. A and B are folders of runs, or arms of the runs below a folder, named by what tells them apart."
    )
    plan = "From the spread of the runs that are there, how many seeds a difference needs to be found."
    return "\n".join(
        [
            "usage: normbench compare A B [--in FOLDER] [FLAGS]",
            "       normbench compare --plan A B [--in FOLDER] [--difference NUMBER]",
            "",
            *paragraph(what),
            "",
            EXAMPLES,
            "",
            "flags:",
            *entries([(PLAN, plan), *((f"--{name} {name.upper()}", key.doc) for name, key in FLAGS.items())]),
        ]
    )
