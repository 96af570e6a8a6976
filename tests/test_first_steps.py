"""What a newcomer meets: mistakes at the door, what a finished run says, and the first small sweep."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch

from normbench.cli import main
from normbench.errors import LINE
from normbench.runs.dry_run import note_load

TINY = ["model.depth=1", "model.width=8", "model.heads=2", "model.context=8", "data.batch_size=2", "device=cpu",
        "trainer.steps=2", "trainer.eval_batches=1", "data.eval_batch_size=512", "threads=1"]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --norm rmsnorm", "write norm=VALUE"),
        ("train --seed 3", "write seed=VALUE"),
        ("train norm=RMSNorm", "did you mean rmsnorm?"),
        ("sweep norm=layernorm, rmsnorm", "write norm=layernorm,rmsnorm"),
        ("sweep norm=rmsnorm seed=1-3", "is written 'seed=range(1,4)'"),
        ("sweep norm=rmsnorm seed=0..3", "is written 'seed=range(0,4)'"),
        ("train seed=5-0", "a range is written 'seed=range(0,6)', in a sweep"),
        ("sweep norm=all", "in a sweep 'norm=glob(*)' takes all of them"),
        ("list norms", "did you mean norm?"),
        ("trian norm=rmsnorm", "did you mean train?"),
    ],
)
def test_near_words(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["train", "norm=" + "x" * 999], ["train", "optim.lr=[" + "9," * 999 + "9]"], ["sample", "word " * 200]]
)
def test_a_message_repeats_a_line_of_what_was_given_at_the_most(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert len(said) < 4 * LINE and words[-1][:20] in said


def test_what_turns_the_direction_of_writing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "norm=a\u202eb\u2066c"]) == 2
    said = capsys.readouterr().err
    assert r"a\u202eb\u2066c" in said and "\u202e" not in said


def test_a_finished_run_says_what_its_number_means_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "norm=rmsnorm", *TINY, "seed=4"]) == 0
    said = capsys.readouterr().out
    (path,) = Path("outputs/train").iterdir()
    guess = json.loads((path / "summary.json").read_text())["data"]["constant"]["loss/val"]
    assert re.search(rf"loss/val, constant guess +{guess:.4f}", said)
    assert f"normbench sample {path}" in said
    assert "cast_order" not in said and f"normbench runs {path} --ledger" in said
    assert main(["runs", str(path), "--ledger"]) == 0
    ledger = capsys.readouterr().out
    assert re.search(r"eps +1e-05 *\n", ledger) and "cast_order" in ledger
    command = next(line for line in said.splitlines() if "normbench sweep" in line).partition("normbench ")[2]
    assert "norm=rmsnorm,layernorm" in command and "seed=0,1,2" in command
    assert main([*command.split(), "--dry-run"]) == 0
    torch.set_num_threads(2)
    assert main(["sample", str(path), "--tokens", "3"]) == 0
    assert torch.get_num_threads() == 1


OWN = """
from torch import nn

class Scaled(nn.Module):
    def __init__(self, num_features, *, channel_dim=-1, site=None, factor: float = 1.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor
"""


def test_what_a_run_cannot_do_next_is_not_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class of one's own is loaded with --trust; a run that diverged at once has no weights, one without events no
    curves."""
    Path("scaled.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    words = ["train", *TINY, "norm._target_=scaled.Scaled", "logger=none"]
    assert main([*words, "trainer.steps=1"]) == 0
    said = capsys.readouterr().out
    (path,) = Path("outputs/train").iterdir()
    assert f"normbench sample {path} --trust" in said and "normbench tensorboard" not in said
    assert main([*words, "norm.factor=1e38"]) == 0
    said = capsys.readouterr().out
    assert "diverged at step 1" in said and "normbench sample" not in said


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.9, 0.0, 0.0))
    assert "load 3.9 on 4 cores" in note_load(1)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 0.0, 0.0))
    assert note_load(2) == ""


@pytest.mark.slow
def test_each_arm_of_the_first_small_sweep_trains() -> None:
    """The slower placement learns more than how frequent bytes are, which is all that it learned at lr 1e-3."""
    shorter = ["probes=off", "trainer.eval_every=150", "threads=1", "quiet=true"]
    assert main(["train", "experiment=smoke", "placement=post", *shorter]) == 0
    (summary,) = (json.loads(path.read_text()) for path in Path("outputs").glob("smoke/*/summary.json"))
    assert summary["metrics"]["loss/val"] < 0.95 * summary["data"]["constant"]["loss/val"]


@pytest.mark.slow
def test_the_first_small_sweep_takes_another_model() -> None:
    words = ["sweep", "experiment=smoke", "model=cnn", "model.depth=3", "--dry-run"]
    assert main(words) == 0
