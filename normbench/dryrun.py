"""`normbench train --dry-run`: everything but the run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import torch

from normbench import limits
from normbench.catalog import Choices
from normbench.config import Tree
from normbench.estimate import Estimate, WeighingSink, estimate
from normbench.ledger import parameter_counts
from normbench.plan import Plan, make_plan
from normbench.recording import ConsoleSink
from normbench.run import make_session, notes_shown
from normbench.rundir import RunDirectory, read_json
from normbench.session import Session
from normbench.training.checkpoint import Checkpoints
from normbench.training.guard import Diverged

Row = tuple[str, str]


def dry_run(tree: Tree, choices: Choices, parent: RunDirectory | None = None) -> int:
    """Say what `train` would do with the same arguments, and what it would take; returns the exit status.

    The data are decoded into their cache, where they are not yet; nothing else is written.

    Raises:
        UsageError: whatever `train` would refuse.
        RunFailure: the machine cannot do it, such as for lack of memory.
    """
    with limits.named(tree["outputs"]):
        with notes_shown(tree["quiet"]):
            plan = make_plan(tree, choices, parent)
        plan.directory.check_creatable()
        console = ConsoleSink(plan.steps, plan.data.task.unit)
        if (summary := plan.directory.ended()) and not plan.config.rerun:
            console.message(f"{plan.directory.path} is {summary['status']} already: train would only show its summary")
            return 0
        session = make_session(plan)
        if not plan.config.quiet:
            console.message("dry run: a few steps are measured, nothing is kept")
        console.summary("dry run", [*described(session), *measured(session)])
    return 0


def described(session: Session) -> Iterator[Row]:
    """What would run."""
    plan = session.plan
    names, counts = plan.choices.groups, parameter_counts(session.model, session.norms.values())
    threads = f", threads: {torch.get_num_threads()}" if plan.device.type == "cpu" else ""
    yield "what", f"{names['norm']} · {names['placement']} · {names['model']} · {names['data']}"
    yield "where", f"{plan.device}, {plan.config.trainer.precision}{threads}"
    yield "run directory", str(plan.directory.path)
    yield "state", state_of(plan)
    yield "steps", f"{plan.steps:,} (an epoch: {plan.data.steps_per_epoch:,} batches)"
    yield (
        "parameters",
        f"{counts['total']:,} ({counts['in_norms']:,} in norms, {counts['outside_norms']:,} outside)",
    )


def state_of(plan: Plan) -> str:
    """How far the run is, and what a start would do."""
    status = (read_json(plan.directory.status) or {}).get("status")
    if plan.config.rerun and status:
        return f"{status}; made anew, the old one is kept beside it"
    if (step := first_step(plan)) and plan.parent and not status:
        return f"new; goes on from step {step:,} of {plan.parent.path}"
    return f"{status} at step {step:,}; goes on from there" if status else "new"


def first_step(plan: Plan) -> int:
    """How many steps are done already, in the run itself or in the one that it extends."""
    for directory in (plan.directory, plan.parent):
        if directory is not None and not (directory is plan.directory and plan.config.rerun):
            checkpoints = Checkpoints(directory.checkpoint, directory.previous, directory.best)
            if state := checkpoints.load(lambda line: None):
                return int(state["step"])
    return 0


def measured(session: Session) -> Iterator[Row]:
    """What a few steps have shown."""
    sink = session.recorder = WeighingSink()
    try:
        result = estimate(session.make_loop(), sink)
    except Diverged as end:
        yield "training", f"diverges at step {end.step:,}: {end.reason}"
        return
    finally:
        sink.close()
    yield from memory_rows(result, session.plan.device)
    yield from time_rows(result, session.plan.steps - first_step(session.plan))
    yield from disk_rows(result, session.plan)


def memory_rows(result: Estimate, device: torch.device) -> Iterator[Row]:
    """What stays in memory from step to step, and the peak."""
    memory = result.memory
    parts = {"weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer}
    if memory.average:
        parts["average"] = memory.average
    listed = " + ".join(f"{megabytes(size)} {name}" for name, size in parts.items())
    yield "memory that stays", f"{megabytes(sum(parts.values()))}: {listed}"
    if memory.peak is not None:
        whose = "the whole process, Python and torch included" if device.type == "cpu" else f"tensors on {device}"
        yield "memory, peak of a step", f"{megabytes(memory.peak)} ({whose})"


def time_rows(result: Estimate, steps: int) -> Iterator[Row]:
    """How long the steps take that are left, and what comes between them; writing checkpoints is not counted."""
    times = result.times
    if times.step_ms is not None:
        yield "time of a step", f"{duration(times.step_ms)} (median of {times.steps})"
    if result.probed(steps):
        yield "time of a probed step", f"{duration(times.probed_ms)} ({result.probed(steps):,} of the steps)"
    if result.loop.compile_seconds:
        yield "time to compile", duration(1e3 * result.loop.compile_seconds)
    count = result.evaluations(steps)
    before = f"{duration(1e3 * times.evaluation)} ({count:,} of them), " if count else ""
    yield "time of an evaluation", f"{before}{duration(1e3 * times.last_evaluation)} for the last"
    yield "time in all, about", str(timedelta(seconds=round(result.seconds(steps))))


def disk_rows(result: Estimate, plan: Plan) -> Iterator[Row]:
    """What the run directory grows to."""
    keep, each = plan.config.trainer.keep_checkpoint, result.disk.checkpoint
    best = result.disk.best if keep == "best" else 0
    ends = "none" if keep == "none" else megabytes(2 * each + best)
    beside = f" + {megabytes(best)} of the best weights" if best else ""
    yield "disk, checkpoints", f"{megabytes(each)} each: 2 stay, 3 while one is written{beside}; {ends} at the end"
    records = result.record_bytes(plan.steps)
    yield "disk, events and metrics", f"about {megabytes(records)}"
    yield "disk, at most", megabytes(3 * each + best + records)


def duration(milliseconds: float) -> str:
    """A time for people: `12.3 ms`, `76 s`."""
    return f"{milliseconds:,.3g} ms" if milliseconds < 999.5 else f"{milliseconds / 1e3:,.3g} s"


def megabytes(size: int) -> str:
    """Bytes for people: `12.3 MB`."""
    return f"{size / 1e6:,.3g} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"
