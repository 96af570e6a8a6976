"""What of somebody else's is used without `--trust`: no class whose code runs, and nothing that reaches elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

from normbench.config.groups import content, options
from normbench.config.rules import class_sections_in, group_of, is_rule, trusted_in
from normbench.config.schema import CLOSED, ROOT
from normbench.config.sections import CLASS_SECTIONS, GROUPS, LOGGER, PLACED, SWEEP_GROUPS
from normbench.errors import UsageError
from normbench.settings import Tree

# Loggers that write into the run's directory, and nowhere else.
WRITING_HERE = ("normbench.recording.TensorBoard", "normbench.recording.Csv")

# A word that can be understood at a glance: a dotted key, and a value without sections, references and line breaks.
SIMPLE_WORD = re.compile(r"[+~]*(?P<key>\w+(@\w[\w-]*)?(\.\w[\w-]*)*)(=(?P<value>[^${}\\\x00-\x1f\x7f]*))?")
NUMBER = re.compile(r"[\d.eE+-]+|null|true|false")

# The settings of launchers that are words and only choose among what a cluster has.
CHOOSING = ("executor", "partition", "account", "qos", "constraint")


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
    found = SIMPLE_WORD.fullmatch(word)
    if found is None:
        return True
    key = found["key"]
    value = found["value"] or ""
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
        return key == LOGGER and not set(re.findall(r"\w+", value)) <= loggers_here()
    if is_rule(key):
        return group_of(key) not in PLACED or "/" in value
    root = key.partition(".")[0]
    if root == "launcher":
        only_chooses = name in CHOOSING or NUMBER.fullmatch(value)
        return not only_chooses
    return root not in ("sweep", *CLOSED, *CLASS_SECTIONS, *ROOT)


def loggers_here() -> set[str]:
    """Return the options of `logger` that write into the run's directory, and nowhere else."""
    found: set[str] = set()
    for option in options(LOGGER):
        targets = re.findall(r'"_target_": "([^"]*)"', json.dumps(content(LOGGER, option)))
        if all(target.startswith(WRITING_HERE) for target in targets):
            found.add(option)
    return found
