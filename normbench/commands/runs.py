"""`normbench runs`: how sweeps and runs stand, and the commands that go on with them."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normbench.config.trust import needs_trust
from normbench.errors import UsageError
from normbench.record.directory import ENDED, RunDirectory
from normbench.record.files import read_json
from normbench.runs.load import run_directories
from normbench.settings import printable
from normbench.sweep.folder import SweepFolder, say, summarize

# When a sweep or run was last written to, its name, state, progress and loss, and the command that goes on with it.
Line = tuple[float, str, str, str, str, str]


def show_runs(folder: Path) -> int:
    """Print a line for each sweep, and for each run that is of none, or of the folder's own; the newest comes last.

    Raises:
        UsageError: the folder is not there, or holds neither.
    """
    sweeps, runs = {path.parent for path in folder.rglob(".sweep")}, dict[str, RunDirectory]()
    with suppress(*[UsageError] if sweeps else []):  # nothing of a sweep has begun
        runs = run_directories(folder)
    lines = [line_of_sweep(str(path.relative_to(folder)), SweepFolder(path)) for path in sweeps]
    lines += [line_of_run(*one) for one in runs.items() if one[1].path.parent not in sweeps - {folder}]
    console, commands = Console(), dict[str, list[str]]()
    table = Table("run", "state", "progress", "hours since", "loss", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].overflow = "fold"
    for changed, *shown, loss, command in sorted(lines):
        shown[0] = " ".join(printable(shown[0]).split())
        age = timedelta(minutes=(time.time() - changed) // 60)
        table.add_row(*map(Text, (*shown, str(age)[:-3], loss)))
        commands.setdefault(command, []).append(shown[0])
    console.print(table)
    for command, names in commands.items():
        if command and command.isprintable():
            say(console, f"{', '.join(names)} goes on by{caution(command)}\n  {command}")
    return 0


def caution(command: str) -> str:
    """Return a warning where a command has words that may run code of somebody's; a sweep says so when it goes on."""
    _, _, *words = shlex.split(command)
    foreign = [] if "--resume" in words else [word for word in words if needs_trust(word)]
    return f" (if you trust whoever made it: {foreign[0]} may run code of theirs)" if foreign else ""


def line_of_sweep(name: str, sweep: SweepFolder) -> Line:
    """Return a sweep's line."""
    standings, notes = [sweep.look(entry) for entry in sweep.read_plans()], sweep.read_notes()
    states = {one.state for one in standings} | {"waiting" for note in notes if not note["runs"]}
    if sweep.is_worked_on():  # it is about to start a run, or has none yet: of runs that choose rates come others first
        states |= {"running"}
    state = next((one for one in ("running", "waiting", "failed") if one in states), "finished")
    words = [note["words"] for note in notes]  # of runs that choose rates there are none
    command = sweep.command() if state in ("waiting", "failed") and any(words) else ""
    return last_change(sweep.path, sweep.notes), name, state, summarize(standings), "", command


def line_of_run(name: str, run: RunDirectory) -> Line:
    """Return a run's line; one that says it is running, and that no process holds, was killed."""
    stands = (read_json(run.status) or {"status": "interrupted", "step": 0, "steps": 0}) | (run.ended() or {})
    state, loss, command = stands["status"], stands.get("metrics", {}).get("loss/val"), ""
    if state not in ENDED:
        state = "running" if run.is_held() else state.replace("running", "interrupted")
        command = "" if state == "running" else "".join(one["command"] for one in run.sessions()[-1:])
    shown = f"{stands['step']:,}/{stands['steps']:,}", "" if loss is None else f"{loss:.4f}"
    return last_change(run.path), name, state, *shown, command


def last_change(*folders: Path) -> float:
    """Return when a record in some folders, or in those in them, was last written."""
    files = (file for folder in folders for pattern in ("s*.json", "*/*.json") for file in folder.glob(pattern))
    return max((file.stat().st_mtime for file in files), default=0.0)
