"""From the words of a command line to a resolved configuration, by Hydra; its complaints in one sentence."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from normbench.catalog import GROUPS, config_directory, options, options_with
from normbench.config import KEYS, nearest
from normbench.errors import UsageError
from normbench.keys import either


@dataclass(frozen=True)
class Composition:
    """A configuration and how it came about.

    tree: resolved, plain containers. groups: the option of each group. overrides: the words of the command line.
    """

    tree: dict[str, Any]
    groups: dict[str, str]
    overrides: tuple[str, ...]

    def overridden(self, key: str) -> bool:
        """Whether the command line set this key."""
        return any(re.match(rf"[+~]*{re.escape(key)}(=|$)", word) for word in self.overrides)


def compose(command: str, words: list[str]) -> Composition | None:
    """Compose the configuration of a command; None where Hydra has answered itself (`--cfg job`, `--info`).

    Raises:
        UsageError: anything that is wrong with the words.
    """
    check_own_keys(words)
    composed: list[Composition] = []
    with translated(command, words):
        if any(word.startswith("-") for word in words):
            with hydra_environment(command, words):
                main = hydra.main(version_base="1.3", config_path=str(config_directory()), config_name=command)
                main(lambda config: composed.append(composition(config, HydraConfig.get())))()
        else:  # the same without flags, in half the time: hydra.main composes twice
            with hydra.initialize_config_dir(str(config_directory()), version_base="1.3"):
                config = hydra.compose(command, words, return_hydra_config=True)
            with open_dict(config):
                runtime = config.pop("hydra")
            composed.append(composition(config, runtime))
    return composed[0] if composed else None


def check_own_keys(words: list[str]) -> None:
    """Refuse to set where Hydra itself writes, or how many runs it makes."""
    for word in words:
        if re.match(r"[+~]*hydra[./=@]", word) and key_of(word) not in ("hydra.searchpath", "hydra.verbose"):
            raise UsageError(
                f"{word} is not allowed: outputs= and name= say where a run goes, and of Hydra's own keys only "
                "hydra.searchpath and hydra.verbose can be set"
            )


def composition(config: DictConfig, runtime: Any) -> Composition:
    """What Hydra composed; `runtime` is its own section.

    Raises:
        UsageError: a group's option is a list or a path, which could not name a run.
    """
    groups = {key: str(value) for key, value in runtime.runtime.choices.items() if key in GROUPS}
    for group in GROUPS:
        if group in config and group not in groups:
            raise UsageError(f"{group} takes one option, not a list: normbench list {group} shows them")
    for group, option in groups.items():
        if not re.fullmatch(r"[\w.+-]+", option):
            raise UsageError(unknown_option(group, option, list(options(group))))
    return Composition(plain(config), groups, tuple(runtime.overrides.task))


def plain(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain containers, interpolations resolved."""
    tree = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


@contextlib.contextmanager
def hydra_environment(command: str, words: list[str]) -> Iterator[None]:
    """Hydra reads sys.argv, and raises its errors instead of printing them where HYDRA_FULL_ERROR is set."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [f"normbench {command}", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]


@contextlib.contextmanager
def translated(command: str, words: list[str]) -> Iterator[None]:
    """Turn what Hydra, OmegaConf and YAML raise into one sentence.

    Raises:
        UsageError: for any mistake in the words, or in a file that they name.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            yield
    except SystemExit as stop:
        if stop.code:
            last = "".join(complaint.getvalue().strip().splitlines()[-1:])
            raise UsageError(f"{last.partition('error: ')[2]}: normbench {command} --help shows the flags") from stop
    except UsageError:
        raise
    except OverrideParseException as error:
        raise UsageError(unreadable(error.override)) from error
    except MissingConfigException as error:
        raise UsageError(missing(error)) from error
    except yaml.YAMLError as error:
        raise UsageError(f"a configuration file is no YAML: {one_line(error)}") from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UsageError(sentence(str(error), command, words)) from error


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


def missing(error: MissingConfigException) -> str:
    """For a group's option, or a config file, that is not there."""
    group, _, name = (error.missing_cfg_file or "").partition("/")
    if group in GROUPS:
        return unknown_option(group, name, list(error.options or options(group)))
    return f"{str(error).splitlines()[0].rstrip('.')}: check --config-name, --config-path and --config-dir"


def unknown_option(group: str, name: str, known: list[str]) -> str:
    """For a group's option that is not there."""
    return f"{group}={name} is unknown: {nearest(name, known)}allowed are {', '.join(known)}"


def sentence(text: str, command: str, words: list[str]) -> str:
    """One sentence for what Hydra or OmegaConf says."""
    for pattern, answer in COMPLAINTS.items():
        if match := re.search(pattern, text):
            return answer(match[1], command, words)
    return f"{one_line(text)}: check the keys and their values with normbench {command} --cfg job"


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
    return f"{key} is unknown: {nearest(key, list(KEYS))}normbench {command} --cfg job shows the keys that there are"


def nothing_to_delete(key: str, command: str, words: list[str]) -> str:
    """For `~KEY` where there is no such key, or where it is null."""
    key = key.partition("=")[0]
    if key in KEYS or key in GROUPS:
        return f"~{key} finds nothing to delete: leave it out, or set {key} to another value"
    return unknown_key(key, command, words)


def wrong_option(_: str, command: str, words: list[str]) -> str:
    """For a group that is set to something else than a word."""
    for word in words:
        group, value = key_of(word), word.partition("=")[2]
        if group in GROUPS and value not in options(group):
            return unknown_option(group, value, list(options(group)))
    return f"a group takes the name of one of its options: normbench {command} --help lists them"


def several_values(word: str, command: str, words: list[str]) -> str:
    """For what only a sweep can do."""
    return f"{word} gives several values, which only a sweep takes (not in this version): give one, or quote the commas"


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
