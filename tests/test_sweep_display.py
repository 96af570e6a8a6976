"""How far a sweep is, read from its directories alone, and how that is shown."""

from __future__ import annotations

import io
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from normbench.rundir import RunDirectory
from normbench.sweeping.claims import Claims
from normbench.sweeping.display import LiveView, PlainView, make_view
from normbench.sweeping.folder import Entry, SweepFolder
from normbench.sweeping.progress import Reader, last_logged

NAMES = ("rmsnorm", "layernorm", "dyt", "groupnorm", "none")


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """Five runs: finished, diverged, at work, failed, not begun."""
    folder = SweepFolder(tmp_path, "mine")
    folder.write_plan([Entry(f"{name}-s0", {"norm": name}, 0, 100, [f"norm={name}"]) for name in NAMES])
    for name, status, step in (("rmsnorm", "finished", 100), ("layernorm", "diverged", 7)):
        directory = RunDirectory(tmp_path / f"{name}-s0")
        directory.create()
        content = {"status": status, "step": step, "steps": 100, "metrics": {"loss/val": 2.5}}
        directory.summary.write_text(json.dumps(content))
    at_work = RunDirectory(tmp_path / "dyt-s0")
    at_work.create()
    at_work.write_status("running", 10, 100)
    at_work.metrics.write_text('{"step": 40, "loss/train": 3.5}\n{"step": 50, "loss/val": 3}\n{"step": 6')
    assert Claims(folder.claims.folder, "other").take("dyt-s0") is not None
    failed = RunDirectory(tmp_path / "groupnorm-s0")
    failed.create()
    failed.write_status("out_of_memory", 3, 100, "out of\nmemory")
    return folder


def test_the_directories_alone_tell_how_runs_stand(folder: SweepFolder) -> None:
    progress = Reader(folder, folder.read_plans()).read()
    assert [(s.entry.arm["norm"], s.state, s.step, s.loss) for s in progress.standings] == [
        ("rmsnorm", "finished", 100, 2.5),
        ("layernorm", "diverged", 7, 2.5),
        ("dyt", "running", 50, 3.5),
        ("groupnorm", "failed", 3, None),
        ("none", "new", 0, None),
    ]
    assert progress.over == 3
    assert progress.steps == (350, 500)
    assert folder.failure(progress.standings[3].entry).cause == "out of memory"
    assert folder.failure(progress.standings[3].entry).command == "normbench train norm=groupnorm"


def test_a_noted_failure_counts_only_without_a_result(folder: SweepFolder) -> None:
    folder.failures.note("rmsnorm-s0", "killed", "")
    folder.failures.note("none-s0", "killed", "")
    assert folder.state("rmsnorm-s0") == "finished"
    assert folder.state("none-s0") == "failed"


def test_the_time_left_follows_the_pace(folder: SweepFolder) -> None:
    reader = Reader(folder, folder.read_plans())
    assert reader.read().seconds_left is None
    reader.begun = time.monotonic() - 10
    folder.run("dyt-s0").metrics.write_text('{"step": 75, "loss/train": 3.5}\n')
    assert reader.read().seconds_left == pytest.approx(10 * 125 / 25, rel=0.05)


def test_plans_of_several_sweeps_are_one_list(folder: SweepFolder) -> None:
    entries = folder.read_plans()
    folder.write_plan([replace(entries[0], run="more-s0"), entries[1]])
    assert [entry.run for entry in folder.read_plans()] == [*(f"{name}-s0" for name in NAMES), "more-s0"]


def test_the_end_of_a_long_record_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert last_logged(path) == (0, None)
    lines = [json.dumps({"step": step, "loss/train": float(step), "more": "x" * 50}) for step in range(1, 2000)]
    path.write_text("\n".join(lines) + "\n")
    assert last_logged(path) == (1999, 1999.0)


def shown(folder: SweepFolder, terminal: bool) -> tuple[Console, Reader]:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, height=20, color_system=None)
    return console, Reader(folder, folder.read_plans())


def test_a_terminal_shows_a_bar_and_a_line_for_each_run_at_work(folder: SweepFolder) -> None:
    view = make_view(*shown(folder, terminal=True), quiet=False)
    assert isinstance(view, LiveView)
    with view.console.capture() as capture:
        view.console.print(view.render(view.reader.read()))
    bar, row = capture.get().splitlines()
    assert bar.startswith("3/5 runs  1 diverged  1 failed  1 running")
    assert "━" in bar
    assert row.split("  ")[0] == "dyt · seed 0"
    assert "50/100" in row
    assert "loss 3.5000" in row


def test_a_log_gets_a_line_when_a_run_ends(folder: SweepFolder) -> None:
    view = make_view(*shown(folder, terminal=False), quiet=False)
    assert isinstance(view, PlainView)
    view.look()
    (folder.path / "dyt-s0" / "summary.json").write_text(
        json.dumps({"status": "finished", "step": 100, "metrics": {"loss/val": 1.25}})
    )
    view.look()
    view.look()
    assert isinstance(view.console.file, io.StringIO)
    first, second = view.console.file.getvalue().splitlines()
    assert first == "3/5 runs  1 diverged  1 failed  1 running"
    assert second.startswith("4/5 runs  1 diverged  1 failed  dyt · seed 0 finished loss 1.2500")


def test_quiet_shows_nothing(folder: SweepFolder) -> None:
    view = make_view(*shown(folder, terminal=True), quiet=True)
    view.look()
    view.say("nothing")
    assert isinstance(view.console.file, io.StringIO)
    assert view.console.file.getvalue() == ""


def test_a_folder_that_cannot_be_written_can_be_watched(folder: SweepFolder) -> None:
    for path in (folder.notes, *folder.notes.rglob("*")):
        if path.is_dir():
            os.chmod(path, 0o555)
    try:
        assert Reader(SweepFolder(folder.path), folder.read_plans()).read().over == 3
    finally:
        for path in (folder.notes, *folder.notes.rglob("*")):
            os.chmod(path, 0o755)
