"""What a person sees of a sweep: how its runs stand, live on a terminal and in lines elsewhere, and its tables."""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from normbench.sweep.folder import Entry, Standing, SweepFolder, arm_name
from normbench.sweep.plan import SweepPlan

LOOK_SECONDS = 1.0
LINE_SECONDS = 60.0  # at most, between two lines of a log


class View:
    """Shows how runs stand: a bar for all and for each at work, or a line when one ends and one from time to time."""

    def __init__(self, console: Console, folder: SweepFolder, entries: Sequence[Entry]) -> None:
        self.console, self.folder, self.entries = console, folder, entries
        columns = TextColumn("{task.description}", markup=False), BarColumn(None), TimeRemainingColumn()
        live, hour = console.is_terminal, 3600
        self.bars = Progress(
            *columns, console=console, disable=not live, expand=True, speed_estimate_period=hour, refresh_per_second=1
        )
        self.over: dict[str, Standing] = {}  # these are read once
        first, total = self.read(), sum(entry.steps for entry in entries)
        self.whole = self.bars.add_task("", total=total, completed=steps_done(first))
        self.looked = self.printed = -math.inf

    def read(self) -> list[Standing]:
        """Return how all runs stand now."""
        standings = [self.over.get(entry.run) or self.folder.look(entry) for entry in self.entries]
        self.over |= {one.entry.run: one for one in standings if one.over}
        return standings

    def look(self, again: bool = False) -> None:
        """Show how the runs stand, at most once a second, or again at once."""
        if (now := time.monotonic()) - self.looked < LOOK_SECONDS and not again:
            return
        known, standings, self.looked = {*self.over}, self.read(), now
        self.bars.update(self.whole, description=overall(standings), completed=steps_done(standings))
        if not self.bars.disable:
            self.draw([one for one in standings if one.state == "running"])
            return
        lines = [said(one) for one in standings if one.over and one.entry.run not in known]
        left = self.bars.tasks[0].time_remaining
        time_left = f"{timedelta(seconds=left)} left" if left else ""
        for line in lines or [""] * (now - self.printed > LINE_SECONDS):
            self.printed = now
            say(self.console, "  ".join(filter(None, (overall(standings), line, time_left))))

    def draw(self, running: Sequence[Standing]) -> None:
        """Draw a bar for each run at work, as many as there is room for."""
        for task in self.bars.task_ids[1:]:
            self.bars.remove_task(task)
        for one in running[: max(3, self.console.size.height - 4)]:
            self.bars.add_task(said(one), total=one.entry.steps, completed=one.step)
        self.bars.start()

    def close(self) -> None:
        """Leave the last state to be seen."""
        self.look(again=True)
        self.bars.stop()


def steps_done(standings: Sequence[Standing]) -> int:
    """Return how many steps are done; a run that is over counts in full."""
    return sum(one.entry.steps if one.over else one.step for one in standings)


def overall(standings: Sequence[Standing]) -> str:
    """Return such as `5/8 runs  1 diverged  2 running`."""
    counts = Counter(one.state for one in standings)
    parts = [f"{sum(one.over for one in standings)}/{len(standings)} runs"]
    parts += [f"{counts[state]} {state}" for state in ("diverged", "failed", "running") if counts[state]]
    return "  ".join(parts)


def said(standing: Standing) -> str:
    """Return a run's arm and seed, how far it is, and its loss."""
    entry = standing.entry
    done = standing.state if standing.over else f"{standing.step:,}/{entry.steps:,}"
    loss = "" if standing.loss is None else f" loss {standing.loss:.4f}"
    return f"{arm_name(entry.arm)} · seed {entry.seed} {done}{loss}"


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


# ---- tables


def show_plan(console: Console, plan: SweepPlan, standings: Mapping[str, Standing]) -> None:
    """Print a plan by arms, and what is left out. standings: of all runs."""
    title, columns = Text(str(plan.folder), "bold"), ("arm", "seeds", "to do", "done", "failed")
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for name, runs in [*plan.arms.items(), (f"in all: {len(plan.arms):,}", plan.runs)]:
        counts = Counter(standings[run.run].state for run in runs)
        done = counts["finished"] + counts["diverged"]
        seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
        table.add_row(Text(name), seeds, *map(str, (len(runs) - done - counts["failed"], done, counts["failed"])))
    table.rows[-2].end_section = True
    console.print(table)


def show_left_out(console: Console, plan: SweepPlan) -> None:
    """Say what is not run, and why."""
    for reason, number in plan.left_out.items():
        say(console, f"left out, runs: {number:,}: {reason}")


def show_failures(failed: Sequence[Standing]) -> None:
    """Print a table of the runs that have failed and why, if any, and behind it the command that repeats each."""
    console, table = Console(), Table("failed run", "cause", box=SIMPLE_HEAD, pad_edge=False)
    for one in failed:
        table.add_row(Text(one.entry.run), Text(one.cause))
    if failed:
        console.print(table)
        for one in failed:
            say(console, shlex.join(["normbench", "train", *one.entry.words]))
        say(console, "sweep.retry_failed=true tries them again; the commands above repeat one each")
