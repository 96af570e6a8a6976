"""What there is to choose from: the groups of `conf/`, their options, and each option's one line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from normbench.errors import UsageError

GROUPS = {
    "norm": "the normalization",
    "placement": "where it stands in a block",
    "model": "the network",
    "data": "what it learns",
    "optim": "the optimizer",
    "schedule": "the learning rate over time",
    "init": "how weights start",
    "probes": "what is measured inside",
    "experiment": "a whole setting with a published result",
}

# What only a sweep chooses.
SWEEP_GROUPS = {"launcher": "where the runs of a sweep are started"}

# What a reader must know beside the options' own lines.
NOTES = {
    "placement": "Words differ: x + N(f(x)), sometimes called post-norm, is post_inside here; x + attention(N(x)) + "
    "mlp(N(x)), sometimes called pre-norm, is parallel.",
}


@dataclass(frozen=True)
class Choices:
    """What a person chose: the option of each group, and the words that name the run."""

    groups: Mapping[str, str]
    words: tuple[str, ...]


def config_directory() -> Path:
    """Where the YAMLs are: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "conf"


def own_folders(words: Sequence[str]) -> list[Path]:
    """The folders that `--config-dir` names, as far as they are written."""
    parts = " ".join(words).replace("--config-dir=", "--config-dir ").split()
    return [Path(os.path.expanduser(folder)) for flag, folder in pairwise(parts) if flag == "--config-dir"]


def check_names(folders: Iterable[Path]) -> None:
    """Refuse an option of a user's own that has the name of one in `conf/`, which would be taken instead.

    Raises:
        UsageError: there is one.
    """
    for folder in folders:
        if folder.resolve() != config_directory().resolve():
            for path in (folder / group / f"{name}.yaml" for group in GROUPS for name in options(group)):
                if path.is_file():
                    raise UsageError(
                        f"{path} has the name of the {path.parent.name} that normbench has already: rename it, such as "
                        f"to my{path.name}"
                    )


def options(group: str, *more: Path) -> dict[str, str]:
    """The options of a group and their one lines, from `conf/` and further directories."""
    found = {}
    for directory in (config_directory(), *more):
        for path in sorted((directory / group).glob("*.yaml")):
            found[path.stem] = first_comment(path)
    return found


def options_with(group: str, setting: str) -> dict[str, str]:
    """The options of a group whose own YAML has a setting, and its value there, as it is written."""
    found = {}
    for path in sorted((config_directory() / group).glob("*.yaml")):
        if match := re.search(rf"^ *{re.escape(setting)}: *(.*)$", path.read_text("utf-8"), re.MULTILINE):
            found[path.stem] = match[1]
    return found


def default_options(command: str) -> dict[str, str]:
    """The option of each group that a command's root config sets."""
    text = (config_directory() / f"{command}.yaml").read_text("utf-8")
    entries = re.findall(r"^ *- (\w+): *(\S+)", text, re.MULTILINE)
    return {group: option for group, option in entries if group in GROUPS and option != "null"}


def own_settings(group: str, option: str, *more: Path) -> tuple[set[str], dict[str, str]]:
    """The names that an option's YAML sets, with those it builds on, and the options of other groups that it chooses.

    Read line by line, as PyYAML takes longer than a person who completes a word waits for.
    """
    names: set[str] = set()
    choices: dict[str, str] = {}
    for path in (directory / group / f"{option}.yaml" for directory in (config_directory(), *more)):
        if path.is_file():
            text = path.read_text("utf-8")
            for base in re.findall(r"^ *- (\w+)$", text, re.MULTILINE):
                below, chosen = own_settings(group, base, *more) if base != "_self_" else (set(), {})
                names |= below
                choices |= chosen
            names |= set(re.findall(r"^ *(\w+):", text, re.MULTILINE))
            choices |= dict(re.findall(r"^ *- override /(\w+): *(\S+)", text, re.MULTILINE))
    return names, choices


def first_comment(path: Path) -> str:
    """The first comment of a YAML that is not Hydra's `@package` header."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#"):
                break
            text = line.lstrip("# ").strip()
            if not text.startswith("@package"):
                return text
    return ""
