"""What a shell completes: click knows commands and flags, this module the words GROUP=OPTION and KEY=VALUE.

Nothing is composed for it, only a class of the user's own is imported, and YAMLs are read as text: Tab is answered
within a tenth of a second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType

from click import Context, Parameter
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from normbench.atlas.page import read_published
from normbench.config.groups import chosen_options, find_own_classes, option_settings, options, other_names
from normbench.config.rules import group_of, is_rule, words_for
from normbench.config.schema import KEYS, SWAP_KEYS
from normbench.config.sections import CLASS_SECTIONS, GROUPS, PLACED, SWEEP_GROUPS
from normbench.errors import UsageError
from normbench.settings import Setting

PATHS = {"outputs": "dir", "extend": "dir", "data.root": "dir", "data.path": "file", "data.tokenizer": "file"}


def complete_settings(context: Context, parameter: Parameter, current: str) -> list[CompletionItem]:
    """Complete `GROUP=OPTION` or `KEY=VALUE`: first names up to the `=` or the dot, then what comes after it."""
    find_own_classes()
    words = context.params["words"]
    folders = context.meta.get("folders", [])
    is_sweep = context.info_name == "sweep"
    groups = GROUPS
    keys = KEYS
    if is_sweep:
        from normbench.sweep.words import SWEEP_KEYS

        groups = GROUPS | SWEEP_GROUPS
        keys = KEYS | SWEEP_KEYS | launcher_keys(words)
    if context.info_name == "swap":
        keys = KEYS | SWAP_KEYS
    name, equals, value = current.partition("=")
    if equals and name in PATHS:
        return [CompletionItem(value, type=PATHS[name])]
    if is_rule(name):
        completions = complete_rule(name, value if equals else None, words, folders, is_sweep)
        return offer(completions, current)
    section, dot, _ = name.partition(".")
    if dot and section in CLASS_SECTIONS:
        option = chosen_options(words, *folders)[section]
        settings = option_settings(section, option, *folders)
        keys = {f"{section}.{key}": setting for key, setting in settings.items()}
    if equals and name in groups:
        completions = complete_value(name, value, options(name, *folders), is_sweep)
    elif equals:
        allowed = list_words(keys.get(name, Setting()))
        completions = complete_value(name, value, dict.fromkeys(allowed, ""), is_sweep)
    elif dot:
        completions = {f"{path}=": setting.doc for path, setting in keys.items()}
    else:
        completions = list_names(groups, keys)
    return offer(completions, current)


def offer(words: Mapping[str, str], current: str) -> list[CompletionItem]:
    """Return the words that begin with what is typed so far, with their lines, as a shell takes them."""
    items = []
    for word, line in words.items():
        if word.startswith(current):
            items.append(CompletionItem(word, help=line))
    return items


def complete_rule(
    name: str, value: str | None, words: Sequence[str], folders: Sequence[Path], several: bool
) -> dict[str, str]:
    """Return the words that a rule such as `norm@qk=rmsnorm`, or a setting of one, may become.

    Args:
        name: what stands before the `=`.
        value: what stands after it; None where there is none yet.
        words: those before it.
        folders: those with options of a person's own.
        several: whether several values may be given.
    """
    group = group_of(name)
    if group not in PLACED:
        return {}
    given: dict[str, str] = {}
    for word in words:
        key, _, option = word.partition("=")
        given[key] = option
    place, _, setting = name.rpartition(".")
    known = options(group, *folders)
    settings: dict[str, Setting] = {}
    if given.get(place) in known:
        settings = option_settings(group, given[place], *folders)
    if value is None:
        before = f"{place}." if place else f"{group}@"
        completions = {}
        for key, key_setting in settings.items():
            completions[f"{before}{key}="] = key_setting.doc
        for word, line in words_for(group).items():
            completions[f"{before}{word}="] = line
        return completions
    if setting in settings:
        allowed = list_words(settings[setting])
        return complete_value(name, value, dict.fromkeys(allowed, ""), several)
    return complete_value(name, value, known, several)


def complete_value(name: str, value: str, known: Mapping[str, str], several: bool) -> dict[str, str]:
    """Return the words that a value may become, with their lines; of several values the last one is completed."""
    before = ""
    if several:
        last = value.rfind(",") + 1
        before = value[:last]
    given = before.split(",")
    completions = {}
    for word, line in known.items():
        if word not in given:
            completions[f"{name}={before}{word}"] = line
    return completions


def list_names(groups: Mapping[str, str], keys: Mapping[str, Setting]) -> dict[str, str]:
    """Return the beginnings of words, with their lines: groups, keys without a section, and sections."""
    completions = {f"{group}=": meaning for group, meaning in groups.items()}
    for group in PLACED:
        completions[f"{group}@"] = f"{groups[group]}, of some places alone"
    for path, setting in keys.items():
        if "." not in path:
            completions[f"{path}="] = setting.doc
    for path in keys:
        section, dot, _ = path.partition(".")
        if dot:
            completions[f"{section}."] = "its keys"
    return completions


def launcher_keys(words: Sequence[str]) -> dict[str, Setting]:
    """Return the settings of the launcher that words choose; none if it is unknown."""
    from normbench.sweep.words import launcher_of

    try:
        known = option_settings("launcher", launcher_of(words))
    except UsageError:
        return {}
    return {f"launcher.{name}": setting for name, setting in known.items()}


def complete_names(context: Context, parameter: Parameter, current: str) -> list[CompletionItem]:
    """Complete the option of a group that a command is named after, or another name of one where no option fits."""
    group = str(context.info_name).removesuffix("s")
    known = options(group)
    fitting = offer(known, current)
    if fitting:
        return fitting
    others: dict[str, str] = {}
    for option, listed in other_names(group).items():
        for name in listed.split(", "):
            others[name] = f"{option}: {known[option]}"
    return offer(others, current)


def complete_families(context: Context, parameter: Parameter, current: str) -> list[CompletionItem]:
    """Complete the name of a family of the atlas."""
    families = read_published()["families"]
    return offer({name: row["placement"] for name, row in families.items()}, current)


def complete_claims(context: Context, parameter: Parameter, current: str) -> list[CompletionItem]:
    """Complete names of claims, and settings of runs."""
    folders = context.meta.get("folders", [])
    names = dict.fromkeys(["all", *options("claim", *folders)], "")
    return [*offer(names, current), *complete_settings(context, parameter, current)]


def list_words(setting: Setting) -> list[str]:
    """Return the words that a setting allows, if any; numbers are a person's own."""
    words = [*setting.choices]
    if bool in setting.types:
        words += ["true", "false"]
    if NoneType in setting.types:
        words.append("null")
    return words


# ---- the shells, where click's scripts are not enough


class Blanks(ShellComplete):
    """Adds the blank that ends a word: the shell adds none, since a word goes on after `=` or a dot."""

    def format_completion(self, item: CompletionItem) -> str:
        if item.type == "plain" and not item.value.endswith(("=", ".", "@")):
            item.value += " "
        return super().format_completion(item)


class Bash(Blanks, BashComplete):
    """bash cuts words at `=`, `:` and `@`: they are joined again, and answers lose what stands before the last cut."""

    source_template = BashComplete.source_template.replace("-o nosort", "-o nosort -o nospace")
    before_cut = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, current = super().get_completion_args()
        lines = "\n".join([*args, current])
        *words, last = re.sub(r"\n?([=:@])(\n(?=.))?", r"\1", lines).split("\n")
        self.before_cut = last.removesuffix(current.lstrip("=:@"))
        return words, last

    def format_completion(self, item: CompletionItem) -> str:
        item.value = item.value.removeprefix(self.before_cut)
        return super().format_completion(item)


class Zsh(Blanks, ZshComplete):
    """zsh adds no blank, quotes nothing, and completes a path after `KEY=`."""

    source_template = ZshComplete.source_template.replace(" -U", " -U -Q -S ''").replace(
        "_path_files", "compset -P '*='; _path_files"
    )


class Fish(FishComplete):
    """fish takes a comma as part of an answer."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}
