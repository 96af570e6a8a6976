"""Statistics taken anew before each evaluation: training has the same bits, evaluation the average over batches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from run_records import read_checkpoint, read_metrics
from support import IMAGES, build, random_batch
from tiny_runs import words
from torch import nn

from normbench.cli import main
from normbench.record.files import read_json
from normbench.runs.load import TrainedRun, load_model
from normbench.training.evaluation import evaluate
from normbench.training.recalibration import average, recalibrate


def test_training_does_not_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain, anew = (train(tmp_path, f"norm.recalibrate={count}", f"name=r{count}") for count in (0, 3))
    first, second = (read_metrics(folder) for folder in (plain, anew))
    own = [{tag: value for tag, value in line.items() if "val" not in tag} for line in first]
    assert own == [{tag: value for tag, value in line.items() if "val" not in tag} for line in second]
    losses = [[line["loss/val"] for line in lines if "loss/val" in line] for lines in (first, second)]
    assert all(one != other for one, other in zip(*losses, strict=True)) and len(losses[0]) == 4
    states = [read_checkpoint(folder / "checkpoint.pt") for folder in (plain, anew)]
    assert states[0]["model"] == states[1]["model"] and states[0]["optimizer"] == states[1]["optimizer"]


def test_evaluation_is_with_the_average_over_the_latest_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = TrainedRun(train(tmp_path, "norm.recalibrate=3", "name=r"))
    model, data = load_model(run), run.data()
    norms = [module for module in model.modules() if getattr(module, "recalibrate", 0)]
    average(model, norms, [data.train_batch(number) for number in range(77, 80)])  # 40 steps of 2
    found = evaluate(model, data.eval_batches("val"), data.task, torch.device("cpu"))
    assert found["loss"] == pytest.approx(read_json(run.summary)["metrics"]["loss/val"], rel=1e-5)


def train(folder: Path, *more: str) -> Path:
    """Return the directory of a small run."""
    assert main(words("cnn", "trainer.keep_checkpoint=last", "trainer.ema=null", *more)) == 0
    (directory,) = (folder / "outputs" / more[-1].removeprefix("name=")).iterdir()
    return directory


def test_norms_are_as_before_also_those_that_freeze() -> None:
    model, norms = build("batchnorm", model="cnn", task=IMAGES, norm_settings={"recalibrate": 2, "freeze_after": 1})
    model.train()(random_batch(IMAGES, 8).inputs)
    before, own = {name: buffer.clone() for name, buffer in model.named_buffers()}, norms["final"].running_mean.clone()
    data: Any = SimpleNamespace(train_batch=lambda number: random_batch(IMAGES, 8, number))
    with recalibrate(model, data, 5, torch.device("cpu")):
        assert norms["final"].num_batches_tracked == 2 and not torch.equal(norms["final"].running_mean, own)
    assert model.training and all(norm.training and norm.freeze_after == 1 for norm in norms.values())
    torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)


def test_torchs_own_norms_are_averaged_too() -> None:
    norm = nn.BatchNorm2d(3)
    images = [random_batch(IMAGES, 4, seed) for seed in range(3)]
    average(norm, [norm], images)
    torch.testing.assert_close(norm.running_mean, torch.stack([x.inputs.mean((0, 2, 3)) for x in images]).mean(0))
    assert norm.momentum == 0.1 and not hasattr(norm, "freeze_after")
