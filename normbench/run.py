"""One run, wired together: from a resolved configuration to a run directory that can be trusted and continued."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normbench import assembly, limits
from normbench.config import UNHASHED_KEYS, TrainConfig, Tree, parse
from normbench.errors import RunFailure, UsageError
from normbench.recording import ConsoleSink
from normbench.rehearsal import rehearse
from normbench.rundir import RunDirectory, fingerprint
from normbench.session import Session, begun_elsewhere, describe_here, settle, show_summary
from normbench.training.checkpoint import is_whole
from normbench.training.optimizer import make_optimizer, parameter_groups
from normbench.training.schedules import Schedule
from normbench.types import Data, NormFacts


@dataclass(frozen=True)
class Choices:
    """What a person chose: the option of each group, and the words that name the run."""

    groups: Mapping[str, str]
    words: tuple[str, ...]


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


def train(tree: Tree, choices: Choices, parent: RunDirectory | None = None) -> int:
    """Make a run, go on with it, or say that it is done; returns the exit status.

    Args:
        tree: the resolved configuration, plain containers.
        choices: what a person chose, for the run's name.
        parent: a finished run to extend.

    Raises:
        UsageError: any mistake of the user's; nothing was written.
        RunFailure: the machine ended the run; the last good checkpoint is intact.
    """
    with limits.named(tree["outputs"]):
        plan = make_plan(tree, choices, parent)
        if (summary := plan.directory.ended()) and not plan.config.rerun:
            with suppress(OSError, RunFailure), plan.directory.held():  # where it may be written, and by nobody else
                settle(plan, summary)
            return show_ended(plan, summary)
        session = make_session(plan)
        make_directory(plan)
        with plan.directory.held():
            if summary := plan.directory.ended():  # another process was faster
                return show_ended(plan, summary)
            return session.run()


def make_session(plan: Plan) -> Session:
    """Build the model and its optimizer; nothing is written."""
    model, norms = assembly.make_model(plan.tree, plan.data, plan.config.seed)
    model.to(plan.device)
    rehearse(model, norms, plan.data, plan.device)
    trainer = plan.tree["trainer"]
    groups = parameter_groups(
        model, norms.values(), plan.tree["optim"].get("weight_decay", 0.0), trainer["decay_norms"]
    )
    optimizer = make_optimizer(assembly.factory(plan.tree, "optim"), groups, plan.device)
    return Session(plan, model, norms, optimizer)


def make_directory(plan: Plan) -> None:
    """Make the run's directory; a run that is to be made anew is set aside."""
    plan.directory.create()
    if plan.config.rerun and plan.directory.config.exists():
        with plan.directory.held():
            aside = plan.directory.set_aside()
        if not plan.config.quiet:
            print(f"rerun: the run before is kept as {aside}")
        plan.directory.create()


def make_plan(tree: Tree, choices: Choices, parent: RunDirectory | None) -> Plan:
    """Decide everything about a run, its directory's name included.

    Raises:
        UsageError: any mistake that shows before the model is built.
    """
    config = parse(tree)
    facts = assembly.check_combination(tree, choices.groups)
    device = assembly.resolve_device(config.device)
    if config.threads:
        torch.set_num_threads(config.threads)
    data: Data = assembly.factory(tree, "data")(seed=config.seed)
    steps = assembly.number_of_steps(tree, data)
    if parent is not None:
        check_extension(parent, steps)
    tree = {**tree, "trainer": {**tree["trainer"], "steps": steps, "epochs": None}}
    content = {
        "config": without(tree, UNHASHED_KEYS),
        "data": data.fingerprint,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "extends": parent.path.name if parent else None,
    }
    name = "-".join([*choices.words, f"s{config.seed}", fingerprint(content)])
    directory = RunDirectory(Path(config.outputs) / config.name / name)
    schedule: Schedule = assembly.factory(tree, "schedule")()
    return Plan(config, tree, choices, facts, device, data, schedule, steps, directory, parent)


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


def show_ended(plan: Plan, summary: dict[str, Any]) -> int:
    """Say that the run is done already, and show its summary."""
    if plan.config.quiet:
        print(plan.directory.path)
        return 0
    console = ConsoleSink(plan.steps, plan.data.task.unit, start_step=plan.steps)
    console.message(f"{plan.directory.path} is {summary['status']} already: rerun=true makes it anew")
    if elsewhere := begun_elsewhere(plan.directory, describe_here(plan)):
        console.message(elsewhere)
    show_summary(plan.directory, summary, console)
    console.close()
    return 0
