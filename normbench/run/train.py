"""Trains a run, goes on with it, or only says what it would take."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from normbench.config.compose import Config
from normbench.errors import RunFailure, is_disk_full, is_out_of_memory
from normbench.recording import ConsoleSink, JsonLinesSink, Sink, TensorBoardSink
from normbench.run.plan import Run, prepare
from normbench.run.session import Session, describe_here, settle, show_summary
from normbench.rundir import read_json
from normbench.training.checkpoint import Checkpoints
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
    if run.config.closed.quiet:
        print(run.directory.path)
        return 0
    console = ConsoleSink(run.steps, run.data.task.unit, start_step=run.steps)
    console.message(f"{run.directory.path} is {summary['status']} already: rerun=true makes it anew")
    if elsewhere := run.directory.begun_elsewhere(describe_here(run)):
        console.message(elsewhere)
    show_summary(run.directory, summary, console)
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
        console = ConsoleSink(run.steps, run.data.task.unit)
        if (summary := run.directory.ended()) and not closed.rerun:
            console.message(f"{run.directory.path} is {summary['status']} already: train would only show its summary")
            return 0
        session = Session(run)
        if not closed.quiet:
            console.message("dry run: a few steps are measured, nothing is kept")
        rows = described(session)
        try:
            rows |= measured(run, measure(session))
        except Diverged as end:
            rows["training"] = f"diverges at step {end.step:,}: {end.reason}"
        console.summary("dry run", rows.items())
    return 0


def measure(session: Session) -> Estimate:
    """Return what a few steps of a run take.

    Raises:
        Diverged: training diverges within these steps.
    """
    with TemporaryDirectory(prefix="normbench-") as folder:
        session.recorder = Sink(JsonLinesSink(Path(folder) / "metrics.jsonl"), TensorBoardSink(Path(folder)))
        try:
            return estimate(session.make_loop(), Path(folder))
        finally:
            session.recorder.close()


def described(session: Session) -> dict[str, str]:
    """Return what would run."""
    run = session.run
    names, counts = run.config.choices.groups, parameter_counts(session.model, session.norms.values())
    threads = f", threads: {run.threads}" if run.device.type == "cpu" else ""
    return {
        "what": f"{names['norm']} · {names['placement']} · {names['model']} · {names['data']}",
        "where": f"{run.device}, {run.config.closed.trainer.precision}{threads}",
        "run directory": str(run.directory.path),
        "state": state_of(run),
        "steps": f"{run.steps:,} (an epoch: {run.data.steps_per_epoch:,} batches)",
        "parameters": f"{counts['total']:,} ({counts['in_norms']:,} in norms, {counts['outside_norms']:,} outside)",
    }


def state_of(run: Run) -> str:
    """Return how far the run is, and what a start would do."""
    status = (read_json(run.directory.status) or {}).get("status", "new")
    if run.config.closed.rerun:
        return f"{status}; made anew, an old one is kept beside it"
    step = first_step(run)
    return f"{status}; goes on from step {step:,}" if step else status


def first_step(run: Run) -> int:
    """Return how many steps are done already, in the run itself or in the one that it extends."""
    for directory in (None if run.config.closed.rerun else run.directory, run.parent):
        if directory is not None:
            checkpoints = Checkpoints(directory.checkpoint, directory.previous, directory.best)
            if state := checkpoints.load(lambda line: None):
                return int(state["step"])
    return 0


def measured(run: Run, found: Estimate) -> dict[str, str]:
    """Return what a few steps have shown of memory, time and disk; the time of writing checkpoints is not counted."""
    steps = run.steps - first_step(run)
    listed = " + ".join(f"{megabytes(size)} {name}" for name, size in found.stays.items())
    rows = {"memory that stays": f"{megabytes(sum(found.stays.values()))}: {listed}"}
    if found.peak is not None:
        whose = "the whole process" if run.device.type == "cpu" else f"tensors on {run.device}"
        rows["memory, peak of a step"] = f"{megabytes(found.peak)} ({whose})"
    if found.step_ms is not None:
        rows["time of a step"] = f"{duration(found.step_ms)} (median of {found.measured})"
    rows["time of a probed step"] = f"{duration(found.probed_ms)} ({found.probed(steps):,} of the steps)"
    if found.loop.compile_seconds:
        rows["time to compile"] = duration(1e3 * found.loop.compile_seconds)
    before = f"{duration(1e3 * found.evaluation)} ({found.evaluations(steps):,} of them)"
    rows["time of an evaluation"] = f"{before}, {duration(1e3 * found.last_evaluation)} for the last"
    rows["time in all, about"] = str(timedelta(seconds=round(found.seconds(steps))))
    records = found.record_bytes(run.steps)
    best = found.best if run.config.closed.trainer.keep_checkpoint == "best" else 0
    beside = f", and {megabytes(best)} of the best weights" if best else ""
    rows["disk, checkpoints"] = f"{megabytes(found.checkpoint)} each: 2 stay, 3 while one is written{beside}"
    rows["disk, events and metrics"] = f"about {megabytes(records)}"
    rows["disk, at most"] = megabytes(3 * found.checkpoint + best + records)
    return rows


def duration(milliseconds: float) -> str:
    """Write a time for people: `12.3 ms`, `76 s`."""
    return f"{milliseconds:,.3g} ms" if milliseconds < 999.5 else f"{milliseconds / 1e3:,.3g} s"


def megabytes(size: int) -> str:
    """Write bytes for people: `12.3 MB`."""
    return f"{size / 1e6:,.3g} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"
