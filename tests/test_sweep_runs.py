"""Sweeps that are killed, stopped, shared, and whose runs fail: each run is made once, and ends as if undisturbed."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
from killing import Server, Trap
from run_records import Record, assert_same, read_record
from tiny_runs import slow
from tiny_sweeps import (
    CNN,
    LENGTHS,
    OWN_NORMS,
    finished,
    own_words,
    records,
    run_directories,
    sessions,
    statuses,
    sweep_words,
)

from normbench.cli import main

pytest_plugins = ["run_fixtures"]


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


def assert_as(undisturbed: dict[str, Record], folder: Path) -> None:
    """Each run once, and with the bits of the undisturbed sweep."""
    found = records(folder)
    assert found.keys() == undisturbed.keys()
    for name, record in found.items():
        assert_same(record, undisturbed[name])


def test_a_sweeps_runs_are_those_of_train(server: Server, whole: Path, tmp_path: Path) -> None:
    directories = run_directories(whole)
    assert [name.rsplit("-", 1)[0] for name in directories] == [
        f"{norm}-pre-cnn-digits-s{seed}" for norm in ("batchnorm", "rmsnorm") for seed in (0, 1)
    ]
    for name in list(directories)[1:3]:
        (session,) = sessions(directories[name])
        words = session["command"].split()[1:]
        finished(server, words, tmp_path)
        alone, of_sweep = (read_record(folder / "outputs" / "sweep" / name) for folder in (tmp_path, whole))
        assert alone.metrics == of_sweep.metrics
        assert alone.checkpoint == of_sweep.checkpoint


def test_the_same_command_again_does_nothing(server: Server, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    assert finished(server, sweep_words(), whole) == "4/4 runs in outputs/sweep\n"
    assert finished(server, sweep_words("quiet=true"), whole) == "outputs/sweep\n"
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()} == before


def test_a_wider_grid_makes_only_what_is_missing(server: Server, whole: Path, tmp_path: Path) -> None:
    output = finished(
        server, ["sweep", "norm=rmsnorm", "seed=0", *CNN, *LENGTHS, "launcher=local", "sweep.report=false"], tmp_path
    )
    assert "1 of 1 runs to do" in output
    assert "3 of 4 runs to do" in finished(server, sweep_words(), tmp_path)
    assert all(len(sessions(path)) == 1 for path in run_directories(tmp_path).values())


PLACES = [("training > gradients", 16), ("checkpoint > half of a write to checkpoint.pt", 300)]
MORE = [("preparation > begin", 2), ("finish > rename to summary.json", 1), ("finish > fsync summary.json", 3)]
MORE += [("logging > half of a write to metrics.jsonl", 9), ("evaluation > batch", 4), ("rename to 1.json", 1)]


@pytest.mark.parametrize(("place", "nth"), [*PLACES, *slow(*MORE)])
def test_a_killed_sweep_goes_on(
    server: Server, undisturbed_sweep: dict[str, Record], tmp_path: Path, place: str, nth: int
) -> None:
    child = server.start(sweep_words(), tmp_path, Trap(place, nth))
    assert child.wait() == -signal.SIGKILL, child.output
    again = server.start(sweep_words(), tmp_path)
    assert again.wait() == 0, again.output
    assert "failed" not in again.output
    assert_as(undisturbed_sweep, tmp_path)


def test_ctrl_c_stops_behind_a_checkpoint(server: Server, undisturbed_sweep: dict[str, Record], tmp_path: Path) -> None:
    child = server.start(sweep_words(), tmp_path, Trap("training > gradients", 17, (signal.SIGINT,)))
    assert child.wait() == 130, child.output
    assert child.output.splitlines()[-1] == (
        "stopped by SIGINT: 1 of 4 runs are over; the same command goes on, each run from its checkpoint"
    )
    assert "Traceback" not in child.output
    interrupted = [path for path in run_directories(tmp_path).values() if not (path / "summary.json").exists()]
    assert [json.loads((path / "status.json").read_text())["status"] for path in interrupted] == ["interrupted"]
    finished(server, sweep_words(), tmp_path)
    assert_as(undisturbed_sweep, tmp_path)


def test_two_sweeps_share_the_work(server: Server, undisturbed_sweep: dict[str, Record], tmp_path: Path) -> None:
    children = [server.start(sweep_words(), tmp_path) for _ in range(2)]
    for child in children:
        assert child.wait() == 0, child.output
        assert child.output.splitlines()[-1] == "4/4 runs in outputs/sweep"
    assert [len(sessions(path)) for path in run_directories(tmp_path).values()] == [1] * 4
    assert_as(undisturbed_sweep, tmp_path)


def test_a_dead_sweeps_run_is_taken_over(server: Server, undisturbed_sweep: dict[str, Record], tmp_path: Path) -> None:
    first = server.start(sweep_words(), tmp_path, Trap("training > gradients", 8, (signal.SIGSTOP,)))
    first.wait_until_held()
    second = server.start(sweep_words(), tmp_path)
    assert second.wait_for("saved 12")
    assert second.status is None
    first.kill(signal.SIGKILL)
    assert second.wait() == 0, second.output
    assert sorted(len(sessions(path)) for path in run_directories(tmp_path).values()) == [1, 1, 1, 2]
    assert_as(undisturbed_sweep, tmp_path)


# ---- runs that end badly


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with norms of the user's own."""
    (tmp_path / "own_norms.py").write_text(OWN_NORMS)
    return tmp_path


def test_a_failing_run_stops_no_other(server: Server, own: Path) -> None:
    child = server.start(own_words("Boom", "Fine"), own)
    assert child.wait() == 1, child.output
    assert statuses(own) == {"boom": "failed", "fine": "finished"}
    assert "1 failed" in child.output
    assert "RuntimeError: boom, and over" in child.output
    (command,) = [line for line in child.output.splitlines() if line.startswith("normbench train norm._target_=own")]
    assert "Traceback" not in child.output

    again = server.start(own_words("Boom", "Fine"), own)  # it is not tried again
    assert (again.wait(), "boom" in again.output, "runs to do" in again.output) == (1, True, False)

    (own / "mended").touch()
    finished(server, command.split()[1:], own)  # the command repeats just that run
    assert finished(server, own_words("Boom", "Fine"), own) == "2/2 runs in outputs/sweep\n"


def test_failed_runs_are_tried_again_on_demand(server: Server, own: Path) -> None:
    assert server.start(own_words("Boom", "Fine"), own).wait() == 1
    again = server.start([*own_words("Boom", "Fine"), "sweep.retry_failed=true"], own)
    assert (again.wait(), "1 of 2 runs to do" in again.output) == (1, True)
    (own / "mended").touch()
    assert "1 of 2 runs to do" in finished(server, [*own_words("Boom", "Fine"), "sweep.retry_failed=true"], own)
    assert statuses(own) == {"boom": "finished", "fine": "finished"}


def test_a_run_that_is_refused_late_is_a_failure(server: Server, tmp_path: Path) -> None:
    words = ["sweep", "norm=batchnorm,layernorm", "model=mlp", "data=digits", "data.batch_size=1", *LENGTHS]
    child = server.start([*words, "launcher=local", "sweep.report=false"], tmp_path)
    assert child.wait() == 1, child.output
    assert list(statuses(tmp_path)) == ["layernorm"]
    assert "takes a statistic over one value" in child.output or "batch" in child.output
    assert "normbench train norm=batchnorm model=mlp" in child.output


def test_divergence_is_a_result(server: Server, tmp_path: Path) -> None:
    words = ["sweep", "optim.lr=1e-3,1000", "norm=none", *CNN, *LENGTHS, "trainer.grad_clip=0", "launcher=local"]
    output = finished(server, [*words, "sweep.report=false"], tmp_path)
    assert output.splitlines()[-1] == "2/2 runs  1 diverged in outputs/sweep"


def test_a_run_that_train_holds_is_waited_for(server: Server, tmp_path: Path) -> None:
    words = ["norm=rmsnorm", "seed=0", *CNN, *LENGTHS]
    holder = server.start(["train", *words, "name=sweep"], tmp_path, Trap("training > gradients", 8, (signal.SIGSTOP,)))
    holder.wait_until_held()
    sweep = server.start(["sweep", *words, "launcher=local", "sweep.report=false"], tmp_path)
    claims = tmp_path / "outputs" / "sweep" / ".sweep" / "claims"
    while not any('"released": true' in path.read_text() for path in claims.rglob("1.json")):
        assert sweep.status is None
        time.sleep(0.05)
    holder.kill(signal.SIGCONT)
    assert holder.wait() == 0
    assert sweep.wait() == 0, sweep.output
    ((_, path),) = run_directories(tmp_path).items()
    assert len(sessions(path)) == 1


def test_another_process_may_watch(server: Server, whole: Path, own: Path) -> None:
    output = finished(server, ["sweep", "--watch", str(whole / "outputs" / "sweep")], own)
    assert output == "4/4 runs\n"
    server.start(own_words("Boom", "Fine"), own).wait()
    watching = server.start(["sweep", "--watch", "outputs/sweep"], own)
    assert (watching.wait(), "boom, and over" in watching.output) == (1, True)


@pytest.mark.slow
def test_the_report_at_the_end_is_that_of_an_undisturbed_sweep(server: Server, whole: Path, tmp_path: Path) -> None:
    """But for times and memory, after two kills."""
    for trap in (Trap("training > gradients", 16), Trap("preparation > begin", 2)):
        assert server.start(sweep_words("sweep.report=true"), tmp_path, trap).wait() == -signal.SIGKILL
    output = finished(server, sweep_words("sweep.report=true"), tmp_path)
    assert output.splitlines()[-1] == "outputs/sweep/report/report.html"
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
    assert finished(server, sweep_words("sweep.report=true"), tmp_path).splitlines()[-1] == str(
        page.relative_to(tmp_path)
    )
    assert page.stat().st_mtime_ns == made


def test_planned_runs_that_are_not_there_are_named_in_the_report(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(own)
    words = ["norm=batchnorm,layernorm", "model=mlp", "data=digits", "data.batch_size=1", *LENGTHS]
    assert main(["sweep", *words, "launcher=local"]) == 1
    found = " ".join(capsys.readouterr().out.split())
    assert "missing runs" in found
    assert "1 planned run is not there (failed or not begun): batchnorm-pre-mlp-digits-s0-" in found
