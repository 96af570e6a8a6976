"""`normbench runs`: how sweeps and runs stand, and the commands that go on with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normbench.errors import UsageError
from normbench.results import run_directories
from normbench.rundir import ENDED, RunDirectory, read_json
from normbench.sweep.folder import Standing, SweepFolder, overall, say


class Line(NamedTuple):
    """How a sweep or a run stands. changed: when something was last written. command: goes on with it, if any."""

    changed: float
    name: str
    state: str
    progress: str
    loss: float | None
    command: str


def show_runs(folder: Path) -> int:
    """Print a line for each sweep, unless the folder is one, and for each other run; the newest comes last.

    Raises:
        UsageError: the folder is not there, or holds neither.
    """
    lines, console = sorted(lines_of(folder)), Console()
    table = Table("run", "state", "progress", "hours since", "loss/val", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].overflow = "fold"
    for line in lines:
        age, loss = timedelta(minutes=(time.time() - line.changed) // 60), line.loss
        shown = line.name, line.state, line.progress, str(age)[:-3], "" if loss is None else f"{loss:.4f}"
        table.add_row(*map(Text, shown))
    console.print(table)
    for command in dict.fromkeys(line.command for line in lines if line.command):
        say(console, command)
    return 0


def lines_of(folder: Path) -> Iterator[Line]:
    """Return the lines in no order; a sweep's runs have none of their own unless the folder is the sweep's."""
    sweeps = {path.parent: SweepFolder(path.parent) for path in folder.rglob(".sweep")}
    runs: dict[str, RunDirectory] = {}
    with suppress(*[UsageError] if sweeps else []):  # nothing of a sweep has begun
        runs = run_directories(folder)
    for path, sweep in sweeps.items():
        standings = [sweep.look(entry) for entry in sweep.read_plans()]
        if path != folder:
            yield line_of_sweep(str(path.relative_to(folder)), sweep, standings)
            continue
        for one in standings:
            if one.entry.run not in runs:
                steps = f"0/{one.entry.steps:,}"
                yield Line(changed(sweep.notes), one.entry.run, one.state, steps, None, sweep.command)
    for name, run in runs.items():
        if run.path.parent == folder or run.path.parent not in sweeps:
            yield line_of_run(name, run)


def line_of_sweep(name: str, sweep: SweepFolder, standings: list[Standing]) -> Line:
    """Return a sweep's line."""
    states = {one.state for one in standings}
    state = next((one for one in ("running", "waiting", "failed") if one in states), "finished")
    command = sweep.command if state in ("waiting", "failed") else ""
    return Line(changed(sweep.notes, *sweep.path.iterdir()), name, state, overall(standings), None, command)


def line_of_run(name: str, run: RunDirectory) -> Line:
    """Return a run's line; one that says it is running, and that no process holds, was killed."""
    stands = (read_json(run.status) or {"status": "interrupted", "step": 0, "steps": 0}) | (run.ended() or {})
    state, loss, sessions = stands["status"], stands.get("metrics", {}).get("loss/val"), run.sessions()
    if state not in ENDED:
        state = "running" if run.is_held() else state.replace("running", "interrupted")
    command = "" if state in (*ENDED, "running") or not sessions else sessions[-1]["command"]
    return Line(changed(run.path), name, state, f"{stands['step']:,}/{stands['steps']:,}", loss, command)


def changed(*folders: Path) -> float:
    """Return when a file of some folders was last written."""
    return max((file.stat().st_mtime for folder in folders for file in folder.glob("*.json")), default=0.0)
