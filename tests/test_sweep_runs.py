"""Sweeps that are killed, stopped, shared, and whose runs fail: each run is made once, and ends as if undisturbed."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from killing import Server, Trap
from run_records import Record, read_record
from tiny_runs import fill, slow
from tiny_sweeps import (
    CNN,
    LENGTHS,
    OWN_NORMS,
    TINY,
    assert_as,
    finished,
    own_words,
    records,
    run_directories,
    sessions,
    statuses,
    sweep_words,
)

from normbench.cli import main
from normbench.sweep.work import handed_out

pytest_plugins = ["run_fixtures"]

ONE = ["sweep", "norm=rmsnorm", "seed=0,1", *TINY, "launcher=local"]


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    output = finished(server, sweep_words(), folder)
    assert "4 of 4 runs to do, 1 at a time with 1 thread each, in outputs/sweep" in output
    assert output.splitlines()[-1] == "4/4 runs in outputs/sweep"
    return folder


@pytest.fixture(scope="module")
def undisturbed_sweep(whole: Path) -> dict[str, Record]:
    return records(whole)


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


def test_the_same_command_again_does_nothing(server: Server, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    assert finished(server, sweep_words(), whole) == "4/4 runs in outputs/sweep\n"
    assert finished(server, sweep_words("quiet=true"), whole) == "outputs/sweep\n"
    assert finished(server, ["sweep", "--watch", "outputs/sweep"], whole) == "4/4 runs\n"
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()} == before


PLACES = [("training > gradients", 16), ("checkpoint > half of a write to checkpoint.pt", 300)]
MORE = [("preparation > begin", 2), ("finish > rename to summary.json", 1), ("finish > fsync summary.json", 3)]
MORE += [("logging > half of a write to metrics.jsonl", 9), ("evaluation > batch", 4)]


@pytest.mark.parametrize(("place", "nth"), [*PLACES, *slow(*MORE)])
def test_a_killed_sweep_goes_on(
    server: Server, undisturbed_sweep: dict[str, Record], tmp_path: Path, place: str, nth: int
) -> None:
    child = server.start(sweep_words(), tmp_path, Trap(place, nth))
    assert child.wait() == -signal.SIGKILL, child.output
    watching = server.start(["sweep", "--watch", "outputs/sweep"], tmp_path)
    deadline = time.monotonic() + 60
    while not watching.output_file.exists() or "nobody is at work on" not in watching.output:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    output = finished(server, sweep_words(), tmp_path)
    assert "failed" not in output
    assert_as(undisturbed_sweep, tmp_path)
    assert watching.wait() == 0, watching.output


def test_ctrl_c_stops_behind_a_checkpoint(server: Server, undisturbed_sweep: dict[str, Record], tmp_path: Path) -> None:
    child = server.start(sweep_words(), tmp_path, Trap("training > gradients", 17, (signal.SIGINT,)))
    assert child.wait() == 130, child.output
    assert child.output.splitlines()[-1] == (
        "stopped by SIGINT: 1 of 4 runs are over; the same command goes on, each run from its checkpoint"
    )
    assert "Traceback" not in child.output
    interrupted = [path for path in run_directories(tmp_path).values() if not (path / "summary.json").exists()]
    assert [json.loads((path / "status.json").read_text())["status"] for path in interrupted] == ["interrupted"]
    child = server.start(sweep_words(), tmp_path, Trap("building > begin", 2, (signal.SIGTERM,)))
    assert child.wait() == 143, child.output
    finished(server, sweep_words(), tmp_path)
    assert_as(undisturbed_sweep, tmp_path)


def test_two_sweeps_share_the_work(server: Server, undisturbed_sweep: dict[str, Record], tmp_path: Path) -> None:
    """A third one, which is held and killed, is succeeded in its run."""
    dead = server.start(sweep_words(), tmp_path, Trap("training > gradients", 8, (signal.SIGSTOP,)))
    dead.wait_until_held()
    children = [server.start(sweep_words(), tmp_path) for _ in range(2)]
    assert children[0].wait_for("saved 12")
    dead.kill(signal.SIGKILL)
    for child in children:
        assert child.wait() == 0, child.output
        assert child.output.splitlines()[-1] == "4/4 runs in outputs/sweep"
    assert sorted(len(sessions(path)) for path in run_directories(tmp_path).values()) == [1, 1, 1, 2]
    assert_as(undisturbed_sweep, tmp_path)


def test_a_run_that_train_holds_is_waited_for(server: Server, tmp_path: Path) -> None:
    words = ["norm=rmsnorm", "seed=0", *CNN, *LENGTHS]
    holder = server.start(["train", *words, "name=sweep"], tmp_path, Trap("training > gradients", 8, (signal.SIGSTOP,)))
    holder.wait_until_held()
    sweep = server.start(["sweep", *words, "launcher=local", "sweep.report=false"], tmp_path)
    time.sleep(2)
    assert sweep.status is None
    holder.kill(signal.SIGCONT)
    assert holder.wait() == 0
    assert sweep.wait() == 0, sweep.output
    ((_, path),) = run_directories(tmp_path).items()
    assert len(sessions(path)) == 1


def test_a_device_is_held_by_one_run_at_a_time(tmp_path: Path) -> None:
    devices, got = ("cuda:0", "cuda:1"), list[str | None]()
    with handed_out((), tmp_path) as none:
        assert none is None
    with handed_out(devices, tmp_path) as first, handed_out(devices, tmp_path) as second:
        assert {first, second} == set(devices)

        def wait() -> None:
            with handed_out(devices, tmp_path) as device:
                got.append(device)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        assert got == []
    thread.join(30)
    assert len(got) == 1


# ---- runs that end badly


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with norms of the user's own."""
    (tmp_path / "own_norms.py").write_text(OWN_NORMS)
    return tmp_path


def test_a_failing_run_stops_no_other(server: Server, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = own_words("Boom", "Fine", "Exits")
    child = server.start(words, own)
    assert child.wait() == 1, child.output
    assert statuses(own) | {"exits": ""} == {"boom": "failed", "fine": "finished", "exits": ""}
    for said in ("2 failed", "RuntimeError: boom, and over", "SystemExit: 3"):
        assert said in child.output
    assert "Traceback" not in child.output
    (command,) = [line for line in child.output.splitlines() if line.startswith("normbench") and "Boom" in line]

    watching = server.start(["sweep", "--watch", "outputs/sweep"], own)
    assert (watching.wait(), "boom, and over" in watching.output) == (1, True)
    again = server.start(words, own)  # it is not tried again
    assert (again.wait(), "boom" in again.output, "runs to do" in again.output) == (1, True, False)
    retried = server.start([*words, "sweep.retry_failed=true"], own)  # unless it is asked for
    assert (retried.wait(), "2 of 3 runs to do" in retried.output) == (1, True)

    (own / "mended").touch()
    monkeypatch.chdir(own)
    assert main(command.split()[1:]) == 0  # the command repeats just that run
    assert "1 of 3 runs to do" in finished(server, [*words, "sweep.retry_failed=true"], own)
    assert set(statuses(own).values()) == {"finished"}


def test_failures_of_runs_that_choose_a_learning_rate_are_told(server: Server, own: Path) -> None:
    words = ["seed=0", "sweep.lr=auto", "sweep.lr_grid=1e-3,1e-2"]
    child = server.start([*own_words("Boom", "Fine"), *words], own)
    assert child.wait() == 1, child.output
    assert "RuntimeError: boom, and over" in child.output
    assert "1/1 runs in outputs/sweep" in child.output
    alone = server.start([*own_words("Boom"), *words, "name=alone"], own)
    assert alone.wait() == 1
    assert alone.output.splitlines()[-1].endswith("the runs that were to choose failed")


def test_divergence_is_a_result(server: Server, tmp_path: Path) -> None:
    words = ["sweep", "optim.lr=1e-3,1000", "norm=none", *TINY, "trainer.grad_clip=0", "launcher=local"]
    assert finished(server, words, tmp_path).splitlines()[-1] == "2/2 runs  1 diverged in outputs/sweep"


@pytest.mark.parametrize("place", ["training > begin", *slow("preparation > begin")])
def test_a_full_disk_ends_the_sweep_and_the_same_command_goes_on(server: Server, small_disk: Path, place: str) -> None:
    child = server.start(ONE, small_disk, Trap(place, 1, (signal.SIGSTOP,)))
    child.wait_until_held()
    filler = fill(small_disk)
    child.kill(signal.SIGCONT)
    assert child.wait() == 1, child.output
    assert "the disk is full (outputs=outputs): what was checkpointed is intact" in child.output.splitlines()[-1]
    assert "Traceback" not in child.output
    filler.unlink()
    assert finished(server, ONE, small_disk).splitlines()[-1] == "2/2 runs in outputs/sweep"


@pytest.mark.parametrize(("outputs", "flag"), [("a_file", []), ("a_file", ["--dry-run"])])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], outputs: str, flag: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a_file").touch()
    assert main([*sweep_words(f"outputs={outputs}"), *flag]) == 2
    assert f"outputs={outputs} cannot be written" in capsys.readouterr().err


# ---- the report


@pytest.mark.slow
def test_the_report_at_the_end_is_that_of_an_undisturbed_sweep(server: Server, whole: Path, tmp_path: Path) -> None:
    """But for times and memory, after a kill; one older than its runs is made again."""
    words = sweep_words("sweep.report=true")
    assert server.start(words, tmp_path, Trap("training > gradients", 16)).wait() == -signal.SIGKILL
    assert finished(server, words, tmp_path).splitlines()[-1] == "outputs/sweep/report/report.html"
    finished(server, ["report", "outputs/sweep"], whole)
    columns = ["run", "status", "step", "norm", "seed", "loss/val", "accuracy/val", "loss/train"]
    said = []
    for folder in (whole, tmp_path):
        report = folder / "outputs/sweep/report"
        table = pd.read_csv(report / "runs.csv")[columns]
        verdict = (report / "report.md").read_text().split("## Verdict")[1].split("\n## ")[0]
        said.append((table.to_csv(), (report / "figures/differences.csv").read_text(), verdict))
    assert said[0] == said[1]
    page = tmp_path / "outputs/sweep/report/report.html"
    made = page.stat().st_mtime_ns
    assert "outputs/sweep/report/report.html" in finished(server, words, tmp_path)
    assert page.stat().st_mtime_ns == made
    next(iter(run_directories(tmp_path).values())).joinpath("summary.json").touch()
    finished(server, words, tmp_path)
    assert page.stat().st_mtime_ns > made


def test_planned_runs_that_are_not_there_are_named_in_the_report(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here one that is refused when its model is built."""
    monkeypatch.chdir(own)
    words = ["norm=batchnorm,layernorm", "model=mlp", "data=digits", "data.batch_size=1", *LENGTHS]
    assert main(["sweep", *words, "launcher=local"]) == 1
    output = capsys.readouterr().out
    assert "normbench train norm=batchnorm model=mlp" in output
    assert list(statuses(own)) == ["layernorm"]
    assert "planned and not there (failed or not begun), 1: batchnorm-pre-mlp-digits-s0-" in " ".join(output.split())
