"""Records that something has damaged after their end: each is told, or it changes nothing that a report reads."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support import WHOLE

from normbench.cli import main
from normbench.errors import UsageError
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import read_studies
from normbench.record.directory import RunDirectory
from normbench.training import checkpoint
from normbench.training.checkpoint import Checkpoints

pytest_plugins = ["trained_runs"]

READ = ("config.yaml", "environment.json", "metrics.jsonl", "summary.json", "status.json")


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Return a file's content, damaged in one of the ways in which disks, copies and people do it."""
    place = draw.randrange(len(content))
    kind = draw.choice(("bit", "byte", "digit", "digit", "digit", "cut", "line", "hole", "twice"))
    if kind == "bit":
        return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]
    if kind == "byte":
        return content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]
    if kind == "digit":
        place = draw.choice([index for index, byte in enumerate(content) if chr(byte).isdigit()] or [place])
        return content[:place] + b"%d" % draw.randrange(10) + content[place + 1 :]
    if kind == "cut":
        return content[:place]
    if kind == "hole":
        return content[:place] + bytes(min(512, len(content) - place)) + content[place + 512 :]
    lines = content.splitlines(keepends=True)
    line = draw.randrange(len(lines))
    return b"".join([*lines[:line], *([lines[line]] * 2 if kind == "twice" else []), *lines[line + 1 :]])


def told(run: RecordedRun) -> str:
    """Return all that analysis knows of a run."""
    curves = {tag: (curve.steps.tolist(), curve.values.tolist()) for tag, curve in run.curves.items()}
    return repr({**vars(run), "curves": sorted(curves.items())})


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    """Let a file have another content for a while."""
    before = path.read_bytes()
    path.write_bytes(content)
    yield
    path.write_bytes(before)


@pytest.fixture
def pair(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A folder of two finished runs, of which tests damage the first."""
    for name in ("first", "second"):
        shutil.copytree(runs["text"], tmp_path / "pair" / name)
    return tmp_path / "pair"


@pytest.mark.parametrize("number", [50, pytest.param(500 if WHOLE else 200, marks=pytest.mark.slow)])
def test_damaged_records_are_told_or_harmless(pair: Path, number: int) -> None:
    (study,) = read_studies([pair])
    assert study.damaged == ()
    whole = {run.name: told(run) for run in study.runs}
    found: dict[str, int] = {"told": 0, "harmless": 0}
    for place in range(number):
        draw = random.Random(place)
        path = pair / "first" / draw.choice(READ)
        with changed(path, damaged(path.read_bytes(), draw)):
            (study,) = read_studies([pair])
        if study.damaged:
            assert [name for name, _ in study.damaged] == ["first"] and [run.name for run in study.runs] == ["second"]
        else:
            assert {run.name: told(run) for run in study.runs} == whole, f"damage {place} of {path.name} passes"
        found["told" if study.damaged else "harmless"] += 1
    assert found["told"] > number / 2 and found["harmless"] > 0


def test_records_of_before_that_are_damaged_end_no_report(pair: Path) -> None:
    """Without digests not each changed digit can be seen; but what cannot be read is told."""
    for name in ("first", "second"):
        directory = RunDirectory(pair / name)
        text = directory.summary.read_text()
        directory.summary.write_text(text[: text.index(',\n  "digests"')] + "\n}\n")
        assert directory.find_altered() == []
    for number in range(40):
        draw = random.Random(number)
        path = pair / "first" / draw.choice(READ)
        with changed(path, damaged(path.read_bytes(), draw)):
            studies = read_studies([pair])
        assert "second" in {run.name for study in studies for run in study.runs}


def test_a_damaged_checkpoint_is_never_loaded(pair: Path) -> None:
    directory, said = RunDirectory(pair / "first"), list[str]()
    before = directory.checkpoint.read_bytes()
    for number in range(40):
        content = damaged(before, random.Random(number))
        with changed(directory.checkpoint, content):
            state: Any = Checkpoints(directory).load(said.append)
        assert content == before or (state or {}).get("step") != 20 or "checkpoint.pt is damaged" in said[-1]
    assert len(said) > 30


def momentum(state: Any) -> None:
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3, 5)  # which AdamW's fused step would not look at


def averages(state: Any) -> None:
    state["optimizer"]["param_groups"].pop()


def weights(state: Any) -> None:
    state["model"] = {name: torch.zeros(3) for name in state["model"]}


def losses(state: Any) -> None:
    state["loss_sum"] = torch.zeros(4)


def step(state: Any) -> None:
    state["step"] = "ten"


def times(state: Any) -> None:
    state["durations"] = {"first": 1}


@pytest.mark.parametrize("change", [momentum, averages, weights, losses, step, times])
def test_a_checkpoint_of_another_shape_is_refused_in_a_sentence(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Any], None]
) -> None:
    from trained_runs import SHORT, WORDS  # which pytest is to import first, as a plugin

    folder = tmp_path / "outputs/train"
    directory = RunDirectory(folder / runs["text"].name)
    shutil.copytree(runs["text"], directory.path)
    directory.summary.unlink()
    directory.previous.unlink(missing_ok=True)
    state = checkpoint.read(directory.checkpoint)
    change(state)
    with open(directory.checkpoint, "wb") as file:
        checkpoint.write(state, file)
    with chdir(tmp_path):
        assert main(["train", *WORDS["text"], *SHORT]) == 1
    said = capsys.readouterr().err
    assert said.startswith("normbench: the checkpoint in outputs/train/") and said.count("\n") == 1


def test_a_folder_of_damaged_runs_alone_is_a_mistake_in_a_sentence(pair: Path) -> None:
    for name in ("first", "second"):
        (pair / name / "summary.json").write_text("{")
    with pytest.raises(UsageError, match=r"summary.json is missing or damaged"):
        read_studies([pair])
