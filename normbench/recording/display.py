"""How far a run is: a live bar on a terminal, lines in a log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

SPEED_PERIOD = 600.0  # seconds whose speed the time left is computed from
REFRESH_PERIOD = 0.25  # seconds; drawing takes some ms of the training's time
LINE_PERIOD = 10.0  # seconds, at most, between two lines ...
LINE_SHARE = 0.1  # ... and steps, as a share of the run


class Display:
    """Progress and the latest numbers, shown nowhere yet."""

    def __init__(self, console: Console, total: int, unit: str, start: int) -> None:
        self._console = console
        self._unit = unit
        self._values: dict[str, float] = {}
        # Disabled: it draws nothing by itself, and it starts no thread that would take time from the training.
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            speed_estimate_period=SPEED_PERIOD,
            expand=True,
            disable=True,
        )
        self._progress.add_task("", total=total, completed=start, left="")
        (self._task,) = self._progress.tasks

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""
        self._values.update(values)
        self._progress.update(self._task.id, completed=step)
        self._progress.update(self._task.id, left=self.time_left)

    def close(self) -> None:
        """Leave the last state on the screen."""

    @property
    def time_left(self) -> str:
        """`0:01:23 left`; the steps before a continuation do not count as done in this time."""
        seconds = self._task.time_remaining
        return "" if seconds is None else f"{timedelta(seconds=int(seconds))} left"

    @property
    def numbers(self) -> str:
        """`loss 1.9321  val 2.0112  lr 9.8e-04  12,345 tokens/s`, of what is known."""
        shown = {
            "loss/train": "loss {:.4f}",
            "loss/val": "val {:.4f}",
            "accuracy/val": "accuracy {:.2%}",
            "optim/lr": "lr {:.1e}",
            f"time/{self._unit}_per_second": f"{{:,.0f}} {self._unit}/s",
        }
        return "  ".join(form.format(self._values[tag]) for tag, form in shown.items() if tag in self._values)


class LiveDisplay(Display):
    """Two lines at the bottom of the terminal; messages appear above them."""

    def __init__(self, console: Console, total: int, unit: str, start: int) -> None:
        super().__init__(console, total, unit, start)
        self._live = Live(get_renderable=self._render, console=console, auto_refresh=False)
        self._drawn = 0.0

    def update(self, step: int, values: Mapping[str, float]) -> None:
        super().update(step, values)
        now = self._console.get_time()
        if not self._live.is_started:
            self._live.start()
        elif now - self._drawn < REFRESH_PERIOD:
            return
        self._live.refresh()
        self._drawn = now

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        return Group(self._progress.get_renderable(), Text(self.numbers, overflow="ellipsis", no_wrap=True))


class PlainDisplay(Display):
    """A line at each evaluation, each tenth of the run, and each 10 seconds."""

    def __init__(self, console: Console, total: int, unit: str, start: int) -> None:
        super().__init__(console, total, unit, start)
        self._total = total
        self._printed_step = start
        self._printed_time = console.get_time()

    def update(self, step: int, values: Mapping[str, float]) -> None:
        evaluated = any(tag.endswith("/val") and self._values.get(tag) != value for tag, value in values.items())
        super().update(step, values)
        now = self._console.get_time()
        due = step - self._printed_step >= LINE_SHARE * self._total or now - self._printed_time >= LINE_PERIOD
        if evaluated or due or step >= self._total:
            width = len(str(self._total))
            parts = f"step {step:>{width}}/{self._total}", self.numbers, self.time_left
            self._console.print("  ".join(part for part in parts if part), highlight=False, soft_wrap=True)
            self._printed_step, self._printed_time = step, now
