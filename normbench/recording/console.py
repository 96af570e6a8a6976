"""What the person at the console sees: progress, messages and the closing tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from normbench.recording.sink import Scalar, Sink

if TYPE_CHECKING:
    from rich.console import Console


class ConsoleSink(Sink):
    """A live display on a terminal, plain lines elsewhere.

    total_steps: of the whole run. unit: what throughput counts, `tokens` or `images`. start_step: the steps that are
    done already when a run goes on. console: where to show it; by default the standard output.
    """

    def __init__(self, total_steps: int, unit: str, *, start_step: int = 0, console: Console | None = None) -> None:
        # Here, not above: rich takes 0.1 s, which a quiet run need not wait for.
        from rich.console import Console

        from normbench.recording.display import LiveDisplay, PlainDisplay

        self._console = console or Console()
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._display = (LiveDisplay if live else PlainDisplay)(self._console, total_steps, unit, start_step)

    def message(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        self._display.update(step, values)

    def summary(self, title: str, rows: Iterable[tuple[str, Scalar]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        self._display.close()
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column(Text(title), min_width=20)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(Text(name), Text(show(value)))
        self._console.print(table)

    def flush(self) -> None:
        self._console.file.flush()

    def close(self) -> None:
        self._display.close()


def show(value: Scalar) -> str:
    """A value as a person reads it: `1,234,567`, `0.00098`, `yes`, `none`."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.5g}"
        case _:
            return str(value)
