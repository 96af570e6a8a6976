"""What there is to choose from: the groups of `conf/`, their options, and what each option sets, without Hydra."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from normbench.config.rules import group_of
from normbench.config.sections import CLASS_SECTIONS, GROUPS
from normbench.config.signatures import settings_of
from normbench.errors import UsageError
from normbench.settings import Setting, drop_keys, either, nearest

SEARCH_PATH = "hydra.searchpath"  # the word that says in which folders Hydra looks besides

# What a reader must know besides the options' own lines.
NOTES = {
    "placement": "Words differ: x + N(f(x)), sometimes called post-norm, is post_inside here; x + attention(N(x)) + "
    "mlp(N(x)), sometimes called pre-norm, is parallel.",
    "norm": "Other norms, such as your own, torch's, timm's and transformers': norm._target_=package.module.Class.",
    "data": "Where none is chosen, CNNs, MLPs and vit_tiny learn digits, translators multi30k, others pydocs.",
}


@dataclass(frozen=True)
class Choices:
    """What a person chose.

    Attributes:
        groups: the option of each group.
        words: those that name the run.
    """

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


def own_folder(folder: Path) -> Path:
    """Return the folder that `--config-dir` names, as a full path.

    Raises:
        UsageError: there is none, or it holds an option that normbench has already, which would be taken instead.
    """
    if not folder.is_dir():
        raise UsageError(f"--config-dir {folder} is not a folder: give the one that holds your norm/NAME.yaml")
    for path in sorted(folder.glob("*/*.yaml")):
        if path.stem in options(path.parent.name):
            where = f"{path} has the name of a {path.parent.name} that normbench has already"
            raise UsageError(f"{where}: rename it, such as to my{path.name}")
    return folder.absolute()


@cache
def options(group: str, *more: Path) -> dict[str, str]:
    """Return the options of a group and their one lines, from `conf/` and further folders."""
    line_of_option: dict[str, str] = {}
    for folder in (config_directory(), *more):
        for file in sorted((folder / group).glob("*.yaml")):
            if file.is_file():
                line_of_option[file.stem] = first_comment(file)
    return line_of_option


@cache
def other_names(group: str, *more: Path) -> dict[str, str]:
    """Return the names that people have for each option, as its YAML lists them: `# also: ln, layer_norm`."""
    names_of_option: dict[str, str] = {}
    for folder in (config_directory(), *more):
        for option in options(group, *more):
            file = folder / group / f"{option}.yaml"
            listed = re.search(r"^# also: *(\S.*)$", file.read_text("utf-8"), re.MULTILINE) if file.is_file() else None
            if listed:
                names_of_option[option] = listed[1]
    return names_of_option


def find_meant(group: str, word: str, *folders: Path) -> list[str]:
    """Return the options that a word may stand for: by their names in another spelling, else by others of theirs.

    Case, dashes, underscores and blanks do not count. Several options may have one name, such as postnorm.
    """
    spelled = spell(word)
    spelled_so = [option for option in options(group, *folders) if spell(option) == spelled]
    if spelled_so:
        return spelled_so
    meant: list[str] = []
    for option, listed in other_names(group, *folders).items():
        if spelled in map(spell, listed.split(",")):
            meant.append(option)
    return meant


def spell(name: str) -> str:
    """Return a name without what people write in one way or another."""
    return re.sub(r"[-_\s]", "", name).lower()


def suggest(group: str, word: str, *folders: Path) -> str:
    """Return `did you mean X? ` for the options that a word may stand for, or the one most like it; else nothing."""
    known = options(group, *folders)
    meant = find_meant(group, word, *folders)
    if not meant:
        return nearest(word, known)
    if len(meant) > 1:
        meant = [f"{option} ({known[option].partition(':')[0]})" for option in meant]
    return f"did you mean {either(meant)}? "


def first_comment(path: Path) -> str:
    """Return the first comment of a YAML that is not Hydra's `@package` header."""
    match = re.search(r"^# *(?!@package)(\S.*)$", path.read_text("utf-8"), re.MULTILINE)
    return match[1] if match else ""


def check_option(key: str, option: str, *folders: Path) -> None:
    """Refuse an option that a group does not have.

    Args:
        key: the group, or a rule such as `norm@qk`.
        option: what was chosen.
        folders: those with further options.

    Raises:
        UsageError: with those that there are.
    """
    group = group_of(key)
    known = options(group, *folders)
    if option in known:
        return
    if group in CLASS_SECTIONS and re.search(r"[./]", option):
        raise UsageError(f"{key}={option} is not an option: {ways_to_take(key, option)}")
    near = suggest(group, option, *folders)
    more = "" if near else f"; normbench list {group} says what each is"
    if option in ("all", "*"):
        more = f"; in a sweep '{key}=glob(*)' takes all of them"
    name = re.sub(r"[^A-Za-z0-9_]", "", option) or "_"
    here = list(Path().glob(f"*/{group}/{name}.yaml"))
    if here:
        more = f"; {here[0]} is found with --config-dir {here[0].parent.parent}"
    if group in CLASS_SECTIONS and option[:1].isupper():
        more = f"; {key}._target_=FILE.{option} takes a class of your own, in FILE.py"
    allowed = ", ".join(known)
    raise UsageError(f"{key}={option} is unknown: {near}allowed are {allowed}{more}")


def ways_to_take(key: str, path: str) -> str:
    """Say how a path that was given for an option is taken: as a class, or as data of one's own."""
    made = path if re.fullmatch(r"[\w.]+\.[A-Z]\w*", path) else "package.module.Class"
    own_class = f"{key}._target_={made} takes a class"
    if key != "data":
        return own_class
    ways: list[str] = []
    for kind, what in (("text", "your own text"), ("texts", "labelled texts"), ("images", "images")):
        ways.append(f"data={kind} data.path={path} takes {what}")
    return f"{', '.join(ways)}, and {own_class}"


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # written in C where it is installed
    """Reads YAML as Hydra does, to which `1e-5` is a number."""


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), [*"-+0123456789"])


def read_yaml(path: Path) -> Any:
    """Return what a YAML holds.

    Raises:
        UsageError: it is not a YAML.
    """
    try:
        return yaml.load(path.read_text("utf-8"), Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise UsageError(f"{path} is not valid YAML ({why}): fix it") from error


@cache
def content(group: str, option: str, more: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return what an option's YAML sets, with those it builds on; `defaults` are the options of other groups."""
    places = [folder / group / f"{option}.yaml" for folder in (*more, config_directory())]
    file = next(place for place in places if place.is_file())
    own_content = read_yaml(file) or {}
    inherited: dict[str, Any] = {"defaults": {}}
    for entry in own_content.pop("defaults", []):
        if isinstance(entry, Mapping):
            for key, value in entry.items():
                other_group = key.split("/")[-1]
                inherited["defaults"][other_group] = str(value)
        elif entry != "_self_":
            inherited = merge(inherited, content(group, entry, more))
    return merge(inherited, own_content)


def merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return two trees as one; the other's values win."""
    both = dict(one)
    for key, value in other.items():
        before = one.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            both[key] = merge(before, value)
        else:
            both[key] = value
    return both


def section_of(group: str, option: str, *more: Path) -> dict[str, Any]:
    """Return what an option sets for the section of its own group, such as `norm`."""
    whole = content(group, option, more)
    if group in whole:
        section: dict[str, Any] = whole[group]
        return section
    return drop_keys(whole, "defaults")


def scheme_words(scheme: str, *more: Path, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the words of a scheme by their keys, with those of the scheme that it builds on, if it names one.

    Args:
        scheme: its name.
        more: folders with further options.
        above: the schemes that build on it.

    Raises:
        UsageError: there is no such scheme, or it builds on itself.
    """
    check_option("scheme", scheme, *more)
    if scheme in above:
        raise UsageError(f"scheme={scheme} builds on itself: take the line scheme out of {above[-1]}.yaml")
    words = dict(content("scheme", scheme, more))
    del words["defaults"]
    base = words.pop("scheme", None)
    if base is None:
        return words
    words_of_base = leave_out_said(scheme_words(str(base), *more, above=(*above, scheme)), words)
    return {**words_of_base, **words}


def scheme_of_experiment(experiment: str, *more: Path) -> str:
    """Return the scheme that an experiment's YAML chooses; `null` where there is none."""
    if experiment not in options("experiment", *more):
        return "null"
    return str(content("experiment", experiment, more)["defaults"].get("scheme", "null"))


def leave_out_said(words: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Return the words of a scheme without those that given keys say otherwise, and without the settings of these.

    Args:
        words: their values by key.
        given: keys.
    """
    replaced = [key for key in words if key in given or f"{key}._target_" in given]
    remaining: dict[str, Any] = {}
    for key, value in words.items():
        option_is_replaced = any(key.startswith(f"{option}.") for option in replaced)  # whose settings these are
        if key not in replaced and not option_is_replaced:
            remaining[key] = value
    return remaining


def option_settings(group: str, option: str, *more: Path) -> dict[str, Setting]:
    """Return the settings of what an option names: those of its class, and what its YAML sets besides."""
    section = section_of(group, option, *more)
    target = str(section.get("_target_", ""))
    known = settings_of(target, imports=True) or {}
    in_yaml = {name: Setting() for name in section if not name.startswith("_")}
    return {**in_yaml, **known}


def options_with(group: str, setting: str) -> list[str]:
    """Return the options of a group that have a setting."""
    return [option for option in options(group) if setting in option_settings(group, option)]


def chosen_options(words: Sequence[str], *more: Path) -> dict[str, str]:
    """Return the option of each group that words choose, or that `normbench train` has by default."""
    defaults: dict[str, str] = content("", "train")["defaults"]
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.lstrip("+").partition("=")
        if equals:
            given[key] = value
    scheme = given.get("scheme") or scheme_of_experiment(given.get("experiment", ""), *more)
    if scheme in options("scheme", *more):
        given = scheme_words(scheme, *more) | given
    chosen: dict[str, str] = {}
    for group in ("experiment", "model", "data"):  # what chooses options of other groups, the strongest first
        by_default = chosen.get(group, defaults[group])
        option = given.get(group, by_default)
        if option in options(group, *more):
            chosen = content(group, option, more)["defaults"] | chosen
    for group, option in given.items():
        if group in GROUPS and option in options(group, *more):
            chosen[group] = option
    return {group: chosen.get(group, defaults[group]) for group in GROUPS}


def chosen_tree(words: Sequence[str], *more: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the option of each group, and what these set: what Hydra composes without the words' own settings.

    For help pages, which are not to wait for Hydra; what refers to other keys stands there as it is written.
    """
    chosen = chosen_options(words, *more)
    tree = content("", "train")
    for group, option in chosen.items():
        if group != "scheme" and option in options(group, *more):
            whole = content(group, option, more)
            part_of_tree = whole if group in whole else {group: whole}
            tree = merge(tree, part_of_tree)
    return chosen, tree
