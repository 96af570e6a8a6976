"""What a person sees of a sweep: how its runs stand, live on a terminal and in lines elsewhere, and its tables."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from normbench.sweep.folder import Entry, Standing, State, SweepFolder
from normbench.sweep.plan import SweepPlan, arm_name

LOOK_SECONDS = 1.0
LINE_SECONDS = 60.0  # at most, between two lines of a log


class View:
    """Shows how runs stand: a bar for all and for each at work, or a line when one ends and one from time to time."""

    def __init__(self, console: Console, folder: SweepFolder, entries: Sequence[Entry], quiet: bool = False) -> None:
        self.console, self.folder, self.entries, self.quiet = console, folder, entries, quiet
        columns = TextColumn("{task.description}", markup=False), BarColumn(None), TimeRemainingColumn()
        live, hour = console.is_terminal and not quiet, 3600
        self.bars = Progress(
            *columns, console=console, disable=not live, expand=True, speed_estimate_period=hour, refresh_per_second=1
        )
        self.known: dict[str, Standing] = {}  # what has a result is read once
        first = self.read()
        self.told = {one.entry.run for one in first if one.over}
        self.whole = self.bars.add_task("", total=sum(one.steps for one in entries), completed=steps_done(first))
        self.looked = self.printed = 0.0

    def read(self) -> list[Standing]:
        """Return how all runs stand now."""
        standings = [self.known.get(entry.run) or self.folder.look(entry) for entry in self.entries]
        self.known |= {one.entry.run: one for one in standings if one.state in ("finished", "diverged")}
        return standings

    def look(self, again: bool = False) -> None:
        """Show how the runs stand, at most once a second, or again at once."""
        if self.quiet or (time.monotonic() - self.looked < LOOK_SECONDS and not again):
            return
        standings, self.looked = self.read(), time.monotonic()
        self.bars.update(self.whole, description=overall(standings), completed=steps_done(standings))
        if not self.bars.disable:
            self.draw([one for one in standings if one.state == "running"])
            return
        lines = [said(one) for one in standings if one.over and one.entry.run not in self.told]
        self.told |= {one.entry.run for one in standings if one.over}
        if not lines and (not self.printed or time.monotonic() - self.printed > LINE_SECONDS):
            lines = [""]
        left = self.bars.tasks[0].time_remaining
        for line in lines:
            self.printed = time.monotonic()
            time_left = f"{timedelta(seconds=left)} left" if left else ""
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
    name = " · ".join([*([arm_name(entry.arm)] if entry.arm else []), f"seed {entry.seed}"])
    done = standing.state if standing.over else f"{standing.step:,}/{entry.steps:,}"
    return f"{name} {done}" + ("" if standing.loss is None else f" loss {standing.loss:.4f}")


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


# ---- tables


def show_plan(console: Console, plan: SweepPlan, states: Mapping[str, State], again: bool) -> None:
    """Print a plan by arms. states: of all runs. again: failed ones will be made again."""
    title, columns = Text(str(plan.folder), "bold"), ("arm", "seeds", "to do", "done", "failed")
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    whole = f"{counted(len(plan.arms), 'arm')}, {counted(len(plan.runs), 'run')}"
    for name, runs in [*plan.arms.items(), (whole, plan.runs)]:
        counts = Counter(states[run.entry.run] for run in runs)
        done, failed = counts["finished"] + counts["diverged"], counts["failed"]
        seeds = sorted({run.entry.seed for run in runs}) if runs is not plan.runs else []
        in_a_row = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1))
        listed = f"{seeds[0]}–{seeds[-1]}" if in_a_row else ", ".join(map(str, seeds))
        table.add_row(Text(name), listed, *map(str, (len(runs) - done - (0 if again else failed), done, failed)))
    table.rows[-2].end_section = True
    console.print(table)


def counted(number: int, thing: str) -> str:
    """Return such as `1 run` or `2 runs`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def show_left_out(console: Console, plan: SweepPlan) -> None:
    """Say what is not run, and why, by what such points have in common."""
    for reason, points in plan.left_out.items():
        common = set.intersection(*(set(point.varied.items()) for point in points))
        shared = {key: value for key, value in points[0].varied.items() if (key, value) in common}
        say(console, f"left out, {counted(len(points), 'run')} ({arm_name(shared)}): {reason}")


def show_failures(console: Console, failed: Sequence[Standing]) -> None:
    """Print a table of the runs that have failed and why, if any, and behind it the command that repeats each."""
    table = Table("failed run", "cause", box=SIMPLE_HEAD, pad_edge=False)
    for one in failed:
        table.add_row(Text(one.entry.run), Text(one.cause))
    if failed:
        console.print(table)
        say(console, "\n".join(one.entry.command for one in failed))
        say(console, "sweep.retry_failed=true tries them again; the commands above repeat one each")
