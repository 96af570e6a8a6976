"""`normbench sweep --dry-run`: what would run, and what it would take, measured on a few steps of each arm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normbench.config import Tree
from normbench.dryrun import megabytes
from normbench.errors import RunFailure, UsageError
from normbench.estimate import BRIEF, Estimate, estimate
from normbench.plan import make_plan
from normbench.recording import WeighingSink
from normbench.run import make_session
from normbench.rundir import fingerprint
from normbench.sweeping.folder import State, SweepFolder
from normbench.sweeping.plan import LeftOut, PlannedRun, SweepPlan
from normbench.training.guard import Diverged

TO_DO: tuple[State, ...] = ("new", "interrupted", "running")


@dataclass(frozen=True)
class Forecast:
    """What an arm takes. seconds: of what is to do, one run after another. size: of its directories in the end, bytes.

    note: why seconds and size are not known.
    """

    name: str
    seeds: tuple[int, ...]
    counts: Counter[State]
    seconds: float = 0.0
    size: int = 0
    note: str = ""

    @property
    def to_do(self) -> int:
        return sum(self.counts[state] for state in TO_DO)


def forecast(name: str, runs: Sequence[PlannedRun], folder: SweepFolder, known: dict[str, Estimate]) -> Forecast:
    """What an arm's runs take; a few steps are made if there is something to do.

    known: what arms before have shown, which an arm is taken for that differs in its learning rate alone.
    """
    looks = [(run, *folder.look(run.name)) for run in runs]
    counts: Counter[State] = Counter(state for _, state, _ in looks)
    seeds = tuple(dict.fromkeys(run.seed for run in runs))
    left = [(run, int(status.get("step") or 0)) for run, state, status in looks if state in TO_DO]
    if not left:
        return Forecast(name, seeds, counts)
    try:
        cost = fingerprint(without_rate(left[0][0].tree))
        taken = known[cost] if cost in known else known.setdefault(cost, measure(left[0][0]))
    except Diverged as end:
        return Forecast(name, seeds, counts, note=f"diverges at step {end.step}")
    except (UsageError, RunFailure) as error:
        return Forecast(name, seeds, counts, note=str(error))
    seconds = sum(taken.seconds(max(1, run.steps - step)) for run, step in left)
    return Forecast(name, seeds, counts, seconds, sum(size(taken, run) for run, _ in left))


def without_rate(tree: Tree) -> Tree:
    """A configuration without what changes no time."""
    optim = {key: value for key, value in tree["optim"].items() if key != "lr"}
    return {**tree, "optim": optim, "seed": None}


def measure(run: PlannedRun) -> Estimate:
    """A few steps of a run.

    Raises:
        Diverged: within these steps.
        UsageError, RunFailure: whatever `train` would say.
    """
    session = make_session(make_plan(run.tree, run.choices, None))
    sink = session.recorder = WeighingSink()
    try:
        return estimate(session.make_loop(), sink, BRIEF)
    finally:
        sink.close()


def size(taken: Estimate, run: PlannedRun) -> int:
    """What a run's directory holds in the end, in bytes."""
    keep = run.tree["trainer"]["keep_checkpoint"]
    checkpoints = 0 if keep == "none" else 2 * taken.disk.checkpoint + (taken.disk.best if keep == "best" else 0)
    return checkpoints + taken.record_bytes(run.steps)


def show_forecast(console: Console, plan: SweepPlan, jobs: int, title: str) -> None:
    """Print the plan as a table, and what is left out."""
    folder = SweepFolder(plan.folder)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=Text(title, "bold"), title_justify="left", show_footer=True)
    rows, known = [], dict[str, Estimate]()
    for number, (name, runs) in enumerate(plan.arms.items(), start=1):
        with console.status(f"measuring {number}/{len(plan.arms)}: {name}"):
            rows.append(forecast(name, runs, folder, known))
    counts = sum((row.counts for row in rows), Counter[State]())
    seconds = sum(row.seconds for row in rows)
    beside = f", {jobs} at a time" if jobs > 1 else ""
    finish = f"about {timedelta(seconds=round(seconds / min(jobs, max(1, len(plan.runs)))))}{beside}"
    table.add_column("arm", f"{len(rows)} arms, {len(plan.runs)} runs", overflow="fold")
    table.add_column("seeds")
    table.add_column("to do", str(sum(row.to_do for row in rows)), justify="right")
    table.add_column("done", str(counts["finished"] + counts["diverged"]), justify="right")
    table.add_column("failed", str(counts["failed"]), justify="right")
    table.add_column("time", finish if seconds else "", overflow="fold")
    table.add_column("disk", megabytes(sum(row.size for row in rows)), justify="right")
    for row in rows:
        table.add_row(*map(Text, cells(row)))
    console.print(table)


def cells(row: Forecast) -> tuple[str, ...]:
    """An arm's row."""
    counts = row.counts
    time = row.note or (f"about {timedelta(seconds=round(row.seconds))}" if row.to_do else "")
    done = str(counts["finished"] + counts["diverged"])
    disk = megabytes(row.size) if row.size else ""
    return row.name, ", ".join(map(str, row.seeds)), str(row.to_do), done, str(counts["failed"]), time, disk


def show_left_out(console: Console, left_out: Sequence[LeftOut]) -> None:
    """Say what is not run, and why."""
    for row in left_out:
        runs = "1 run" if row.count == 1 else f"{row.count} runs"
        console.print(f"left out, {runs} ({row.points}): {row.reason}", markup=False, highlight=False, soft_wrap=True)
