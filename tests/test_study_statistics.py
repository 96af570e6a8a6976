"""The gap between batch and running statistics: against torch's update_bn, and by hand."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
import torch
from support import IMAGES, TEXTS, build, random_batch, refused
from test_runs import train
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from normbench.cli import main
from normbench.runs.load import TrainedRun, load_model
from normbench.studies.running_statistics import copy_statistics, in_pieces, use_batch_statistics
from normbench.training.optimizer import MovingAverage, PlainAverage
from normbench.training.recalibration import average
from normbench.types import Batch

pytest_plugins = ["trained_runs"]


# ---- averaged weights


class Drift(NamedTuple):
    """What running means are off by, for weights that have been averaged."""

    averaged: float
    copied: float
    recomputed: float


def mean_errors(momentum: float, decay: float) -> Drift:
    """Let a weight rise by 1 a step in front of BatchNorm, whose inputs are then 3 times the weight on average."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, momentum=momentum)).double()
    batch = Batch(torch.tensor([[1.0], [3.0], [5.0]], dtype=torch.float64), torch.zeros(3))
    ema = MovingAverage(model, decay)
    for step in range(3000):
        with torch.no_grad():
            model[0].weight.fill_(step)
            model(*batch.arguments)
        ema.update()
    linear, norm = ema.model
    true_mean = 3 * linear.weight.item()
    averaged = norm.running_mean.item() - true_mean
    copy_statistics([model[1]], [norm])
    copied = norm.running_mean.item() - true_mean
    average(ema.model, [norm], [batch] * 2)
    return Drift(averaged, copied, norm.running_mean.item() - true_mean)


@pytest.mark.parametrize(("momentum", "decay"), [(0.1, 0.95), (0.1, 0.9), (0.02, 0.95)])
def test_running_means_of_averaged_weights_under_a_drift_known_by_hand(momentum: float, decay: float) -> None:
    """A running mean lags by (1-m)/m steps, the averaged weights by d/(1-d), and averaged running means by both."""
    errors = mean_errors(momentum, decay)
    lag_of_norm = (1 - momentum) / momentum
    lag_of_weights = decay / (1 - decay)
    assert errors.averaged == pytest.approx(-3 * lag_of_norm, rel=1e-6)
    assert errors.copied == pytest.approx(3 * (lag_of_weights - lag_of_norm), rel=1e-6, abs=1e-3)
    assert errors.recomputed == pytest.approx(0, abs=1e-9)


def test_averaged_variances_are_too_large_for_weights_that_swing() -> None:
    """Of weights 1 ± a the average is 1, and that of their variances 1 + a² times the one that belongs to it."""
    swing = 0.5
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, momentum=0.1)).double()
    batch = Batch(torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64), torch.zeros(3))  # whose variance is 1
    swa = PlainAverage(model, skipped=100)
    for step in range(500):
        with torch.no_grad():
            model[0].weight.fill_(1 + swing * (-1) ** step)
            model(*batch.arguments)
        swa.update()
    linear, norm = swa.model
    assert linear.weight.item() == pytest.approx(1)
    assert norm.running_var.item() == pytest.approx(1 + swing**2, rel=1e-3)
    average(swa.model, [norm], [batch])
    assert norm.running_var.item() == pytest.approx(1)


def loss_of(model: nn.Module, batches: Iterable[Batch]) -> float:
    """Return the mean cross-entropy of a classifier, by torch alone."""
    with torch.no_grad():
        losses = [F.cross_entropy(model(batch.inputs), batch.targets, reduction="none") for batch in batches]
    return torch.cat(losses).mean().item()


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
@pytest.mark.parametrize("word", ["trainer.ema=0.9", "trainer.swa=0.5"])
def test_the_study_of_a_run_that_averages_its_weights(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied statistics are those of torch's AveragedModel as it is by default, recomputed ones update_bn's."""
    monkeypatch.chdir(tmp_path)
    words = [
        "model=cnn",
        "model.width=4",
        "norm=batchnorm",
        "data=digits",
        "trainer.epochs=2",
        "device=cpu",
        "quiet=true",
    ]
    path = train(tmp_path, *words, word)
    assert main(["study", "statistics", str(path), "study.batches=3"]) == 0
    rows = pd.read_csv(path / "studies" / "statistics" / "rows.csv").set_index(["weights", "statistics"])
    assert [*rows.loc["last"].index] == ["running", "batch", "cumulative", "recomputed"]
    found = rows.loc["average"]
    assert [*found.index] == ["averaged", "copied", "batch", "cumulative", "recomputed"]
    assert found["gap"].tolist() == pytest.approx((found["loss"] - found.loc["averaged", "loss"]).tolist())
    logged = json.loads((path / "summary.json").read_text())["metrics"]
    tag = "loss/val_" + word.removeprefix("trainer.").partition("=")[0]
    assert found.loc["averaged", "loss"] == pytest.approx(logged[tag], rel=1e-6)

    run = TrainedRun(path)
    data = run.data()
    averaged = load_model(run, ema=True)
    last = load_model(run)
    copied = as_torch(averaged)
    copied.load_state_dict({**averaged.state_dict(), **dict(last.named_buffers())})
    expected = loss_of(copied.eval(), data.eval_batches("val"))
    assert found.loc["copied", "loss"] == pytest.approx(expected, rel=1e-5)
    recomputed = as_torch(averaged)
    update_bn([batch.inputs for batch in data.eval_batches("train", 3)], recomputed)
    expected = loss_of(recomputed.eval(), data.eval_batches("val"))
    assert found.loc["recomputed", "loss"] == pytest.approx(expected, rel=1e-5)


# ---- all weights


def as_torch(model: nn.Module) -> nn.Module:
    """A copy with torch's BatchNorm in place of ours."""
    model = copy.deepcopy(model)
    for name, module in [*model.named_modules()]:
        if type(module).__name__ == "BatchNorm":
            theirs = nn.BatchNorm2d(module.num_features, eps=module.eps)
            theirs.load_state_dict(module.state_dict())
            model.set_submodule(name, theirs)
    return model


def test_averages_over_batches_are_update_bn_s() -> None:
    model, norms = build("batchnorm", model="cnn", task=IMAGES)
    batches = [random_batch(IMAGES, 8, seed) for seed in range(5)]
    theirs = as_torch(model)
    for norm in norms.values():  # what was there before counts for nothing
        norm.running_mean.fill_(7)
    average(model.eval(), norms.values(), batches)
    update_bn([batch.inputs for batch in batches], theirs)
    assert not any(module.training for module in model.modules())
    mine = {name: buffer for name, buffer in model.named_buffers() if "running" in name}
    assert len(mine) == 14
    for name, buffer in theirs.named_buffers():
        if "running" in name:
            torch.testing.assert_close(mine[name], buffer, rtol=1e-5, atol=1e-6)
    x = random_batch(IMAGES, 8, seed=9).inputs
    torch.testing.assert_close(model(x), theirs.eval()(x), rtol=1e-4, atol=1e-5)


def test_averages_of_batchrenorm_are_batchnorm_s() -> None:
    """It corrects towards the running statistics in training, which are those that are averaged."""
    settings = {"renorm_after": 0, "r_max_at": 1, "d_max_at": 1}
    renorm, norms = build("batchrenorm", model="cnn", task=IMAGES, norm_settings=settings)
    batchnorm, plain_norms = build("batchnorm", model="cnn", task=IMAGES)
    batches = [random_batch(IMAGES, 8, seed) for seed in range(3)]
    average(renorm, norms.values(), batches)
    average(batchnorm, plain_norms.values(), batches)
    expected = dict(batchnorm.named_buffers())
    for name, buffer in renorm.named_buffers():
        torch.testing.assert_close(buffer, expected[name], rtol=1e-4, atol=1e-5)
    assert all(norm.r_max == 3 and norm.momentum == 0.01 for norm in norms.values())


def test_a_batch_is_normalized_by_its_own_statistics() -> None:
    _, norms = build("batchnorm", model="cnn", task=IMAGES)
    norm = norms["final"].eval()
    x = torch.randn(3, norm.num_features, 2, 2) * 4 + 1
    assert (norm(x) - x).abs().max() < 1e-3  # running statistics of 0 and 1
    use_batch_statistics([norm])
    torch.testing.assert_close(
        norm(x), F.batch_norm(x, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)
    )


@pytest.mark.parametrize(("size", "expected"), [(2, [2] * 4), (3, [4, 4]), (5, [8]), (50, [8])])
def test_examples_are_judged_in_pieces_no_smaller_than_asked(size: int, expected: list[int]) -> None:
    batch = random_batch(TEXTS, 8)
    pieces = list(in_pieces([batch], size))
    assert sorted(len(piece.inputs) for piece in pieces) == sorted(expected)
    for place in range(3):
        assert torch.equal(torch.cat([piece[place] for piece in pieces]), batch[place])
    assert all(piece.mask is None for piece in in_pieces([random_batch(IMAGES, 4)], 2))


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_the_study_of_a_run(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = runs["images"]
    assert main(["study", "statistics", str(path), "study.batches=3"]) == 0
    rows = pd.read_csv(path / "studies" / "statistics" / "rows.csv").set_index("statistics")
    assert [*rows.index] == ["running", "batch", "cumulative", "recomputed"]
    logged = json.loads((path / "summary.json").read_text())["metrics"]
    assert rows.loc["running", "loss"] == pytest.approx(logged["loss/val"], rel=1e-6)
    assert rows.loc["running", "accuracy"] == pytest.approx(100 * logged["accuracy/val"])
    assert rows["gap"].tolist() == pytest.approx((rows["loss"] - rows.loc["running", "loss"]).tolist())
    assert (rows["loss"].drop("running") != rows.loc["running", "loss"]).all()
    capsys.readouterr()
    told = refused(["study", "statistics", str(runs["text"])], capsys)
    assert told.startswith("norm=rmsnorm keeps no running mean and variance: choose norm=batchnorm")
