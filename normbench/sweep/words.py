"""What a sweep takes beside `train`'s words: types, bounds and one line for each key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal, get_type_hints

import yaml

from normbench.config.groups import check_option, config_directory, section_of
from normbench.errors import UsageError
from normbench.settings import Setting, nearest, setting_from, settings_of


@dataclass(frozen=True)
class SweepConfig:
    """What holds for all runs of a sweep."""

    exclude: Annotated[
        list[str] | None,
        Setting("runs to leave out, each such as norm=batchnorm,placement=parallel; given again it adds more, null "
                "empties it"),
    ]  # fmt: skip
    tie: Annotated[
        list[str] | None,
        Setting("settings that vary together, as one, such as 'data.batch_size=2,8;optim.lr=0.025,0.1'; given again it "
                "adds more, null empties it; trainer.epochs= keeps the number of samples equal over batch sizes"),
    ]  # fmt: skip
    lr: Annotated[
        Literal["auto"] | None,
        Setting("auto: choose each arm's learning rate on a tenth held out of the training data; null: as it is set"),
    ]
    lr_grid: Annotated[
        list[float],
        Setting("learning rates that sweep.lr=auto tries: every other one first, then those beside the best, and up to "
                "two beyond an end if the best lies there", above=0, high=1e3),
    ]  # fmt: skip
    lr_seeds: Annotated[
        list[int], Setting("seeds of the runs that choose; never among those reported", low=0, high=2**62)
    ]
    extend: Annotated[
        bool, Setting("add runs, of more seeds or arms say, to those that another sweep made in the folder")
    ]
    retry_failed: Annotated[bool, Setting("try runs again that have failed")]
    timeout: Annotated[
        float | None, Setting("end a run that takes longer, and count it as failed; null: never", "minutes", above=0)
    ]
    jobs: Annotated[int | None, Setting("runs at a time; null: one for each core, or GPU", "runs", low=1, high=4096)]
    report: Annotated[bool, Setting("write the report of the runs at the end")]


SWEEP_KEYS = {
    f"sweep.{name}": setting_from(hint) for name, hint in get_type_hints(SweepConfig, include_extras=True).items()
}
EXCLUDE, TIE = REPEATED = ("sweep.exclude", "sweep.tie")  # what may be given several times
LISTS = ("sweep.lr_grid", "sweep.lr_seeds")
ONCE = ("sweep.extend", "sweep.retry_failed")  # of one command, not of those that go on
HOW = (*ONCE, "sweep.timeout", "sweep.jobs", "sweep.report", "launcher", "quiet", "name", "outputs")  # not which runs


def is_own(word: str) -> bool:
    """Return whether a word is the sweep's, not `train`'s."""
    return re.match(r"\+*(sweep\.|launcher[.=])", word) is not None


def key_of(word: str) -> str:
    """Return the key that a word sets or deletes."""
    return word.lstrip("+~").partition("=")[0]


def read_settings(words: Iterable[str]) -> tuple[SweepConfig, dict[str, Any]]:
    """Return what a sweep's own words set, and the section of its launcher.

    Of words for the same key the last one counts, except for those of `REPEATED`, which add up; `null` empties what
    stands before it. Lists need no brackets.

    Raises:
        UsageError: an unknown key, a wrong type, a value out of bounds.
    """
    from omegaconf import OmegaConf  # with Hydra it takes a third of a second

    from normbench.config.compose import value_of

    given = [(key_of(word), word.partition("=")[2]) for word in words]
    launcher, added = dict(given).get("launcher", "joblib"), {name: list[str]() for name in REPEATED}
    check_option("launcher", launcher)
    if launcher in ("submitit", "ray") and find_spec(launcher) is None:
        raise UsageError(f"launcher={launcher} is not installed: pip install 'normbench[{launcher}]'")
    root = yaml.safe_load((config_directory() / "sweep.yaml").read_text("utf-8"))
    config = OmegaConf.create({"sweep": root["sweep"], "launcher": section_of("launcher", launcher)})
    for name, text in given:
        value = value_of(f"[{text}]" if name in LISTS and not text.startswith("[") else text)
        if name in REPEATED:
            added[name] = [*added[name], *(value if isinstance(value, list) else [value])] if value else []
        elif name != "launcher":
            OmegaConf.update(config, name, value)
    for name, values in added.items():
        OmegaConf.update(config, name, values or None)
    own = settings_of(config.launcher._target_) or {}
    known = {**SWEEP_KEYS, "launcher._target_": Setting(), **{f"launcher.{name}": own[name] for name in own}}
    tree: Any = OmegaConf.to_container(config)
    for section, values in tree.items():
        for key, value in values.items():
            name = f"{section}.{key}"
            if name not in known:
                raise UsageError(
                    f"{name} is unknown with launcher={launcher}: {nearest(name, known)}normbench sweep --help shows "
                    "the keys; sweep.jobs= and threads= say what runs get of this machine"
                )
            values[key] = known[name].check(name, value)
    return SweepConfig(**tree["sweep"]), tree["launcher"]
