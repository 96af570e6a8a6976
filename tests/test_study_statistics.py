"""The gap between batch and running statistics: against torch's update_bn, and by hand."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from support import IMAGES, TEXTS, build, random_batch, refused
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from normbench.cli import main
from normbench.studies.running_statistics import in_pieces, use_batch_statistics
from normbench.training.recalibration import average

pytest_plugins = ["trained_runs"]


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
