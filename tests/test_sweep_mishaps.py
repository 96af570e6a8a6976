"""What goes wrong around a sweep: a full disk, a folder that cannot be written, classes that end badly, old reports."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
from killing import Server, Trap
from tiny_runs import fill
from tiny_sweeps import CNN, LENGTHS, OWN_NORMS, finished, own_words, run_directories, statuses, sweep_words

from normbench.cli import main

pytest_plugins = ["run_fixtures"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with norms of the user's own."""
    (tmp_path / "own_norms.py").write_text(OWN_NORMS)
    return tmp_path


@pytest.mark.parametrize("place", ["training > begin", "preparation > begin"])
def test_a_full_disk_ends_the_sweep_and_the_same_command_goes_on(server: Server, small_disk: Path, place: str) -> None:
    child = server.start(sweep_words("norm=rmsnorm"), small_disk, Trap(place, 1, (signal.SIGSTOP,)))
    child.wait_until_held()
    filler = fill(small_disk)
    child.kill(signal.SIGCONT)
    assert child.wait() == 1, child.output
    assert "the disk is full (outputs=outputs): what was checkpointed is intact" in child.output.splitlines()[-1]
    assert "Traceback" not in child.output
    filler.unlink()
    assert finished(server, sweep_words("norm=rmsnorm"), small_disk).splitlines()[-1] == "2/2 runs in outputs/sweep"


@pytest.mark.parametrize(("outputs", "flag"), [("a_file", []), ("a_file", ["--dry-run"]), ("/proc/nothing", [])])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outputs: str, flag: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a_file").touch()
    assert main([*sweep_words(f"outputs={outputs}"), *flag]) == 2
    assert f"outputs={outputs} cannot be written" in capsys.readouterr().err


def test_a_class_that_exits_stops_no_other(server: Server, own: Path) -> None:
    with open(own / "own_norms.py", "a") as file:
        file.write("\nclass Exits(Counted):\n    def end(self):\n        raise SystemExit(3)\n")
    child = server.start(own_words("Exits", "Fine"), own)
    assert child.wait() == 1, child.output
    assert statuses(own)["fine"] == "finished"
    assert "SystemExit: 3" in child.output


def test_a_run_that_would_be_another_is_not_made(server: Server, own: Path) -> None:
    """Here because its author changes the class between plan and run, in a process that has not imported it."""
    words = [*own_words("Fine"), "seed=0"]
    child = server.start(words, own, Trap("rename to 1.json", 1, (signal.SIGSTOP,)))
    child.wait_until_held()
    changed = (own / "own_norms.py").read_text() + "# changed\n"
    (own / "own_norms.py").write_text(changed)
    child.kill(signal.SIGCONT)
    assert child.wait() == 0, child.output  # this process has the class as it was, and makes the run that was planned
    assert "1 of 1 runs to do" in finished(server, words, own)  # which is not the changed class's
    assert len(run_directories(own)) == 2


def test_failures_of_runs_that_choose_a_learning_rate_are_told(server: Server, own: Path) -> None:
    words = ["seed=0", "sweep.lr=auto", "sweep.lr_grid=1e-3,1e-2"]
    child = server.start([*own_words("Boom", "Fine"), *words], own)
    assert child.wait() == 1, child.output
    assert "RuntimeError: boom, and over" in child.output
    assert "1/1 runs in outputs/sweep" in child.output
    alone = server.start([*own_words("Boom"), *words, "name=alone"], own)
    assert alone.wait() == 1
    assert "RuntimeError: boom, and over" in alone.output
    assert alone.output.splitlines()[-1].endswith("the runs that were to choose failed")


def test_a_report_older_than_its_runs_is_made_again(server: Server, own: Path) -> None:
    words = [*own_words("Boom", "Fine"), "seed=0", "sweep.report=true"]
    child = server.start(words, own)
    assert child.wait() == 1
    (command,) = [line for line in child.output.splitlines() if line.startswith("normbench train norm._target_=own")]
    (own / "mended").touch()
    finished(server, command.split()[1:], own)
    finished(server, words, own)
    assert set(pd.read_csv(own / "outputs/sweep/report/runs.csv")["status"]) == {"finished"}


def test_watching_looks_at_what_is_there(server: Server, tmp_path: Path) -> None:
    words = ["norm=rmsnorm", "seed=0", *CNN, *LENGTHS, "launcher=local", "sweep.report=false"]
    finished(server, ["sweep", *words, "sweep.lr=auto", "sweep.lr_grid=1e-3"], tmp_path)
    output = finished(server, ["sweep", "--watch", "outputs/sweep"], tmp_path)
    assert output.splitlines() == ["1/1 runs", "1/1 runs"]  # those that chose, and those that are reported
    plans = tmp_path / "outputs/sweep/.sweep/plans"
    (plans / "other.json").write_text(json.dumps({"runs": [{"of": "another version"}]}))
    assert finished(server, ["sweep", "--watch", "outputs/sweep"], tmp_path) == output


def test_watching_says_that_nobody_is_at_work(server: Server, tmp_path: Path) -> None:
    words = ["sweep", "norm=rmsnorm", "seed=0,1", *CNN, *LENGTHS, "launcher=local", "sweep.report=false"]
    assert server.start(words, tmp_path, Trap("training > gradients", 16)).wait() == -signal.SIGKILL
    watching = server.start(["sweep", "--watch", "outputs/sweep"], tmp_path)
    time.sleep(3)  # it has looked
    finished(server, words, tmp_path)
    assert watching.wait() == 0, watching.output
    assert watching.output.count("nobody is at work on 1 of 2 runs in outputs/sweep now") == 1
