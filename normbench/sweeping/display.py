"""One display over all runs of a sweep: live on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from normbench.sweeping.plan import arm_name
from normbench.sweeping.progress import Progress, Reader, Standing
from normbench.sweeping.repeating import repeated

LOOK_SECONDS = 1.0
LINE_SECONDS = 60.0  # at most, between two lines of a log


class View:
    """Shows how the runs stand, nowhere yet."""

    def __init__(self, console: Console, reader: Reader) -> None:
        self.console, self.reader = console, reader

    def look(self) -> Progress:
        """Look at the runs once, and show it."""
        return self.reader.read()

    def say(self, line: str) -> None:
        """A line for the person."""

    def close(self) -> None:
        """Leave the last state to be seen."""

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Look again and again while this lasts."""
        try:
            with repeated(LOOK_SECONDS, self.look):
                yield
        finally:
            self.look()
            self.close()


class QuietView(View):
    """Shows nothing."""


class LiveView(View):
    """A bar over all runs, and a line for each that is at work."""

    def __init__(self, console: Console, reader: Reader) -> None:
        super().__init__(console, reader)
        self.live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def look(self) -> Progress:
        progress = self.reader.read()
        if not self.live.is_started:
            self.live.start()
        self.live.update(self.render(progress), refresh=True)
        return progress

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.live.stop()

    def render(self, progress: Progress) -> RenderableType:
        """What is drawn."""
        done, steps = progress.steps
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(Text(overall(progress)), ProgressBar(max(steps, 1), done), Text(time_left(progress)))
        running = [standing for standing in progress.standings if standing.state == "running"]
        room = max(3, self.console.size.height - 4)
        rows = Table.grid(padding=(0, 2))
        for standing in running[:room]:
            rows.add_row(*map(Text, row(standing)))
        more = [Text(f"and {len(running) - room} more")] if len(running) > room else []
        return Group(bar, rows, *more)


class PlainView(View):
    """A line when a run ends, and one from time to time."""

    def __init__(self, console: Console, reader: Reader) -> None:
        super().__init__(console, reader)
        self.told: set[str] | None = None
        self.printed = time.monotonic()

    def look(self) -> Progress:
        progress = self.reader.read()
        over = {standing.entry.run: standing for standing in progress.standings if standing.over}
        if self.told is None:
            self.told = set(over)
            self.say(overall(progress))
        for run in over.keys() - self.told:
            self.say("  ".join([overall(progress), *filter(None, (" ".join(row(over[run])), time_left(progress)))]))
        if time.monotonic() - self.printed > LINE_SECONDS:
            self.say("  ".join(filter(None, (overall(progress), time_left(progress)))))
        self.told |= over.keys()
        return progress

    def say(self, line: str) -> None:
        self.printed = time.monotonic()
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_view(console: Console, reader: Reader, quiet: bool) -> View:
    """The view that fits where it is seen."""
    if quiet:
        return QuietView(console, reader)
    live = console.is_terminal and not console.is_dumb_terminal
    return (LiveView if live else PlainView)(console, reader)


def overall(progress: Progress) -> str:
    """Such as `5/8 runs  1 diverged  2 running`."""
    counts = progress.counts
    parts = [f"{progress.over}/{len(progress.standings)} runs"]
    parts += [f"{counts[state]} {state}" for state in ("diverged", "failed", "running") if counts[state]]
    return "  ".join(parts)


def time_left(progress: Progress) -> str:
    """Such as `0:12:30 left, until 14:05`."""
    if progress.seconds_left is None or progress.over == len(progress.standings):
        return ""
    seconds = round(progress.seconds_left)
    return f"{timedelta(seconds=seconds)} left, until {time.strftime('%H:%M', time.localtime(time.time() + seconds))}"


def row(standing: Standing) -> tuple[str, ...]:
    """A run: its arm and seed, how far it is, its loss."""
    arm = [arm_name(standing.entry.arm)] if standing.entry.arm else []
    name = " · ".join([*arm, f"seed {standing.entry.seed}"])
    done = standing.state if standing.over else f"{standing.step:,}/{standing.entry.steps:,}"
    return name, done, "" if standing.loss is None else f"loss {standing.loss:.4f}"
