"""What a mistake on the command line is called: one sentence for each that Hydra, or a glance, finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from normbench.catalog import GROUPS, SWEEP_GROUPS, options, options_with, own_settings
from normbench.config import KEYS, nearest
from normbench.keys import either


def one_line(error: object) -> str:
    """What an exception says in several lines, in one."""
    return "; ".join(line.strip(" .;") for line in str(error).splitlines() if line.strip(" .;"))


def key_of(word: str) -> str:
    """The key that a word of the command line sets or deletes."""
    return word.lstrip("+~").partition("=")[0]


def unreadable(word: str) -> str:
    """For a word that is not in Hydra's grammar."""
    if "=" not in word:
        return f"'{word}' is not KEY=VALUE: normbench train --help shows the keys"
    key, value = word.split("=", 1)
    if not re.fullmatch(r"[+~]*[A-Za-z_][A-Za-z0-9_./@-]*", key):
        return f"{word} cannot be read: write KEY=VALUE without blanks, and keys as normbench train --help shows them"
    quoted = value.replace("'", "")
    return (
        f"{word} cannot be read: quote a value that has blanks, commas, brackets, '=', '~' or letters beyond ASCII, as "
        f"in \"{key}='{quoted}'\""
    )


def missing(file: str, known: Sequence[str], text: str) -> str:
    """For a file of the configuration that is not there, perhaps one of a group with some known options."""
    group, _, name = file.partition("/")
    if group in GROUPS or group in SWEEP_GROUPS:
        return unknown_option(group, name, known or list(options(group)))
    return f"{text.splitlines()[0].rstrip('.')}: check --config-name, --config-path and --config-dir"


def unknown_option(group: str, name: str, known: Iterable[str]) -> str:
    """For a group's option that is not there."""
    return f"{group}={name} is unknown: {nearest(name, known)}allowed are {', '.join(known)}"


def sentence(text: str, command: str, words: list[str]) -> str:
    """One sentence for what Hydra or OmegaConf says."""
    for pattern, answer in COMPLAINTS.items():
        if match := re.search(pattern, text):
            return answer(match[1], command, words)
    return f"{one_line(text)}: check the keys and their values with {lister(command)}"


def lister(command: str) -> str:
    """What shows the keys that a command takes."""
    return "normbench sweep --help" if command == "sweep" else f"normbench {command} --cfg job"


def unknown_key(key: str, command: str, words: list[str]) -> str:
    """For a key that the configuration does not have."""
    section, _, name = key.partition(".")
    if key in GROUPS:
        return wrong_option("", command, words)
    if not name:
        full = [path for path in KEYS if path.endswith(f".{key}")]
        meant = f"did you mean {' or '.join(full)}? " if full else nearest(key, [*KEYS, *GROUPS])
        return f"{key} is unknown: {meant}normbench {command} --help lists the keys"
    if any(key_of(word) == f"{section}._target_" for word in words):
        return f"{key} is not in the configuration yet: write +{key}=VALUE to give it to a class of your own"
    if key in KEYS and section in GROUPS:
        choice = next((word for word in reversed(words) if key_of(word) == section), f"the chosen {section}")
        having = either(options_with(section, name))
        return f"{key} is not a setting of {choice}: leave it out, or choose {section}={having}"
    if section in SWEEP_GROUPS:
        return unknown_setting(section, name, words)
    return f"{key} is unknown: {nearest(key, list(KEYS))}{lister(command)} shows the keys that there are"


def unknown_setting(group: str, name: str, words: list[str]) -> str:
    """For a setting that the chosen option of a sweep's own group does not have."""
    choice = next((word for word in reversed(words) if key_of(word) == group), f"the default {group}")
    if having := options_with(group, name):
        return f"{group}.{name} is not a setting of {choice}: leave it out, or choose {group}={either(having)}"
    known = {setting for option in options(group) for setting in own_settings(group, option)[0]}
    return (
        f"{group}.{name} is not a setting of {choice}: {nearest(name, sorted(known))}sweep.jobs= and threads= say what "
        "runs get of this machine"
    )


def nothing_to_delete(key: str, command: str, words: list[str]) -> str:
    """For `~KEY` where there is no such key, or where it is null."""
    key = key.partition("=")[0]
    if key in KEYS or key in GROUPS or command == "sweep":
        return f"~{key} finds nothing to delete: leave it out, or set {key} to another value"
    return unknown_key(key, command, words)


def wrong_option(_: str, command: str, words: list[str]) -> str:
    """For a group that is set to something else than a word."""
    for word in words:
        group, value = key_of(word), word.partition("=")[2]
        if group in GROUPS and value not in options(group):
            return unknown_option(group, value, options(group))
    return f"a group takes the name of one of its options: normbench {command} --help lists them"


def several_values(word: str, command: str, words: list[str]) -> str:
    """For what only a sweep can do, and not with its own settings."""
    if command == "sweep":
        return (
            f"{word} gives several values, and all runs of a sweep share {key_of(word)}: give one, or quote the commas"
        )
    return (
        f"{word} gives several values, which only a sweep takes: start it with normbench sweep, give one, or quote the "
        "commas"
    )


# What Hydra and OmegaConf complain about, and the sentence for it.
COMPLAINTS: dict[str, Callable[[str, str, list[str]], str]] = {
    r"Could not override '([^']+)'": unknown_key,
    r"Could not delete.*?'([^']+)'": nothing_to_delete,
    r"(Config group override must be)": wrong_option,
    r"Ambiguous value for argument '(.+)'": several_values,
    r"Sweep parameters '(.+)' requires": several_values,
    r"An item is already at '([^']+)'": lambda key, *_: f"+{key} adds a key that is there already: leave out the +",
    r"Multiple values for (\w+)": lambda group, *_: (
        f"{group} is chosen twice: leave out the + before {group}= (in a file of your own: override /{group})"
    ),
    r"Environment variable '(\w+)' not found": lambda name, *_: (
        f"the environment variable {name} is not set: set it, or replace what refers to it"
    ),
    r"Interpolation key '([^']+)' not found": lambda key, *_: (
        f"${{{key}}} refers to a key that is not there: write the key in full, such as ${{model.width}}"
    ),
    r"Additional config directory '([^']+)' not found": lambda folder, *_: (
        f"--config-dir {folder} is not a folder: give the one that holds your norm/NAME.yaml"
    ),
}
