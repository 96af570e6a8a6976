"""A run that is fully decided: what it is made of, and the directory that is its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normbench import assembly
from normbench.catalog import Choices
from normbench.config import UNHASHED_KEYS, TrainConfig, Tree, parse
from normbench.errors import UsageError
from normbench.rundir import RunDirectory, fingerprint
from normbench.training.checkpoint import is_whole
from normbench.training.schedules import Schedule
from normbench.types import Data, NormFacts


@dataclass(frozen=True)
class Plan:
    """A run that is fully decided; nothing has been written yet.

    parent: the finished run that this one extends.
    """

    config: TrainConfig
    tree: Tree
    choices: Choices
    facts: NormFacts
    device: torch.device
    data: Data
    schedule: Schedule
    steps: int
    directory: RunDirectory
    parent: RunDirectory | None


def make_plan(tree: Tree, choices: Choices, parent: RunDirectory | None) -> Plan:
    """Decide everything about a run, its directory's name included.

    Raises:
        UsageError: any mistake that shows before the model is built.
    """
    config = parse(tree)
    facts = assembly.check_combination(tree, choices.groups)
    device = assembly.resolve_device(config.device)
    prepare_torch(config, device)
    data: Data = assembly.factory(tree, "data")(seed=config.seed)
    steps = assembly.number_of_steps(tree, data)
    if parent is not None:
        check_extension(parent, steps)
    tree = with_steps(tree, steps)
    directory = directory_of(tree, choices, data, device.type, torch.get_num_threads(), parent)
    schedule: Schedule = assembly.factory(tree, "schedule")()
    return Plan(config, tree, choices, facts, device, data, schedule, steps, directory, parent)


def with_steps(tree: Tree, steps: int) -> Tree:
    """The tree of a run whose length in optimizer steps is decided."""
    return {**tree, "trainer": {**tree["trainer"], "steps": steps, "epochs": None}}


def directory_of(
    tree: Tree, choices: Choices, data: Data, device: str, threads: int, parent: RunDirectory | None = None
) -> RunDirectory:
    """The directory of a run: its name ends in a hash of whatever changes its numbers.

    Args:
        tree: with its number of steps, as `with_steps` gives it.
        device: its type, such as `cuda`.
    """
    content = {
        "config": without(tree, UNHASHED_KEYS),
        "data": data.fingerprint,
        "device": device,
        "threads": threads,
        "extends": parent.path.name if parent else None,
    }
    if code := assembly.own_code(tree):  # a class that its author has changed makes another run
        content["code"] = code
    name = "-".join([*choices.words, f"s{tree['seed']}", fingerprint(content)])
    return RunDirectory(Path(tree["outputs"]) / tree["name"] / name)


def prepare_torch(config: TrainConfig, device: torch.device) -> None:
    """Threads, full float32 in matrix products and convolutions or TF32, and on the CPU the same bits each time."""
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.set_float32_matmul_precision("high" if config.trainer.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = config.trainer.tf32
    torch.use_deterministic_algorithms(device.type == "cpu", warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it costs time for nothing


def without(tree: Tree, paths: tuple[str, ...], prefix: str = "") -> dict[str, Any]:
    """The tree less some dotted paths."""
    return {
        key: without(value, paths, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if f"{prefix}{key}" not in paths
    }


def check_extension(parent: RunDirectory, steps: int) -> None:
    """Refuse to extend what has not ended well, or to fewer steps."""
    summary = parent.ended()
    if summary is None or summary["status"] != "finished":
        raise UsageError(
            f"extend={parent.path} is not a finished run: start it again without extend to finish it first"
        )
    if not parent.checkpoint.exists():
        raise UsageError(f"extend={parent.path} has no checkpoint: it was made with trainer.keep_checkpoint=none")
    if not is_whole(parent.checkpoint):
        raise UsageError(f"extend={parent.path} has a damaged checkpoint.pt: make that run anew, with rerun=true")
    if steps <= summary["steps"]:
        raise UsageError(
            f"trainer.steps={steps} does not extend a run of {summary['steps']} steps: give a larger number"
        )
