"""`normbench check`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normbench.commands.pages import entries, page_width, paragraph
from normbench.commands.train import compose
from normbench.complaints import key_of
from normbench.config import nearest, typed
from normbench.errors import UsageError
from normbench.glance import glance
from normbench.request import find_own_classes

if TYPE_CHECKING:  # imports torch
    from normbench.checking.outcomes import Row

SECTIONS = ("norm", "placement", "model", "data")
COLOURS = {"passed": "green", "failed": "bold red", "not applicable": "dim"}
ASKED = "give a class, such as mypkg.MyNorm, or an option, such as norm=rmsnorm"

EXAMPLES = """\
examples:
  normbench check mypkg.MyNorm eps=1e-6
  normbench check norm=groupnorm norm.groups=2
  normbench check --config-dir myconf norm=mynorm"""

RESULTS = {
    "passed, failed": "what every part of its kind must do, and what it says about itself",
    "yes, no": "what is only measured: neither is wrong",
    "not applicable": "what this part is not made for, and why",
}


@dataclass(frozen=True)
class Candidate:
    """What is to be checked: its name, its section, and a configuration that has it."""

    name: str
    section: str
    tree: dict[str, Any]


def run(words: list[str]) -> int:
    """Check one part and print a row a check; returns 0 if all passed and 1 if one failed."""
    find_own_classes()
    candidate = by_option(words) if words and is_option(words[0]) else by_class(words)
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small tensors gain nothing from a second one
    begun = time.monotonic()
    try:
        rows = performed(candidate)
    finally:
        torch.set_num_threads(threads)
    show(candidate, rows, time.monotonic() - begun)
    return 1 if any(row.outcome.result == "failed" for row in rows) else 0


# ---- what is to be checked


def is_option(word: str) -> bool:
    """Whether a word chooses as `normbench train` does, or is a flag."""
    return word.startswith("-") or (key_of(word).partition(".")[0] in SECTIONS and "=" in word)


def by_class(words: list[str]) -> Candidate:
    """A class, or a function that makes an instance, with settings KEY=VALUE of its own.

    Raises:
        UsageError: it cannot be found, is no part, or a word is no setting.
    """
    if not words or "=" in words[0]:
        raise UsageError(f"check {'needs a part' if not words else f'{words[0]} names no part'}: {ASKED}")
    path, *settings = words
    from normbench.compose import values

    given = values("check", settings)
    if "." not in path:
        raise UsageError(f"check {path} names no part: {ASKED}")
    from normbench.assembly import accepted
    from normbench.checking.part import section_of
    from normbench.targets import imported

    section = section_of(path, imported(path))
    own = {key.removeprefix(f"{section}."): value for key, value in given.items()}
    composition = compose("train", [])
    assert composition is not None
    tree = {**composition.tree, section: {"_target_": path, **own}}
    known = accepted(tree, section)
    for key in own:
        if known is not None and key not in known:
            raise UsageError(f"{key} is not a setting of {path}: {nearest(key, known)}leave it out")
    return Candidate(path, section, typed(tree))


def by_option(words: list[str]) -> Candidate:
    """An option of one group, with settings as `normbench train` takes them.

    Raises:
        UsageError: an unknown option or key, or words for several parts.
    """
    glance("train", words)
    section = the_section(words)
    composition = compose("train", words)
    if composition is None:
        raise UsageError(f"check shows no configuration: normbench train {' '.join(words)} does")
    from normbench import assembly

    tree = assembly.adopt_targets(typed(composition.tree), composition.overridden)
    if not isinstance(tree[section], dict) or not isinstance(tree[section].get("_target_"), str):
        raise UsageError(f"{section} has no _target_, the class that makes it: name one in its YAML")
    own = composition.overridden(f"{section}._target_")
    name = str(tree[section]["_target_"]) if own else f"{section}={composition.groups[section]}"
    return Candidate(name, section, tree)


def the_section(words: list[str]) -> str:
    """The one section that the words are about.

    Raises:
        UsageError: there are several, or a word sets something else.
    """
    keys = [key_of(word) for word in words if "=" in word and not word.startswith("-")]
    chosen = [section for section in SECTIONS if section in keys or f"{section}._target_" in keys]
    if len(chosen) != 1:
        given = f"is given {' and '.join(chosen)}" if chosen else "is given no part"
        raise UsageError(f"check {given}, and takes one: {ASKED}")
    for key in keys:
        if key.partition(".")[0] != chosen[0]:
            meant = nearest(key, SECTIONS)
            raise UsageError(f"{key} is no setting of {chosen[0]}: {meant}check takes those of the part alone")
    return chosen[0]


# ---- the checks and their table


def performed(candidate: Candidate) -> list[Row]:
    """Run the checks, and on a terminal say which one runs."""
    from rich.console import Console

    from normbench.checking.outcomes import perform
    from normbench.checking.part import checks

    console = Console()
    with console.status(candidate.name) as status:
        return list(perform(checks(candidate.section, candidate.tree), lambda name: status.update(name)))


def show(candidate: Candidate, rows: Iterable[Row], seconds: float) -> None:
    """The table, and one line that counts."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows, console = list(rows), Console(width=page_width())
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(f"{candidate.name}, a {candidate.section}".replace("a data", "data")), min_width=20)
    table.add_column("result", no_wrap=True)
    table.add_column("measured", overflow="fold")
    for row in rows:
        result = Text(row.outcome.result, style=COLOURS.get(row.outcome.result, ""))
        table.add_row(Text(row.name), result, Text(row.outcome.figure))
    console.print(table)
    counts = Counter(row.outcome.result for row in rows)
    told = [f"{counts[result]} {result}" for result in ("passed", "failed", "not applicable")]
    told.append(f"{counts['yes'] + counts['no']} measured")
    console.print(Text(f"{candidate.name}: {', '.join(told)}, in {seconds:.0f} s"), soft_wrap=True)


def help_text(words: list[str]) -> str:
    """The page of `normbench check --help`."""
    lines = [
        "usage: normbench check CLASS [KEY=VALUE ...]",
        "       normbench check GROUP=OPTION [GROUP.KEY=VALUE ...] [--config-dir DIR]",
        "",
        *paragraph(
            "Checks a norm, placement, model or data set, your own or ours: the contract of its kind, and that it "
            "trains with everything it can meet, on tiny tasks. A class is package.module.Class of a package that is "
            "installed or in the current directory."
        ),
        "",
        EXAMPLES,
        "",
        "results:",
        *entries(RESULTS.items()),
        "",
        *paragraph("Exit status: 0 if nothing failed, 1 if something did, 2 for a mistake in the words."),
    ]
    return "\n".join(lines)
