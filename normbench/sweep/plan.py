"""From words in Hydra's sweep grammar to the points of a grid, and to runs that are fully decided."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.global_hydra import GlobalHydra

from normbench.build import make_data, resolve_device
from normbench.config import compose
from normbench.config.schema import is_foreign
from normbench.errors import CombinationRefused, UsageError
from normbench.record.directory import fingerprint
from normbench.runs.plan import Run, prepare
from normbench.settings import Tree, show
from normbench.sweep.folder import Entry, arm_name
from normbench.sweep.launchers import Here, Launcher
from normbench.sweep.words import AS_IT_IS, EXCLUDE, REPEATED, TIE, is_own, key_of, read_settings
from normbench.types import Data

# The folder of a sweep that neither the words nor an experiment name, and that of `train`.
SWEEP_NAME, TRAIN_NAME = "sweep", "train"

MOST_RUNS = 100_000

# What all runs of a sweep have in common.
COMMON = ("name", "outputs", "device", "threads", "quiet", "rerun", "extend", "experiment", "logger")

# Where an exclusion goes on to another setting; other commas are in a list.
NEXT_SETTING = re.compile(r",\s*(?=[\w./@]+=)")


@dataclass(frozen=True)
class Point:
    """The words of one run, and of them those that vary. follows: settings that differ with these."""

    words: tuple[str, ...]
    varied: Mapping[str, str]
    follows: tuple[str, ...] = ()


def changed(words: Sequence[str], settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return words with some settings changed or added."""
    return (*(word for word in words if key_of(word) not in settings), *(f"{k}={v}" for k, v in settings.items()))


@compose.translated()
def read_grid(words: Sequence[str]) -> tuple[list[Point], list[str]]:
    """Return the points that words ask for, and the words that are the sweep's own.

    The command line's words win over an experiment's `hydra.sweeper.params`.

    Raises:
        UsageError: a mistake in the words, or several values for what all runs share.
    """
    # an experiment is composed without the other words: what they set may belong to an option that varies
    chosen = [word for word in words if key_of(word) in ("experiment", compose.SEARCH_PATH)]
    name, params = compose.study(chosen) if chosen else (TRAIN_NAME, {})
    given = [*(word for key, value in params.items() for word in words_of(key, value)), *words]
    own = [word for word in given if is_own(word)]
    merged = {} if name != TRAIN_NAME else {"name": f"name={SWEEP_NAME}"}
    merged |= {key_of(word): word for word in given if word not in own}
    ties = read_settings(own)[0].tie or []
    check_ties(ties, merged)
    with compose.initialized():
        return product(merged.values(), [tie.split(";") for tie in ties]), own


def words_of(key: str, value: Any) -> list[str]:
    """Return the words for one of a study's settings, which may hold Hydra's grammar; a list is several values."""
    values = value if isinstance(value, list) else [value]
    return [f"{key}={item}" for item in values] if key in REPEATED else [f"{key}={','.join(map(show, values))}"]


def product(words: Iterable[str], ties: Sequence[Sequence[str]]) -> list[Point]:
    """Return all combinations of what varies, in the order of the words, then of the ties, the last one changing first.

    A point does without a setting whose value is `default`.

    Raises:
        UsageError: what varies is what all runs share, a tie has unlike numbers of values, or there are too many runs.
    """
    words, several = [*words], [word for word in words if compose.parsed(word).is_sweep_override()]
    axes = [levels(words) for words in (*([word] for word in several), *ties)]
    if math.prod(map(len, axes)) > MOST_RUNS:
        keys = " × ".join(" and ".join(axis[0]) for axis in axes)
        raise UsageError(f"a sweep over {keys} has more than {MOST_RUNS:,} runs, which is the most: give fewer values")
    points = [{key: value for part in point for key, value in part.items() if value != AS_IT_IS}
              for point in itertools.product(*axes)]  # fmt: skip
    fixed = [compose.text(compose.parsed(word)) for word in words if word not in several]
    return [Point((*(f"{key}={value}" for key, value in point.items()), *fixed), point) for point in points]


def check_ties(ties: Iterable[str], merged: Iterable[str]) -> None:
    """Refuse a tie of which a key is alone, has one value, or is given elsewhere too; merged: keys of other words.

    Raises:
        UsageError: with the reason.
    """
    taken = set(merged)
    for tie in ties:
        keys = [key_of(word) for word in tie.split(";")]
        if len(keys) < 2 or not all(compose.parsed(word).is_sweep_override() for word in tie.split(";")):
            example = f"{TIE}='data.batch_size=2,8;optim.lr=0.025,0.1'"
            raise UsageError(f"{TIE}={tie} is not two settings or more with several values: write it as {example}")
        if twice := [key for place, key in enumerate(keys) if key in taken.union(keys[:place])]:
            raise UsageError(f"{twice[0]} is given beside {TIE}={tie}, which sets it: leave it out there or here")
        taken.update(keys)


def levels(words: Sequence[str]) -> list[dict[str, str]]:
    """Return the values of a setting that varies, or of several that vary together, one after the other.

    Raises:
        UsageError: all runs share it, or the settings have unlike numbers of values.
    """
    loader, found = GlobalHydra.instance().config_loader(), dict[str, list[str]]()  # knows what glob() stands for
    for word in words:
        if (key := key_of(word)) in COMMON:
            raise UsageError(f"{word} cannot vary within a sweep: give {key} one value, or start a sweep for each")
        if (parsed := compose.parsed(word)).is_interval_sweep():
            raise UsageError(f"{word} is not a list of values: give {key} some, as in {key}=1,2")
        values = replace(parsed, config_loader=loader).sweep_string_iterator()
        try:
            found[key] = [*itertools.islice(values, MOST_RUNS + 1)]
        except (ArithmeticError, ValueError) as error:  # of a range to or from what is no number
            raise UsageError(
                f"{word} has no values that can be counted: give numbers, as in {key}=range(0,5)"
            ) from error
    if len({*map(len, found.values())}) > 1:
        counts = ", ".join(f"{len(values)} of {key}" for key, values in found.items())
        raise UsageError(f"{TIE}={';'.join(words)} has {counts}: give each key the same number of values")
    return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


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
            example = f"{EXCLUDE}='norm=batchnorm,placement=parallel', and {EXCLUDE}= again for more"
            raise UsageError(f"{reason} is not KEY=VALUE, each with one value: write it as {example}")
        others = [point for point in kept if not settings.items() <= valued(point.words).items()]
        left_out[reason] = len(kept) - len(others)
        if not left_out[reason]:
            raise UsageError(f"{reason} leaves out none of the runs that the words give: check its keys and values")
        kept = others
    return kept, left_out


def valued(words: Iterable[str]) -> dict[str, Any]:
    """Return what words set, as Hydra reads it: `1e-3` is `0.001`."""
    return {key_of(word).strip(): compose.value_of(word.partition("=")[2].strip()) for word in words}


# ---- runs that are decided in full


@dataclass(frozen=True)
class PlannedRun(Entry):
    """One run that a sweep makes, decided in full."""

    prepared: Run = field(compare=False)


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep, each once. folder: of all of them. left_out: reason -> number of runs."""

    folder: Path
    runs: Sequence[PlannedRun]
    left_out: Mapping[str, int]

    @property
    def arms(self) -> dict[str, list[PlannedRun]]:
        """Return the runs by arm, in the order of the words."""
        found: dict[str, list[PlannedRun]] = {}
        for run in self.runs:
            found.setdefault(arm_name(run.arm), []).append(run)
        return found


def balanced(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Order runs so that a slow drift of the machine falls on all arms alike, and a sweep cut short is balanced.

    Seeds are outermost. Within one the arms come at random, the same at each start, and with the next seed in reverse:
    where a machine grows steadily slower, random orders alone would give one of seven paired intervals of three seeds
    that exclude 0.
    """
    places = {seed: place for place, seed in enumerate(dict.fromkeys(run.seed for run in runs))}

    def position(run: PlannedRun) -> tuple[int, int]:
        pair, second = divmod(places[run.seed], 2)
        drawn = int(fingerprint({"arm": {**run.arm}, "pair": pair}), 16)
        return places[run.seed], -drawn if second else drawn

    return sorted(runs, key=position)


def stacked(runs: Iterable[PlannedRun], size: int) -> list[Sequence[PlannedRun]]:
    """Return runs in stacks of at most so many that differ in their seed alone, in the order of their first ones."""
    found, counts = dict[tuple[str, int, int], list[PlannedRun]](), Counter[tuple[str, int]]()
    for run in runs:
        key = arm_name(run.arm), run.steps
        found.setdefault((*key, counts[key] // size), []).append(run)
        counts[key] += 1
    return [*found.values()]


@dataclass
class Planner:
    """Plans grids; data that several runs share are loaded once.

    jobs, threads, devices, quiet: what the words ask for, or the first run's configuration, or our own defaults. stack:
    how many seeds of an arm are one model.
    """

    launcher: Launcher
    jobs: int
    threads: int = 0
    devices: Sequence[str] = ()
    quiet: bool = False
    stack: int = 1
    loaded: dict[tuple[str, int], Data] = field(default_factory=dict)

    def plan(self, points: Sequence[Point], excluded: Mapping[str, int] | None = None) -> SweepPlan:
        """Decide every run of a grid. excluded: reasons for which points are left out already.

        Raises:
            UsageError: a mistake in the words, or no run is left.
        """
        runs, left_out = dict[str, PlannedRun](), Counter(excluded)
        for point, config in zip(points, compose.read_each([point.words for point in points]), strict=True):
            if not self.threads:
                self.share_out(config.tree)
            try:
                run = self.prepare(replace(config, varied=(*point.varied, *point.follows)))
            except CombinationRefused as refusal:
                left_out[str(refusal)] += 1
                continue
            name, arm = run.directory.path.name, {key: point.varied[key] for key in point.varied if key != "seed"}
            runs.setdefault(name, PlannedRun(name, arm, config.tree["seed"], run.steps, run.command[1:], run))
        if not runs:
            reasons = "; ".join(left_out) or "what varies stands for no value"
            raise UsageError(f"the grid is empty: none of its {left_out.total()} runs is left ({reasons})")
        (folder,) = {run.prepared.directory.path.parent for run in runs.values()}
        return SweepPlan(folder, list(runs.values()), left_out)

    def share_out(self, tree: Tree) -> None:
        """Take from a run what all have in common, and decide what each gets of the machine.

        A run has a GPU for itself, or a core, unless more runs at a time are asked for.
        """
        self.quiet, device, elsewhere = tree["quiet"], tree["device"], self.launcher.elsewhere
        if elsewhere and device == "auto":
            raise UsageError("device=auto is not known before a cluster has chosen the machine: use device=cpu or cuda")
        device = device if elsewhere else str(resolve_device(device))
        several = torch.cuda.device_count() if device == "cuda" and not elsewhere else 0
        self.devices = [f"cuda:{number}" for number in range(several)] or [device]
        gpus = 0 if elsewhere or device == "cpu" else len(self.devices)
        self.jobs, self.threads = self.launcher.share(self.jobs, tree["threads"], gpus)

    def prepare(self, config: compose.Config) -> Run:
        """Decide one run.

        Raises:
            CombinationRefused: its parts do not go together.
            UsageError: any other mistake.
        """
        if config.closed.trainer.compile == "graph" and isinstance(self.launcher, Here):
            why = "a recording that fails spoils torch for the runs behind it in the same process"
            raise UsageError(f"trainer.compile=graph does not go with launcher=local, since {why}: leave launcher out")
        settings: dict[str, Any] = {"quiet": True, "threads": config.closed.threads or self.threads}
        words = config.words if config.closed.threads else changed(config.words, {"threads": str(self.threads)})
        config = replace(config, tree=config.tree | settings, closed=replace(config.closed, **settings), words=words)
        return prepare(config, self.data(config.tree), torch.device(self.devices[0]), stack=self.stack)

    def data(self, tree: Tree) -> Data:
        """Return what a run learns, loaded once; a class of the user's own may draw it from the seed."""
        key = json.dumps(tree["data"], sort_keys=True), tree["seed"] if is_foreign(tree["data"]) else 0
        if key not in self.loaded:
            self.loaded[key] = make_data(tree, key[1])
        return self.loaded[key]
