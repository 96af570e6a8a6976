"""What a shell completes: click knows commands and flags, this module the words GROUP=OPTION and KEY=VALUE.

Nothing is composed for it, only a class of the user's own is imported, and YAMLs are read as text: the Tab key is
answered in a tenth of a second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import NoneType

from click import Context, Parameter
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from normbench.config.groups import chosen_options, find_own_classes, option_settings, options
from normbench.config.schema import KEYS
from normbench.config.sections import CLASS_SECTIONS, GROUPS, SWEEP_GROUPS
from normbench.errors import UsageError
from normbench.settings import Setting

PATHS = {"outputs": "dir", "extend": "dir", "data.root": "dir", "data.path": "file"}


def complete_settings(context: Context, parameter: Parameter, current: str) -> list[CompletionItem]:
    """Complete `GROUP=OPTION` or `KEY=VALUE`: first names up to the `=` or the dot, then what stands behind it."""
    find_own_classes()
    sweep, folders = context.info_name == "sweep", context.meta.get("folders", [])
    groups, keys = GROUPS, KEYS
    if sweep:
        from normbench.sweep.words import SWEEP_KEYS

        groups, keys = GROUPS | SWEEP_GROUPS, KEYS | SWEEP_KEYS | launcher_keys(context.params["words"])
    name, equals, value = current.partition("=")
    if equals and name in PATHS:
        return [CompletionItem(value, type=PATHS[name])]
    section, dot, _ = name.partition(".")
    if dot and section in CLASS_SECTIONS:
        option = chosen_options(context.params["words"], *folders)[section]
        keys = {f"{section}.{key}": known for key, known in option_settings(section, option, *folders).items()}
    if equals:
        given = value[: value.rfind(",") + 1] if sweep else ""  # a sweep takes several: the last one is completed
        known = options(name, *folders) if name in groups else dict.fromkeys(words_of(keys.get(name, Setting())), "")
        found = {f"{name}={given}{word}": line for word, line in known.items() if word not in given.split(",")}
    elif dot:
        found = {f"{path}=": setting.doc for path, setting in keys.items()}
    else:
        found = {f"{group}=": meaning for group, meaning in groups.items()}
        found |= {f"{path}=": setting.doc for path, setting in keys.items() if "." not in path}
        found |= {f"{path.partition('.')[0]}.": "its keys" for path in keys if "." in path}
    return [CompletionItem(word, help=line) for word, line in found.items() if word.startswith(current)]


def launcher_keys(words: Sequence[str]) -> dict[str, Setting]:
    """Return the settings of the launcher that words choose; none of one that is unknown."""
    from normbench.sweep.words import launcher_of

    try:
        known = option_settings("launcher", launcher_of(words))
    except UsageError:
        return {}
    return {f"launcher.{name}": setting for name, setting in known.items()}


def complete_names(context: Context, parameter: Parameter, current: str) -> list[CompletionItem]:
    """Complete the option of a group that a command is named after: a norm, or a placement."""
    known = options(str(context.info_name).removesuffix("s"))
    return [CompletionItem(name, help=line) for name, line in known.items() if name.startswith(current)]


def words_of(setting: Setting) -> list[str]:
    """Return the words that a setting allows, if any; numbers are a person's own."""
    truths = ["true", "false"] if bool in setting.types else []
    return [*setting.choices, *truths, *(["null"] if NoneType in setting.types else [])]


# ---- the shells, where click's scripts are not enough


class Blanks(ShellComplete):
    """Adds the blank that ends a word: the shell adds none, for one may go on behind `=` and a dot."""

    def format_completion(self, item: CompletionItem) -> str:
        if item.type == "plain" and not item.value.endswith(("=", ".")):
            item.value += " "
        return super().format_completion(item)


class Bash(Blanks, BashComplete):
    """bash cuts words at `=` and `:`: they are put together again, and answers lose what stands before the last cut."""

    source_template = BashComplete.source_template.replace("-o nosort", "-o nosort -o nospace")
    before_cut = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, current = super().get_completion_args()
        *words, last = re.sub(r"\n?([=:])(\n(?=.))?", r"\1", "\n".join([*args, current])).split("\n")
        self.before_cut = last.removesuffix(current.lstrip("=:"))
        return words, last

    def format_completion(self, item: CompletionItem) -> str:
        item.value = item.value.removeprefix(self.before_cut)
        return super().format_completion(item)


class Zsh(Blanks, ZshComplete):
    """zsh adds no blank, quotes nothing, and completes a path behind `KEY=`."""

    source_template = ZshComplete.source_template.replace(" -U", " -U -Q -S ''").replace(
        "_path_files", "compset -P '*='; _path_files"
    )


class Fish(FishComplete):
    """fish takes a comma in an answer for a part of it."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}
