"""What of somebody else's is used without `--trust`: no class whose code runs, and nothing that reaches elsewhere."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from normbench.config.groups import content, options
from normbench.config.rules import class_sections_in, group_of, is_rule, trusted_in
from normbench.config.schema import CLOSED, ROOT
from normbench.config.sections import CLASS_SECTIONS, GROUPS, LAUNCHER, LOGGER, PLACED, SWEEP_GROUPS
from normbench.errors import UsageError
from normbench.settings import Tree

# Loggers that write into the run's directory, and nowhere else.
WRITING_HERE = ("normbench.recording.TensorBoard", "normbench.recording.Csv")

# Launchers that start runs on this machine, and nowhere else.
STARTING_HERE = ("normbench.sweep.launchers.Here", "normbench.sweep.launchers.Processes")

# Groups of which an option may reach another machine, with the classes that do not.
STAYING_HERE = {LOGGER: WRITING_HERE, LAUNCHER: STARTING_HERE}

# A word that can be understood at a glance: a dotted key, and a value without sections, references and line breaks.
SIMPLE_WORD = re.compile(r"[+~]*(?P<key>\w+(@\w[\w-]*)?(\.\w[\w-]*)*)(=(?P<value>[^${}\\\x00-\x1f\x7f]*))?")


def foreign_class(tree: Tree) -> str:
    """Return the first class of a run that is neither normbench's nor torch's, such as `norm._target_=mine.Norm`."""
    for section, values in class_sections_in(tree).items():
        target = str(values.get("_target_"))
        if not target.startswith(trusted_in(section)):
            return f"{section}._target_={target}"
    return ""


def check_trusted(tree: Tree, path: Path) -> None:
    """Refuse a run that has other classes than normbench's and torch's: whoever loads it runs their code.

    Raises:
        UsageError: it has one.
    """
    foreign = foreign_class(tree)
    if foreign:
        what = f"{path} has {foreign}, which is neither normbench's nor torch's"
        cure = "if you trust whoever made the run, add --trust (in Python trust=True)"
        raise UsageError(f"{what}, and loading it runs its code: {cure}")


def needs_trust(word: str) -> bool:
    """Tell whether a word of somebody else's may run code of theirs or reach another machine.

    What is not known to be harmless may.
    """
    match = SIMPLE_WORD.fullmatch(word)
    if match is None:
        return True
    key = match["key"]
    value = match["value"] or ""
    section, _, name = key.rpartition(".")
    if key == "sweep.tie":
        tied_words = value.strip("'\"").split(";")
        return value != "null" and any(map(needs_trust, tied_words))
    if name == "_target_":
        trusted = trusted_in(section) if group_of(section) in CLASS_SECTIONS else ()
        paths = value.split(",")
        return not all(path.startswith(trusted) for path in paths)
    if "_target_" in value:
        return True
    if key in GROUPS or key in SWEEP_GROUPS:
        if "/" in value:  # a YAML that is not one of the group's own
            return True
        chosen = set(re.findall(r"\w+", value))
        return key in STAYING_HERE and not chosen <= options_here(key)
    if is_rule(key):
        return group_of(key) not in PLACED or "/" in value
    root = key.partition(".")[0]  # of launchers all settings may: what a cluster runs, and at whose cost
    return root not in ("sweep", *CLOSED, *CLASS_SECTIONS, *ROOT)


def options_here(group: str) -> set[str]:
    """Return the options of a group in STAYING_HERE that reach no other machine."""
    staying: set[str] = set()
    for option in options(group):
        targets = re.findall(r'"_target_": "([^"]*)"', json.dumps(content(group, option)))
        if all(target.startswith(STAYING_HERE[group]) for target in targets):
            staying.add(option)
    return staying


def check_words(words: Iterable[str], folder: Path) -> None:
    """Refuse words that come from a folder and may run code of whoever made it, or reach another machine.

    This is the door for all of them: of a sweep that goes on, of a claim that is drafted from a sweep.

    Raises:
        UsageError: with the first of them.
    """
    for word in words:
        if needs_trust(word):
            what = f"{folder} has {word!r}, which may run somebody else's code or reach another machine"
            raise UsageError(f"{what}: if you trust whoever made it, add --trust")


def caution(command: str) -> str:
    """Return a warning if words of a command that a folder gives need trust; one with --resume asks by itself."""
    _, _, *words = shlex.split(command)
    if "--resume" in words:
        return ""
    for word in words:
        if "=" in word and needs_trust(word):
            return f" (if you trust whoever made it: {word} may run code of theirs, or reach another machine)"
    return ""
