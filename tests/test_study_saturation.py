"""The study of saturation: percentiles and shares by hand, and sigmoids' inputs computed from the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from studied import measured, subject, subjects

from normbench.cli import main
from normbench.studies.saturation import Saturation, percentiles, saturated_share, sigmoid_inputs

SMALL = ("model=mlp_plain", "model.width=16", "trainer.steps=40", "optim=sgd", "threads=1")


def test_percentiles_are_numpys_and_those_of_a_gaussian() -> None:
    values = torch.randn(101, 7, generator=torch.Generator().manual_seed(0))
    expected = np.percentile(values.numpy(), [15, 50, 85])
    assert [*percentiles(values).values()] == pytest.approx(expected.tolist())
    assert percentiles(torch.arange(101.0)) == {"low": 15.0, "median": 50.0, "high": 85.0}
    many = percentiles(torch.randn(10**6, generator=torch.Generator().manual_seed(1)))
    assert [*many.values()] == pytest.approx([-1.0364, 0, 1.0364], abs=5e-3)


def test_saturated_are_those_near_0_and_1() -> None:
    edges = torch.tensor([0.001, 0.049, 0.051, 0.5, 0.949, 0.951, 0.999]).logit()
    assert saturated_share(edges, 0.05) == pytest.approx(4 / 7)
    assert saturated_share(edges, 0.01) == pytest.approx(2 / 7)


@pytest.mark.parametrize("norm", ["none", "batchnorm"])
def test_what_sigmoids_read_is_what_the_weights_say_and_leaves_no_trace(norm: str) -> None:
    own = subject(*SMALL, f"norm={norm}")
    model, _ = own.build()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = own.data.train_batch(0).inputs
    found, logits = sigmoid_inputs(model, x)
    x = x.flatten(1)
    for block, values in zip(model.blocks, found, strict=True):
        x = block.branches["linear"].fc1(x)
        x = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt() if norm == "batchnorm" else x
        assert torch.allclose(values, x, atol=1e-5)
        x = x.sigmoid()
    assert torch.allclose(logits, model.head(x), atol=1e-5)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_batchnorm_does_not_see_how_inputs_are_scaled_and_without_a_norm_they_saturate() -> None:
    arms = subjects(*SMALL, norm=("none", "batchnorm"), **{"data.scaling": ("none", "unit", "standard")})
    columns = ["low", "median", "high", "saturated", "accuracy"]
    without, normed = measured(Saturation(), *arms[:3]), measured(Saturation(), *arms[3:])
    raw, unit, standard = (own[columns].to_numpy() for _, own in normed.groupby("data.scaling", sort=False))
    assert np.allclose(raw, standard, atol=1e-2, equal_nan=True) and np.allclose(raw, unit, atol=1e-2, equal_nan=True)
    first = without[(without["layer"] == 1) & (without["step"] == 0)].set_index("data.scaling")["saturated"]
    assert first["none"] > 0.8 > 0.2 > first[["unit", "standard"]].max()


def test_the_gradient_is_that_of_the_first_layer() -> None:
    own = subject(*SMALL, "norm=none")
    first, *_ = Saturation().measure(own)
    model, _ = own.build()
    batch = own.data.train_batch(0)
    own.task.loss(model.train()(batch.inputs), batch.targets).backward()
    weight = model.blocks[0].branches["linear"].fc1.weight
    assert first["gradient"] == pytest.approx(weight.grad.norm().item())


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_the_command_draws_each_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", "saturation", *SMALL, "seed=0", "data.scaling=unit,standard", "quiet=true"]) == 0
    folder = tmp_path / "outputs" / "saturation" / "studies" / "saturation"
    drawn = {path.stem for path in (folder / "figures").glob("*.svg")}
    values = ("unit_median", "median", "saturated", "gradient", "accuracy")
    assert drawn == {*values}
    assert "data.scaling" in (folder / "figures" / "gradient.csv").read_text().splitlines()[0]
