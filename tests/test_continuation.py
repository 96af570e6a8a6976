"""Runs that are killed at chosen places, stopped, continued and extended end with the bits of undisturbed ones."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest
from killing import Child, Server, Trap
from run_records import Record, assert_same, assert_steps_increase, read_json, read_record
from tiny_runs import finish, run_directory, start, words

pytest_plugins = ["run_fixtures"]

STOP = Trap("training > gradients", 13, (signal.SIGINT,))

# Where a run is disturbed, and where each time that it goes on again: a place, and at which of its passages.
WRITING, EVALUATING = "checkpoint > half of a write to checkpoint.pt", "evaluation > half of a write to"
PLACES = {
    "transformer": {
        "preparation > half of a write to environment.json": 1, WRITING: 300, "checkpoint > rename to checkpoint.pt": 1,
        "truncating events > rename": 1, "finish > write to status.json": 1,
    },
    "cnn": {
        "evaluation > best weights > rename": 1, "training > half of a write to events": 3,
        "finish > rename to summary.json": 1,
    },
}  # fmt: skip
MORE_PLACES = {
    "transformer": {
        "evaluation > loss": 2, f"{EVALUATING} metrics.jsonl": 1, "checkpoint > rename to checkpoint.prev.pt": 1,
        "checkpoint > fsync the directory": 1, "logging > half of a write to metrics.jsonl": 1,
        "truncating metrics > half of a write": 3, "truncating events > half of a write": 9,
        "truncating events > unlink": 1,
    },
    "cnn": {
        "checkpoint > fsync checkpoint.pt": 2, "evaluation > best weights > half of a write": 300,
        "evaluation > batch": 1, f"{EVALUATING} events": 1,
    },
}  # fmt: skip


def went_on_from(child: Child) -> int:
    """Return the step from which a run says that it goes on."""
    if "finished already" in child.output:
        return 40
    found = re.search(r"going on from step (\d+)", child.output)
    return int(found[1]) if found else 0


def saved(child: Child) -> list[int]:
    """Return the steps whose checkpoints a process has written."""
    return [int(line.split()[1]) for line in child.places if line.startswith("saved ")]


def assert_killed(child: Child, place: str) -> None:
    assert child.wait() == -signal.SIGKILL, child.output
    assert child.places[-1].startswith("trapped: ") and place in child.places[-1]


@pytest.mark.parametrize(
    ("model", "places"),
    [*PLACES.items(), *(pytest.param(*item, marks=pytest.mark.slow) for item in MORE_PLACES.items())],
)
def test_a_run_that_is_killed_again_and_again_ends_like_an_undisturbed_one(
    server: Server, undisturbed: dict[str, Record], tmp_path: Path, model: str, places: dict[str, int]
) -> None:
    last = 0
    for place, nth in places.items():
        child = start(server, model, tmp_path, Trap(place, nth))
        assert_killed(child, place)
        if "training > begin" in child.places:
            assert went_on_from(child) >= last
        last = max([last, *saved(child)])
    assert went_on_from(finish(server, model, tmp_path, undisturbed)) >= last


@pytest.mark.slow
def test_a_run_that_signals_stop_goes_on_with_the_same_bits(
    server: Server, undisturbed: dict[str, Record], tmp_path: Path
) -> None:
    """SIGINT and SIGTERM let it write a checkpoint; a second Ctrl-C stops it at once."""
    step = 0
    twice = signal.SIGINT, signal.SIGINT
    for signals, status, place in (
        (twice[:1], 130, WRITING), ((signal.SIGTERM,), 143, "evaluation > batch"), (twice, 130, WRITING)
    ):  # fmt: skip
        child = start(server, "transformer", tmp_path, Trap(place, 3, signals))
        assert child.wait() == status and "Traceback" not in child.output
        assert went_on_from(child) == step
        stands = read_json(run_directory(tmp_path) / "status.json")
        assert stands["status"] == "interrupted"
        if signals != twice:
            step = stands["step"]
            assert child.output.splitlines()[-1] == f"stopped at step {step} of 40; the same command goes on from here"
            assert saved(child)[-1] == step
        else:
            assert child.output.splitlines()[-1] == "normbench: stopped" and not saved(child)
    assert went_on_from(finish(server, "transformer", tmp_path, undisturbed)) == step


# ---- finished runs


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.slow
def test_finished_run_is_not_run_again_but_made_anew_if_told_so(
    server: Server, finished: dict[str, Path], undisturbed: dict[str, Record], tmp_path: Path
) -> None:
    shutil.copytree(finished["cnn"], tmp_path, dirs_exist_ok=True)
    directory = run_directory(tmp_path)
    before = content(directory)
    again = start(server, "cnn", tmp_path)
    assert again.wait() == 0
    assert "has finished already: rerun=true makes it again" in again.output
    assert not any("training" in place for place in again.places)
    assert content(directory) == before
    stopped = server.start(words("cnn", "rerun=true"), tmp_path, STOP)
    assert stopped.wait() == 130
    assert stopped.output.splitlines()[-1].endswith("the same command without rerun=true goes on from here")
    aside = directory.with_name(f"{directory.name}.old1")
    assert content(aside) == before
    aside.rename(tmp_path / "aside")
    finish(server, "cnn", tmp_path, undisturbed)


@pytest.mark.slow
def test_second_process_on_the_same_run_leaves(server: Server, undisturbed: dict[str, Record], tmp_path: Path) -> None:
    first = start(server, "transformer", tmp_path, Trap("training > gradients", 15, (signal.SIGSTOP,)))
    first.wait_until_held()
    for more in ([], ["rerun=true"]):
        second = server.start(words("transformer", *more), tmp_path)
        assert second.wait() == 1
        (line,) = second.output.splitlines()
        assert f"{run_directory(tmp_path).name} is being written by another process (pid {first.pid})" in line
    first.kill(signal.SIGCONT)
    assert first.wait() == 0
    assert_same(read_record(run_directory(tmp_path)), undisturbed["transformer"])


# ---- extension


def extension(parent: Path, steps: int, *more: str) -> list[str]:
    return ["train", f"extend={run_directory(parent)}", f"trainer.steps={steps}", *more]


@pytest.mark.slow
def test_an_extended_run_holds_its_parents_record_also_where_it_was_killed(
    server: Server, finished: dict[str, Path], undisturbed: dict[str, Record], tmp_path: Path
) -> None:
    parent, first = finished["cnn"], undisturbed["cnn"]
    before = content(run_directory(parent))
    for refused, sentence in (
        (extension(parent, 40), "trainer.steps=40 does not extend a run of 40 steps"),
        (extension(parent, 60, "norm=rmsnorm"), "norm=rmsnorm cannot be changed with extend="),
        (extension(parent, 60, "trainer.ema=0.5"), "trainer.ema=0.5 cannot be changed with extend="),
        (extension(parent, 60, "trainer.train=norms"), "trainer.train=norms cannot be changed with extend="),
    ):
        child = server.start(refused, tmp_path)
        assert child.wait() == 2 and child.output.startswith(f"normbench: {sentence}")
    child = server.start(extension(parent, 60), tmp_path)
    assert child.wait() == 0 and went_on_from(child) == 40, child.output
    extended = read_record(run_directory(tmp_path))
    assert extended.checkpoint["step"] == extended.metrics[-1]["step"] == 60
    assert extended.summary["extends"] == run_directory(parent).name
    assert [line for line in extended.metrics if line["step"] <= 40] == first.metrics
    assert extended.files == first.files
    assert_steps_increase(extended)
    last = server.start(["train", f"extend={run_directory(tmp_path)}", "trainer.steps=70", "name=last"], tmp_path)
    assert last.wait() == 0, last.output
    (grandchild,) = tmp_path.glob("outputs/last/*/environment.json")
    (session,) = read_json(grandchild)["sessions"]
    assert session["step"] == 60 and [one["steps"] for one in session["extended"]] == [40, 60]
    folder = tmp_path / "again"
    folder.mkdir()
    for place, nth in (("copying > rename to checkpoint.pt", 1), ("training > gradients", 13)):
        assert_killed(server.start(extension(parent, 60), folder, Trap(place, nth)), place)
    assert server.start(extension(parent, 60), folder).wait() == 0
    assert_same(read_record(run_directory(folder)), extended)
    assert content(run_directory(parent)) == before
