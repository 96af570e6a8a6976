"""Trains a run, goes on with it, or only says what it would take."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.filesize import decimal

from normbench.config.compose import Config
from normbench.errors import RunFailure, is_disk_full, is_out_of_memory
from normbench.recording import Recorder, show_table
from normbench.run.plan import Run, prepare
from normbench.run.session import Session, describe_here, settle, show_summary
from normbench.rundir import read_json
from normbench.training.estimate import Estimate, estimate
from normbench.training.guard import Diverged
from normbench.training.ledger import parameter_counts


def start(config: Config, dry: bool = False) -> int:
    """Train what a configuration asks for, or say what that would take; return the exit status.

    Raises:
        UsageError: any mistake of the user's; nothing was written.
        RunFailure: the machine ended the run; the last good checkpoint is intact.
    """
    with limits_named(config.closed.outputs), notes_shown(config.closed.quiet):
        run = prepare(config)
    return dry_run(run) if dry else train(run)


def train(run: Run) -> int:
    """Make a run, go on with it, or say that it is done; return the exit status.

    Raises:
        UsageError: any mistake of the user's; nothing was written.
        RunFailure: the machine ended the run; the last good checkpoint is intact.
    """
    closed = run.config.closed
    with limits_named(closed.outputs):
        if (summary := run.directory.ended()) and not closed.rerun:
            with suppress(OSError, RunFailure), run.directory.held():  # where it may be written, and by nobody else
                settle(run, summary)
            return show_ended(run, summary)
        session = Session(run)
        make_directory(run)
        with run.directory.held():
            if summary := run.directory.ended():  # another process was faster
                return show_ended(run, summary)
            return session.train()


@contextmanager
def limits_named(outputs: str) -> Iterator[None]:
    """Turn a full disk and too little memory into a sentence.

    Raises:
        RunFailure: instead of the system's error.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if is_disk_full(error):
            raise RunFailure(
                f"the disk is full (outputs={outputs}): what was checkpointed is intact; make room, then give the same "
                "command to go on"
            ) from error
        if is_out_of_memory(error):
            raise RunFailure(
                "out of memory: use a smaller data.batch_size, data.eval_batch_size, model.context, model.width or "
                "model.depth"
            ) from error
        raise


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


def make_directory(run: Run) -> None:
    """Make the run's directory; a run that is to be made anew is set aside."""
    run.directory.create()
    if run.config.closed.rerun and run.directory.config.exists():
        with run.directory.held():
            aside = run.directory.set_aside()
        if not run.config.closed.quiet:
            print(f"rerun: the run before is kept as {aside}")
        run.directory.create()


def show_ended(run: Run, summary: dict[str, Any]) -> int:
    """Say that the run is done already, and show its summary."""
    if not run.config.closed.quiet:
        print(f"{run.directory.path} is {summary['status']} already: rerun=true makes it anew")
        if elsewhere := run.directory.begun_elsewhere(describe_here(run)):
            print(elsewhere)
    show_summary(run, summary)
    return 0


# ---- what a run would take


def dry_run(run: Run) -> int:
    """Say what `train` would do, and what it would take; return the exit status. Nothing is written.

    Raises:
        UsageError: whatever `train` would refuse.
        RunFailure: the machine cannot do it, such as for lack of memory.
    """
    closed = run.config.closed
    with limits_named(closed.outputs):
        run.directory.check_creatable()
        if (summary := run.directory.ended()) and not closed.rerun:
            print(f"{run.directory.path} is {summary['status']} already: train would only show its summary")
            return 0
        session = Session(run)
        if not closed.quiet:
            print("dry run: a few steps are measured, nothing is kept")
        rows, done = described(session)
        try:
            rows |= measured(run, measure(session), run.steps - done)
        except Diverged as end:
            rows["training"] = f"diverges at step {end.step:,}: {end.reason}"
        show_table("dry run", rows)
    return 0


def measure(session: Session) -> Estimate:
    """Return what a few steps of a run take.

    Raises:
        Diverged: training diverges within these steps.
    """
    with TemporaryDirectory(prefix="normbench-") as name:
        folder = Path(name)
        with closing(Recorder(folder)) as session.loop.recorder:
            return estimate(session.loop, folder)


def described(session: Session) -> tuple[dict[str, str], int]:
    """Return what would run, and how many of its steps are done."""
    run = session.run
    names, counts = run.config.choices.groups, parameter_counts(session.loop.model, session.norms.values())
    threads = f", threads: {run.threads}" if run.device.type == "cpu" else ""
    status = {} if run.config.closed.rerun else read_json(run.directory.status) or {}
    done = (status or (run.parent and run.parent.ended()) or {}).get("step", 0)
    return {
        "what": f"{names['norm']} · {names['placement']} · {names['model']} · {names['data']}",
        "where": f"{run.device}, {run.config.closed.trainer.precision}{threads}",
        "run directory": str(run.directory.path),
        "state": status.get("status", "new") + (f"; goes on from step {done:,}" if done else ""),
        "steps": f"{run.steps:,} (an epoch: {run.data.steps_per_epoch:,} batches)",
        "parameters": f"{counts['total']:,} ({counts['in_norms']:,} in norms, {counts['outside_norms']:,} outside)",
    }, done


def measured(run: Run, found: Estimate, steps: int) -> dict[str, str]:
    """Return what steps take of memory, time and disk; the time of writing checkpoints is not counted."""
    costs, times = found.costs, found.times(steps)
    rows = {}
    if found.peak is not None:
        whose = "the whole process" if run.device.type == "cpu" else f"tensors on {run.device}"
        rows["memory, peak of a step"] = f"{decimal(found.peak)} ({whose})"
    if found.step_ms is not None:
        rows["time of a step"] = f"{found.step_ms:,.3g} ms (median of {found.measured})"
    probed = f"{1e3 * costs['histograms'].seconds:,.3g} ms"
    rows["time of a probed step"] = f"{probed} ({times['probe'] + times['histograms']:,} of the steps)"
    evaluation = f"{costs['evaluation'].seconds:,.3g} s ({times['evaluation']:,} of them)"
    rows["time of an evaluation"] = f"{evaluation}, {found.last_evaluation:,.3g} s for the last"
    rows["time in all, about"] = str(timedelta(seconds=round(found.seconds(steps))))
    rows["disk, checkpoints"] = f"{decimal(costs['checkpoint'].size)} each: 2 stay, 3 while one is written"
    rows["disk, events and metrics"] = f"about {decimal(found.record_bytes(run.steps))}"
    return rows
