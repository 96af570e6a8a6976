"""How far a sweep is, read from its directories alone, and how that is shown."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import end_run, make_run
from rich.console import Console
from support import refused

from normbench.cli import main
from normbench.commands.runs import line_of_sweep
from normbench.record.directory import RunDirectory
from normbench.sweep.folder import Entry, SweepFolder, View, steps_done, summarize

NAMES = ("rmsnorm", "layernorm", "dyt", "groupnorm", "none")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SweepFolder]:
    """Five runs: finished, diverged, at work, failed, not begun."""
    folder = SweepFolder(tmp_path)
    folder.write_plan([Entry(f"{name}-s0", {"norm": name}, 0, 100, [f"norm={name}"]) for name in NAMES])
    at_work, failed = (RunDirectory(tmp_path / f"{name}-s0") for name in ("dyt", "groupnorm"))
    for name, status, step in (("rmsnorm", "finished", 100), ("layernorm", "diverged", 7)):
        end(folder, name, status, step, 2.5)
    for directory, step in ((at_work, 50), (failed, 3)):
        directory.path.mkdir()
        directory.write_status("running", step, 100)
    folder.note_failure("groupnorm-s0", "out of memory")
    with at_work.hold():
        yield folder


def end(folder: SweepFolder, name: str, status: str, step: int, loss: float) -> None:
    end_run(RunDirectory(folder.path / f"{name}-s0"), status, step, loss)


def shown(folder: SweepFolder, terminal: bool = False, quiet: bool = False) -> View:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, height=20, color_system=None, quiet=quiet)
    return View(console, folder, folder.read_plans())


def output(view: View) -> str:
    assert isinstance(view.console.file, io.StringIO)
    return view.console.file.getvalue()


def test_the_directories_alone_tell_how_runs_stand(folder: SweepFolder) -> None:
    standings = shown(folder).read()
    assert [(one.entry.arm["norm"], one.state, one.step, one.loss) for one in standings] == [
        ("rmsnorm", "finished", 100, 2.5),
        ("layernorm", "diverged", 7, 2.5),
        ("dyt", "running", 50, None),
        ("groupnorm", "failed", 3, None),
        ("none", "waiting", 0, None),
    ]
    assert summarize(standings) == "3/5 runs  1 diverged  1 failed  1 running"
    assert steps_done(standings) == 350
    assert (standings[3].cause, standings[0].cause) == ("out of memory", "")
    assert folder.missing() == {"none-s0": ""}


def test_a_noted_failure_counts_only_without_a_result_and_until_it_is_forgotten(folder: SweepFolder) -> None:
    finished, none = (entry for entry in folder.read_plans() if entry.run.startswith(("rms", "none")))
    for entry in (finished, none):
        folder.note_failure(entry.run, "it went wrong")
    assert (folder.read_standing(finished).state, folder.read_standing(none).state) == ("finished", "failed")
    assert folder.missing() == {"none-s0": "it went wrong"}
    folder.forget_failure(none.run)
    assert folder.read_standing(none).state == "waiting"


def test_plans_of_several_sweeps_are_one_list(folder: SweepFolder) -> None:
    entries = folder.read_plans()
    folder.write_plan([replace(entries[0], run="more-s0"), entries[1]])
    assert [entry.run for entry in folder.read_plans()] == [*(f"{name}-s0" for name in NAMES), "more-s0"]


def test_whoever_looks_on_does_not_wait_where_nobody_is_at_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No learning rate was found, so that runs which are reported never come."""
    folder, tuning = SweepFolder(tmp_path / "a"), SweepFolder(tmp_path / "a-lr")
    folder.write_plan((), ["seed=0", "sweep.lr=auto"], ["r0 lr"])
    tuning.write_plan([Entry("t0", {}, 1000, 4, [])])
    tuning.note_failure("t0", "boom")
    assert main(["sweep", "--watch", str(folder.path)]) == 1
    assert f"no process is working on {folder.path} now; resume with: {folder.command()}" in capsys.readouterr().out


@pytest.mark.parametrize("content", ['{"runs": [5]}', "[]", '{"words": [], "asked": [], "runs": [{"run": 5}]}'])
def test_a_plan_of_another_shape_is_none(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = SweepFolder(tmp_path)
    folder.plans.mkdir(parents=True)
    (folder.plans / "x.json").write_text(content)
    assert folder.read_plans() == []
    for word in ("--watch", "--resume"):
        assert f"{tmp_path} holds no sweep" in refused(["sweep", word, str(tmp_path)], capsys)


def test_a_plan_that_is_damaged_is_told_where_its_runs_are_counted(
    folder: SweepFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs that it planned are missing without a trace else, as `0/0 runs` that have finished."""
    (damaged, *_) = folder.plans.glob("*.json")
    folder.write_plan([Entry("other", {}, 0, 3, [])], ["seed=0"])
    assert folder.damaged_notes() == []
    damaged.write_text(damaged.read_text()[:-9])
    assert folder.damaged_notes() == [damaged]
    line = line_of_sweep("sweep", folder)
    assert line.state == "waiting" and line.progress == "0/1 runs"
    make_run(folder.path, name="other")
    assert line_of_sweep("sweep", folder).state == "damaged"
    for words in (["runs", str(folder.path)], ["report", str(folder.path)]):
        assert main(words) == 0
        told = capsys.readouterr()
        assert f"{damaged} is damaged, so runs that it planned are not counted" in told.out + told.err


def test_a_log_gets_a_line_when_a_run_ends(folder: SweepFolder) -> None:
    view = shown(folder)
    view.show()
    end(folder, "dyt", "finished", 100, 1.25)
    view.show()  # not again within a second
    view.show(at_once=True)
    view.close()
    first, second = output(view).splitlines()
    assert first == "3/5 runs  1 diverged  1 failed  1 running"
    assert second.startswith("4/5 runs  1 diverged  1 failed  dyt · seed 0 finished loss 1.2500")
    for quiet in (True, False):
        display = shown(folder, terminal=True, quiet=quiet)
        display.close()
        assert ("4/5 runs  1 diverged  1 failed" in output(display)) != quiet
