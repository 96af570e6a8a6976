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
from hydra.core.override_parser.types import Override

from normbench.build import make_data
from normbench.config import compose
from normbench.config.groups import SEARCH_PATH
from normbench.config.recipe import Recipe
from normbench.config.rules import is_rule
from normbench.config.schema import is_foreign
from normbench.errors import CombinationRefused, UsageError
from normbench.record.directory import fingerprint
from normbench.runs.plan import Run, prepare
from normbench.settings import Tree, drop_keys, key_of, show
from normbench.sweep.folder import Entry, arm_name
from normbench.sweep.launchers import Here, Launcher
from normbench.sweep.words import AS_IT_IS, EXCLUDE, REPEATED, TIE, is_own, read_settings, settings_in
from normbench.training.devices import resolve_device
from normbench.types import Data

# The folder of a sweep that neither the words nor an experiment name, and that of `train`.
SWEEP_NAME = "sweep"
TRAIN_NAME = "train"

MOST_RUNS = 100_000

# What all runs of a sweep have in common.
COMMON = ("name", "outputs", "device", "threads", "quiet", "rerun", "extend", "experiment", "logger")

# Where an exclusion goes on to another setting; other commas are in a list.
NEXT_SETTING = re.compile(r",\s*(?=[\w./@]+=)")


@dataclass(frozen=True)
class Point:
    """The words of one run, and which settings vary.

    Attributes:
        follows: settings that differ because these do.
    """

    words: tuple[str, ...]
    varied: Mapping[str, str]
    follows: tuple[str, ...] = ()


def replace_settings(words: Sequence[str], settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return words with some settings replaced or added."""
    kept = [word for word in words if key_of(word) not in settings]
    new = [f"{key}={value}" for key, value in settings.items()]
    return (*kept, *new)


@compose.translate_errors()
def read_grid(words: Sequence[str]) -> tuple[list[Point], list[str]]:
    """Return the points that words ask for, and the words that are the sweep's own.

    The command line's words win over an experiment's `hydra.sweeper.params`.

    Raises:
        UsageError: a mistake in the words, or several values for what all runs share.
    """
    name: str = TRAIN_NAME
    params: dict[str, Any] = {}
    # An experiment is composed without the other words: what they set may belong to an option that varies.
    experiment = [word for word in words if key_of(word) in ("experiment", SEARCH_PATH)]
    if experiment:
        name, params = compose.read_experiment(experiment)

    given: list[str] = []
    for key, value in params.items():
        given += write_words(key, value)
    given += compose.write_out(words)

    sweep_words: list[str] = []
    others = {"name": f"name={SWEEP_NAME}"} if name == TRAIN_NAME else {}
    for word in given:
        if is_own(word):
            sweep_words.append(word)
        else:
            others[key_of(word)] = word

    settings, _ = read_settings(sweep_words)
    ties = settings.tie or []
    check_ties(ties, others)
    with compose.start_hydra():
        points = combine(list(others.values()), ties)
    return points, sweep_words


def write_words(key: str, value: Any) -> list[str]:
    """Return the words for a setting of an experiment, which may hold Hydra's grammar; a list is several values."""
    values = value if isinstance(value, list) else [value]
    if key in REPEATED:
        return [f"{key}={item}" for item in values]
    several = ",".join(map(show, values))
    return [f"{key}={several}"]


def combine(words: Sequence[str], ties: Sequence[str]) -> list[Point]:
    """Return all combinations of what varies, in the order of the words, then of the ties, the last one changing first.

    A point does without a setting whose value is `default`.

    Raises:
        UsageError: what varies is what all runs share, a tie has unlike numbers of values, or there are too many runs.
    """
    axes: list[list[dict[str, str]]] = []
    fixed: list[str] = []
    for word in words:
        parsed = compose.parse(word)
        if parsed.is_sweep_override():
            axes.append(read_axis([word]))
        else:
            fixed.append(compose.text(parsed))
    for tie in ties:
        axes.append(read_axis(tie.split(";")))
    if math.prod(map(len, axes)) > MOST_RUNS:
        keys_of_axes = [" and ".join(axis[0]) for axis in axes]
        keys = " × ".join(keys_of_axes)
        raise UsageError(f"a sweep over {keys} has more than {MOST_RUNS:,} runs, which is the most: give fewer values")

    points: list[Point] = []
    for combination in itertools.product(*axes):
        varied: dict[str, str] = {}
        for settings in combination:
            for key, value in settings.items():
                if value != AS_IT_IS:
                    varied[key] = value
        chosen = [f"{key}={value}" for key, value in varied.items()]
        points.append(Point(keep_order_of_rules((*chosen, *fixed), words), varied))
    return points


def keep_order_of_rules(words: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return words with rules such as `norm@qk=rmsnorm` last, in the order in which they were given."""
    order = list(map(key_of, given))

    def place(rule: str) -> int:
        """Return where a rule was given; one that was not comes last."""
        key = key_of(rule)
        return order.index(key) if key in order else len(order)

    rules, others = [], []
    for word in words:
        if is_rule(key_of(word)):
            rules.append(word)
        else:
            others.append(word)
    return (*others, *sorted(rules, key=place))


def check_ties(ties: Iterable[str], others: Iterable[str]) -> None:
    """Refuse a tie of fewer than two settings, with a single value, or with a key that is given elsewhere too.

    Args:
        others: the keys of the words that are not ties.

    Raises:
        UsageError: with the reason.
    """
    taken = set(others)
    for tie in ties:
        words = tie.split(";")
        all_vary = all(compose.parse(word).is_sweep_override() for word in words)
        if len(words) < 2 or not all_vary:
            example = f"{TIE}='data.batch_size=2,8;optim.lr=0.025,0.1'"
            raise UsageError(f"{TIE}={tie} is not two settings or more with several values: write it as {example}")
        for key in map(key_of, words):
            if key in taken:
                raise UsageError(f"{key} is given beside {TIE}={tie}, which sets it: leave it out there or here")
            taken.add(key)


def read_axis(words: Sequence[str]) -> list[dict[str, str]]:
    """Return the values of a setting that varies, or of several that vary together, one after the other.

    Raises:
        UsageError: all runs share it, or the settings have unlike numbers of values.
    """
    values_by_key: dict[str, list[str]] = {}
    for word in words:
        key = key_of(word)
        if key in COMMON:
            raise UsageError(f"{word} cannot vary within a sweep: give {key} one value, or start a sweep for each")
        parsed = compose.parse(word)
        if parsed.is_interval_sweep():
            raise UsageError(f"{word} is not a list of values: give {key} some, as in {key}=1,2")
        values_by_key[key] = read_values(word, parsed)
    lengths = set(map(len, values_by_key.values()))
    if len(lengths) > 1:
        counts = []
        for key, values in values_by_key.items():
            counts.append(f"{len(values)} of {key}")
        what = f"{TIE}={';'.join(words)} has {', '.join(counts)}"
        raise UsageError(f"{what}: give each key the same number of values")
    axis: list[dict[str, str]] = []
    for together in zip(*values_by_key.values(), strict=True):
        settings = [f"{key}={value}" for key, value in zip(values_by_key, together, strict=True)]
        axis.append(settings_in(compose.write_out(settings)))
    every_key = {key: AS_IT_IS for settings in axis for key in settings}  # mappings may have different ones
    return [every_key | settings for settings in axis]


def read_values(word: str, parsed: Override) -> list[str]:
    """Return the values that a word gives its key, as many as a sweep may have and one more.

    Raises:
        UsageError: a range begins or ends at something that is not a number.
    """
    loader = GlobalHydra.instance().config_loader()  # it knows what glob() stands for
    values = replace(parsed, config_loader=loader).sweep_string_iterator()
    try:
        return list(itertools.islice(values, MOST_RUNS + 1))
    except (ArithmeticError, ValueError) as error:
        cure = f"give numbers, as in {key_of(word)}=range(0,5)"
        raise UsageError(f"{word} has no values that can be counted: {cure}") from error


def exclude(points: Iterable[Point], exclusions: Iterable[str]) -> tuple[list[Point], Counter[str]]:
    """Leave out the points whose words have all settings of an exclusion, such as `norm=dyt,seed=1`.

    Return the points that are kept, and how many each exclusion leaves out.

    Raises:
        UsageError: an exclusion is something else, or fits no point.
    """
    kept = list(points)
    left_out = Counter[str]()
    for given in exclusions:
        reason = f"{EXCLUDE}={given}"
        settings = parse_settings(NEXT_SETTING.split(given))
        for value in settings.values():
            several = "," in str(value) and not isinstance(value, list)
            if value == "" or several:
                example = f"{EXCLUDE}='norm=batchnorm,placement=parallel', and {EXCLUDE}= again for more"
                raise UsageError(f"{reason} is not KEY=VALUE, each with one value: write it as {example}")
        others: list[Point] = []
        for point in kept:
            settings_of_point = parse_settings(point.words)
            has_all = settings.items() <= settings_of_point.items()
            if not has_all:
                others.append(point)
        if len(others) == len(kept):
            raise UsageError(f"{reason} leaves out none of the runs that the words give: check its keys and values")
        left_out[reason] = len(kept) - len(others)
        kept = others
    return kept, left_out


def parse_settings(words: Iterable[str]) -> dict[str, Any]:
    """Return what words set, by key, as Hydra reads it: `1e-3` is `0.001`."""
    settings = {}
    for key, text in settings_in(words).items():
        settings[key.strip()] = compose.value_of(text.strip())
    return settings


# ---- runs that are decided in full


@dataclass(frozen=True)
class PlannedRun(Entry):
    """One run that a sweep makes, decided in full."""

    prepared: Run = field(compare=False)


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep, each once.

    Attributes:
        folder: the one that all of them are in.
        left_out: how many runs are left out, by the reason.
    """

    folder: Path
    runs: Sequence[PlannedRun]
    left_out: Mapping[str, int]

    @property
    def arms(self) -> dict[str, list[PlannedRun]]:
        """Return the runs by arm, in the order of the words."""
        arms: dict[str, list[PlannedRun]] = {}
        for run in self.runs:
            arms.setdefault(arm_name(run.arm), []).append(run)
        return arms


def balance(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Order runs so that a slow drift of the machine falls on all arms alike, and a sweep cut short is balanced.

    Seeds are outermost. Within a seed the arms come in a random order, the same at each start, and within the next seed
    in its reverse. With random orders alone, on a machine that grows steadily slower, one in seven paired intervals
    over three seeds would exclude 0.
    """
    seed_numbers: dict[int, int] = {}
    for run in runs:
        seed_numbers.setdefault(run.seed, len(seed_numbers))

    def position(run: PlannedRun) -> tuple[int, int]:
        seed_number = seed_numbers[run.seed]
        pair, is_second = divmod(seed_number, 2)
        drawn = int(fingerprint({"arm": {**run.arm}, "pair": pair}), 16)
        return seed_number, -drawn if is_second else drawn

    return sorted(runs, key=position)


def make_stacks(runs: Iterable[PlannedRun], size: int) -> list[Sequence[PlannedRun]]:
    """Return runs in stacks of at most `size` that differ in their seed alone, in the order of their first ones.

    Runs of one arm may differ in more: in the learning rate, where one was chosen for each seed.
    """
    stacks: list[Sequence[PlannedRun]] = []
    unfilled: dict[tuple[str, int], list[PlannedRun]] = {}  # the last stack of each kind and length
    for run in runs:
        kind = fingerprint(drop_keys(run.prepared.config.tree, "seed")), run.steps
        stack = unfilled.get(kind)
        if stack is None or len(stack) == size:
            stack = []
            unfilled[kind] = stack
            stacks.append(stack)
        stack.append(run)
    return stacks


@dataclass
class Planner:
    """Plans grids; data that several runs share are loaded once.

    Attributes:
        jobs, threads, devices, quiet: what the words ask for, or the first run's configuration, or our own defaults.
        stack: how many seeds of an arm are one model.
        loaded: the data, by their section of the configuration and their seed.
    """

    launcher: Launcher
    jobs: int
    threads: int = 0
    devices: Sequence[str] = ()
    quiet: bool = False
    stack: int = 1
    loaded: dict[tuple[str, int], Data] = field(default_factory=dict)

    def plan(self, points: Sequence[Point], excluded: Mapping[str, int] | None = None) -> SweepPlan:
        """Decide every run of a grid.

        Args:
            excluded: how many points are left out already, by the reason.

        Raises:
            UsageError: a mistake in the words, or no run is left.
        """
        runs: dict[Path, PlannedRun] = {}
        left_out = Counter(excluded)
        again: list[Point] = []  # those whose run another point is already
        configs = compose.read_each([point.words for point in points])
        for point, config in zip(points, configs, strict=True):
            if not self.threads:
                self.allot_machine(config.tree)
            try:
                run = self.prepare(replace(config, varied=(*point.varied, *point.follows)))
            except CombinationRefused as refusal:
                left_out[str(refusal)] += 1
                continue
            path = run.directory.path
            if path in runs:
                again.append(point)
            else:
                arm = drop_keys(point.varied, "seed")
                words = run.command[1:]
                runs[path] = PlannedRun(path.name, arm, config.tree["seed"], run.steps, words, prepared=run)
        if not runs:
            reasons = "; ".join(left_out) or "what varies stands for no value"
            raise UsageError(f"the grid is empty: none of its {left_out.total()} runs is left ({reasons})")
        if again:
            settings = " ".join(f"{key}={value}" for key, value in again[0].varied.items())
            left_out[f"the words give the run of {settings} more than once"] = len(again)
        first = next(iter(runs))
        return SweepPlan(first.parent, list(runs.values()), left_out)

    def allot_machine(self, tree: Tree) -> None:
        """Take from a run what all have in common, and decide what each gets of the machine.

        A run has a GPU for itself, or a core, unless more runs at a time are asked for.
        """
        self.quiet = tree["quiet"]
        device = tree["device"]
        gpus = 0
        if self.launcher.elsewhere:
            if device == "auto":
                cure = "use device=cpu or cuda"
                raise UsageError(f"device=auto is not known before a cluster has chosen the machine: {cure}")
            self.devices = [device]
        else:
            device = str(resolve_device(device))
            self.devices = [device]
            if device == "cuda" and torch.cuda.device_count():
                count = torch.cuda.device_count()
                self.devices = [f"cuda:{number}" for number in range(count)]
            if device != "cpu":
                gpus = len(self.devices)
        self.jobs, self.threads = self.launcher.allot(self.jobs, tree["threads"], gpus)

    def prepare(self, config: compose.Config) -> Run:
        """Decide one run.

        Raises:
            CombinationRefused: its parts do not go together.
            UsageError: any other mistake.
        """
        threads = config.closed.threads
        words = config.words
        if not threads:
            threads = self.threads
            words = replace_settings(words, {"threads": str(threads)})
        tree = {**config.tree, "quiet": True, "threads": threads}
        closed = replace(config.closed, quiet=True, threads=threads)
        config = replace(config, tree=tree, closed=closed, words=words)
        device = torch.device(self.devices[0])
        launcher = "local" if isinstance(self.launcher, Here) else ""
        return prepare(config, self.data(tree), device, stack=self.stack, launcher=launcher)

    def data(self, tree: Tree) -> Data:
        """Return what a run learns, loaded once; a class of the user's own may draw it from the seed."""
        seed = tree["seed"] if is_foreign(tree["data"]) else 0
        key = json.dumps(tree["data"], sort_keys=True), seed
        if key not in self.loaded:
            self.loaded[key] = make_data(Recipe(tree), seed)
        return self.loaded[key]
