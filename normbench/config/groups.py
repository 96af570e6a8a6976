"""What there is to choose from: the groups of `conf/`, their options, and what each option sets, without Hydra."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from normbench.errors import UsageError
from normbench.settings import Setting, nearest, settings_of

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
    """Return the folder of the YAMLs: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    return package / "conf" if (package / "conf").is_dir() else package.parent / "conf"


def find_own_classes() -> None:
    """Let a class of the user's own be in a file in the current directory."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def own_folder(name: str) -> Path:
    """Return the folder that `--config-dir` names.

    Raises:
        UsageError: there is none, or it holds an option that normbench has already, which would be taken instead.
    """
    folder = Path(os.path.expanduser(name)).absolute()
    if not folder.is_dir():
        raise UsageError(f"--config-dir {name} is not a folder: give the one that holds your norm/NAME.yaml")
    for path in sorted(folder.glob("*/*.yaml")) if folder != config_directory() else ():
        if path.stem in options(path.parent.name):
            raise UsageError(
                f"{path} has the name of a {path.parent.name} that normbench has already: rename it, such as to "
                f"my{path.name}"
            )
    return folder


def options(group: str, *more: Path) -> dict[str, str]:
    """Return the options of a group and their one lines, from `conf/` and further folders."""
    folders = [directory / group for directory in (config_directory(), *more)]
    return {path.stem: first_comment(path) for folder in folders for path in sorted(folder.glob("*.yaml"))}


@cache
def first_comment(path: Path) -> str:
    """Return the first comment of a YAML that is not Hydra's `@package` header."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            text = line.lstrip("# ").strip()
            if not line.startswith("#") or not text.startswith("@package"):
                return text if line.startswith("#") else ""
    return ""


def check_option(group: str, option: str, *more: Path) -> None:
    """Refuse an option that a group does not have.

    Raises:
        UsageError: with those that there are.
    """
    known = options(group, *more)
    if option not in known:
        raise UsageError(f"{group}={option} is unknown: {nearest(option, known)}allowed are {', '.join(known)}")


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # chosen when it is imported
    """Reads YAML as Hydra does: `1e-3` is a number."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> Any:
    """Return what a YAML holds.

    Raises:
        UsageError: it is none.
    """
    try:
        return yaml.load(path.read_text("utf-8"), Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no YAML ({' '.join(str(error).split())}): mend it") from error


@cache
def content(group: str, option: str, more: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return what an option's YAML sets, with those it builds on; `defaults` are the options of other groups."""
    file = next(path for folder in (*more, config_directory()) if (path := folder / group / f"{option}.yaml").is_file())
    own = read_yaml(file) or {}
    found: dict[str, Any] = {"defaults": {}}
    for entry in own.pop("defaults", []):
        if isinstance(entry, Mapping):
            found["defaults"] |= {key.split("/")[-1]: value for key, value in entry.items()}
        elif entry != "_self_":
            base = content(group, entry, more)
            found = merged(found, base)
    return merged(found, own)


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return two trees as one; the other's values win."""
    both = {key: merged(one[key], value) if isinstance(value, Mapping) and isinstance(one.get(key), Mapping) else value
            for key, value in other.items()}  # fmt: skip
    return {**one, **both}


def section_of(group: str, option: str, *more: Path) -> dict[str, Any]:
    """Return what an option sets for the section of its own group, such as `norm`."""
    whole = content(group, option, more)
    section: dict[str, Any] = whole.get(group, {key: value for key, value in whole.items() if key != "defaults"})
    return section


def option_settings(group: str, option: str, *more: Path) -> dict[str, Setting]:
    """Return the settings of what an option names: those of its class, and what its YAML sets besides."""
    section = section_of(group, option, *more)
    known = settings_of(str(section.get("_target_", ""))) or {}
    return {**{name: Setting() for name in section if not name.startswith("_")}, **known}


def options_with(group: str, setting: str) -> list[str]:
    """Return the options of a group that have a setting."""
    return [option for option in options(group) if setting in option_settings(group, option)]


@cache
def root() -> dict[str, Any]:
    """Return the root config of `normbench train`; a sweep asks for it for each of its runs."""
    found: dict[str, Any] = read_yaml(config_directory() / "train.yaml")
    return found


def chosen_options(words: Sequence[str], *more: Path) -> dict[str, str]:
    """Return the option of each group that words choose, or that `normbench train` has by default."""
    entries = [entry for entry in root()["defaults"] if isinstance(entry, Mapping)]
    found = {key: str(value) for entry in entries for key, value in entry.items()}
    given = {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in words)}
    for group in ("experiment", "model", "data"):  # what chooses options of other groups
        option = given.get(group, found.get(group))
        if option in options(group, *more):
            found |= {key: str(value) for key, value in content(group, option, more)["defaults"].items()}
    chosen = {group: given[group] for group in GROUPS if given.get(group) in options(group, *more)}
    return {group: option for group, option in {**found, **chosen}.items() if group in GROUPS}


def chosen_tree(words: Sequence[str], *more: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the option of each group, and what these set: what Hydra composes without the words' own settings.

    For help pages, which are not to wait for Hydra; what refers to other keys stands there as it is written.
    """
    chosen, tree = chosen_options(words, *more), root()
    for group, option in chosen.items():
        if option in options(group, *more):
            whole = content(group, option, more)
            tree = merged(tree, whole if group in whole else {group: whole})
    return chosen, tree
