"""What a sweep takes beside `train`'s words: types, bounds and one line for each key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from normbench.config.groups import check_option, content, options_with, section_of
from normbench.config.schema import TARGET, checked_values, closed_settings
from normbench.config.signatures import settings_of
from normbench.errors import UsageError
from normbench.settings import Setting, either


@dataclass(frozen=True)
class SweepConfig:
    """What holds for all runs of a sweep."""

    exclude: Annotated[
        list[str] | None, Setting("runs to leave out, such as norm=dyt,seed=1; given again it adds, null empties")
    ]
    tie: Annotated[
        list[str] | None,
        Setting("settings that vary together, as one, such as 'data.batch_size=2,8;optim.lr=0.025,0.1'; given again it "
                "adds more, null empties it; trainer.epochs= keeps the number of samples equal over batch sizes"),
    ]  # fmt: skip
    lr: Annotated[
        Literal["auto"] | None,
        Setting("auto: choose each arm's rate on held out data; null: as it is set"),
    ]
    lr_grid: Annotated[
        list[float],
        Setting("learning rates that sweep.lr=auto tries: every other one first, then those beside the best, and up to "
                "two beyond an end if the best lies there", above=0, high=1e3),
    ]  # fmt: skip
    lr_seeds: Annotated[list[int], Setting("seeds of the runs that choose; none is reported", low=0, high=2**62)]
    extend: Annotated[bool, Setting("add runs, such as more seeds, to those of another sweep in the folder")]
    retry_failed: Annotated[bool, Setting("try runs again that have failed")]
    timeout: Annotated[float | None, Setting("a run that takes longer fails; null: never", "minutes", above=0)]
    stack: Annotated[int, Setting("seeds of an arm trained as one model, at the most", "seeds", low=1, high=1024)]
    jobs: Annotated[int | None, Setting("runs at a time; null: one for each core, or GPU", "runs", low=1, high=4096)]
    report: Annotated[bool, Setting("write the report of the runs at the end")]


SETTINGS = closed_settings(SweepConfig)
SWEEP_KEYS = {f"sweep.{name}": setting for name, setting in SETTINGS.items()}
EXCLUDE, TIE = REPEATED = ("sweep.exclude", "sweep.tie")  # what may be given several times
AS_IT_IS = "default"  # in place of a value: as the option has it, which need not know the setting
LISTS = ("sweep.lr_grid", "sweep.lr_seeds")
FORMER_LAUNCHERS = {"joblib": "processes"}  # earlier names, which old sweeps go on with
ONCE = ("sweep.extend", "sweep.retry_failed")  # of one command, not of those that go on
HOW = (*ONCE, "sweep.timeout", "sweep.jobs", "sweep.report", "launcher", "quiet", "name", "outputs")  # not which runs


def is_own(word: str) -> bool:
    """Return whether a word is the sweep's, not `train`'s."""
    return re.match(r"\+*(sweep\.|launcher[.=])", word) is not None


def key_of(word: str) -> str:
    """Return the key that a word sets or deletes."""
    return word.lstrip("+~").partition("=")[0]


def launcher_of(words: Iterable[str]) -> str:
    """Return the launcher that words choose, or the default one.

    Raises:
        UsageError: it is unknown.
    """
    launcher = content("", "sweep")["defaults"]["launcher"]
    for word in words:
        if key_of(word) == "launcher":
            launcher = word.partition("=")[2]
    launcher = FORMER_LAUNCHERS.get(launcher, launcher)
    check_option("launcher", launcher)
    return launcher


def read_settings(words: Iterable[str]) -> tuple[SweepConfig, dict[str, Any]]:
    """Return what a sweep's own words set, and the section of its launcher.

    Of words for the same key the last one counts, except for those of `REPEATED`, which add up; `null` empties what
    stands before it. Lists need no brackets.

    Raises:
        UsageError: an unknown key, a wrong type, a value out of bounds.
    """
    from omegaconf import OmegaConf  # with Hydra it takes a third of a second

    from normbench.config.compose import value_of

    words = list(words)
    root = content("", "sweep")
    given = [(key_of(word), word.partition("=")[2]) for word in words]
    for name, text in given:
        if name.startswith("launcher") and not text.isprintable():  # a line break would end its line in a job's script
            raise UsageError(f"{name} holds a line break or another control character: write it without")
    launcher = launcher_of(words)
    if launcher in ("submitit", "ray") and find_spec(launcher) is None:
        raise UsageError(f"launcher={launcher} is not installed: pip install 'normbench[{launcher}]'")
    config = OmegaConf.create({"sweep": root["sweep"], "launcher": section_of("launcher", launcher)})
    for name, text in given:
        value = value_of(f"[{text}]" if name in LISTS and not text.startswith("[") else text)
        if name in REPEATED:
            more = value if isinstance(value, list) else [value]
            value = [*(OmegaConf.select(config, name) or []), *more] if value else None
        if name != "launcher":
            OmegaConf.update(config, name, value)
    tree: Any = OmegaConf.to_container(config)
    own = checked_values("sweep.", tree["sweep"], SETTINGS, "normbench sweep")
    settings = settings_of(config.launcher._target_, imports=True) or {}
    where = f"launcher={launcher}"
    for name in tree["launcher"]:
        if name not in settings and (having := options_with("launcher", name)):
            cure = f"leave it out, or choose launcher={either(having)}"
            raise UsageError(f"launcher.{name} is not a setting of {where}: {cure}")
    known = {"_target_": TARGET, **settings}
    where += "" if settings else " (sweep.jobs= and threads= say what runs get of this machine)"
    return SweepConfig(**own), checked_values("launcher.", tree["launcher"], known, where)
