"""Damaged files, a full disk, too little memory, another machine, divergence: told in a sentence, nothing is lost."""

from __future__ import annotations

import json
import signal
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from killing import Child, Server, Trap
from run_records import Record, read_json, read_metrics
from tiny_runs import fill, finish, run_directory, slow, start, words

from normbench.cli import main
from normbench.record.directory import RunDirectory
from normbench.training import checkpoint

pytest_plugins = ["run_fixtures"]


def assert_sentence(child: Child, status: int, *parts: str) -> None:
    """It has ended with this exit status and one sentence as its last words."""
    assert child.wait() == status, child.output
    assert "Traceback" not in child.output
    last = child.output.splitlines()[-1]
    assert last.startswith("normbench: ") and all(part in last for part in parts)


# ---- damaged files


@pytest.fixture
def folder(server: Server, tmp_path: Path) -> Path:
    """The folder of a run that was stopped at step 28; the checkpoint before that is of step 24."""
    assert start(server, "transformer", tmp_path, Trap("training > gradients", 28, (signal.SIGINT,))).wait() == 130
    return tmp_path


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    server: Server, undisturbed: dict[str, Record], folder: Path
) -> None:
    """Nor does a kill while the next one is written put the damaged one in the good one's place."""
    directory = run_directory(folder)
    content = (directory / "checkpoint.pt").read_bytes()
    (directory / "checkpoint.pt").write_bytes(content[: len(content) * 2 // 3])
    (directory / "status.json").write_bytes(b'{"status": "runn')
    child = start(server, "transformer", folder, Trap("checkpoint > rename to checkpoint.pt"))
    assert child.wait() == -signal.SIGKILL
    said = "checkpoint.pt is damaged", "the one before it is used", "going on from step 24"
    assert all(part in child.output for part in said)
    assert checkpoint.read(directory / "checkpoint.prev.pt")["step"] == 24
    for name in ("checkpoint.pt", "checkpoint.prev.pt"):
        (directory / name).write_bytes(b"")
    output = finish(server, "transformer", folder, undisturbed).output
    assert "checkpoint.prev.pt is damaged" in output and "starts from the beginning" in output


def test_no_byte_of_a_checkpoint_can_change_unseen(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    with open(path, "wb") as file:
        checkpoint.write({"step": 3, "model": {"weight": torch.arange(4.0)}}, file)
    assert torch.equal(torch.load(path, weights_only=True)["model"]["weight"], torch.arange(4.0))
    content = bytearray(path.read_bytes())
    assert checkpoint.is_whole(path)
    for place in range(0, len(content), 11):
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        assert not checkpoint.is_whole(path), place
        content[place] ^= 1 << place % 8


def test_checkpoint_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    with open(path, "wb") as file:
        checkpoint.write({"step": pytest.fail}, file)
    said: list[str] = []
    assert checkpoint.Checkpoints(RunDirectory(tmp_path)).load(said.append) is None
    assert said[0].startswith("checkpoint.pt is not a checkpoint of normbench")


# ---- a full disk


@pytest.mark.parametrize(
    ("place", "nth", "saved"),
    [("checkpoint > half of a write to checkpoint.pt", 700, 8), *slow(("logging > begin", 5, 16))],
)
def test_full_disk_ends_the_run_and_loses_nothing(
    server: Server, undisturbed: dict[str, Record], small_disk: Path, place: str, nth: int, saved: int
) -> None:
    child = start(server, "transformer", small_disk, Trap(place, nth, (signal.SIGSTOP,)))
    child.wait_until_held()
    filler = fill(small_disk)
    child.kill(signal.SIGCONT)
    assert_sentence(child, 1, "the disk is full (outputs=outputs)", "give the same command to go on")
    assert last_step(run_directory(small_disk)) >= saved
    assert read_json(run_directory(small_disk) / "status.json")["status"] in ("running", "interrupted")
    assert not list(run_directory(small_disk).glob(".*.tmp"))
    filler.unlink()
    finish(server, "transformer", small_disk, undisturbed)


def last_step(directory: Path) -> int:
    """The step of the newest checkpoint, which must be whole."""
    state = checkpoint.Checkpoints(RunDirectory(directory)).load(pytest.fail)
    return state["step"] if state else 0


# ---- too little memory


@pytest.mark.slow
def test_too_little_memory_ends_the_run_and_loses_nothing(
    server: Server, undisturbed: dict[str, Record], tmp_path: Path
) -> None:
    child = start(server, "transformer", tmp_path, Trap("evaluation > begin", 1, memory=1 << 20))
    assert_sentence(child, 1, "out of memory", "data.eval_batch_size")
    status = read_json(run_directory(tmp_path) / "status.json")
    assert (status["status"], status["step"]) == ("out_of_memory", 10)
    assert last_step(run_directory(tmp_path)) == 8
    finish(server, "transformer", tmp_path, undisturbed)


def test_model_too_large_for_the_memory_leaves_no_directory(server: Server, tmp_path: Path) -> None:
    child = server.start(words("transformer", "model.width=8192"), tmp_path, Trap("building > begin", memory=64 << 20))
    assert_sentence(child, 1, "out of memory", "model.width")
    assert not list(tmp_path.iterdir())


# ---- another machine, another version


def test_run_from_elsewhere_is_told_in_one_line(server: Server, undisturbed: dict[str, Record], folder: Path) -> None:
    path = run_directory(folder) / "environment.json"
    known = read_json(path)
    known["sessions"][0] |= {"commit": "0123abc", "packages": {"torch": "1.0"}}
    path.write_text(json.dumps(known))
    output = finish(server, "transformer", folder, undisturbed).output
    assert "going on from step 28" in output
    (line,) = (line for line in output.splitlines() if "begun elsewhere" in line)
    assert all(part in line for part in ("commit was 0123abc, is ", "torch was 1.0, is ", "rerun=true"))
    assert len(read_json(path)["sessions"]) == 2  # it was stopped once


# ---- divergence


def trained(folder: Path, *given: str) -> Path:
    """Train in this process; returns the run directory."""
    with chdir(folder):
        assert main(words(*given)) == 0
    return run_directory(folder)


def test_loss_that_is_not_finite_ends_the_run_before_the_optimizer_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "cnn", "norm=none", "optim.lr=1000", "trainer.grad_clip=0", "trainer.checkpoint_every=1"
    directory = trained(tmp_path, *given)
    summary, state = read_json(directory / "summary.json"), checkpoint.read(directory / "checkpoint.pt")
    assert summary["status"] == read_json(directory / "status.json")["status"] == "diverged"
    assert 1 < summary["step"] == state["step"] + 1 <= 40
    assert summary["message"].startswith("not finite: ")
    assert all(weight.isfinite().all() for weight in state["model"].values())
    json.loads((directory / "summary.json").read_text(), parse_constant=pytest.fail)
    capsys.readouterr()
    trained(tmp_path, *given)
    assert "has diverged already" in capsys.readouterr().out


def test_loss_that_runs_away_ends_the_run_after_a_patience(tmp_path: Path) -> None:
    directory = trained(tmp_path, "transformer", "norm=none", "optim.lr=10", "trainer.divergence_patience=10")
    summary = read_json(directory / "summary.json")
    assert "stayed above 3 × its first value" in summary["message"]
    assert (summary["status"], summary["step"]) == ("diverged", 5)
    assert read_metrics(directory)[-1]["step"] == 15


# ---- what stays


def test_best_checkpoint_has_the_weights_of_the_lowest_validation_loss(tmp_path: Path) -> None:
    directory = trained(tmp_path, "cnn", "optim.lr=30")
    losses = {line["step"]: line["loss/val"] for line in read_metrics(directory) if "loss/val" in line}
    assert checkpoint.read(directory / "checkpoint.best.pt")["step"] == min(losses, key=losses.__getitem__)


@pytest.mark.slow
def test_kept_checkpoint_none(server: Server, undisturbed: dict[str, Record], tmp_path: Path) -> None:
    given = words("transformer", "trainer.keep_checkpoint=none")
    assert server.start(given, tmp_path, Trap("finish > write to status.json")).wait() == -signal.SIGKILL
    assert server.start(given, tmp_path).wait() == 0
    directory = run_directory(tmp_path)
    assert not list(directory.glob("*checkpoint*"))
    assert read_json(directory / "status.json")["status"] == "finished"
    assert read_metrics(directory) == undisturbed["transformer"].metrics
