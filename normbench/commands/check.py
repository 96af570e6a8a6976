"""`normbench check`: from the words to the part, the checks, and their table.

It imports torch late, so that a mistake in the words is reported at once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normbench.config.compose import SEARCH_PATH, read
from normbench.config.groups import find_own_classes
from normbench.config.sections import COMPARED
from normbench.config.signatures import class_made_by, import_target
from normbench.errors import UsageError
from normbench.settings import key_of
from normbench.wording import duration

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = {"passed": "green", "failed": "bold red", "not applicable": "dim"}
ASKED = "give a class, such as mypkg.MyNorm, or an option, such as norm=rmsnorm"


def run(words: Sequence[str]) -> int:
    """Check one part, print a row after each check, and one line that counts; return 0 if all passed and 1 if not."""
    from rich.text import Text

    name, part = find_part(words)
    import torch

    from normbench.commands.report import console
    from normbench.contract.checks import check_each
    from normbench.record.console import Stages

    torch.set_num_threads(1)  # small tensors gain nothing from a second one
    begun = time.monotonic()
    screen = console()
    counts: Counter[str] = Counter()
    with Stages() as stages:
        for row in check_each(part, stages.begin):
            if not counts:
                title = f"{name}, {part.section}"
                listed = [title, *part.contract()] if row.result == "passed" else [title]
                width = min(max(map(len, listed)), screen.width // 2)
                print_row(screen, width, title, "result", "measured")
                screen.rule(style="default")
            print_row(screen, width, row.name, row.result, row.measured, COLOURS.get(row.result, ""))
            counts[row.result] += 1
    counts["measured"] = counts["yes"] + counts["no"]
    parts = [f"{counts[result]} {result}" for result in ("passed", "failed", "not applicable", "measured")]
    summary = ", ".join(parts)
    seconds = time.monotonic() - begun
    screen.print()
    screen.print(Text(f"{name}: {summary}, in {duration(seconds, 2)}"), soft_wrap=True)
    return 1 if counts["failed"] else 0


def print_row(screen: Console, width: int, name: str, result: str, measured: str, colour: str = "") -> None:
    """Print a row of the table, whose columns are of one width in all rows: each is printed as soon as it is known."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=width)
    grid.add_column(width=len("not applicable"), no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(name), Text(result, style=colour), Text(measured))
    screen.print(grid)


def find_part(words: Sequence[str]) -> tuple[str, Any]:
    """Return the name of what the words ask for, and the part.

    The words are a class with settings of its own, KEY=VALUE, or those of `normbench train` that choose one part.

    Raises:
        UsageError: it cannot be found, is not a part, or a word is not a setting.
    """
    if words and "=" not in words[0]:
        path, *settings = words
        section = find_section(path)
        words = [f"{section}._target_={path}"]
        for word in settings:
            name_and_value = word.removeprefix(f"{section}.")
            words.append(f"{section}.{name_and_value}")
    keys: list[str] = []
    sections: list[str] = []
    for word in words:
        key = key_of(word)
        if key == SEARCH_PATH:
            continue
        keys.append(key)
        section = key.partition(".")[0]
        if section not in sections:
            sections.append(section)
    if len(sections) != 1 or sections[0] not in COMPARED:
        given = " and ".join(sections) or "no part"
        raise UsageError(f"check is given {given}, and takes one with its settings: {ASKED}")
    section = sections[0]
    others: list[str] = []  # parts whose sizes need not fit: neither the number of groups nor the length of a window
    if section == "norm":
        others = ["model=mlp", "data=digits"]
    elif section == "data" and "data.context" in keys:
        others = ["model=mlp"]
    config = read([*words, *others])
    if config.overridden(f"{section}._target_"):
        name = config.tree[section]["_target_"]
    else:
        name = f"{section}={config.choices.groups[section]}"
    from normbench.contract import PARTS

    return name, PARTS[section](config.tree)


def find_section(path: str) -> str:
    """Return the section that a class belongs to, or a function annotated to return one.

    Raises:
        UsageError: it cannot be imported, or cannot be checked.
    """
    if "." not in path:
        raise UsageError(f"check {path} does not name a part: {ASKED}")
    from normbench.config.recipe import kind_of
    from normbench.types import Branch

    find_own_classes()
    made = class_made_by(import_target(path))
    for section in ("placement", "model", "data", "norm"):  # a norm may be any module
        if made and issubclass(made, kind_of(section)) and not issubclass(made, Branch):
            return section
    cure = "give a norm (a torch.nn.Module), a Placement, Model or Data of normbench.types, or a function annotated so"
    raise UsageError(f"{path} cannot be checked: {cure}")
