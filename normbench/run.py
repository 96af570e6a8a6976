"""One run, wired together: from a resolved configuration to a run directory that can be trusted and continued."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from normbench import assembly, limits
from normbench.catalog import Choices
from normbench.config import Tree
from normbench.errors import RunFailure
from normbench.plan import Plan, make_plan
from normbench.recording import ConsoleSink
from normbench.rehearsal import rehearse
from normbench.rundir import RunDirectory
from normbench.session import Session, begun_elsewhere, describe_here, settle
from normbench.summary import show_summary
from normbench.training.optimizer import make_optimizer, parameter_groups
from normbench.training.precision import make_precision


def train(tree: Tree, choices: Choices, parent: RunDirectory | None = None, planned: Path | None = None) -> int:
    """Make a run, go on with it, or say that it is done; returns the exit status.

    Args:
        tree: the resolved configuration, plain containers.
        choices: what a person chose, for the run's name.
        parent: a finished run to extend.
        planned: the directory that it must have.

    Raises:
        UsageError: any mistake of the user's; nothing was written.
        RunFailure: the machine ended the run; the last good checkpoint is intact.
    """
    with limits.named(tree["outputs"]):
        with notes_shown(tree["quiet"]):
            plan = make_plan(tree, choices, parent)
            if planned is not None:
                check_planned(plan, planned)
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


def check_planned(plan: Plan, planned: Path) -> None:
    """Refuse a run that would have another name here, which says that its numbers would be others.

    Raises:
        RunFailure: its device, threads, data or own class differ.
    """
    if plan.directory.path.absolute() != planned.absolute():
        raise RunFailure(
            f"it would be another run here ({plan.directory.path.name}; on {plan.device}, {torch.get_num_threads()} "
            "threads): the device, the threads, the data or the code of an own class are not as planned"
        )


@contextmanager
def notes_shown(quiet: bool) -> Iterator[None]:
    """Let what the data part notes reach the person: that it fetches, decodes or mends something, which takes time."""
    logger, handler = logging.getLogger("normbench"), logging.StreamHandler(sys.stdout)
    if not quiet:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def make_session(plan: Plan) -> Session:
    """Build the model and its optimizer; nothing is written."""
    precision = make_precision(plan.config.trainer.precision, plan.device)
    model, norms = assembly.make_model(plan.tree, plan.data, plan.config.seed)
    model.to(plan.device)
    with precision.autocast():
        rehearse(model, norms, plan.data, plan.device)
    trainer = plan.tree["trainer"]
    groups = parameter_groups(
        model, norms.values(), plan.tree["optim"].get("weight_decay", 0.0), trainer["decay_norms"]
    )
    optimizer = make_optimizer(assembly.factory(plan.tree, "optim"), groups, plan.device)
    return Session(plan, model, norms, optimizer, precision)


def make_directory(plan: Plan) -> None:
    """Make the run's directory; a run that is to be made anew is set aside."""
    plan.directory.create()
    if plan.config.rerun and plan.directory.config.exists():
        with plan.directory.held():
            aside = plan.directory.set_aside()
        if not plan.config.quiet:
            print(f"rerun: the run before is kept as {aside}")
        plan.directory.create()


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
