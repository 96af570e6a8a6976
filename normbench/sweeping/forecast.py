"""`normbench sweep --dry-run`: what would run, and what it would take, measured on a few steps of each arm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from heapq import heapreplace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normbench.config import Tree
from normbench.dryrun import megabytes
from normbench.errors import RunFailure, UsageError, explain
from normbench.plan import make_plan
from normbench.run import make_session
from normbench.rundir import fingerprint
from normbench.sweeping.folder import State, SweepFolder
from normbench.sweeping.plan import LeftOut, PlannedRun, SweepPlan
from normbench.training.estimate import Estimate, WeighingSink, estimate
from normbench.training.guard import Diverged

TO_DO: tuple[State, ...] = ("new", "interrupted", "running")


@dataclass(frozen=True)
class Forecast:
    """What an arm takes. to_do: its runs to be made. seconds: that each of them takes, as far as it is known.

    size: of its directories in the end, bytes. note: why seconds and size are not known.
    """

    name: str
    seeds: tuple[int, ...]
    counts: Counter[State]
    to_do: int = 0
    seconds: tuple[float, ...] = ()
    size: int = 0
    note: str = ""


@dataclass(frozen=True)
class Terms:
    """How the runs to do will be made. side_by_side: at a time, each at its full speed. again: failed ones too."""

    side_by_side: int
    again: bool

    @property
    def to_do(self) -> tuple[State, ...]:
        return (*TO_DO, "failed") if self.again else TO_DO

    def together(self, seconds: Iterable[float]) -> float:
        """The time that runs take when each begins where one before it has ended."""
        busy = [0.0] * self.side_by_side
        for taken in seconds:
            heapreplace(busy, busy[0] + taken)
        return max(busy)


def forecast(
    name: str, runs: Sequence[PlannedRun], folder: SweepFolder, terms: Terms, known: dict[str, Estimate]
) -> Forecast:
    """What an arm's runs take; a few steps are made if there is something to do.

    known: what arms before have shown, which an arm is taken for that differs in its learning rate alone.
    """
    looks = [(run, *folder.look(run.name)) for run in runs]
    counts: Counter[State] = Counter(state for _, state, _ in looks)
    seeds = tuple(dict.fromkeys(run.seed for run in runs))
    left = [(run, int(status.get("step") or 0)) for run, state, status in looks if state in terms.to_do]
    if not left:
        return Forecast(name, seeds, counts)
    try:
        cost = fingerprint(without_rate(left[0][0].tree))
        taken = known[cost] if cost in known else known.setdefault(cost, measure(left[0][0]))
    except Diverged as end:
        return Forecast(name, seeds, counts, len(left), note=f"diverges at step {end.step}")
    except (UsageError, RunFailure) as error:
        return Forecast(name, seeds, counts, len(left), note=str(error))
    except Exception as error:  # of a user's class, as a run of the sweep would fail with
        return Forecast(name, seeds, counts, len(left), note=explain(error))
    seconds = tuple(taken.seconds(max(1, run.steps - step)) for run, step in left)
    return Forecast(name, seeds, counts, len(left), seconds, sum(size(taken, run) for run, _ in left))


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
        return estimate(session.make_loop(), sink)
    finally:
        sink.close()


def size(taken: Estimate, run: PlannedRun) -> int:
    """What a run's directory holds in the end, in bytes."""
    keep = run.tree["trainer"]["keep_checkpoint"]
    checkpoints = 0 if keep == "none" else 2 * taken.checkpoint + (taken.best if keep == "best" else 0)
    return checkpoints + taken.record_bytes(run.steps)


def show_forecast(console: Console, plan: SweepPlan, terms: Terms, title: str) -> None:
    """Print the plan as a table, and what is left out."""
    folder = SweepFolder(plan.folder)
    rows, known = [], dict[str, Estimate]()
    for number, (name, runs) in enumerate(plan.arms.items(), start=1):
        with console.status(f"measuring {number}/{len(plan.arms)}: {name}"):
            rows.append(forecast(name, runs, folder, terms, known))
    counts = sum((row.counts for row in rows), Counter[State]())
    to_do = sum(row.to_do for row in rows)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=Text(title, "bold"), title_justify="left", show_footer=True)
    table.add_column("arm", f"{counted(len(rows), 'arm')}, {counted(len(plan.runs), 'run')}", overflow="fold")
    table.add_column("seeds", overflow="fold")
    table.add_column("to do", str(to_do), justify="right")
    table.add_column("done", str(counts["finished"] + counts["diverged"]), justify="right")
    table.add_column("failed", str(counts["failed"]), justify="right")
    table.add_column("time", finish(rows, terms), overflow="fold")
    table.add_column("disk", megabytes(sum(row.size for row in rows)), justify="right")
    for row in rows:
        table.add_row(*map(Text, cells(row)))
    console.print(table)


def finish(rows: Sequence[Forecast], terms: Terms) -> str:
    """The time that all runs to do take."""
    seconds = [taken for row in rows for taken in row.seconds]
    beside = min(terms.side_by_side, len(seconds))
    together = timedelta(seconds=round(terms.together(seconds)))
    return f"about {together}{f', {beside} at a time' if beside > 1 else ''}" if seconds else ""


def cells(row: Forecast) -> tuple[str, ...]:
    """An arm's row."""
    counts = row.counts
    time = row.note or (f"about {timedelta(seconds=round(sum(row.seconds)))}" if row.to_do else "")
    done = str(counts["finished"] + counts["diverged"])
    disk = megabytes(row.size) if row.size else ""
    return row.name, numbers(row.seeds), str(row.to_do), done, str(counts["failed"]), time, disk


def numbers(seeds: Sequence[int]) -> str:
    """Seeds, three and more in a row as their first and last: `0–124, 1000`."""
    rows: list[list[int]] = []
    for seed in sorted(seeds):
        if rows and seed == rows[-1][-1] + 1:
            rows[-1].append(seed)
        else:
            rows.append([seed])
    return ", ".join(f"{row[0]}–{row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows)


def counted(number: int, thing: str) -> str:
    """Such as `1 run` or `2 runs`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def show_left_out(console: Console, left_out: Sequence[LeftOut]) -> None:
    """Say what is not run, and why."""
    for row in left_out:
        console.print(
            f"left out, {counted(row.count, 'run')} ({row.points}): {row.reason}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
