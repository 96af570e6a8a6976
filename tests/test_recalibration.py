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


@pytest.mark.slow
def test_training_does_not_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = train(tmp_path, "norm.recalibrate=0", "name=r0")
    anew = train(tmp_path, "norm.recalibrate=3", "name=r3")
    assert without_validation(plain) == without_validation(anew)
    pairs = list(zip(validation_losses(plain), validation_losses(anew), strict=True))
    assert len(pairs) == 4
    assert all(one != other for one, other in pairs)
    first = read_checkpoint(plain / "checkpoint.pt")
    second = read_checkpoint(anew / "checkpoint.pt")
    assert first["model"] == second["model"]
    assert first["optimizer"] == second["optimizer"]


def without_validation(folder: Path) -> list[dict[str, Any]]:
    """Return what a run has logged of its training."""
    return [{tag: value for tag, value in line.items() if "val" not in tag} for line in read_metrics(folder)]


def validation_losses(folder: Path) -> list[float]:
    """Return the validation losses that a run has logged."""
    return [line["loss/val"] for line in read_metrics(folder) if "loss/val" in line]


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
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    own = norms["final"].running_mean.clone()
    data: Any = SimpleNamespace(train_batch=lambda number: random_batch(IMAGES, 8, number))
    with recalibrate(model, data, 5, torch.device("cpu")):
        assert norms["final"].num_batches_tracked == 2
        assert not torch.equal(norms["final"].running_mean, own)
    assert model.training
    assert all(norm.training and norm.freeze_after == 1 for norm in norms.values())
    torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)


def test_torchs_own_norms_are_averaged_too() -> None:
    norm = nn.BatchNorm2d(3)
    images = [random_batch(IMAGES, 4, seed) for seed in range(3)]
    average(norm, [norm], images)
    torch.testing.assert_close(norm.running_mean, torch.stack([x.inputs.mean((0, 2, 3)) for x in images]).mean(0))
    assert norm.momentum == 0.1 and not hasattr(norm, "freeze_after")
