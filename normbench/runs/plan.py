"""Decides a run in full from a checked configuration, the name of its directory included; nothing is written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from normbench import build
from normbench.config.compose import SEARCH_PATH, Config
from normbench.config.groups import Choices
from normbench.config.schema import UNHASHED_KEYS, checked, stored
from normbench.config.sections import CLASS_SECTIONS, MANY
from normbench.config.trust import check_trusted
from normbench.errors import RunFailure, UsageError
from normbench.record.directory import RunDirectory, fingerprint
from normbench.settings import Tree, lookup
from normbench.training.checkpoint import is_whole
from normbench.training.optimizer import may_fuse
from normbench.training.parallel import from_environment
from normbench.types import Data, NormFacts

# What may be changed of a run that is extended; everything else is its parent's.
EXTENSION_KEYS = ("extend", "trainer", "name", "outputs", "quiet", "rerun", "device", MANY)
# ... and what of the trainer may not: a checkpoint has what belongs to it.
FIXED_KEYS = ("trainer", "trainer.precision", "trainer.accumulate", "trainer.ema")


@dataclass(frozen=True)
class Run:
    """A run that is fully decided; nothing has been written yet. Another process that is sent it can make it.

    config: with its length in steps. threads: of the CPU. parent: the finished run that this one extends. stack: how
    many seeds at the most are trained as one model with it.
    """

    config: Config
    facts: NormFacts
    device: torch.device
    threads: int
    steps: int
    directory: RunDirectory
    parent: RunDirectory | None = None
    stack: int = 1

    @property
    def command(self) -> list[str]:
        """The words that make it: `train`'s, or those of a sweep with this seed alone."""
        words = self.config.words
        return ["train", *words] if self.stack == 1 else ["sweep", *words, f"sweep.stack={self.stack}"]

    @cached_property
    def data(self) -> Data:
        """The data, which each process reads for itself."""
        return build.make_data(self.config.tree, self.config.closed.seed)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "data"}


def prepare(
    config: Config, data: Data | None = None, device: torch.device | None = None, trust: bool = False, stack: int = 1
) -> Run:
    """Decide everything about a run, the name of its directory included.

    Args:
        config: as `normbench.config.compose.read` gives it.
        data: of another run with the same section `data` and seed.
        device: of the machine that will make it, where that is not this one.
        trust: whether a run that is extended may have classes that are neither normbench's nor torch's.
        stack: how many seeds at the most are trained as one model with it.

    Raises:
        UsageError: any mistake that shows before the model is built.
    """
    parent = None
    if config.tree["extend"] is not None:
        parent = RunDirectory(Path(config.tree["extend"]))
        config = extended(config, parent, trust)
    for section in CLASS_SECTIONS:
        build.target(config.tree, section)
    build.loggers(config.tree)
    facts = build.check_combination(config.tree, config.choices.groups)
    device = device or from_environment().place(build.resolve_device(config.closed.device))
    trainer = config.closed.trainer
    replays = trainer.compile in ("cudagraphs", "graph")
    if replays:
        check_replays(config, device)
    data = data or build.make_data(config.tree, config.closed.seed)
    if replays and data.pads:  # a graph is captured anew for each length
        why = "replays steps of one shape, and these data have batches of many lengths"
        raise UsageError(f"trainer.compile={trainer.compile} {why}: use true or false")
    if not (trainer.steps or data.steps_per_epoch):
        raise UsageError("a stream has no length that trainer.epochs could be of: set trainer.steps=1000 or the like")
    steps = trainer.steps or max(1, math.ceil((trainer.epochs or 0) * data.steps_per_epoch / trainer.accumulate))
    if parent is not None:
        check_extension(parent, steps, data)
    tree = {**config.tree, "trainer": {**config.tree["trainer"], "steps": steps, "epochs": None}}
    threads = config.closed.threads or torch.get_num_threads()
    if stack > 1:
        check_stackable(config, data, stack)
    directory = directory_of(tree, config.choices, data, device, threads, parent, stack)
    run = Run(replace(config, tree=tree), facts, device, threads, steps, directory, parent, stack)
    vars(run)["data"] = data
    return run


def check_replays(config: Config, device: torch.device) -> None:
    """Refuse to replay CUDA graphs where that cannot be done.

    Raises:
        UsageError: with the reason.
    """
    trainer = config.closed.trainer
    how = f"trainer.compile={trainer.compile}"
    if device.type != "cuda":
        raise UsageError(f"{how} needs a CUDA GPU, and the run is on {device}: use true or false")
    given = {"trainer.accumulate above 1": trainer.accumulate > 1}  # a replay would overwrite the gradients before it
    if trainer.compile == "graph":
        settings = config.tree["optim"]
        fused = settings.get("fused") or may_fuse(build.factory(config.tree, "optim"))
        given |= {
            "several processes": from_environment().size > 1,  # whose collectives would be recorded
            "trainer.precision=fp16": trainer.precision == "fp16",  # whose scale is decided on the host
            # others keep numbers on the host, which a replay does not see
            f"optim._target_={settings['_target_']}, which is not fused": not fused,
        }
    if refused := next(filter(given.get, given), None):
        raise UsageError(f"{how} does not go with {refused}: use true or false")


def directory_of(
    tree: Tree,
    choices: Choices,
    data: Data,
    device: torch.device,
    threads: int,
    parent: RunDirectory | None,
    stack: int,
) -> RunDirectory:
    """Return the directory of a run: its name ends in a hash of whatever changes its numbers."""
    content = {
        "config": without(tree, UNHASHED_KEYS),
        "data": data.fingerprint,
        "device": device.type,
        "threads": threads,
        "extends": parent.path.name if parent else None,
    }
    if code := build.own_code(tree):  # a class that its author has changed makes another run
        content["code"] = code
    if stack > 1:
        content["stack"] = stack
    name = "-".join([*choices.words, f"s{tree['seed']}", fingerprint(content)])
    return RunDirectory(Path(tree["outputs"]) / tree["name"] / name)


def check_stackable(config: Config, data: Data, stack: int) -> None:
    """Refuse to train a run's seeds as one model where something needs each by itself.

    Raises:
        UsageError: with the reason.
    """
    trainer, names, impl = config.closed.trainer, config.choices.groups, config.tree["norm"].get("impl")
    given = {
        f"norm.impl={impl}": impl in ("compile", "liger"),  # which torch.func cannot look into
        f"trainer.compile={trainer.compile}".lower(): trainer.compile, "trainer.recompute=true": trainer.recompute,
        "trainer.shard=true": trainer.shard, "trainer.precision=fp16": trainer.precision == "fp16",
        "extend": config.closed.extend, f"data={names['data']}, whose batches have lengths of their own,": data.pads,
    }  # fmt: skip
    if refused := next(filter(given.get, given), None):
        why = "trains seeds as one model, of which each step is the same computation for all"
        raise UsageError(f"{refused} does not go with sweep.stack={stack}, which {why}: leave out one of the two")


def same_elsewhere(runs: Iterable[Run]) -> str | None:
    """Say which runs that have ended differ from new ones in threads, device or stack only."""
    new = [run for run in runs if not run.directory.config.exists()]
    wanted = {fingerprint(without(run.config.tree, UNHASHED_KEYS)): run for run in new}
    paths = [run.directory.path for run in new]
    patterns = {(path.parent, f"{path.name.rpartition('-')[0]}-????????") for path in paths}
    found = list[str]()
    for there in map(RunDirectory, sorted(path for folder, pattern in patterns for path in folder.glob(pattern))):
        content = fingerprint(without(there.configuration(), UNHASHED_KEYS)) if there.ended() else ""
        if run := wanted.get(content):
            here = {"threads": run.threads, "device": run.device.type, "stack": run.stack}
            last = [{"stack": 1, **each} for each in there.sessions()[-1:]]
            known = {key: str(each.get(key)).partition(":")[0] for each in last for key in here}
            if other := [f"{key}={known[key]}" for key in known if known[key] != str(here[key])]:
                del wanted[content]
                found.append(f"{there.path} is this run with {' '.join(other)}, which shows it; here it is made again")
    return f"{found[0]}{f'; and so for {len(found) - 1:,} more' * (len(found) > 1)}" if found else None


def without(tree: Tree, paths: tuple[str, ...], prefix: str = "") -> dict[str, Any]:
    """Return the tree less some dotted paths."""
    return {
        key: without(value, paths, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if f"{prefix}{key}" not in paths
    }


def check_unchanged(run: Run) -> None:
    """Refuse a run whose numbers would be others here than where it was decided.

    Raises:
        RunFailure: its device, threads, data or own class differ.
    """
    here = directory_of(run.config.tree, run.config.choices, run.data, run.device, run.threads, run.parent, run.stack)
    if here.path != run.directory.path:
        what = f"it would be another run here ({here.path.name}; on {run.device}, {run.threads} threads)"
        raise RunFailure(f"{what}: the device, the threads, the data or the code of an own class are not as planned")


# ---- a run that extends another


def extended(config: Config, parent: RunDirectory, trust: bool) -> Config:
    """Return the parent's configuration with what an extension may change, and the parent's choices.

    Raises:
        UsageError: there is no such run, or something else was set.
    """
    summary = parent.ended()
    if summary is None or summary["status"] != "finished":
        raise UsageError(f"extend={parent.path} is not the directory of a finished run: give one under outputs/")
    if not (tree := parent.configuration()):
        raise UsageError(f"{parent.config} is damaged: make that run again with rerun=true")
    if not trust:
        check_trusted(tree, parent.path)
    tree |= {key: config.tree[key] for key in ("rerun", "quiet", MANY)}  # of this command, not of the parent's
    # hydra.searchpath says where the parent's classes may be
    for word in (word for word in config.words if not word.startswith(SEARCH_PATH)):
        path = word.lstrip("+~").partition("=")[0]
        section, _, key = path.rpartition(".")
        if path in FIXED_KEYS or path.partition(".")[0] not in EXTENSION_KEYS:
            why = "everything but trainer.* is the run's own, and of that precision, accumulate and ema"
            raise UsageError(f"{word} cannot be changed with extend=: leave it out, {why}")
        (lookup(tree, section) if section else tree)[key] = lookup(config.tree, path)
    if config.overridden("trainer.epochs") and not config.overridden("trainer.steps"):
        tree["trainer"]["steps"] = None
    words = parent.path.name.rsplit("-", 2)[0].split("-")
    with stored(parent.config):
        tree, closed = checked(tree)
    return Config(tree, closed, Choices(summary["choices"], tuple(words)), config.words)


def check_extension(parent: RunDirectory, steps: int, data: Data) -> None:
    """Refuse to extend without a checkpoint, on other data, or to fewer steps."""
    if not parent.checkpoint.exists() or not is_whole(parent.checkpoint):
        cure = "make that run again with rerun=true, and without trainer.keep_checkpoint=none"
        raise UsageError(f"extend={parent.path} has no checkpoint.pt, or a damaged one: {cure}")
    if any(each["data"]["fingerprint"] != data.fingerprint for each in parent.sessions()[-1:]):
        raise UsageError(f"extend={parent.path} was trained on other data than are there now: bring those back")
    if steps <= (done := (parent.ended() or {})["steps"]):
        raise UsageError(f"trainer.steps={steps} does not extend a run of {done} steps: give a larger number")
