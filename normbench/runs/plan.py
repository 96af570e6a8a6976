"""Decides a run in full from a checked configuration, the name of its directory included; nothing is written."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from normbench import build
from normbench.config.compose import Config
from normbench.config.recipe import Part
from normbench.config.refusals import DEVICE, EXTEND, LAUNCHER, PROCESSES, STACK
from normbench.config.rules import RULES
from normbench.config.schema import UNHASHED_KEYS, describe_unchecked
from normbench.errors import RunFailure, UsageError
from normbench.record.directory import RunDirectory, fingerprint
from normbench.runs.extension import check_extension, extend
from normbench.runs.finding import find_parent
from normbench.runs.identity import digest_weights, own_code
from normbench.settings import Tree, key_of, printable
from normbench.training.devices import resolve_device
from normbench.training.parallel import from_environment
from normbench.types import Data, Model, NormFacts


@dataclass(frozen=True)
class Run:
    """A run that is fully decided; nothing has been written yet. Another process that is sent it can make it.

    Attributes:
        config: with its length in steps.
        threads: of the CPU.
        parent: the finished run that this one extends.
        stack: how many seeds at the most are trained as one model with it.
        loaded: the data, where this process has read them already.
    """

    config: Config
    facts: NormFacts
    device: torch.device
    threads: int
    steps: int
    directory: RunDirectory
    parent: RunDirectory | None = None
    stack: int = 1
    loaded: Data | None = field(default=None, repr=False, compare=False)
    fingerprint: str = ""  # of the data

    @property
    def command(self) -> list[str]:
        """The words that make it: `train`'s, or those of a sweep with this seed alone."""
        if self.stack == 1:
            return ["train", *self.config.words]
        return ["sweep", *self.config.words, f"sweep.stack={self.stack}"]

    @cached_property
    def data(self) -> Data:
        """The data, which each process reads for itself."""
        if self.loaded is not None:
            return self.loaded
        return build.make_data(self.config.recipe, self.config.closed.seed).as_of(self.fingerprint)

    @property
    def sizes(self) -> str:
        """The settings that make its model smaller, in words."""
        model = self.config.recipe["model"]
        return str(getattr(model.made, "sizes", Model.sizes))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the data, which would have to be sent."""
        state = {**vars(self), "loaded": None}
        state.pop("data", None)
        return state


def prepare(
    config: Config,
    data: Data | None = None,
    device: torch.device | None = None,
    trust: bool = False,
    stack: int = 1,
    launcher: str = "",
) -> Run:
    """Decide everything about a run, the name of its directory included.

    Args:
        config: as `normbench.config.compose.read` gives it.
        data: of another run with the same section `data` and seed.
        device: of the machine that will make it, where that is not this one.
        trust: whether a run that is extended may have classes that are neither normbench's nor torch's.
        stack: how many seeds at the most are trained as one model with it.
        launcher: the one that starts it, in a sweep.

    Raises:
        UsageError: any mistake that shows before the model is built.
    """
    parent = None
    if config.tree["extend"] is not None:
        parent = RunDirectory(find_parent(config.tree["extend"]))
        config = extend(config, parent, trust)
    if device is None:
        device = from_environment().place(resolve_device(config.closed.device))
    making = {
        DEVICE: device.type,
        PROCESSES: from_environment().size,
        EXTEND: config.closed.extend,
        STACK: stack,
        LAUNCHER: launcher,
    }
    facts = check_without_data(config, making)
    if data is None:
        data = build.make_data(config.recipe, config.closed.seed)
    data = choose_arrangement(config, data, parent)
    for line in data.notes():
        say_once(line)
    other_classes = compare_classes(config.recipe["model"], data)
    if other_classes:
        say_once(f"warning: {other_classes}")
    config = fit_to_data(config, data, parent)
    return decide(config, facts, device, data, parent, stack)


def check_without_data(config: Config, making: Mapping[str, Any]) -> NormFacts:
    """Refuse what shows before the data are read; return the facts of the norms.

    Args:
        config: of the run.
        making: how it is made, as `build.check_parts` takes it.

    Raises:
        UsageError: a setting that does not fit.
    """
    facts = build.check_parts(config.recipe, making)
    for sentence in describe_unchecked(config.tree):
        say_once(f"warning: {sentence}")
    return facts


def choose_arrangement(config: Config, data: Data, parent: RunDirectory | None) -> Data:
    """Return the data as the run that is extended had them, or as those in the folder of the run.

    Earlier versions of normbench may have numbered the classes and divided the rows otherwise. Runs that are compared
    learn the same, so a folder in which runs began with that goes on with it.
    """
    if not data.earlier:
        return data
    if parent is not None:
        return data.as_of(fingerprint_of_data(parent))
    folder = Path(config.tree["outputs"]) / config.tree["name"]
    for path in sorted(folder.glob("*")):
        noted = fingerprint_of_data(RunDirectory(path))
        if noted == data.fingerprint:
            return data
        if noted == data.earlier:
            what = "were begun with the classes in another order, or with equal rows on both sides of a split"
            say_once(
                f"note: runs in {folder} {what}; this one goes on with these data, and another name= with new ones"
            )
            return data.as_of(noted)
    return data


def fingerprint_of_data(run: RunDirectory) -> str:
    """Return the fingerprint of the data that a run last had; empty where its record has none."""
    with suppress(LookupError, TypeError):
        return str(run.sessions()[-1]["data"]["fingerprint"])
    return ""


def fit_to_data(config: Config, data: Data, parent: RunDirectory | None) -> Config:
    """Return a configuration with its length in steps.

    Raises:
        UsageError: a setting that does not fit the data, or the run that it extends.
    """
    if RULES in config.tree:
        check_rules(config, build.lay_out(config.recipe, data.task))
    steps = length_in_steps(config, data)
    if parent is not None:
        check_extension(parent, steps, data)
    trainer = {**config.tree["trainer"], "steps": steps, "epochs": None}
    return replace(config, tree={**config.tree, "trainer": trainer})


def decide(
    config: Config, facts: NormFacts, device: torch.device, data: Data, parent: RunDirectory | None, stack: int
) -> Run:
    """Return the run of a checked configuration, with its threads and its directory."""
    threads = config.closed.threads or torch.get_num_threads()
    directory = directory_of(config, data, device, threads, parent, stack)
    steps = config.tree["trainer"]["steps"]
    return Run(config, facts, device, threads, steps, directory, parent, stack, data, data.fingerprint)


def length_in_steps(config: Config, data: Data) -> int:
    """Return how many steps a run has.

    Raises:
        UsageError: it is given in epochs, of data that have no end.
    """
    trainer = config.closed.trainer
    if trainer.steps:
        return trainer.steps
    if not data.steps_per_epoch:
        raise UsageError("a stream has no length that trainer.epochs could be of: set trainer.steps=1000 or the like")
    batches = (trainer.epochs or 0) * data.steps_per_epoch
    return max(1, math.ceil(batches / trainer.accumulate))


@cache
def say_once(line: str) -> None:
    """Tell the person something, once for all runs of a sweep; of several processes the first one speaks."""
    if from_environment().writes:
        logging.getLogger("normbench").info("%s", line)


def compare_classes(model: Part, data: Data) -> str:
    """Say where the outputs of given weights stand for other classes than the data's; empty where that is not so."""
    classes = list(getattr(data, "classes", ()))
    noted = model.made.classes_noted(model.settings) if classes else None
    if noted is None or noted == classes or len(noted) != len(classes):  # of others the output layer starts anew
        return ""
    place = next(number for number, name in enumerate(classes) if name != noted[number])
    weights = f"model.weights={model.settings['weights']}"
    how = "the classes of the data in another order" if sorted(noted) == sorted(classes) else "other classes"
    what = f"{weights} was trained on {how}: its output {place} stood for {printable(noted[place]):.80}"
    return f"{what}, and here it stands for {printable(classes[place]):.80}, so it is wrong until it is trained again"


# ---- what is refused


def check_rules(config: Config, made: build.Assembled) -> None:
    """Refuse a rule that the person has given and that holds nowhere, since others win at all of its places.

    One that fits no place is refused as the model is made. A scheme's may give way to the person's own words.

    Raises:
        UsageError: with a rule that wins.
    """
    given = {key_of(word).removesuffix("._target_") for word in config.words}
    chosen = {"norm": made.norm_parts, "placement": made.placement_parts, "weights": made.weight_parts}
    for rule in config.recipe.all_rules:
        winners = []
        for site, part in chosen[rule.group].items():
            if part and rule.fits(site):
                winners.append(part.section)
        if rule.key in given and winners and rule.key not in winners:
            what = f"{rule.key} holds nowhere, since {winners[0]} wins at its places"
            raise UsageError(f"{what}: leave it out, or give it later or with more words")


def check_unchanged(run: Run) -> None:
    """Refuse a run whose numbers would be others here than where it was decided.

    Raises:
        RunFailure: its device, threads, data or own class differ.
    """
    here = directory_of(run.config, run.data, run.device, run.threads, run.parent, run.stack)
    if here.path != run.directory.path:
        what = f"it would be another run here ({here.path.name}; on {run.device}, {run.threads} threads)"
        raise RunFailure(f"{what}: the device, the threads, the data or the code of an own class are not as planned")


# ---- its directory


def directory_of(
    config: Config, data: Data, device: torch.device, threads: int, parent: RunDirectory | None, stack: int
) -> RunDirectory:
    """Return the directory of a run: its name ends in a hash of whatever changes its numbers."""
    tree = config.tree
    content = {
        "config": without(tree, UNHASHED_KEYS),
        "data": data.fingerprint,
        "device": device.type,
        "threads": threads,
        "extends": parent.path.name if parent else None,
    }
    code = own_code(config.recipe)
    if RULES in tree:
        content["rules"] = list(tree[RULES])  # whose order plays a part
    if code:  # a class that its author has changed makes another run
        content["code"] = code
    weights = digest_weights(config.recipe["model"])
    if weights:
        content["weights"] = weights
    if stack > 1:
        content["stack"] = stack
    words = [*config.choices.words, f"s{tree['seed']}", fingerprint(content)]
    name = "-".join(words)
    return RunDirectory(Path(tree["outputs"]) / tree["name"] / name)


def same_elsewhere(runs: Iterable[Run]) -> str | None:
    """Say which runs that have ended differ from new ones in threads, device or stack only."""
    wanted: dict[str, Run] = {}
    patterns: set[tuple[Path, str]] = set()
    for run in runs:
        path = run.directory.path
        if not run.directory.config.exists():
            content = fingerprint(settings_in(run.config.tree))
            wanted[content] = run
            words = path.name.rpartition("-")[0]
            patterns.add((path.parent, f"{words}-????????"))
    candidates: list[Path] = []
    for folder, pattern in patterns:
        candidates += folder.glob(pattern)
    sentences: list[str] = []
    for path in sorted(candidates):
        ended = RunDirectory(path)
        if not ended.read_result():
            continue
        content = fingerprint(settings_in(ended.configuration()))
        difference = difference_of(wanted[content], ended) if content in wanted else ""
        if difference:
            del wanted[content]
            sentences.append(f"{path} is this run with {difference}, which shows it; here it is made again")
    if len(sentences) > 1:
        return f"{sentences[0]}; and so for {len(sentences) - 1:,} more"
    return sentences[0] if sentences else None


def settings_in(tree: Tree) -> dict[str, Any]:
    """Return all of a configuration that changes a run's numbers, with the order of its rules."""
    return {"config": without(tree, UNHASHED_KEYS), "rules": list(tree.get(RULES, {}))}


def difference_of(run: Run, ended: RunDirectory) -> str:
    """Return which threads, device or stack an ended run has that are not this run's, as `threads=2 device=cuda`."""
    sessions = ended.sessions()
    if not sessions:
        return ""
    last = {"stack": 1, **sessions[-1]}
    planned = {"threads": run.threads, "device": run.device.type, "stack": run.stack}
    differing: list[str] = []
    for key, value in planned.items():
        before = str(last.get(key)).partition(":")[0]
        if before != str(value):
            differing.append(f"{key}={before}")
    return " ".join(differing)


def without(tree: Tree, paths: tuple[str, ...], prefix: str = "") -> dict[str, Any]:
    """Return the tree less some dotted paths."""
    left: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if path in paths:
            continue
        left[key] = without(value, paths, f"{path}.") if isinstance(value, Mapping) else value
    return left
