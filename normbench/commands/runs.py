"""`normbench runs`: how sweeps and runs stand, and the commands that go on with them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normbench.config.trust import caution
from normbench.errors import UsageError
from normbench.record.console import show_table
from normbench.record.directory import ENDED, RunDirectory
from normbench.record.files import read_json
from normbench.runs.finding import find_run, run_directories
from normbench.runs.reading import check_unaltered
from normbench.settings import flat, printable
from normbench.sweep.folder import SweepFolder, say, say_damaged_notes, summarize
from normbench.wording import fixed, step_of


@dataclass(frozen=True)
class Line:
    """A sweep or run in the list.

    Attributes:
        changed: when it was last written to.
        command: that goes on with it; empty: none does.
    """

    name: str
    changed: float
    state: str
    progress: str
    loss: str = ""
    command: str = ""


def show_runs(folder: Path) -> int:
    """Print a line for each sweep, and for each run that is not part of one, or is the folder's own; the newest last.

    Raises:
        UsageError: the folder is not there, or holds neither.
    """
    sweeps = {path.parent for path in folder.rglob(".sweep")}
    lines: list[Line] = []
    for path in sweeps:
        name = str(path.relative_to(folder))
        lines.append(line_of_sweep(name, SweepFolder(path)))
    for name, run in find_runs(folder, bool(sweeps)).items():
        if run.path.parent == folder or run.path.parent not in sweeps:
            lines.append(line_of_run(name, run))

    console = Console()
    table = Table("run", "state", "progress", "hours since", "loss", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].overflow = "fold"
    by_command: dict[str, list[str]] = {}
    for line in sorted(lines, key=lambda line: (line.changed, line.name)):
        name = " ".join(printable(line.name).split())
        age = timedelta(minutes=(time.time() - line.changed) // 60)
        hours = str(age).removesuffix(":00")
        cells = (name, line.state, line.progress, hours, line.loss)
        table.add_row(*map(Text, cells))
        by_command.setdefault(line.command, []).append(name)
    console.print(table)
    say_damaged_notes(console, map(SweepFolder, sorted(sweeps)))
    for command, names in by_command.items():
        if command and command.isprintable():
            say(console, f"{', '.join(names)} goes on by{caution(command)}\n  {command}")
    return 0


def show_ledger(folder: Path) -> int:
    """Print the ledger of the one run that a folder means.

    Raises:
        UsageError: it means several, or none that has ended, or one whose record was changed after that.
    """
    directory = RunDirectory(find_run(folder))
    summary = directory.read_result()
    if not summary:
        raise UsageError(
            f"{directory.path} has no ledger: give a run that has ended, such as one that normbench runs lists"
        )
    check_unaltered(directory)
    show_table(f"ledger of {directory.path.name}", flat(summary["ledger"]))
    return 0


def find_runs(folder: Path, may_be_empty: bool) -> dict[str, RunDirectory]:
    """Return the runs below a folder by name.

    Args:
        may_be_empty: it holds a sweep, of which nothing may have begun.

    Raises:
        UsageError: there is none.
    """
    try:
        return run_directories(folder)
    except UsageError:
        if may_be_empty:
            return {}
        raise


def line_of_sweep(name: str, sweep: SweepFolder) -> Line:
    """Return a sweep's line."""
    notes = sweep.read_notes()
    standings = [sweep.read_standing(entry) for entry in sweep.read_plans()]
    states: set[str] = {standing.state for standing in standings}
    if not all(note.runs for note in notes):
        states.add("waiting")
    if sweep.damaged_notes():
        states.add("damaged")
    if sweep.is_worked_on():  # also between two runs, and while runs that choose learning rates come first
        states.add("running")
    state = "finished"
    for worse in ("damaged", "failed", "waiting", "running"):
        if worse in states:
            state = worse
    can_go_on = any(note.words for note in notes)  # a sweep of runs that choose rates goes on with those it is for
    command = sweep.command() if can_go_on and state in ("waiting", "failed") else ""
    return Line(name, last_change(sweep.path, sweep.notes), state, summarize(standings), command=command)


def line_of_run(name: str, run: RunDirectory) -> Line:
    """Return a run's line.

    One that says it is running, and that no process holds, was killed. One that does not say how it stands is damaged.
    """
    noted = read_json(run.status)
    summary = read_json(run.summary)
    status = noted or {"status": "interrupted", "step": 0, "steps": 0}
    if summary and summary["status"] in ENDED:
        status |= summary
    state = status["status"]
    for path, content in ((run.status, noted), (run.summary, summary)):
        if not content and path.exists():
            state = "damaged"
    command = ""
    if state not in ENDED:
        if run.is_held():
            state = "running"
        else:
            if state == "running":
                state = "interrupted"
            sessions = run.sessions()
            if sessions:
                command = sessions[-1]["command"]
    progress = step_of(status["step"], status["steps"])
    loss = status.get("metrics", {}).get("loss/val")
    shown_loss = "" if loss is None else fixed(loss, 4)
    return Line(name, last_change(run.path), state, progress, shown_loss, command)


def last_change(*folders: Path) -> float:
    """Return when a record in some folders, or in those in them, was last written."""
    times = [0.0]
    for folder in folders:
        for pattern in ("s*.json", "*/*.json"):
            for file in folder.glob(pattern):
                times.append(file.stat().st_mtime)
    return max(times)
