"""Sinks together, and the console."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from normbench.recording import ConsoleSink, NullSink, Recorder, Scalar, Sink


class Histogram(NamedTuple):
    counts: list[float]
    edges: list[float]


# ---- composition


class Noted(Sink):
    """Keeps the names and arguments of all calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in METHODS:
            return lambda *arguments: self.calls.append((name, *arguments))
        return super().__getattribute__(name)


METHODS: dict[str, tuple[Any, ...]] = {
    "scalars": (1, {"loss/train": 1.0}),
    "histograms": (1, {"act/final/in": Histogram([1.0], [0.0, 1.0])}),
    "text": ("config", "a: 1"),
    "hparams": ({"norm": "rmsnorm"}, {"loss/val": 1.0}),
    "message": ("hello",),
    "progress": (1, {"loss/train": 1.0}),
    "summary": ("results", (("loss", 1.0),)),
    "flush": (),
    "close": (),
}


def test_a_recorder_passes_everything_on_and_a_null_sink_takes_everything() -> None:
    assert set(METHODS) == {name for name in vars(Sink) if not name.startswith("_")}
    first, second = Noted(), Noted()
    recorder = Recorder([first, NullSink(), second])
    for name, arguments in METHODS.items():
        getattr(recorder, name)(*arguments)
    assert first.calls == second.calls == [(name, *arguments) for name, arguments in METHODS.items()]


@pytest.mark.parametrize("name", ["flush", "close"])
def test_a_failing_sink_keeps_no_other_from_its_end(name: str) -> None:
    class Failing(Sink):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "full")

        close = flush

    before, behind = Noted(), Noted()
    with pytest.raises(OSError, match="full"):
        getattr(Recorder([before, Failing(), behind]), name)()
    assert before.calls == behind.calls == [(name,)]


def test_importing_is_light(tmp_path: Path) -> None:
    program = "import normbench.recording, sys; print({'torch', 'tensorflow', 'rich'} & set(sys.modules))"
    root = Path(__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


# ---- console


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def console(clock: Clock, terminal: bool) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    made = Console(
        file=output, force_terminal=terminal, width=80, get_time=clock, color_system=None, legacy_windows=False
    )
    return made, output


def train(sink: Sink, clock: Clock, steps: range, seconds_per_step: float) -> None:
    for step in steps:
        clock.now += seconds_per_step * steps.step
        sink.progress(step, {"loss/train": 2.0, "optim/lr": 1e-3, "time/tokens_per_second": 51234.0})


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("start", [0, 1000])
def test_time_left_counts_only_this_process(monkeypatch: pytest.MonkeyPatch, terminal: bool, start: int) -> None:
    monkeypatch.setenv("TERM", "xterm")
    clock = Clock()
    made, output = console(clock, terminal)
    sink = ConsoleSink(2000, "tokens", start_step=start, console=made)
    train(sink, clock, range(start + 100, 1501, 100), seconds_per_step=0.1)
    sink.close()
    assert "0:00:50 left" in output.getvalue()  # 500 steps of 0.1 s
    assert "loss 2.0000  lr 1.0e-03  51,234 tokens/s" in output.getvalue()


def test_lines_without_a_terminal_have_a_rhythm() -> None:
    clock = Clock()
    made, output = console(clock, terminal=False)
    sink = ConsoleSink(1000, "images", console=made)
    train(sink, clock, range(1, 1001), seconds_per_step=0.01)
    assert [int(line[5:9]) for line in output.getvalue().splitlines()] == list(range(100, 1001, 100))

    clock = Clock()
    made, output = console(clock, terminal=False)
    sink = ConsoleSink(100_000, "images", console=made)
    train(sink, clock, range(1, 101), seconds_per_step=1.0)
    assert len(output.getvalue().splitlines()) == 10
    sink.progress(101, {"loss/train": 2.0, "loss/val": 2.5})
    assert "val 2.5000" in output.getvalue().splitlines()[10]
    sink.progress(102, {"loss/train": 1.9, "loss/val": 2.5})
    assert len(output.getvalue().splitlines()) == 11
    assert "\x1b" not in output.getvalue()


def test_the_live_display_is_drawn_rarely_and_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    clock = Clock()
    made, output = console(clock, terminal=True)
    threads, streams = threading.active_count(), (sys.stdout, sys.stderr)
    sink = ConsoleSink(1000, "tokens", console=made)
    sink.message("begin")
    train(sink, clock, range(1, 501), seconds_per_step=0.01)
    assert threading.active_count() == threads
    assert output.getvalue().count("loss 2.0000") == pytest.approx(5 / 0.25, abs=2)
    sink.message("a [message] above")
    sink.progress(1000, {"loss/train": 1.25})
    sink.close()
    sink.close()
    shown = output.getvalue()
    assert "begin" in shown and "a [message] above" in shown
    assert "1000/1000" in shown and "loss 1.2500" in shown
    assert shown.rstrip("\n").endswith("\x1b[?25h")  # the cursor is shown again
    assert (sys.stdout, sys.stderr) == streams


def test_the_closing_table_fits_into_a_log() -> None:
    made, output = console(Clock(), terminal=False)
    sink = ConsoleSink(10, "tokens", console=made)
    rows: list[tuple[str, Scalar]] = [
        ("validation loss", 1.88123456),
        ("parameters", 812_345),
        ("affine", True),
        ("groups", None),
        ("status", "finished [at last]"),
        ("directory", "/home/somebody" * 10),
    ]
    sink.summary("results", rows)
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    words = {" ".join(line.split()) for line in lines}
    assert {
        "results",
        "validation loss 1.8812",
        "parameters 812,345",
        "affine yes",
        "groups none",
        "status finished [at last]",
    } <= words
    assert "".join(line.split()[-1] for line in lines if "/home" in line or "somebody" in line) == "/home/somebody" * 10
