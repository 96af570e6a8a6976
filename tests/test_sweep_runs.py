"""Sweeps that are killed, stopped, shared, and whose runs fail: each run is made once, and ends as if undisturbed."""

from __future__ import annotations

import errno
import re
import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
from killing import Server, Trap
from run_records import read_json, read_record
from tiny_runs import fill, slow
from tiny_sweeps import assert_as, finished, own_words, planned, run_directories, sessions, statuses, sweep_words

from normbench.cli import main
from normbench.errors import UsageError
from normbench.sweep import sweep as making
from normbench.sweep.folder import SweepFolder

pytest_plugins = ["refusals", "run_fixtures"]

ONE = sweep_words("norm=rmsnorm")
LOOK = "look at the curves: normbench tensorboard outputs/sweep"
MORE = "more seeds or arms: normbench sweep --resume outputs/sweep KEY=VALUES sweep.extend=true"


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    output = finished(server, sweep_words(), folder)
    assert "4 of 4 runs to do, 1 at a time with threads=1 each, in outputs/sweep" in output
    assert output.splitlines()[-3:] == ["4/4 runs in outputs/sweep", LOOK, MORE]
    return folder


def test_a_sweeps_runs_are_those_of_train(server: Server, whole: Path, tmp_path: Path) -> None:
    directories = run_directories(whole)
    assert [name.rsplit("-", 1)[0] for name in directories] == [
        f"{norm}-pre-cnn-digits-s{seed}" for norm in ("batchnorm", "rmsnorm") for seed in (0, 1)
    ]
    name, path = list(directories.items())[1]
    (session,) = sessions(path)
    finished(server, session["command"].split()[1:], tmp_path)
    alone, of_sweep = (read_record(folder / "outputs" / "sweep" / name) for folder in (tmp_path, whole))
    assert (alone.metrics, alone.checkpoint) == (of_sweep.metrics, of_sweep.checkpoint)


def test_the_same_command_again_does_nothing(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(whole)
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    for more, said in (
        ("quiet=false", f"4/4 runs in outputs/sweep\n{LOOK}\n{MORE}\n"),
        ("quiet=true", "outputs/sweep\n"),
    ):
        assert main(sweep_words(more)) == 0
        assert capsys.readouterr().out == said
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()} == before


PLACES = [("preparation > begin", 2), ("finish > fsync summary.json", 3)]


@pytest.mark.parametrize(("place", "nth"), [("training > gradients", 16), *slow(*PLACES)])
def test_a_killed_sweep_goes_on(server: Server, whole: Path, tmp_path: Path, place: str, nth: int) -> None:
    child = server.start(sweep_words(), tmp_path, Trap(place, nth))
    assert child.wait() == -signal.SIGKILL, child.output
    watching = server.start(["sweep", "--watch", "outputs/sweep"], tmp_path)
    watching.poll(lambda: "/4 runs" in watching.output)
    output = finished(server, sweep_words(), tmp_path)
    assert "failed" not in output
    assert_as(whole, tmp_path)
    assert watching.wait() == 0, watching.output


@pytest.mark.slow
def test_ctrl_c_stops_behind_a_checkpoint(server: Server, whole: Path, tmp_path: Path) -> None:
    child = server.start(sweep_words(), tmp_path, Trap("training > gradients", 17, (signal.SIGINT,)))
    assert child.wait() == 130, child.output
    lines = child.output.splitlines()
    command = "normbench sweep --resume outputs/sweep"
    assert lines[-1] == f"stopped by SIGINT; to go on, each run from its checkpoint: {command}"
    assert lines[-2].startswith("1/4 runs")
    assert "Traceback" not in child.output
    interrupted = [path for path in run_directories(tmp_path).values() if not (path / "summary.json").exists()]
    assert [read_json(path / "status.json")["status"] for path in interrupted] == ["interrupted"]
    finished(server, command.split()[1:], tmp_path)
    assert_as(whole, tmp_path)


@pytest.mark.slow
def test_two_sweeps_share_the_work(server: Server, whole: Path, tmp_path: Path) -> None:
    """A third one, which is held and killed, is succeeded in its run."""
    dead = server.start(sweep_words(), tmp_path, Trap("training > gradients", 8, (signal.SIGSTOP,)))
    dead.wait_until_held()
    children = [server.start(sweep_words(), tmp_path) for _ in range(2)]
    assert children[0].wait_for("saved 12")
    dead.kill(signal.SIGKILL)
    for child in children:
        assert child.wait() == 0, child.output
        assert child.output.splitlines()[-3] == "4/4 runs in outputs/sweep"
    assert sorted(len(sessions(path)) for path in run_directories(tmp_path).values()) == [1, 1, 1, 2]
    assert_as(whole, tmp_path)


# ---- runs that end badly


@pytest.mark.slow
def test_whatever_a_class_raises_concerns_its_run_alone(server: Server, tmp_path: Path) -> None:
    words = own_words(tmp_path, "Boom", "Fine", "Exits", "Interrupts", "Leaves")
    child = server.start(words, tmp_path)
    assert child.wait() == 1, child.output
    failed = dict.fromkeys(("boom", "interrupts", "leaves"), "failed")
    assert statuses(tmp_path) == {**failed, "fine": "finished"}
    for said in (
        "5/5 runs  4 failed",
        "RuntimeError: boom, (own_norms.py, line ",
        "SystemExit: 3",
        "raised KeyboardInterrupt, and nobody",
        "GeneratorExit",
    ):
        assert said in child.output
    assert "Traceback" not in child.output
    (missing,) = SweepFolder(tmp_path / "outputs" / "sweep").missing().items()  # it came to no directory
    assert (missing[0].partition("-")[0], missing[1][:13]) == ("exits", "SystemExit: 3")
    (line,) = [line for line in child.output.splitlines() if line.startswith("repeat ") and "Boom" in line]
    command = line.partition(": ")[2]

    again = server.start(words, tmp_path)  # it is not tried again
    assert (again.wait(), "boom" in again.output, "runs to do" in again.output) == (1, True, False)

    (tmp_path / "fixed").touch()
    finished(server, command.split()[1:], tmp_path)  # the command repeats just that run
    resumed = finished(server, ["sweep", "--resume", "outputs/sweep", "--trust", "sweep.retry_failed=true"], tmp_path)
    assert "3 of 5 runs to do" in resumed
    assert set(statuses(tmp_path).values()) == {"finished"}


@pytest.mark.slow
def test_a_run_that_takes_longer_than_it_may_is_ended_and_the_next_one_begins(server: Server, tmp_path: Path) -> None:
    """However slow the machine is: both would wait for ever."""
    words = [*own_words(tmp_path, "Hangs"), "seed=0,1"]
    child = server.start([*words, "sweep.timeout=0.05"], tmp_path)
    assert child.wait() == 1, child.output
    assert "2/2 runs  2 failed" in child.output
    assert "longer than sweep.timeout=0.05 minutes, and was" in child.output
    assert "Traceback" not in child.output
    (tmp_path / "fixed").touch()
    assert "2 of 2 runs to do" in finished(server, [*words, "sweep.retry_failed=true"], tmp_path)
    assert {read_json(path / "status.json")["status"] for path in run_directories(tmp_path).values()} == {"finished"}


# ---- other words for a folder


def noted(folder: Path, *words: str) -> None:
    """Note a sweep of these words as started there."""
    sweep = planned(*words)
    sweep.folder.write_plan(() if sweep.settings.lr else sweep.plan.runs, sweep.words, sweep.asked_runs)


REFUSED = {
    "norm=rmsnorm seed=0,1 optim.lr=0.01": "optim.lr: not given there, 0.01 here",
    "norm=rmsnorm seed=0,1,2": "seed: 0,1 there, 0,1,2 here): sweep.extend=true adds 1 to its 2 runs, and name= gives",
    "norm=rmsnorm seed=0,1 sweep.lr=auto": "sweep.lr: not given there, auto here",
}
MEANT = ["norm=rmsnorm seed=0,1 sweep.jobs=2", "norm=rmsnorm seed=1", "norm=dyt seed=0,1 sweep.extend=true",
         "norm=rmsnorm,dyt seed=0,1 name=another"]  # fmt: skip


@pytest.mark.usefixtures("here")
def test_runs_are_added_to_those_of_another_sweep_only_where_that_is_meant() -> None:
    noted(Path(), "norm=rmsnorm", "seed=0,1")
    for words, said in REFUSED.items():
        with pytest.raises(UsageError, match=re.escape(said)):
            planned(*words.split()).check_folder()
    for words in MEANT:
        planned(*words.split()).check_folder()
    noted(Path(), "norm=rmsnorm", "seed=0,1,2")
    planned("norm=rmsnorm", "seed=0,1,2").check_folder()
    with pytest.raises(UsageError, match=r"\(its words make other runs now: a default, the device, the data or a"):
        replace(planned("norm=rmsnorm", "seed=0,1,2"), plan=planned("norm=dyt", "seed=0").plan).check_folder()


@pytest.mark.usefixtures("here")
def test_going_on_takes_the_words_that_lie_there(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, ...]] = []
    monkeypatch.setattr(making, "sweep", lambda words, *_: given.append(words) or 0)
    for words in (["norm=rmsnorm", "seed=0"], ["norm=rmsnorm", "seed=0,1", "sweep.jobs=3"], ["norm=dyt", "seed=0"]):
        noted(Path(), *words)
    assert main(["sweep", "--resume", "outputs/sweep", "sweep.jobs=1"]) == 0
    assert [words[:2] for words in given] == [("norm=rmsnorm", "seed=0,1"), ("norm=dyt", "seed=0")]
    assert {words[-3:] for words in given} == {("sweep.jobs=1", "name=sweep", "outputs=outputs")}
    given.clear()  # seeds in place of those of several sweeps are one sweep more
    noted(Path(), "norm=rmsnorm", "seed=2")
    assert main(["sweep", "--resume", "outputs/sweep", "sweep.jobs=1", "norm=dyt", "seed=3", "sweep.extend=true"]) == 0
    assert len(given) == 1
    assert main(["sweep", "--resume", "nowhere"]) == 2


def test_a_disk_that_is_full_before_anything_starts_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as while the data are decoded."""
    monkeypatch.setattr(making, "plan_sweep", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    assert main(["sweep", "seed=0,1", "outputs=there"]) == 1
    assert "the disk is full (outputs=there): what was checkpointed is intact" in capsys.readouterr().err


@pytest.mark.slow
def test_a_full_disk_ends_the_sweep_and_the_same_command_goes_on(server: Server, small_disk: Path) -> None:
    child = server.start(ONE, small_disk, Trap("preparation > begin", 1, (signal.SIGSTOP,)))
    child.wait_until_held()
    filler = fill(small_disk)
    child.kill(signal.SIGCONT)
    assert child.wait() == 1, child.output
    assert "the disk is full (outputs=outputs): what was checkpointed is intact" in child.output.splitlines()[-1]
    assert "Traceback" not in child.output
    filler.unlink()
    assert finished(server, ONE, small_disk).splitlines()[-3] == "2/2 runs in outputs/sweep"


# ---- the report


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_the_report_at_the_end_is_that_of_an_undisturbed_sweep(
    server: Server, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for times and memory, after a kill; it is made again at each end.

    This process goes on and reports, as another would, since what draws takes seconds to import.
    """
    words = sweep_words("sweep.report=true")
    assert server.start(words, tmp_path, Trap("training > gradients", 16)).wait() == -signal.SIGKILL
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "outputs/sweep/report/report.html"
    monkeypatch.chdir(whole)
    assert main(["report", "outputs/sweep"]) == 0
    capsys.readouterr()
    columns = ["run", "status", "step", "norm", "seed", "loss/val", "accuracy/val", "loss/train"]
    said = []
    for folder in (whole, tmp_path):
        report = folder / "outputs/sweep/report"
        table = pd.read_csv(report / "runs.csv")[columns]
        verdict = (report / "report.md").read_text().split("## Answer")[1].split("\n## ")[0]
        said.append((table.to_csv(), (report / "figures/differences.csv").read_text(), verdict))
    assert said[0] == said[1]
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    again = capsys.readouterr().out  # with the verdict
    assert again == "4/4 runs in outputs/sweep" + output.partition("4/4 runs in outputs/sweep")[2]
