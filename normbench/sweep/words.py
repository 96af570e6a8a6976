"""What a sweep takes beside `train`'s words: types, bounds and one line for each key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from normbench.config.groups import check_option, content, options_with, section_of
from normbench.config.schema import TARGET, check_values, closed_settings
from normbench.config.signatures import settings_of
from normbench.errors import UsageError
from normbench.settings import Setting, either, key_of


@dataclass(frozen=True)
class SweepConfig:
    """What holds for all runs of a sweep."""

    exclude: Annotated[
        list[str] | None,
        Setting("runs to leave out, such as norm=dyt,seed=1; given again it adds more, null empties it"),
    ]
    tie: Annotated[
        list[str] | None,
        Setting("settings that vary together, as one, such as 'data.batch_size=2,8;optim.lr=0.025,0.1'; given again it "
                "adds more, null empties it; trainer.epochs= keeps the number of samples equal over batch sizes"),
    ]  # fmt: skip
    lr: Annotated[
        Literal["auto", "each"] | None,
        Setting("each: choose a learning rate on held-out data for each arm and seed, so that a lucky choice is chance "
                "like any other; auto: one for each arm, for all its seeds; null: take optim.lr as it is set"),
    ]  # fmt: skip
    lr_grid: Annotated[
        list[float],
        Setting("learning rates that sweep.lr tries: every other one first, then those beside the best, and up to "
                "two beyond an end if the best lies there", above=0, high=1e3),
    ]  # fmt: skip
    lr_seeds: Annotated[
        list[int],
        Setting("seeds of the runs that choose, which are not reported; with sweep.lr=each they count from the seed "
                "that is reported, so that 1000 is 1003 for seed 3", low=0, high=2**62),
    ]  # fmt: skip
    lr_length: Annotated[
        float, Setting("length of the runs that choose, as a share of those that are reported", above=0, high=1)
    ]
    extend: Annotated[bool, Setting("add runs, such as more seeds, to those of another sweep in the folder")]
    retry_failed: Annotated[bool, Setting("try failed runs again")]
    timeout: Annotated[float | None, Setting("a run that takes longer fails; null: no limit", "minutes", above=0)]
    stack: Annotated[int, Setting("most seeds of an arm to train as one model", "seeds", low=1, high=1024)]
    jobs: Annotated[int | None, Setting("runs at a time; null: one for each core, or GPU", "runs", low=1, high=4096)]
    report: Annotated[bool, Setting("write a report on the runs at the end")]


SETTINGS = closed_settings(SweepConfig)
SWEEP_KEYS = {f"sweep.{name}": setting for name, setting in SETTINGS.items()}
EXCLUDE = "sweep.exclude"
TIE = "sweep.tie"
REPEATED = (EXCLUDE, TIE)  # what may be given several times
AS_IT_IS = "default"  # in place of a value: leave the setting as the chosen option has it, if it has it at all
LISTS = ("sweep.lr_grid", "sweep.lr_seeds")
FORMER_LAUNCHERS = {"joblib": "processes"}  # names of earlier versions, which the notes of their sweeps still have
ONCE = ("sweep.extend", "sweep.retry_failed")  # what holds for one command, and not for those that go on with its sweep

# What decides how runs are made, and not which.
HOW = (*ONCE, "sweep.timeout", "sweep.jobs", "sweep.report", "launcher", "quiet", "name", "outputs")


def is_own(word: str) -> bool:
    """Tell whether a word is the sweep's own, rather than one for `train`."""
    return re.match(r"\+*(sweep\.|launcher[.=])", word) is not None


def settings_in(words: Iterable[str]) -> dict[str, str]:
    """Return what words set, by key and as it is written; of several words for a key the last one counts."""
    return {key_of(word): word.partition("=")[2] for word in words}


def launcher_of(words: Iterable[str]) -> str:
    """Return the launcher that words choose, or the default one.

    Raises:
        UsageError: it is unknown.
    """
    default = content("", "sweep")["defaults"]["launcher"]
    launcher = settings_in(words).get("launcher", default)
    launcher = FORMER_LAUNCHERS.get(launcher, launcher)
    check_option("launcher", launcher)
    return launcher


def read_settings(words: Iterable[str]) -> tuple[SweepConfig, dict[str, Any]]:
    """Return what a sweep's own words set, and the section of its launcher.

    Of several words for a key the last one counts, except for those of `REPEATED`, which add up; `null` empties what
    stands before it. Lists need no brackets.

    Raises:
        UsageError: an unknown key, a wrong type, a value out of bounds.
    """
    from omegaconf import OmegaConf  # with Hydra it takes a third of a second

    words = list(words)
    for key, text in settings_in(words).items():
        if key.startswith("launcher") and not text.isprintable():  # a line break would end its line in a job's script
            raise UsageError(f"{key} holds a line break or another control character: write it without")
    launcher = launcher_of(words)
    if launcher in ("submitit", "ray") and find_spec(launcher) is None:
        raise UsageError(f"launcher={launcher} is not installed: pip install 'normbench[{launcher}]'")

    defaults = {"sweep": content("", "sweep")["sweep"], "launcher": section_of("launcher", launcher)}
    config = OmegaConf.create(defaults)
    for word in words:
        key = key_of(word)
        if key != "launcher":
            before = OmegaConf.select(config, key) if key in REPEATED else None
            value = read_value(word, before)
            OmegaConf.update(config, key, value)
    tree: Any = OmegaConf.to_container(config)
    checked = check_values("sweep.", tree["sweep"], SETTINGS, "normbench sweep")
    return SweepConfig(**checked), check_launcher(launcher, tree["launcher"])


def read_value(word: str, before: Any) -> Any:
    """Return the value that a word gives its key.

    Args:
        before: what earlier words gave it, to which some keys add.
    """
    from normbench.config.compose import value_of

    key = key_of(word)
    text = word.partition("=")[2]
    if key in LISTS and not text.startswith("["):
        text = f"[{text}]"
    value = value_of(text)
    if key not in REPEATED:
        return value
    if not value:
        return None
    more = value if isinstance(value, list) else [value]
    return [*(before or []), *more]


def check_launcher(launcher: str, section: dict[str, Any]) -> dict[str, Any]:
    """Return the section of a launcher, each value in its own type.

    Raises:
        UsageError: a setting that its class does not take, a wrong type, a value out of bounds.
    """
    where = f"launcher={launcher}"
    settings = settings_of(section["_target_"], imports=True) or {}
    for name in section:
        having = [] if name in settings else options_with("launcher", name)
        if having:
            cure = f"leave it out, or choose launcher={either(having)}"
            raise UsageError(f"launcher.{name} is not a setting of {where}: {cure}")
    if not settings:
        where += " (sweep.jobs= and threads= say what runs get of this machine)"
    return check_values("launcher.", section, {"_target_": TARGET, **settings}, where)
