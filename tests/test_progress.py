"""What long commands say while they work: stages and rows as they come, and nothing where they are soon done."""

from __future__ import annotations

import io
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiny_sweeps import TINY

from normbench.cli import main
from normbench.commands import check as check_command
from normbench.contract.checks import CheckResult, check_each
from normbench.data import cache
from normbench.record import console
from normbench.record.console import Stages


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "PATIENCE", 5.0)  # which no other test has
    return tmp_path


@pytest.fixture
def impatient(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say each stage, as if all took long."""
    monkeypatch.setattr(console, "PATIENCE", 0.0)


# ---- the mechanism


def stages_on(terminal: bool, **more: Any) -> tuple[Stages, io.StringIO]:
    said = io.StringIO()
    return Stages(console=Console(file=said, force_terminal=terminal, width=80), **more), said


def test_without_a_terminal_lines_come_once_some_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    stages, said = stages_on(terminal=False, total=3)
    with stages:
        for number in range(3):
            stages.begin(f"part {number}", number)
            for row in range(10):
                clock[0] += 1.0
                stages.note(f"row {row}")
    assert said.getvalue().splitlines() == [
        "0/3  part 0: row 4", "0/3  part 0: row 9", "1/3  part 1: row 4", "1/3  part 1: row 9",
        "2/3  part 2: row 4", "2/3  part 2: row 9",
    ]  # fmt: skip


def test_on_a_terminal_each_stage_is_shown_at_once_and_nothing_stays() -> None:
    stages, said = stages_on(terminal=True)
    with stages:
        stages.begin("reading [the] runs")
        assert "reading [the] runs" in said.getvalue()
        stages.begin("drawing")
        assert "drawing" in said.getvalue()
    assert said.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K"), "the line is erased, the cursor shown"


@pytest.mark.parametrize(("is_long", "lines"), [(False, ""), (True, "reading\n")])
def test_a_command_that_is_soon_done_says_nothing_and_a_long_one_begins_at_once(is_long: bool, lines: str) -> None:
    stages, said = stages_on(terminal=False, is_long=is_long)
    with stages:
        stages.begin("reading")
        stages.note("a row")
    assert said.getvalue() == lines


# ---- commands


def test_rows_of_a_check_are_printed_as_they_come(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []

    def look(part: Any, begin: Any) -> Any:
        for row in check_each(part, begin):
            yield row
            printed.append(capsys.readouterr().out)
            if len(printed) == 4:  # the others take long
                return

    monkeypatch.setattr("normbench.contract.checks.check_each", look)
    assert main(["check", "norm=rmsnorm"]) == 0
    assert "class" in printed[0] and "passed" in printed[0] and "constructor" in printed[1]
    assert all(page.strip() for page in printed)
    assert "4 passed" in capsys.readouterr().out


def test_rows_of_a_check_are_aligned_whatever_comes(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Console(width=80)
    for row in (CheckResult("short", "passed", "x " * 40), CheckResult("n" * 50, "not applicable", "y")):
        check_command.print_row(screen, 30, row.name, row.result, row.measured)
    lines = capsys.readouterr().out.splitlines()
    (passed,) = [line for line in lines if "passed" in line]
    (other,) = [line for line in lines if "not applicable" in line]
    assert passed.index("passed") == other.index("not applicable") == 32


@pytest.mark.usefixtures("impatient")
def test_a_study_tells_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["norm=layernorm,rmsnorm", "model.depth=1", "model.width=16", "model.heads=2", "model.context=16",
             "data.batch_size=4", "study.rows=8,16", "study.features=16", "study.dtypes=float32",
             "study.implementations=eager", "study.rounds=2", "study.steps=2"]  # fmt: skip
    assert main(["bench", *words]) == 0
    said = capsys.readouterr().err
    assert "measuring" in said and "rmsnorm" in said and "rows 8" in said and "µs" in said


@pytest.mark.usefixtures("impatient")
def test_a_plan_tells_what_it_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "norm=layernorm,rmsnorm", *TINY, "--dry-run"]) == 0
    assert "taking a few steps of layernorm-pre" in capsys.readouterr().err


def test_decoding_that_takes_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "PERIOD", 0.01)
    caplog.set_level(logging.INFO, "normbench")
    with cache.tell_the_time("decoding photographs"):
        while "still decoding photographs" not in caplog.text:
            time.sleep(0.01)
    number = len(caplog.records)
    time.sleep(0.05)
    assert len(caplog.records) == number, "it has ended"
