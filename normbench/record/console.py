"""What a run shows on the console: a bar with numbers below it, and tables."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from normbench.record.loggers import Logger, Scalar

REFRESH_PERIOD = 0.25  # seconds between two drawings of a live display, which take some ms of the training's time
LINE_PERIOD = 10.0  # seconds, at most, between two lines where there is no terminal
PATIENCE = 5.0  # seconds that pass without a line before one says what a command is at


class Display(Progress, Logger):
    """Shows how far a run is: a bar with numbers below it on a terminal, lines elsewhere.

    Lines come at each evaluation, and each 10 seconds.

    Args:
        unit: what throughput counts, `tokens` or `images`.
        start_step: the steps that are done already when a run goes on.
        console: by default standard output.
    """

    def __init__(self, total_steps: int, unit: str, start_step: int = 0, console: Console | None = None) -> None:
        self.unit = unit
        self.values: dict[str, float] = {}
        self.step = start_step
        self.evaluated = start_step
        super().__init__(
            "step",
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console or Console(),
            expand=True,
            auto_refresh=False,  # it is drawn from here alone: a thread would take time from the training
        )
        self.shown = self.get_time()
        self.add_task("", total=total_steps, completed=start_step, left="")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Show that `step` steps are done, and the newest numbers by tag; cheap enough for every log step."""
        (task,) = self.tasks
        live = self.console.is_interactive
        is_evaluation = "loss/val" in values
        if step != self.step and not live:  # a line has what belongs to its own step
            self.values.clear()
        self.step = step
        if is_evaluation:
            self.evaluated = step
        self.values.update(values)
        self.update(task.id, completed=step)
        period = REFRESH_PERIOD if live else LINE_PERIOD
        if not is_evaluation and self.get_time() - self.shown < period:
            return
        self.shown = self.get_time()
        left = ""
        if task.time_remaining is not None:  # by the pace of this process alone
            left = f"{timedelta(seconds=int(task.time_remaining))} left"
        if live:
            self.start()
            self.update(task.id, left=left, refresh=True)
        else:
            done = f"step {step:>{len(str(task.total))}}/{task.total}"
            parts = [part for part in (done, self.numbers(), left) if part]
            self.console.print("  ".join(parts), highlight=False, soft_wrap=True)

    def close(self, ended: str) -> None:
        if self.live.is_started:
            self.stop()  # and leave the last state on the screen

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return two lines for the bottom of the terminal; what is printed meanwhile appears above them."""
        return [*super().get_renderables(), Text(self.numbers(), overflow="ellipsis", no_wrap=True)]

    def numbers(self) -> str:
        """Return `loss 1.9321  val 2.0112  lr 9.8e-04  12,345 tokens/s`, of what is known."""
        shown = {
            "loss/train": "loss {:.4f}",
            "loss/val": "val {:.4f}",
            "accuracy/val": "accuracy {:.2%}",
            "bleu/val": "BLEU {:.1f}",
            "optim/lr": "lr {:.1e}",
            f"time/{self.unit}_per_second": f"{{:,.0f}} {self.unit}/s",
        }
        if self.evaluated != self.step:  # on a terminal the last evaluation stays, with its step
            shown["loss/val"] += f" at step {self.evaluated:,}"
        parts: list[str] = []
        for tag, form in shown.items():
            if tag in self.values:
                parts.append(form.format(self.values[tag]))
        return "  ".join(parts)


class Stages:
    """Says on standard error what a command is at: in a line at the bottom of a terminal, elsewhere line by line.

    Elsewhere a command that is soon done says nothing: lines come once some seconds have passed without one. It is
    drawn when it is told something, and never in between: a thread would take time from what is measured.

    Args:
        total: how many stages there are; None: nobody knows.
        quiet: whether to say nothing.
        is_long: whether the first stage is said at once everywhere, since it will take long.
        console: by default standard error.
    """

    def __init__(
        self, total: int | None = None, quiet: bool = False, is_long: bool = False, console: Console | None = None
    ) -> None:
        self.console = console or Console(stderr=True, quiet=quiet)
        self.total = total
        self.done = 0
        self.stage = ""
        self.last_said = -math.inf if is_long else time.monotonic()
        columns: list[Any] = [TextColumn("{task.description}", markup=False)]
        if total is not None:
            columns = [MofNCompleteColumn(), BarColumn(), *columns]
        self.bar = Progress(*columns, TimeElapsedColumn(), console=self.console, auto_refresh=False, transient=True)
        self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar.live.is_started:
            self.bar.stop()

    def begin(self, stage: str, done: int = 0) -> None:
        """Say which stage begins, after how many others."""
        self.done = done
        self.stage = stage
        self.tell(stage, 0)

    def note(self, what: str) -> None:
        """Say what a stage has come to; cheap enough for every row that is measured."""
        self.tell(f"{self.stage}: {what}", REFRESH_PERIOD)

    def tell(self, line: str, period: float) -> None:
        """Draw a line on a terminal, at most once in a period; elsewhere print it, if some time has passed."""
        live = self.console.is_interactive
        silent = time.monotonic() - self.last_said
        if silent < (period if live else PATIENCE):
            return
        self.last_said = time.monotonic()
        if not live:
            done = f"{self.done}/{self.total}  " if self.total is not None else ""
            self.console.print(f"{done}{line}", markup=False, highlight=False, soft_wrap=True)
            return
        self.bar.start()
        self.bar.update(self.task, description=line, completed=self.done, refresh=True)


def show_table(title: str, rows: Mapping[str, Scalar], console: Console | None = None) -> None:
    """Print a table of names and values."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(title), min_width=20)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(name), Text(readable(value)))
    (console or Console()).print(table)


def readable(value: Scalar) -> str:
    """Return a value as a person reads it: `1,234,567`, `0.00098`, `yes`, `none`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.5g}"
