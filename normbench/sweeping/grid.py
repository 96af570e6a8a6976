"""From words in Hydra's sweep grammar to the points of a grid, each the words of one run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from normbench.catalog import GROUPS, options
from normbench.complaints import key_of
from normbench.compose import check_own_keys, compose_each, hydra_value, initialized, study, translated, without_plus
from normbench.config import KEYS, nearest
from normbench.errors import UsageError
from normbench.glance import glance
from normbench.keys import show
from normbench.sweeping.settings import EXCLUDE, LISTS, is_own

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


@dataclass(frozen=True)
class Grid:
    """What a sweep runs over.

    own: words of the sweep's own. varied: the keys that vary. named: whether words or an experiment name the folder.
    """

    points: tuple[Point, ...]
    varied: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    named: bool = False

    def with_words(self, *words: str) -> Grid:
        """The grid with more words for all of its points."""
        return replace(self, points=tuple(replace(point, words=(*point.words, *words)) for point in self.points))

    def without(self, key: str) -> Grid:
        """The grid less what its words set a key to."""
        return replace(
            self,
            points=tuple(
                replace(point, words=tuple(word for word in point.words if key_of(word) != key))
                for point in self.points
            ),
        )


@dataclass(frozen=True)
class Common:
    """What all runs of a sweep have in common, and what the sweep itself goes by."""

    device: str
    threads: int | None
    quiet: bool


@dataclass(frozen=True)
class Exclusion:
    """Runs to leave out: those that have all of some settings."""

    text: str
    settings: Mapping[str, Any]

    def applies(self, value_of: Callable[[str], Any]) -> bool | None:
        """Whether a run is left out; None: not known, as one of the settings is not (`value_of` raises KeyError)."""
        unknown = False
        for key, value in self.settings.items():
            try:
                if value_of(key) != value:
                    return False
            except KeyError:
                unknown = True
        return None if unknown else True


def read_common(grid: Grid) -> Common:
    """What the words, an experiment or our own defaults set for all runs.

    Raises:
        UsageError: a value that its key does not allow.
    """
    words = grid.points[0].words
    try:
        (composed,) = compose_each("train", [words])
    except UsageError:  # the first point may be one that is left out
        shared = (*COMMON, "hydra.searchpath")
        (composed,) = compose_each("train", [[word for word in words if key_of(word) in shared]])
    return Common(**{item.name: KEYS[item.name].check(item.name, composed.tree[item.name]) for item in fields(Common)})


def read_exclusions(texts: Iterable[str]) -> list[Exclusion]:
    """What `sweep.exclude` says.

    Raises:
        UsageError: it is not KEY=VALUE,KEY=VALUE.
    """
    found = []
    for text in texts:
        pairs = [part.strip().partition("=") for part in NEXT_SETTING.split(text)]
        if not all(key and value for key, _, value in pairs):
            raise UsageError(
                f"{EXCLUDE}={text} is not KEY=VALUE: write it as {EXCLUDE}='norm=batchnorm,placement=parallel'"
            )
        for key, _, value in pairs:
            if "," in value and isinstance(plain_value(value), str):
                raise UsageError(
                    f"{EXCLUDE}={text} gives {key} several values: give one, and {EXCLUDE}= again for each other"
                )
        found.append(Exclusion(text, {key.strip(): plain_value(value) for key, _, value in pairs}))
    return found


def plain_value(text: str) -> Any:
    """What a word's value stands for, numbers in one form: `1e-3` and `0.001` are one value."""
    return in_one_form(hydra_value(text.strip("'\" ")))


def in_one_form(value: Any) -> Any:
    """A value with its whole numbers as floats, those in lists too."""
    if isinstance(value, list):
        return [in_one_form(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def read_grid(words: Sequence[str]) -> Grid:
    """The grid that words ask for; an experiment's `hydra.sweeper.params` are words that the command line's win over.

    Raises:
        UsageError: a mistake in the words, or several values for what all runs share.
    """
    words = [without_plus(word) for word in words]
    given = [word for word in words if not is_own(word)]
    check_own_keys(given)
    with initialized() as loader:
        overrides = read(given, loader)
        check_common(overrides)
        check_deletions(overrides)
        name, params = study_of(overrides)
        more = read([word for word in params if not is_own(word)], loader)
        merged = {named(override): override for override in (*more, *overrides)}
        check_common(merged.values())
        with translated("sweep", given):
            grid = make_grid(list(merged.values()))
    own = tuple(word for word in (*params, *words) if is_own(word))
    return replace(grid, own=own, named="name" in merged or name != DEFAULT_NAME)


def read(words: Sequence[str], loader: Any) -> list[Override]:
    """Words as Hydra's parser reads them.

    Raises:
        UsageError: they are not in its grammar.
    """
    with translated("sweep", list(words)):
        return list(OverridesParser.create(config_loader=loader).parse_overrides(list(words)))


def named(override: Override) -> str:
    """The key that an override sets, whatever sign stands before it."""
    return override.get_key_element().lstrip("+~")


def study_of(overrides: Sequence[Override]) -> tuple[str, list[str]]:
    """The name and the words that an experiment holds, if one is chosen.

    It is composed without the other words: what they set may belong to an option that varies.
    """
    own = [text(override) for override in overrides if named(override) in ("experiment", "hydra.searchpath")]
    if not own:
        return DEFAULT_NAME, []
    name, params = study("train", own)
    return name, [word for key, value in params.items() for word in words_of(key, value)]


def words_of(key: str, value: Any) -> list[str]:
    """The words for one of a study's settings; a YAML list is several values, unless its key takes a list."""
    if not isinstance(value, list):
        return [f"{key}={written(value)}"]
    if key == EXCLUDE:
        return [f"{key}={written(item)}" for item in value]
    takes_list = key in LISTS or (key in KEYS and list in KEYS[key].types)
    if takes_list and not any(isinstance(item, list) for item in value):
        return [f"{key}={written(value)}"]
    return [f"{key}={','.join(map(written, value))}"]


def written(value: Any) -> str:
    """A value of a YAML in Hydra's grammar, whose text it may hold already."""
    return f"[{','.join(map(written, value))}]" if isinstance(value, list) else str(show(value))


def text(override: Override) -> str:
    """An override as it was written."""
    return override.input_line or ""


def check_common(overrides: Iterable[Override]) -> None:
    """Refuse several values of what all runs share, and sweeps without points."""
    for override in overrides:
        if override.is_sweep_override() and named(override) in COMMON:
            raise UsageError(
                f"{text(override)} cannot vary within a sweep: give {named(override)} one value, or start a sweep "
                "for each"
            )
        if override.is_interval_sweep():
            raise UsageError(
                f"{text(override)} has no points to run at: give values, choice(A,B) or range(FROM,TO,STEP)"
            )


def check_deletions(overrides: Sequence[Override]) -> None:
    """Refuse to set and to delete one key, of which only the last would count."""
    given = {named(override): text(override) for override in overrides if not override.is_delete()}
    for override in overrides:
        if override.is_delete() and (other := given.get(named(override))):
            raise UsageError(f"{text(override)} deletes what {other} sets: leave one of the two out")


def make_grid(overrides: Sequence[Override]) -> Grid:
    """All combinations of what varies, in the order of the words, the last one changing first."""
    fixed = [text(override) for override in overrides if not override.is_sweep_override()]
    sweeps = [override for override in overrides if override.is_sweep_override()]
    for override in sweeps:
        if not list(override.sweep_string_iterator()):
            raise UsageError(f"{text(override)} stands for no value: {nothing_found(override)}")
    (combinations,) = BasicSweeper.split_arguments(sweeps, None) if sweeps else [[[]]]
    glance("sweep", [*fixed, *dict.fromkeys(word for combination in combinations for word in combination)])
    varied = tuple(named(override) for override in sweeps)
    points = (
        Point((*words, *fixed), dict(zip(varied, (word.partition("=")[2] for word in words), strict=True)))
        for words in combinations
    )
    return Grid(tuple(points), varied)


def nothing_found(override: Override) -> str:
    """What a range could have held, or a glob found."""
    if override.is_range_sweep():
        return "range(FROM,TO,STEP) goes from FROM to below TO, give a TO above FROM, or a negative STEP"
    group = named(override)
    return f"normbench list {group} shows what there is" if group in GROUPS else "glob() is for groups, such as norm"


def check_matched(exclusions: Sequence[Exclusion], matched: set[str], seen: Mapping[str, set[str]]) -> None:
    """Refuse an exclusion that leaves out nothing, most likely a misspelt one.

    Args:
        exclusions: all that were given.
        matched: the texts of those that have left out a run.
        seen: the values that each key has among the runs.
    """
    for exclusion in exclusions:
        if exclusion.text in matched:
            continue
        known = {key: {*seen.get(key, ()), *(options(key) if key in GROUPS else ())} for key in exclusion.settings}
        hints = [nearest(str(value), known[key]) for key, value in exclusion.settings.items()
                 if str(value) not in known[key]]  # fmt: skip
        hints += [nearest(key, (*KEYS, *GROUPS)) for key in exclusion.settings if key not in KEYS and key not in GROUPS]
        raise UsageError(
            f"sweep.exclude={exclusion.text} leaves out none of the runs: {''.join(hints)}leave it out, or give "
            "settings that a run has"
        )
