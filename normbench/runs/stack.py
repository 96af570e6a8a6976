"""Trains several seeds of a run as one model (`sweep.stack`), which `train_stack` alone does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial

from normbench import build
from normbench.runs.contexts import blame_interrupts, explain_limits
from normbench.runs.plan import Run
from normbench.runs.session import Session
from normbench.stopping import allow_stops, hold_stops
from normbench.training.guard import Diverged
from normbench.training.loop import Loop
from normbench.training.optimizer import make_optimizer


def train_stack(runs: Sequence[Run], seeds: Sequence[int]) -> int:
    """Make runs that differ in their seed alone as one model, or go on with them; return the exit status.

    Args:
        runs: those of the stack that are not over.
        seeds: of all runs of the stack, also of those that are over.

    Raises:
        UsageError: something of the runs needs each by itself.
        RunFailure: the machine ended the runs; the last good checkpoints are intact.
    """
    with explain_limits(runs[0].config.closed.outputs), ExitStack() as contexts:
        for run in runs:
            run.directory.check_creatable()
        contexts.enter_context(blame_interrupts())
        sessions = [Session(run, seeds=seeds) for run in runs]
        for session in sessions:
            session.make_directory()
            contexts.enter_context(session.directory.hold())
        left = []
        for session in sessions:
            if not session.directory.read_result():  # else another process was faster
                left.append(session)
        for together in group_by_step(left):
            status = train_together(together)
            if status:
                return status
    return 0


def group_by_step(sessions: Sequence[Session]) -> list[list[Session]]:
    """Return sessions in groups that go on from the same step, the group at the earliest step first.

    Where a kill came between their checkpoints, they go back to the newest that all have. Those that have begun keep
    the seeds that they began with, of which their dropout masks are a function.
    """
    steps = [session.loop.checkpoints.steps() for session in sessions]
    common = min(map(max, steps), default=0)
    groups = defaultdict[tuple[int, tuple[int, ...]], list[Session]](list)
    for session, known in zip(sessions, steps, strict=True):
        step = max(known)
        if common and common in known:
            session.loop.checkpoints.go_back(common)
            step = common
        if step:
            last = session.directory.sessions()[-1]
            session.seeds = last["seeds"]
        groups[step, tuple(session.seeds)].append(session)
    return [groups[key] for key in sorted(groups)]


def train_together(sessions: Sequence[Session]) -> int:
    """Train sessions that are at the same step as one model; return the exit status."""
    from normbench.training.stack import Stack  # torch.func takes a while to import

    by_seed = {session.settings.seed: session for session in sessions}
    run = sessions[0].run
    make = partial(make_optimizer, build.factory(run.config.recipe["optim"]), device=run.device)

    def beat(loop: Loop) -> None:
        by_seed[loop.settings.seed].beat()

    def diverge(loop: Loop, end: Diverged) -> None:
        by_seed[loop.settings.seed].finish("diverged", end.step, end.reason)

    with hold_stops(), ExitStack() as contexts:
        for session in sessions:
            contexts.enter_context(session.note_failures())
            with allow_stops(nothing_to_lose=True):
                recorder = session.prepare()
            contexts.enter_context(closing(recorder))
        loops = {seed: session.loop for seed, session in by_seed.items()}
        stack = Stack(loops, sessions[0].seeds, make)
        number = stack.run(beat, diverge)
        status = 0
        for _, loop in stack.live:
            session = by_seed[loop.settings.seed]
            if number:
                status = session.interrupt(number)
            else:
                session.finish("finished", loop.step, "")
        return status
