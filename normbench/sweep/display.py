"""What a person sees of a sweep: how its runs stand, live on a terminal and in lines elsewhere, and its tables."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from normbench.sweep.folder import Entry, Standing, State, SweepFolder
from normbench.sweep.plan import SweepPlan, arm_name

LOOK_SECONDS = 1.0
LINE_SECONDS = 60.0  # at most, between two lines of a log


class View:
    """Shows how runs stand: a bar and a line for each at work, or a line when one ends and one from time to time."""

    def __init__(self, console: Console, folder: SweepFolder, entries: Sequence[Entry], quiet: bool = False) -> None:
        self.console, self.folder, self.entries, self.quiet = console, folder, entries, quiet
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal and not quiet else None
        self.looked = 0.0
        self.known: dict[str, Standing] = {}  # what has a result is read once
        first = self.read()
        self.told = {one.entry.run for one in first if one.over}
        self.begun, self.done_before, self.printed = time.monotonic(), steps_done(first), 0.0

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
        left = self.time_left(standings)
        if self.live:
            self.live.start()
            self.live.update(self.drawn(standings, left), refresh=True)
            return
        lines = [" ".join(row(one)) for one in standings if one.over and one.entry.run not in self.told]
        self.told |= {one.entry.run for one in standings if one.over}
        for line in lines or ([""] if time.monotonic() - self.printed > LINE_SECONDS or not self.printed else []):
            self.printed = time.monotonic()
            say(self.console, "  ".join(filter(None, (overall(standings), line, left))))

    def close(self) -> None:
        """Leave the last state to be seen."""
        self.look(again=True)
        if self.live:
            self.live.stop()

    def time_left(self, standings: Sequence[Standing]) -> str:
        """Return such as `0:12:30 left, until 14:05`, at the pace since this began; empty where it is not known."""
        done, steps = steps_done(standings), sum(one.entry.steps for one in standings)
        if done <= self.done_before or done == steps:
            return ""
        left = round((time.monotonic() - self.begun) * (steps - done) / (done - self.done_before))
        return f"{timedelta(seconds=left)} left, until {time.strftime('%H:%M', time.localtime(time.time() + left))}"

    def drawn(self, standings: Sequence[Standing], left: str) -> RenderableType:
        """Return what a terminal shows."""
        running = [one for one in standings if one.state == "running"]
        bar = Table.grid(Column(), Column(ratio=1), padding=(0, 1), expand=True)
        steps = max(1, sum(one.entry.steps for one in standings))
        bar.add_row(overall(standings), ProgressBar(steps, steps_done(standings)), left)
        rows = Table.grid(padding=(0, 2))
        for one in running[: max(3, self.console.size.height - 4)]:
            rows.add_row(*map(Text, row(one)))
        return Group(bar, rows)


def steps_done(standings: Sequence[Standing]) -> int:
    """Return how many steps are done; a run that is over counts in full."""
    return sum(one.entry.steps if one.over else one.step for one in standings)


def overall(standings: Sequence[Standing]) -> str:
    """Return such as `5/8 runs  1 diverged  2 running`."""
    counts = Counter(one.state for one in standings)
    parts = [f"{sum(one.over for one in standings)}/{len(standings)} runs"]
    parts += [f"{counts[state]} {state}" for state in ("diverged", "failed", "running") if counts[state]]
    return "  ".join(parts)


def row(standing: Standing) -> tuple[str, ...]:
    """Return a run's arm and seed, how far it is, and its loss."""
    name = " · ".join([*([arm_name(standing.entry.arm)] if standing.entry.arm else []), f"seed {standing.entry.seed}"])
    done = standing.state if standing.over else f"{standing.step:,}/{standing.entry.steps:,}"
    return name, done, "" if standing.loss is None else f"loss {standing.loss:.4f}"


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
        to_do = len(runs) - done - (0 if again else failed)
        seeds = "" if name == whole else numbers(sorted({run.entry.seed for run in runs}))
        table.add_row(Text(name), seeds, *map(str, (to_do, done, failed)))
    table.rows[-2].end_section = True
    console.print(table)


def numbers(seeds: Sequence[int]) -> str:
    """Write seeds, three and more in a row as their first and last: `0–124, 1000`."""
    rows: list[list[int]] = []
    for seed in seeds:
        if rows and seed == rows[-1][-1] + 1:
            rows[-1].append(seed)
        else:
            rows.append([seed])
    return ", ".join(f"{row[0]}–{row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows)


def counted(number: int, thing: str) -> str:
    """Return such as `1 run` or `2 runs`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def show_left_out(console: Console, plan: SweepPlan) -> None:
    """Say what is not run, and why, by what such points have in common."""
    for reason, points in plan.left_out.items():
        common = set.intersection(*(set(point.varied.items()) for point in points))
        shared = {key: value for key, value in points[0].varied.items() if (key, value) in common}
        say(console, f"left out, {counted(len(points), 'run')} ({arm_name(shared)}): {reason}")


def show_failures(console: Console, failed: Sequence[tuple[Entry, str]]) -> None:
    """Print a table of the runs that have failed and why, if any, and behind it the command that repeats each."""
    table = Table("failed run", "cause", box=SIMPLE_HEAD, pad_edge=False)
    for entry, cause in failed:
        table.add_row(Text(entry.run), Text(cause))
    if failed:
        console.print(table)
        for entry, _ in failed:
            say(console, entry.command)
        say(console, "sweep.retry_failed=true tries them again; the commands above repeat one each")
