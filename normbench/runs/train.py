"""Trains a run, goes on with it, or only says what it would take."""

from __future__ import annotations

import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

from rich.filesize import decimal

from normbench import build
from normbench.config.compose import Config
from normbench.errors import RunFailure, UsageError, is_disk_full, is_out_of_memory
from normbench.record.console import show_table
from normbench.record.files import inside, read_json, unused
from normbench.record.loggers import Scalar
from normbench.record.recorder import Recorder
from normbench.runs.plan import Run, prepare, same_elsewhere
from normbench.runs.session import Session, describe_here, settle, show_summary, stop_signals
from normbench.scratch import dry_folder
from normbench.training.estimate import Estimate, estimate
from normbench.training.guard import Diverged
from normbench.training.loop import Loop
from normbench.training.optimizer import make_optimizer
from normbench.training.parallel import Group, from_environment

SPARE = 0.5  # of a core, that other work may have without being in the way


def start(config: Config, dry: bool = False, trust: bool = False) -> int:
    """Train what a configuration asks for, or say what that would take; return the exit status. trust: see `prepare`.

    Raises:
        UsageError: any mistake of the user's; nothing was written.
        RunFailure: the machine ended the run; the last good checkpoint is intact.
    """
    with limits_named(config.closed.outputs), notes_shown(config.closed.quiet):
        run = prepare(config, trust=trust)
    group = from_environment()
    if dry and group.size > 1:
        raise UsageError("--dry-run measures one process: leave out torchrun")
    group.check(run.data)
    with group.joined(run.device):
        return train(run, dry, group)


def train(run: Run, dry: bool = False, group: Group | None = None) -> int:
    """Make a run, go on with it, or say that it is done; return the exit status.

    dry: say what it would take. group: of processes that make it together.

    Raises:
        UsageError: any mistake of the user's; nothing was written.
        RunFailure: the machine ended the run; the last good checkpoint is intact.
    """
    closed, group = run.config.closed, group or Group()
    run.directory.writes = group.writes
    with limits_named(closed.outputs):
        if (summary := group.first(run.directory.ended())) and not closed.rerun:
            if not dry and group.writes:
                with suppress(OSError, RunFailure), run.directory.held():  # where it may be written, by nobody else
                    settle(run, summary)
            return show_ended(run, summary)
        run.directory.check_creatable()
        if not closed.quiet and (same := same_elsewhere([run])):
            print(f"note: {same}")
        return dry_run(Session(run)) if dry else make(run, group)


def make(run: Run, group: Group) -> int:
    """Make a run, or go on with it; return the exit status.

    Raises:
        RunFailure: among others, a class raises KeyboardInterrupt, and nobody has stopped the run.
    """
    with stopped_by_signals() as stop:
        session = Session(run, group)
        if group.writes:
            make_directory(run)
        with run.directory.held():
            if summary := group.first(run.directory.ended()):  # another process was faster
                return show_ended(run, summary)
            return session.train(stop)


@contextmanager
def stopped_by_signals() -> Iterator[list[int]]:
    """Give the signals that have come, as `stop_signals` notes them.

    Raises:
        RunFailure: a class raises KeyboardInterrupt, and nobody has stopped the run.
    """
    with stop_signals() as stop:
        try:
            yield stop
        except KeyboardInterrupt as error:
            if stop:
                raise
            raise RunFailure("a class of the run raised KeyboardInterrupt, and nobody stopped it") from error


# ---- several seeds as one model


def train_stack(runs: Sequence[Run], seeds: Sequence[int]) -> int:
    """Make runs as one model that differ in their seed alone, or go on with them; return the exit status.

    seeds: of all runs of the stack, also of those that are over and not among `runs`.

    Raises:
        UsageError: something of the runs needs each by itself.
        RunFailure: the machine ended the runs; the last good checkpoints are intact.
    """
    with limits_named(runs[0].config.closed.outputs), ExitStack() as stack:
        for run in runs:
            run.directory.check_creatable()
        stop = stack.enter_context(stopped_by_signals())
        sessions = [Session(run, seeds=seeds) for run in runs]
        for run in runs:
            make_directory(run)
            stack.enter_context(run.directory.held())
        left = [session for session in sessions if not session.directory.ended()]  # another process was faster
        return next(filter(None, (make_stack(together, stop) for together in by_step(left))), 0)


def by_step(sessions: Sequence[Session]) -> list[list[Session]]:
    """Return sessions that go on from the same step together, first those that are behind.

    Where a kill came between their checkpoints, they go back to the newest that all have. Those that have begun keep
    the seeds that they began with, of which their dropout masks are a function.
    """
    steps = [session.loop.checkpoints.steps() for session in sessions]
    common = min(map(max, steps), default=0)
    found = defaultdict[tuple[int, tuple[int, ...]], list[Session]](list)
    for session, known in zip(sessions, steps, strict=True):
        if common and common in known:
            session.loop.checkpoints.go_back(common)
        if step := common if common in known and common else max(known):
            session.seeds = session.directory.sessions()[-1]["seeds"]
        found[step, tuple(session.seeds)].append(session)
    return [found[key] for key in sorted(found)]


def make_stack(sessions: Sequence[Session], stop: Sequence[int]) -> int:
    """Train sessions that stand at the same step as one model; return the exit status."""
    from normbench.training.stack import Stack  # torch.func takes a while to import

    of = {session.settings.seed: session for session in sessions}
    with ExitStack() as stack:
        for session in sessions:
            stack.enter_context(session.noted(stop))
            stack.enter_context(closing(session.prepare()))
        run, loops = sessions[0].run, {seed: session.loop for seed, session in of.items()}
        make = partial(make_optimizer, build.factory(run.config.tree, "optim"), device=run.device)
        made = Stack(loops, sessions[0].seeds, make)

        def ended(loop: Loop, end: Diverged) -> None:
            of[loop.settings.seed].finish("diverged", end.step, end.reason)

        number = made.run(stop, lambda loop: of[loop.settings.seed].beat(), ended)
        left = [of[loop.settings.seed] for _, loop in made.live]
        ends = [one.interrupted(number) if number else one.finish("finished", one.loop.step, "") for one in left]
        return max(ends, default=0)


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
            cure = "what was checkpointed is intact; make room, then give the same command to go on"
            raise RunFailure(f"the disk is full (outputs={outputs}): {cure}") from error
        if is_out_of_memory(error):
            sizes = "data.batch_size, data.eval_batch_size, model.context, model.width or model.depth"
            raise RunFailure(f"out of memory: use a smaller {sizes}") from error
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
    path = run.directory.path
    inside(path.parent, path.name)
    if run.config.closed.rerun and run.directory.config.exists():
        with run.directory.held():
            aside = path.rename(unused(path.with_name(f"{path.name}.old")))
        if not run.config.closed.quiet:
            print(f"rerun: the run before is kept as {aside}")
    path.mkdir(parents=True, exist_ok=True)


def show_ended(run: Run, summary: dict[str, Any]) -> int:
    """Say that the run is done already, and show its summary."""
    already = f"{run.directory.path} has {summary['status']} already: rerun=true makes it anew"
    show_summary(run, summary, already, run.directory.begun_elsewhere(describe_here(run)))
    return 0


# ---- what a run would take


def dry_run(session: Session) -> int:
    """Say what `train` would do, and what it would take; return the exit status. Nothing is written."""
    run = session.run
    begun = not run.config.closed.rerun and (session.loop.checkpoints.load(session.say) or {}).get("step", 0)
    done = begun or ((run.parent and run.parent.ended()) or {}).get("step", 0)
    session.announce(done)
    session.say("dry run: a few steps are measured, nothing is kept")
    try:
        others = busy(run.threads)
        show_table("dry run", measured(run, measure(session), run.steps - done))
        if others:
            session.say(others)
    except Diverged as end:
        print(f"training diverges at step {end.step:,}: {end.reason}")
    return 0


def measure(session: Session) -> Estimate:
    """Return what a few steps of a run take.

    Raises:
        Diverged: training diverges within these steps.
    """
    with dry_folder() as folder, closing(Recorder(folder)) as session.loop.recorder:
        return estimate(session.loop, folder)


def measured(run: Run, found: Estimate, steps: int) -> dict[str, Scalar]:
    """Return what steps take of memory, time and disk; the time of writing checkpoints is not counted."""
    whose = "the whole process" if run.device.type == "cpu" else f"tensors on {run.device}"
    state = (run.directory.ended() or read_json(run.directory.status) or {}).get("status", "new")
    weights = {tensor.data_ptr(): tensor.nbytes for tensor in found.loop.model.state_dict().values()}
    stay = {"best": f"2 stay, with {decimal(sum(weights.values()))} of the best weights", "none": "none stays"}
    evaluations = f"{found.evaluation:,.3g} s ({found.evaluations(steps):,} of them)"
    return {
        "state": f"{state}; set aside and made again" if run.config.closed.rerun and state != "new" else state,
        "memory, peak of a step": found.peak and f"{decimal(found.peak)} ({whose})",
        "time of a step": found.step_ms and f"{rounded(found.step_ms)} ms (median of {found.measured})",
        "time of a probed step": f"{rounded(found.probed_ms)} ms ({found.probed(steps):,} of the steps)",
        "time of an evaluation": f"{evaluations}, {found.last_evaluation:,.3g} s for the last",
        "time in all, about": f"{timedelta(seconds=round(found.seconds(steps)))}, without the start of the process",
        "disk, checkpoints": f"{decimal(found.checkpoint)} each: 3 while one is written, "
        + stay.get(run.config.closed.trainer.keep_checkpoint, "2 stay"),
    }


def rounded(number: float) -> str:
    """Return a number with three digits at least."""
    return f"{number:,.3g}" if number < 1000 else f"{number:,.0f}"


def busy(threads: int) -> str:
    """Return a note where other work keeps so many cores busy that times measured now are no guide; or nothing."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load + threads <= cores + SPARE:
        return ""
    return f"note: this machine is busy (load {load:.1f} on {cores} cores), so these times are no guide"
