"""From words in Hydra's sweep grammar to the points of a grid, each the words of one run, and which are left out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override

from normbench.config.compose import SEARCH_PATH, Config, initialized, parsed, study, text, value_of
from normbench.config.groups import GROUPS, option_settings, options_with
from normbench.errors import UsageError
from normbench.settings import lookup, show
from normbench.sweep.words import EXCLUDE, LISTS, is_own

# Of train's root config; a sweep has another.
DEFAULT_NAME = "train"

# What all runs of a sweep have in common.
COMMON = ("name", "outputs", "device", "threads", "quiet", "rerun", "extend", "experiment")

# Where an exclusion goes on to another setting; other commas are in a list.
NEXT_SETTING = re.compile(r",\s*(?=[\w./@]+=)")


@dataclass(frozen=True)
class Point:
    """The words of one run, and of them those that vary."""

    words: tuple[str, ...]
    varied: Mapping[str, str]

    def value(self, key: str, config: Config | None) -> Any:
        """Return the run's option of a group, or its value of a key.

        Raises:
            KeyError: it has none, or none is known before its configuration is composed.
        """
        words = {key_of(word): word.partition("=")[2] for word in self.words}
        if key in words:
            return value_of(words[key].strip("'\" "))
        if config is None:
            raise KeyError(key)
        return config.choices.groups[key] if key in GROUPS else lookup(config.tree, key)


@dataclass(frozen=True)
class Grid:
    """What a sweep runs over. own: words of the sweep's own. named: whether words or an experiment name the folder."""

    points: tuple[Point, ...]
    own: tuple[str, ...] = ()
    named: bool = True


def key_of(word: str) -> str:
    """Return the key that a word sets or deletes."""
    return word.lstrip("+~").partition("=")[0]


def changed(words: Sequence[str], settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return words with some settings changed or added."""
    return (*(word for word in words if key_of(word) not in settings), *(f"{k}={v}" for k, v in settings.items()))


def read_grid(words: Sequence[str]) -> Grid:
    """Read the grid that words ask for; the command line's win over an experiment's `hydra.sweeper.params`.

    Raises:
        UsageError: a mistake in the words, or several values for what all runs share.
    """
    name, params = chosen_study(words)
    merged = {key_of(word): word for word in (*params, *words) if not is_own(word)}
    with initialized():
        loader = GlobalHydra.instance().config_loader()  # knows what glob() stands for
        points = product([replace(parsed(word), config_loader=loader) for word in merged.values()])
    own = tuple(word for word in (*params, *words) if is_own(word))
    return Grid(points, own, named="name" in merged or name != DEFAULT_NAME)


def product(overrides: Sequence[Override]) -> tuple[Point, ...]:
    """Return all combinations of what varies, in the order of the words, the last one changing first.

    Raises:
        UsageError: what varies stands for no value, or is what all runs share.
    """
    fixed = [text(override) for override in overrides if not override.is_sweep_override()]
    varied: dict[str, list[str]] = {}
    for override in (override for override in overrides if override.is_sweep_override()):
        key, word = key_of(text(override)), text(override)
        if key in COMMON:
            raise UsageError(f"{word} cannot vary within a sweep: give {key} one value, or start a sweep for each")
        if override.is_interval_sweep():
            raise UsageError(f"{word} has no points to run at: give values, choice(A,B) or range(FROM,TO,STEP)")
        varied[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        if not varied[key]:
            raise UsageError(f"{word} stands for no value: normbench list shows the options of groups, for glob()")
    return tuple(
        Point((*words, *fixed), {key: word.partition("=")[2] for key, word in zip(varied, words, strict=True)})
        for words in itertools.product(*varied.values())
    )


# ---- an experiment's study


def chosen_study(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name and the words that an experiment holds, if one is chosen.

    It is composed without the other words: what they set may belong to an option that varies.
    """
    own = [word for word in words if key_of(word) in ("experiment", SEARCH_PATH)]
    if any("," in word for word in own if key_of(word) == "experiment") or not own:
        return DEFAULT_NAME, []
    name, params = study(own)
    return name, [word for key, value in params.items() for word in words_of(key, value)]


def words_of(key: str, value: Any) -> list[str]:
    """Return the words for one of a study's settings; a YAML list is several values, unless its key takes a list."""
    if not isinstance(value, list):
        return [f"{key}={written(value)}"]
    if key == EXCLUDE:
        return [f"{key}={written(item)}" for item in value]
    section, _, name = key.partition(".")
    known = [option_settings(section, option)[name] for option in options_with(section, name)] if name else []
    takes_list = key in LISTS or any(list in setting.types for setting in known)
    if takes_list and not any(isinstance(item, list) for item in value):
        return [f"{key}={written(value)}"]
    return [f"{key}={','.join(map(written, value))}"]


def written(value: Any) -> str:
    """Write a value of a YAML in Hydra's grammar, whose text it may hold already."""
    return f"[{','.join(map(written, value))}]" if isinstance(value, list) else str(show(value))


# ---- exclusions


@dataclass(frozen=True)
class Exclusion:
    """Runs to leave out: those that have all of some settings."""

    text: str
    settings: Mapping[str, Any]

    def applies(self, point: Point, config: Config | None = None) -> bool:
        """Return whether a point is left out, as far as that is known before its configuration is composed."""
        try:
            return all(point.value(key, config) == value for key, value in self.settings.items())
        except KeyError:
            return False


def read_exclusions(texts: Iterable[str]) -> list[Exclusion]:
    """Read what `sweep.exclude` says.

    Raises:
        UsageError: it is not KEY=VALUE,KEY=VALUE.
    """
    found = []
    for given in texts:
        pairs = [part.strip().partition("=") for part in NEXT_SETTING.split(given)]
        settings = {key: value_of(value.strip("'\" ")) for key, _, value in pairs if value}
        if len(settings) < len(pairs) or any("," in v for v in settings.values() if isinstance(v, str)):
            raise UsageError(
                f"{EXCLUDE}={given} is not KEY=VALUE, each with one value: write it as "
                f"{EXCLUDE}='norm=batchnorm,placement=parallel', and {EXCLUDE}= again for more"
            )
        found.append(Exclusion(given, settings))
    return found
