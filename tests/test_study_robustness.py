"""Outliers, noise and dropped positions: each change by hand, and that nothing of it stays."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from support import IMAGES, TEXT, build, random_batch

from normbench.cli import main
from normbench.studies.robustness import apply_change, drop, noise, outlier
from normbench.types import Task

pytest_plugins = ["trained_runs"]


def test_the_largest_channel_is_multiplied() -> None:
    x = torch.tensor([[[1.0, -3.0], [2.0, 0.0]], [[1.0, 1.0], [-2.5, 1.0]]])  # squares: 12.25 and 11
    assert torch.equal(outlier(10, x, -1), x * torch.tensor([10.0, 1.0]))
    assert torch.equal(outlier(10, x, 1), x * torch.tensor([[10.0], [1.0]]))  # along axis 1: 12 and 11.25
    assert torch.equal(outlier(1, x, -1), x)


def test_noise_is_measured_in_root_mean_squares() -> None:
    x = 7 * torch.randn(64, 50, 40, generator=torch.Generator().manual_seed(0))
    added = noise(0.3, x, -1) - x
    assert float(added.square().mean().sqrt()) == pytest.approx(0.3 * float(x.square().mean().sqrt()), rel=0.01)
    assert abs(added.mean()) < 0.03 and torch.equal(noise(0, x, -1), x)


def test_whole_positions_are_dropped() -> None:
    x = torch.ones(20, 30, 5)
    rows = drop(0.25, x, -1).flatten(0, 1)
    assert {tuple(row) for row in rows.tolist()} == {(0.0,) * 5, (1.0,) * 5}
    assert float((rows[:, 0] == 0).float().mean()) == pytest.approx(0.25, abs=0.06)
    pixels = drop(0.25, torch.ones(8, 3, 9, 9), 1)
    assert torch.equal(pixels, pixels[:, :1].expand_as(pixels)) and 0 < pixels.mean() < 1
    assert torch.equal(drop(0, x, -1), x) and not drop(1, x, -1).any()


@pytest.mark.parametrize("place", ["input", "hidden"])
@pytest.mark.parametrize(("task", "model"), [(TEXT, "nano"), (IMAGES, "nano"), (IMAGES, "cnn"), (IMAGES, "mlp_plain")])
def test_a_change_is_met_once_and_leaves_nothing(place: str, task: Task, model: str) -> None:
    placement = "plain" if model == "mlp_plain" else "pre"
    made, _ = build(norm="layernorm", model=model, task=task, placement=placement)
    made.eval()
    batch, met = random_batch(task), []
    clean = made(*batch.arguments)

    def zero(x: torch.Tensor, axis: int) -> torch.Tensor:
        met.append((tuple(x.shape), axis))
        return torch.zeros_like(x)

    with apply_change(made, place, zero):
        gone = made(*batch.arguments)
    with apply_change(made, place, partial(outlier, 1.0)):
        same = made(*batch.arguments)
    assert not torch.allclose(gone, clean) and torch.equal(same, clean) and len(met) == 1
    (shape, axis) = met[0]
    if place == "input":
        assert shape == (tuple(batch.inputs.shape) if task is IMAGES else (4, 16, 16)) and axis == (
            1 if task is IMAGES else -1
        )
    assert torch.equal(made(*batch.arguments), clean)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in made.modules())


def test_hooks_go_where_a_model_fails() -> None:
    made, _ = build()
    with pytest.raises(ZeroDivisionError), apply_change(made, "input", lambda x, axis: 1 / 0):
        made(*random_batch(TEXT).arguments)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in made.modules())


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_the_study_of_a_run(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["study.outlier=1,1000", "study.noise=0,2", "study.dropped=0,0.5", "study.batches=1"]
    assert main(["study", "robustness", str(runs["images"]), *words]) == 0
    rows = pd.read_csv(runs["images"] / "studies" / "robustness" / "rows.csv")
    neutral = rows[(rows["strength"] == 0) | (rows["strength"] == 1)]
    logged = json.loads((runs["images"] / "summary.json").read_text())["metrics"]["loss/val"]
    assert len(rows) == 12 and len(neutral) == 6
    assert (neutral["increase"] == 0).all() and neutral["loss"].tolist() == pytest.approx([logged] * 6, rel=1e-6)
    strong = rows.drop(neutral.index).set_index(["kind", "place"])["increase"]
    assert (strong != 0).all() and (strong[["noise", "dropped"]] > 0).all()
