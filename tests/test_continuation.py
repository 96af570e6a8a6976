"""Runs that are killed at chosen and at random moments, stopped and continued end with the bits of undisturbed ones."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from killing import Child, Server, Trap
from run_records import Record, assert_same, assert_steps_increase, read_json, read_record
from tiny_runs import run_directory, slow, start, words

pytest_plugins = ["run_fixtures"]

LATER = "training > gradients", 23
STOP = Trap("training > gradients", 13, (signal.SIGINT,))

# Where a run is killed, and then where it is killed when it goes on, and so on: a model, places and which passage.
QUICK = [
    ("transformer", [("checkpoint > rename to checkpoint.pt", 3)]),
    ("cnn", [("evaluation > best weights > half of a write", 600)]),
    ("cnn", [LATER, ("truncating events > rename", 1), ("truncating events > unlink", 1)]),
]
MOMENTS = [
    ("transformer", [("checkpoint > half of a write to checkpoint.pt", 700)]),
    ("transformer", [("checkpoint > fsync checkpoint.pt", 2)]),
    ("transformer", [("checkpoint > rename to checkpoint.prev.pt", 2)]),
    ("cnn", [("checkpoint > fsync the directory", 4)]),
    ("transformer", [("evaluation > loss", 7)]),
    ("transformer", [("evaluation > half of a write to metrics.jsonl", 3)]),
    ("cnn", [("evaluation > batch", 1)]),
    ("cnn", [("evaluation > half of a write to events", 3)]),
    ("cnn", [("evaluation > best weights > rename", 3)]),
    ("transformer", [("training > half of a write to events", 3)]),
    ("transformer", [("logging > half of a write to metrics.jsonl", 4)]),
    ("cnn", [("preparation > half of a write to environment.json", 1)]),
    ("transformer", [LATER, ("truncating metrics > half of a write", 3)]),
    ("transformer", [LATER, ("truncating events > half of a write", 9)]),
    ("cnn", [("finish > rename to summary.json", 1)]),
    ("transformer", [("finish > write to status.json", 1)]),
]


def went_on_from(child: Child) -> int:
    """Return the step from which a run says that it goes on."""
    if "finished already" in child.output:
        return 40
    found = re.search(r"going on from step (\d+)", child.output)
    return int(found[1]) if found else 0


def finish(server: Server, model: str, folder: Path, reference: dict[str, Record]) -> Child:
    """Give a run's command again; it ends like an undisturbed one."""
    child = start(server, model, folder)
    assert child.wait() == 0, child.output
    assert_same(read_record(run_directory(folder)), reference[model])
    return child


@pytest.mark.parametrize(("model", "places"), [*QUICK, *slow(*MOMENTS)])
def test_killed_run_ends_like_an_undisturbed_one(
    server: Server, undisturbed: dict[str, Record], tmp_path: Path, model: str, places: list[tuple[str, int]]
) -> None:
    saved = 0
    for place, nth in places:
        child = start(server, model, tmp_path, Trap(place, nth))
        assert child.wait() == -signal.SIGKILL, child.output
        assert child.places[-1].startswith("trapped: ") and place in child.places[-1]
        saved = max([saved, *(int(line.split()[1]) for line in child.places if line.startswith("saved "))])
    assert went_on_from(finish(server, model, tmp_path, undisturbed)) >= saved


def test_there_are_more_than_twenty_moments() -> None:
    kills = [place for _, places in [*QUICK, *MOMENTS] for place, _ in places]
    assert len(kills) >= 20
    assert all(sum(place.startswith(part) for place in kills) >= 5 for part in ("checkpoint", "evaluation"))


@pytest.mark.slow
def test_killed_from_outside_again_and_again(
    server: Server, undisturbed: dict[str, Record], tmp_path: Path, tell: Callable[[str], None]
) -> None:
    moments = random.Random(0)
    for _ in range(4):
        child = start(server, "transformer", tmp_path)
        if not child.wait_for("preparation > begin"):  # the last kill fell behind the run's last word
            break
        time.sleep(moments.uniform(0.0, 0.5))
        child.kill(signal.SIGKILL)
        assert child.wait() in (0, -signal.SIGKILL)
        tell(f"SIGKILL from outside, behind: {child.places[-1]}")
    finish(server, "transformer", tmp_path, undisturbed)


# ---- signals


@pytest.mark.parametrize(
    ("number", "status", "place", "nth"),
    [
        (signal.SIGINT, 130, "training > gradients", 13),
        *slow(
            (signal.SIGTERM, 143, "evaluation > batch", 3), (signal.SIGINT, 130, "checkpoint > half of a write", 300)
        ),
    ],
)
def test_stopped_by_a_signal_goes_on_with_the_same_bits(
    server: Server, undisturbed: dict[str, Record], tmp_path: Path, number: int, status: int, place: str, nth: int
) -> None:
    child = start(server, "transformer", tmp_path, Trap(place, nth, (number,)))
    assert child.wait() == status
    found = read_json(run_directory(tmp_path) / "status.json")
    step = found["step"]
    assert found["status"] == "interrupted" and f"saved {step}" in child.places and "Traceback" not in child.output
    assert child.output.splitlines()[-1] == f"stopped at step {step} of 40; the same command goes on from here"
    assert went_on_from(finish(server, "transformer", tmp_path, undisturbed)) == step


def test_second_ctrl_c_stops_at_once(server: Server, undisturbed: dict[str, Record], tmp_path: Path) -> None:
    twice = Trap("checkpoint > half of a write", 700, (signal.SIGINT, signal.SIGINT))
    child = start(server, "transformer", tmp_path, twice)
    assert child.wait() == 130
    assert child.output.splitlines()[-1] == "normbench: stopped" and "Traceback" not in child.output
    behind = child.places[child.places.index("trapped: checkpoint > half of a write to checkpoint.pt") :]
    assert not any(line.startswith("saved ") for line in behind)
    assert read_json(run_directory(tmp_path) / "status.json")["status"] == "interrupted"
    finish(server, "transformer", tmp_path, undisturbed)


def test_ctrl_c_behind_the_last_step_lets_the_run_finish(
    server: Server, undisturbed: dict[str, Record], tmp_path: Path
) -> None:
    assert start(server, "cnn", tmp_path, Trap("finish > rename to summary", 1, (signal.SIGINT,))).wait() == 0
    assert_same(read_record(run_directory(tmp_path)), undisturbed["cnn"])


@pytest.mark.slow
def test_ctrl_c_in_a_process_of_its_own(server: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "normbench", *words("transformer", "trainer.steps=100000")]
    with subprocess.Popen(
        command, cwd=tmp_path, env=server.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not list(tmp_path.glob("outputs/train/*/checkpoint.pt")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert "the same command goes on from here" in output.splitlines()[-1]


# ---- finished runs


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_finished_run_is_not_run_again_but_made_anew_if_told_so(
    server: Server, undisturbed: dict[str, Record], tmp_path: Path
) -> None:
    assert start(server, "cnn", tmp_path).wait() == 0
    directory = run_directory(tmp_path)
    before = content(directory)
    again = start(server, "cnn", tmp_path)
    assert again.wait() == 0
    assert "is finished already: rerun=true makes it anew" in again.output
    assert not any("training" in place for place in again.places)
    assert content(directory) == before
    stopped = server.start(words("cnn", "rerun=true"), tmp_path, STOP)
    assert stopped.wait() == 130
    assert stopped.output.splitlines()[-1].endswith("the same command without rerun=true goes on from here")
    assert content(directory.with_name(f"{directory.name}.old1")) == before
    assert start(server, "cnn", tmp_path).wait() == 0
    assert_same(read_record(directory), undisturbed["cnn"])
    assert server.start(words("cnn", "rerun=true"), tmp_path).wait() == 0
    names = {path.name for path in directory.parent.iterdir()}
    assert names == {directory.name, f"{directory.name}.old1", f"{directory.name}.old2"}


def test_relative_outputs_belong_to_the_current_directory(server: Server, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        assert start(server, "cnn", folder, STOP).wait() == 130
    assert run_directory(one).name == run_directory(other).name
    assert server.start(words("cnn", "outputs=../one/outputs"), other, STOP).wait() == 130
    assert read_json(run_directory(one) / "status.json")["step"] > 13
    assert read_json(run_directory(other) / "status.json")["step"] == 13


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


@pytest.fixture(scope="module")
def parent(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of 20 steps."""
    folder = tmp_path_factory.mktemp("parent")
    assert server.start(words("cnn", "trainer.steps=20"), folder).wait() == 0
    return folder


def extension(parent: Path, steps: int, *more: str) -> list[str]:
    return ["train", f"extend={run_directory(parent)}", f"trainer.steps={steps}", *more]


@pytest.fixture(scope="module")
def extended(server: Server, parent: Path, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The parent's run, extended to 40 steps."""
    folder, before = tmp_path_factory.mktemp("extended"), content(run_directory(parent))
    child = server.start(extension(parent, 40), folder)
    assert child.wait() == 0, child.output
    assert went_on_from(child) == 20
    assert content(run_directory(parent)) == before
    return read_record(run_directory(folder))


def test_extended_run_holds_its_parents_record(parent: Path, extended: Record) -> None:
    first = read_record(run_directory(parent))
    assert extended.checkpoint["step"] == 40
    assert extended.summary["extends"] == run_directory(parent).name
    assert [line for line in extended.metrics if line["step"] <= 20] == first.metrics
    assert extended.metrics[-1]["step"] == 40
    assert extended.files == first.files
    assert_steps_increase(extended)


@pytest.mark.parametrize(
    ("place", "nth"),
    [
        ("copying > rename to checkpoint.pt", 1),
        *slow(("copying > half of a write to metrics.jsonl", 1), ("training > gradients", 13)),
    ],
)
def test_killed_extension_goes_on(
    server: Server, parent: Path, extended: Record, tmp_path: Path, place: str, nth: int
) -> None:
    child = server.start(extension(parent, 40), tmp_path, Trap(place, nth))
    assert child.wait() == -signal.SIGKILL
    assert child.places[-1].startswith("trapped: ")
    assert server.start(extension(parent, 40), tmp_path).wait() == 0
    assert_same(read_record(run_directory(tmp_path)), extended)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["trainer.steps=20"], "trainer.steps=20 does not extend a run of 20 steps"),
        (["trainer.steps=40", "optim.lr=0.1"], "optim.lr=0.1 cannot be changed with extend="),
        (["trainer.steps=40", "norm=rmsnorm"], "norm=rmsnorm cannot be changed with extend="),
        (["trainer.steps=40", "extend=nowhere"], "extend=nowhere is not the directory of a finished run"),
    ],
)
def test_refused_extension(server: Server, parent: Path, tmp_path: Path, more: list[str], sentence: str) -> None:
    given = more if "extend=nowhere" in more else [f"extend={run_directory(parent)}", *more]
    child = server.start(["train", *given], tmp_path)
    assert child.wait() == 2
    assert child.output.startswith(f"normbench: {sentence}")
    assert len(child.output.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_interrupted_run_cannot_be_extended(server: Server, tmp_path: Path) -> None:
    assert start(server, "cnn", tmp_path, STOP).wait() == 130
    child = server.start(extension(tmp_path, 60), tmp_path)
    assert child.wait() == 2
    assert "is not the directory of a finished run" in child.output
