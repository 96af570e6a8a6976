"""What may stand where the cursor is: the answers behind the shells' completion scripts, in a tenth of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType

from normbench.catalog import GROUPS, SWEEP_GROUPS, default_options, options, own_folders, own_settings
from normbench.config import KEYS
from normbench.keys import Key
from normbench.sweeping.settings import SWEEP_KEYS

# A word for the shell, and its line; these two stand for what the shell itself completes.
Candidate = tuple[str, str]
FILES: Candidate = ("<files>", "")
FOLDERS: Candidate = ("<folders>", "")

PATHS = {"outputs": FOLDERS, "extend": FOLDERS, "data.root": FOLDERS, "data.path": FILES}
SHELLS = {"bash": "source <(normbench completion bash)", "zsh": "source <(normbench completion zsh)",
          "fish": "normbench completion fish | source"}  # fmt: skip

# What stands behind a flag that takes a word of its own.
FLAG_WORDS: dict[str, list[Candidate]] = {
    "--config-dir": [FOLDERS],
    "--watch": [FOLDERS],
    "--out": [FILES],
    "--cfg": [("job", "")],
    "--info": [(word, "") for word in ("all", "config", "defaults", "defaults-tree", "searchpath")],
    "--which": [("last", ""), ("best", "")],
}


@dataclass(frozen=True)
class Known:
    """A command as far as completion knows it: its line, and what stands behind it: keys of KINDS, and flags."""

    line: str
    takes: tuple[str, ...]


def run(words: list[str], commands: Mapping[str, Known]) -> int:
    """Print a line for each word that may stand in place of the last one: the word, a tab, what it means.

    words: those behind `normbench`, perhaps behind a `--`; the last one may be empty or half a word.
    """
    *before, current = (words[1:] if words[:1] == ["--"] else words) or [""]
    for word, line in candidates(before, current, commands):
        if word.startswith(current) or (word, line) in (FILES, FOLDERS):
            print(f"{word}\t{line}" if line else word)
    return 0


def candidates(before: list[str], current: str, commands: Mapping[str, Known]) -> Iterator[Candidate]:
    """What may stand behind the words before, whether it begins like the current one or not."""
    if not before:
        yield from ((name, command.line) for name, command in commands.items())
    elif before[-1] in FLAG_WORDS:
        yield from FLAG_WORDS[before[-1]]
    elif before[0] in commands:
        takes = commands[before[0]].takes
        if current.startswith("-"):
            yield from ((word, "") for word in takes if word not in KINDS)
        elif "commands" in takes:
            yield from ((name, command.line) for name, command in commands.items())
        else:
            for kind in (word for word in takes if word in KINDS):
                yield from KINDS[kind](before[1:], current)


def settings(before: list[str], current: str) -> Iterator[Candidate]:
    """`GROUP=OPTION` and `KEY=VALUE`: first names up to the `=` or the dot, then what stands behind it."""
    sign = current[: len(current) - len(current.lstrip("+~"))]
    key, equals, _ = current.removeprefix(sign).partition("=")
    section, dot, _ = key.partition(".")
    if equals:
        found = values(key, before)
    elif dot:
        found = keys_of(section, before)
    else:
        found = names()
    for word, line in found:
        path = (word, line) in (FILES, FOLDERS)
        yield word if path else f"{sign}{key}={word}" if equals else f"{sign}{word}", line


def sweep_settings(before: list[str], current: str) -> Iterator[Candidate]:
    """Those of `settings`, of several values the last one, and those that only a sweep has."""
    key, _, value = current.partition("=")
    given, comma, _ = value.rpartition(",")
    if key in SWEEP_GROUPS:
        yield from ((f"{key}={word}", line) for word, line in options(key).items())
    elif key in SWEEP_KEYS:
        yield from ((f"{key}={word}", "") for word in allowed_words(SWEEP_KEYS[key]))
    elif key.startswith("sweep."):
        yield from ((f"{path}=", known.doc) for path, known in SWEEP_KEYS.items())
    elif comma:
        taken = given.split(",")
        for word, line in settings(before, f"{key}="):
            option = word.partition("=")[2]
            if option and option not in taken:
                yield f"{key}={given},{option}", line
    else:
        yield from settings(before, current)
        if not current.count("=") and not current.count("."):
            yield from ((f"{group}=", meaning) for group, meaning in SWEEP_GROUPS.items())
            yield "sweep.", "keys of sweep"


def names() -> Iterator[Candidate]:
    """Groups, keys that are in no section, and sections."""
    yield from ((f"{group}=", meaning) for group, meaning in GROUPS.items())
    yield from ((f"{path}=", key.doc) for path, key in KEYS.items() if "." not in path)
    for section in dict.fromkeys(path.partition(".")[0] for path in KEYS if "." in path):
        yield f"{section}.", f"keys of {section}"


def keys_of(section: str, before: list[str]) -> Iterator[Candidate]:
    """The keys of a section; of a group's, those that the chosen option has."""
    known = {path: key for path, key in KEYS.items() if path.startswith(f"{section}.")}
    own, _ = own_settings(section, chosen(section, before), *own_folders(before))
    having = {path: key for path, key in known.items() if path.partition(".")[2] in own}
    yield from ((f"{path}=", key.doc) for path, key in (having or known).items())


def values(path: str, before: list[str]) -> Iterator[Candidate]:
    """A group's options, or the words that a key allows."""
    if path in GROUPS:
        yield from options(path, *own_folders(before)).items()
    elif path in PATHS:
        yield PATHS[path]
    elif path in KEYS:
        yield from ((word, "") for word in allowed_words(KEYS[path]))


def allowed_words(key: Key) -> Iterator[str]:
    """The words that a key allows, if any; numbers are a person's own."""
    yield from key.choices
    yield from ("true", "false") if bool in key.types else ()
    yield from ("null",) if NoneType in key.types else ()


def chosen(group: str, before: list[str]) -> str:
    """The option of a group: a word's, else what the chosen model, data or experiment chooses, else the default."""
    choices = dict(word.split("=", 1) for word in before if "=" in word)
    folders = own_folders(before)
    if group in choices:
        return choices[group]
    for other in ("experiment", "data", "model"):
        _, chooses = own_settings(other, choices.get(other, ""), *folders)
        if group in chooses:
            return chooses[group]
    return default_options("train").get(group, "")


KINDS: dict[str, Callable[[list[str], str], Iterable[Candidate]]] = {
    "settings": settings,
    "sweep settings": sweep_settings,
    "groups": lambda before, current: [*GROUPS.items(), ("refusals", "what does not go together, and why")],
    "folders": lambda before, current: [FOLDERS],
    "shells": lambda before, current: SHELLS.items(),
    "commands": lambda before, current: (),
}
