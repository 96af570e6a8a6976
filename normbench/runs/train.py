"""`normbench train`: decides a run, and makes it, goes on with it, or only says what it would take.

`start` decides the run and joins the processes that make it, `train` looks whether it is done already, and `make` makes
it.
"""

from __future__ import annotations

from typing import Any

from normbench.config.compose import Config
from normbench.errors import UsageError
from normbench.runs.contexts import blame_interrupts, explain_limits, show_notes
from normbench.runs.dry_run import dry_run
from normbench.runs.plan import Run, prepare, same_elsewhere
from normbench.runs.reading import DamagedRun, check_unaltered
from normbench.runs.session import Session, describe_session
from normbench.runs.summary import settle_ended, show_summary
from normbench.training.parallel import Group, from_environment


def start(config: Config, dry: bool = False, trust: bool = False) -> int:
    """Train what a configuration asks for, or say what that would take; return the exit status.

    Args:
        config: as `normbench.config.compose.read` gives it.
        dry: say what it would take.
        trust: as `prepare` has it.

    Raises:
        UsageError: any mistake of the user's; nothing was written.
        RunFailure: the machine ended the run; the last good checkpoint is intact.
    """
    with explain_limits(config.closed.outputs), show_notes(config.closed.quiet):
        run = prepare(config, trust=trust)
    group = from_environment()
    if dry and group.size > 1:
        raise UsageError("--dry-run measures one process: leave out torchrun")
    group.check(run.data)
    with group.join(run.device):
        return train(run, dry, group)


def train(run: Run, dry: bool = False, group: Group | None = None) -> int:
    """Make a run, go on with it, or say that it is done; return the exit status.

    Args:
        run: as `prepare` has decided it.
        dry: say what it would take.
        group: of processes that make it together.

    Raises:
        UsageError: any mistake of the user's; nothing was written.
        RunFailure: the machine ended the run; the last good checkpoint is intact.
    """
    settings = run.config.closed
    group = group or Group()
    run.directory.writes = group.writes
    with explain_limits(settings.outputs, run.sizes):
        summary = group.first(run.directory.read_result())
        if summary and not settings.rerun:
            if group.writes and not dry:
                settle_ended(run, summary)
            return show_result(run, summary)
        run.directory.check_creatable()
        if not settings.quiet:
            same = same_elsewhere([run])
            if same:
                print(f"note: {same}")
        if dry:
            return dry_run(Session(run))
        return make(run, group)


def make(run: Run, group: Group) -> int:
    """Make a run, or go on with it; return the exit status.

    Raises:
        RunFailure: among others, a class raises KeyboardInterrupt, and nobody has stopped the run.
    """
    with blame_interrupts():
        session = Session(run, group)
        session.make_directory()
        with run.directory.hold():
            summary = group.first(run.directory.read_result())
            if summary:  # another process was faster
                return show_result(run, summary)
            return session.train()


def show_result(run: Run, summary: dict[str, Any]) -> int:
    """Say that the run is done already, and show its summary; return the exit status."""
    lines = [f"{run.directory.path} has {summary['status']} already: rerun=true makes it again"]
    elsewhere = run.directory.describe_differences(describe_session(run))
    if elsewhere:
        lines.append(elsewhere)
    try:
        check_unaltered(run.directory)
    except DamagedRun as error:
        lines.append(f"warning: {error.reason}, so these numbers may not be what was measured")
    show_summary(run, summary, lines)
    return 0
