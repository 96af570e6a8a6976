"""From the words of a command line to a resolved configuration, by Hydra; its complaints in one sentence."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from normbench.catalog import GROUPS, check_names, config_directory, options, own_folders
from normbench.complaints import key_of, missing, one_line, sentence, several_values, unknown_option, unreadable
from normbench.config import KEYS
from normbench.errors import UsageError
from normbench.glance import PLAIN
from normbench.origins import Origins, trace


@dataclass(frozen=True)
class Composition:
    """A configuration and how it came about.

    tree: resolved, plain containers. groups: the option of each group. overrides: the words of the command line.
    origins: where each value was written, if that was asked for.
    """

    tree: dict[str, Any]
    groups: dict[str, str]
    overrides: tuple[str, ...]
    origins: Origins | None = None

    def overridden(self, key: str) -> bool:
        """Whether the command line set this key, or one below it."""
        return any(re.match(rf"[+~]*{re.escape(key)}([=.]|$)", word) for word in self.overrides)


def compose(command: str, words: list[str], traced: bool = False) -> Composition | None:
    """Compose the configuration of a command; None where Hydra has answered itself (`--cfg job`, `--info`).

    traced: find out where each value was written, which takes as long as composing.

    Raises:
        UsageError: anything that is wrong with the words.
    """
    words = [without_plus(word) for word in words]
    check_own_keys(words)
    check_names(own_folders(words))
    composed: list[Composition] = []
    with translated(command, words):
        if any(word.startswith("-") for word in words):
            # argparse takes KEY=VALUE on one side of the flags only
            words = sorted(words, key=lambda word: word.startswith("-") or not re.match(r"[+~]|[\w./@]+=", word))
            with hydra_environment(command, words):
                main = hydra.main(version_base="1.3", config_path=str(config_directory()), config_name=command)
                main(lambda config: composed.append(composition(command, config, HydraConfig.get(), traced)))()
        else:  # the same without flags, in half the time: hydra.main composes twice
            with initialized():
                config, runtime = taken_apart(hydra.compose(command, words, return_hydra_config=True))
                composed.append(composition(command, config, runtime, traced))
    return composed[0] if composed else None


def compose_each(command: str, points: Iterable[Sequence[str]]) -> list[Composition]:
    """The configuration of each list of words; those that differ in plain settings alone share one composition.

    Points that set the same keys are written one after another into one configuration: a copy for each takes longer
    than all else.

    Raises:
        UsageError: anything that is wrong with some words.
    """
    shared: dict[tuple[tuple[str, ...], ...], tuple[DictConfig, Any]] = {}
    found = []
    with initialized():
        for words in points:
            settings = [word for word in words if is_setting(word)]
            others = tuple(word for word in words if not is_setting(word))
            alike = others, tuple(key_of(word) for word in settings)
            with translated(command, list(words)):
                try:
                    if alike not in shared:
                        shared[alike] = taken_apart(hydra.compose(command, list(others), return_hydra_config=True))
                    config, runtime = shared[alike]
                    set_in(config, settings)
                except (HydraException, OmegaConfBaseException):  # the words together say better what is wrong
                    config, runtime = taken_apart(hydra.compose(command, list(words), return_hydra_config=True))
                composed = composition(command, config, runtime, traced=False)
            found.append(replace(composed, overrides=tuple(words)))
    return found


@contextlib.contextmanager
def initialized() -> Iterator[Any]:
    """Hydra at our configurations; gives its config loader."""
    with hydra.initialize_config_dir(str(config_directory()), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


def study(command: str, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The name that a configuration gives, and what it holds under `hydra.sweeper.params`, Hydra's place for a study.

    Called while Hydra is initialized.

    Raises:
        UsageError: anything that is wrong with the words.
    """
    with translated(command, list(words)):
        config = hydra.compose(command, list(words), return_hydra_config=True)
        params = config.hydra.sweeper.get("params") or OmegaConf.create()
        return str(config.name), plain(params)


def is_setting(word: str) -> bool:
    """Whether a word sets one known key to a plain value, which Hydra does behind the composition."""
    match = PLAIN.fullmatch(word)
    return match is not None and match["key"] in KEYS and not word.startswith("+")


def taken_apart(config: DictConfig) -> tuple[DictConfig, Any]:
    """What Hydra composed without its own section, and that section."""
    with open_dict(config):
        return config, config.pop("hydra")


def set_in(config: DictConfig, words: Iterable[str]) -> None:
    """Make plain settings in a configuration, as Hydra makes them.

    Raises:
        OmegaConfBaseException: a key that the configuration does not have.
    """
    for word in words:
        key, value = plain_setting(word)
        OmegaConf.update(config, key, value, merge=True)


@cache
def plain_setting(word: str) -> tuple[str, Any]:
    """The key and the value of a plain word, as Hydra's parser reads them, which takes a millisecond."""
    override = OverridesParser.create().parse_override(word)
    return override.key_or_group, override.value()


def composed_by_launcher(command: str, config: DictConfig) -> tuple[Composition, str]:
    """What a launcher of Hydra's has composed for the job at work, and that job's name."""
    runtime = HydraConfig.get()
    return composition(command, config, runtime, traced=False), str(runtime.job.name)


def without_plus(word: str) -> str:
    """A word as it is; `+experiment=NAME`, as Hydra's users write it, as the choice of an option, which it is here."""
    return word.removeprefix("+") if word.startswith("+experiment=") else word


def check_own_keys(words: list[str]) -> None:
    """Refuse to set where Hydra itself writes, or how many runs it makes."""
    for word in words:
        if re.match(r"[+~]*hydra[./=@]", word) and key_of(word) not in ("hydra.searchpath", "hydra.verbose"):
            raise UsageError(
                f"{word} is not allowed: outputs= and name= say where a run goes, and of Hydra's own keys only "
                "hydra.searchpath and hydra.verbose can be set"
            )


def composition(command: str, config: DictConfig, runtime: Any, traced: bool) -> Composition:
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
    origins = trace(command, runtime) if traced else None
    return Composition(plain(config), groups, tuple(runtime.overrides.task), origins)


def option(group: str, name: str) -> dict[str, Any]:
    """What one option of `conf/` sets for its own section, without the rest of a configuration."""
    content = OmegaConf.load(config_directory() / group / f"{name}.yaml")
    assert isinstance(content, DictConfig)
    return plain(content)


def values(command: str, words: list[str]) -> dict[str, Any]:
    """The words KEY=VALUE by key, values as Hydra reads them.

    Raises:
        UsageError: a word is not KEY=VALUE, or gives several values.
    """
    found: dict[str, Any] = {}
    with translated(command, words):
        for override in OverridesParser.create().parse_overrides(words):
            if override.is_sweep_override():
                raise UsageError(several_values(override.input_line or "", command, words))
            if override.is_delete():
                raise UsageError(f"{override.input_line} has nothing to delete: leave it out")
            found[override.get_key_element().lstrip("+")] = override.value()
    return found


@cache
def hydra_value(text: str) -> Any:
    """What Hydra reads a value as; several values, and what is not in its grammar, stay text."""
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
        return text if override.is_sweep_override() else override.value()
    except (HydraException, ValueError):
        return text


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
        raise UsageError(missing(error.missing_cfg_file or "", error.options or (), str(error))) from error
    except yaml.YAMLError as error:
        raise UsageError(f"a configuration file is no YAML: {one_line(error)}") from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UsageError(sentence(str(error), command, words)) from error
