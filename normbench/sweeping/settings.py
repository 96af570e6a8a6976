"""What a sweep takes beside `train`'s words: types, bounds and one line for each key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from normbench.config import Tree, build, closed_keys, key, nearest
from normbench.errors import UsageError
from normbench.keys import Key


@dataclass(frozen=True)
class SweepConfig:
    """What holds for all runs of a sweep."""

    exclude: list | None = key(
        "runs to leave out, each such as norm=batchnorm,placement=parallel; given again it adds more, null empties it",
        items=(str,),
    )
    lr: str | None = key(
        "auto: choose each arm's learning rate on a tenth held out of the training data; null: as it is set",
        choices=("auto",),
    )
    lr_grid: list = key("learning rates that sweep.lr=auto tries", items=(float,), above=0, high=1e3)
    lr_seeds: list = key("seeds of the runs that choose; never among those reported", items=(int,), low=0, high=2**62)
    retry_failed: bool = key("try runs again that have failed")
    jobs: int | None = key("runs at a time; null: one for each core, or GPU", "runs", low=1, high=4096)
    report: bool = key("write the report of the runs at the end")


SWEEP_KEYS: dict[str, Key] = dict(closed_keys(SweepConfig, "sweep."))

# Words of a sweep's own, beside those of `train`.
OWN = re.compile(r"[+~]*(sweep|launcher)([./=@]|$)")
EXCLUDE = "sweep.exclude"
LISTS = ("sweep.lr_grid", "sweep.lr_seeds")


def is_own(word: str) -> bool:
    """Whether a word is the sweep's, not `train`'s."""
    return OWN.match(word) is not None


def readable(words: Iterable[str]) -> list[str]:
    """The sweep's own words as Hydra reads them: what the shell has taken the quotes from is quoted again.

    Of words for the same key the last one counts, except for `sweep.exclude`: it may be given several times, and `null`
    empties what stands before it. Lists need no brackets.
    """
    excluded, others = list[str](), dict[str, str]()
    for word in words:
        name, _, value = word.partition("=")
        if name == EXCLUDE:
            excluded = [] if value in ("", "null") else [*excluded, *exclusions(value)]
        elif name in LISTS and value and not value.startswith("["):
            others[name] = f"{name}=[{value}]"
        else:
            others[name] = word
    listed = [f"{EXCLUDE}=[{','.join(quoted(text) for text in excluded)}]"] if excluded else []
    return [*others.values(), *listed]


def exclusions(value: str) -> list[str]:
    """The exclusions of one word: itself, or the elements of a list of quoted ones.

    Raises:
        UsageError: a list that Hydra cannot read.
    """
    if not value.startswith("["):
        return [value.strip("'\"")]
    from normbench.compose import hydra_value  # imports Hydra, which takes a third of a second

    read = hydra_value(value)
    if not isinstance(read, list):
        raise UsageError(
            f"{EXCLUDE}={value} cannot be read: give one exclusion without brackets, and {EXCLUDE}= again for more"
        )
    return [str(item) for item in read]


def quoted(text: str) -> str:
    """Text in quotes of Hydra's grammar."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def parse_settings(tree: Tree) -> SweepConfig:
    """The sweep's section of a composed configuration.

    Raises:
        UsageError: an unknown key, a wrong type, a value out of bounds.
    """
    settings: SweepConfig = build(SweepConfig, tree, "sweep.")
    for name in ("lr_grid", "lr_seeds"):
        values: Sequence[float] = getattr(settings, name)
        if len(set(values)) < len(values):
            raise UsageError(f"sweep.{name}={values} has a value twice: give each once")
    return settings


def check_names(words: Iterable[str]) -> None:
    """Refuse, before Hydra is imported, a key that a sweep does not have.

    Raises:
        UsageError: there is one.
    """
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("sweep") and name not in SWEEP_KEYS:
            known = list(SWEEP_KEYS)
            raise UsageError(f"{name} is unknown: {nearest(name, known)}allowed are {', '.join(known)}")
