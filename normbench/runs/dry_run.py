"""What a run would take of memory, time and disk: measured on a few of its steps, and nothing is kept."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import timedelta

from rich.filesize import decimal
from torch import nn

from normbench.record.console import show_table
from normbench.record.files import read_json
from normbench.record.loggers import Scalar
from normbench.record.recorder import Recorder
from normbench.runs.plan import Run
from normbench.runs.session import Session
from normbench.scratch import make_dry_folder
from normbench.training.estimate import Estimate, estimate
from normbench.training.guard import Diverged
from normbench.wording import duration, significant

SPARE = 0.5  # cores that other work may use without being in the way


def dry_run(session: Session) -> int:
    """Say what `train` would do, and what it would take; return the exit status. Nothing is written."""
    run = session.run
    done = steps_done(session)
    session.announce(done)
    session.say("dry run: a few steps are measured, nothing is kept")
    try:
        others = note_load(run.threads)
        show_table("dry run", describe(run, measure(session), run.steps - done))
        if others:
            session.say(others)
    except Diverged as end:
        print(f"training diverges at step {end.step:,}: {end.reason}")
    return 0


def steps_done(session: Session) -> int:
    """Return from which step the run would go on: that of its checkpoint, or where the run that it extends ended."""
    run = session.run
    if not run.config.closed.rerun:
        state = session.loop.checkpoints.load(session.say)
        step = 0 if state is None else state.get("step", 0)
        if step:
            return int(step)
    if run.parent is None:
        return 0
    return int((run.parent.read_result() or {}).get("step", 0))


def measure(session: Session) -> Estimate:
    """Return what a few steps of a run take.

    Raises:
        Diverged: training diverges within these steps.
    """
    with make_dry_folder() as folder, closing(Recorder(folder)) as recorder:
        session.loop.recorder = recorder
        return estimate(session.loop, folder)


def describe(run: Run, estimated: Estimate, steps: int) -> dict[str, Scalar]:
    """Return what steps take of memory, time and disk; the time of writing checkpoints is not counted."""
    peak = None
    if estimated.peak:
        whose = "the whole process" if run.device.type == "cpu" else f"tensors on {run.device}"
        peak = f"{decimal(estimated.peak)} ({whose})"
    step = None
    if estimated.step_ms:
        step = f"{significant(estimated.step_ms)} ms (median of {estimated.measured})"
    probed = f"{significant(estimated.probed_ms)} ms ({estimated.probed(steps):,} of the steps)"
    evaluations = f"{duration(estimated.evaluation)} ({estimated.evaluations(steps):,} of them)"
    whole = timedelta(seconds=round(estimated.seconds(steps)))
    stay = "1 stays"
    keep = run.config.closed.trainer.keep_checkpoint
    if keep == "best":
        stay = f"1 stays, with {decimal(size_of_weights(estimated.loop.model))} of the best weights"
    elif keep == "none":
        stay = "none stays"
    return {
        "state": state_of(run),
        "memory, peak of a step": peak,
        "time of a step": step,
        "time of a probed step": probed,
        "time of an evaluation": f"{evaluations}, {duration(estimated.last_evaluation)} for the last",
        "time in all, about": f"{whole}, without the start of the process",
        "disk, checkpoints": f"{decimal(estimated.checkpoint)} each: 3 while one is written, {stay}",
    }


def size_of_weights(model: nn.Module) -> int:
    """Return the bytes of a model's weights and buffers, each counted once."""
    sizes: dict[int, int] = {}
    for tensor in model.state_dict().values():
        sizes[tensor.data_ptr()] = tensor.nbytes
    return sum(sizes.values())


def state_of(run: Run) -> str:
    """Say how the run's directory stands now, and what the command would make of it."""
    stands = run.directory.read_result() or read_json(run.directory.status) or {}
    state = str(stands.get("status", "new"))
    if run.config.closed.rerun and state != "new":
        return f"{state}; set aside and made again"
    return state


def note_load(threads: int) -> str:
    """Return a note where other work leaves too few cores free for times measured now to be a guide; else nothing."""
    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    if load + threads <= cores + SPARE:
        return ""
    return f"note: this machine is busy (load {load:.1f} on {cores} cores), so these times are no guide"
