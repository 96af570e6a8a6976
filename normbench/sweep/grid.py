"""From words in Hydra's sweep grammar to the points of a grid, each the words of one run, and which are left out."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override

from normbench.config.compose import SEARCH_PATH, initialized, parsed, study, text, translated, value_of, without_plus
from normbench.errors import UsageError
from normbench.settings import show
from normbench.sweep.words import EXCLUDE, is_own, key_of

# The folder of a sweep that neither the words nor an experiment name, and that of `train`.
SWEEP_NAME, TRAIN_NAME = "sweep", "train"

# What all runs of a sweep have in common.
COMMON = ("name", "outputs", "device", "threads", "quiet", "rerun", "extend", "experiment")

# Where an exclusion goes on to another setting; other commas are in a list.
NEXT_SETTING = re.compile(r",\s*(?=[\w./@]+=)")


@dataclass(frozen=True)
class Point:
    """The words of one run, and of them those that vary."""

    words: tuple[str, ...]
    varied: Mapping[str, str]


def changed(words: Sequence[str], settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return words with some settings changed or added."""
    return (*(word for word in words if key_of(word) not in settings), *(f"{k}={v}" for k, v in settings.items()))


def read_grid(words: Sequence[str]) -> tuple[list[Point], list[str]]:
    """Return the points that words ask for, and the words that are the sweep's own.

    The command line's words win over an experiment's `hydra.sweeper.params`.

    Raises:
        UsageError: a mistake in the words, or several values for what all runs share.
    """
    words = [without_plus(word) for word in words]
    # an experiment is composed without the other words: what they set may belong to an option that varies
    chosen = [word for word in words if key_of(word) in ("experiment", SEARCH_PATH)]
    name, params = study(chosen) if chosen else (TRAIN_NAME, {})
    given = [*(word for key, value in params.items() for word in words_of(key, value)), *words]
    own = [word for word in given if is_own(word)]
    merged = {} if name != TRAIN_NAME else {"name": f"name={SWEEP_NAME}"}
    merged |= {key_of(word): word for word in given if word not in own}
    with initialized(), translated():
        loader = GlobalHydra.instance().config_loader()  # knows what glob() stands for
        return product([replace(parsed(word), config_loader=loader) for word in merged.values()]), own


def words_of(key: str, value: Any) -> list[str]:
    """Return the words for one of a study's settings, which may hold Hydra's grammar; a list is several values."""
    values = value if isinstance(value, list) else [value]
    return [f"{key}={item}" for item in values] if key == EXCLUDE else [f"{key}={','.join(map(show, values))}"]


def product(overrides: Sequence[Override]) -> list[Point]:
    """Return all combinations of what varies, in the order of the words, the last one changing first.

    Raises:
        UsageError: what varies is what all runs share.
    """
    fixed, varied = list[str](), dict[str, list[str]]()
    for override in overrides:
        word, key = text(override), key_of(text(override))
        if not override.is_sweep_override():
            fixed.append(word)
        elif key in COMMON:
            raise UsageError(f"{word} cannot vary within a sweep: give {key} one value, or start a sweep for each")
        else:
            varied[key] = list(override.sweep_string_iterator())
    points = [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]
    return [Point((*(f"{key}={value}" for key, value in point.items()), *fixed), point) for point in points]


def exclude(points: Iterable[Point], exclusions: Iterable[str]) -> tuple[list[Point], Counter[str]]:
    """Leave out the points whose words have all settings of an exclusion, such as `norm=dyt,seed=1`.

    Returns the other points, and how many each exclusion leaves out.

    Raises:
        UsageError: an exclusion is something else, or fits no point.
    """
    kept, left_out = list(points), Counter[str]()
    for given in exclusions:
        reason, settings = f"{EXCLUDE}={given}", valued(NEXT_SETTING.split(given))
        if any(value == "" or ("," in str(value) and not isinstance(value, list)) for value in settings.values()):
            raise UsageError(
                f"{reason} is not KEY=VALUE, each with one value: write it as "
                f"{EXCLUDE}='norm=batchnorm,placement=parallel', and {EXCLUDE}= again for more"
            )
        others = [point for point in kept if not settings.items() <= valued(point.words).items()]
        left_out[reason] = len(kept) - len(others)
        if not left_out[reason]:
            raise UsageError(f"{reason} leaves out none of the runs that the words give: check its keys and values")
        kept = others
    return kept, left_out


def valued(words: Iterable[str]) -> dict[str, Any]:
    """Return what words set, as Hydra reads it: `1e-3` is `0.001`."""
    return {key_of(word).strip(): value_of(word.partition("=")[2].strip()) for word in words}
