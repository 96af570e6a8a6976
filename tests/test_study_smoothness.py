"""The study of smoothness, against quadratics whose curvature is known, and Hessians that torch computes in full."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from studied import subject, tables_of, write
from support import IMAGES, TEXT, WHOLE, build, random_batch
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call

from normbench.cli import main
from normbench.results.rows import compare
from normbench.results.statistics import paired_power
from normbench.runs.load import TrainedRun, load_model
from normbench.show.studied import read_study
from normbench.studies.smoothness import (
    Loss,
    Smoothness,
    add_noise,
    at_rate,
    covariate_shift,
    curvature,
    landscape,
    layers_of,
    move_along,
)
from normbench.studies.steps import steps
from normbench.types import Batch, Model, Task, stable_seed

STEPS = (0.5, 1.0, 2.0, 4.0)


def quadratic(matrix: torch.Tensor, start: torch.Tensor) -> tuple[torch.Tensor, object]:
    """A weight vector w, and the function ½ wᵀAw of it."""
    w = start.clone().requires_grad_()
    return w, lambda: 0.5 * w @ matrix @ w


def small(model: str, norm: str, placement: str = "plain", task: object = IMAGES) -> tuple[Model, dict, Batch]:
    made, norms = build(norm, placement, model, task)  # type: ignore[arg-type]
    return made.double().train(), norms, random_batch(task).map(lambda x: x.double() if x.is_floating_point() else x)


def batch_loss(model: Model, batch: Batch, task: Task, *words: object) -> Loss:
    """The loss of a batch as a function of the weights alone: what is random follows from the words."""

    def loss() -> torch.Tensor:
        torch.manual_seed(stable_seed(*words))
        return task.loss(model(*batch.arguments), batch.targets)

    return loss


# ---- the landscape along the gradient


def test_effective_smoothness_of_a_round_quadratic_is_its_curvature() -> None:
    w, loss = quadratic(3.0 * torch.eye(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64))
    assert landscape(loss, [w], STEPS)["smoothness"] == pytest.approx(3.0)


def test_the_landscape_of_a_quadratic_is_as_by_hand() -> None:
    matrix, start = torch.diag(torch.tensor([1.0, 0.1, 0.02]).double()), torch.tensor([1.0, -2.0, 3.0]).double()
    w, loss = quadratic(matrix, start)
    found = landscape(loss, [w], STEPS)
    g = matrix @ start
    losses = [(0.5 * (start - step * g) @ matrix @ (start - step * g)).item() for step in STEPS]
    changes = [step * (matrix @ g).norm().item() for step in STEPS]
    assert found["loss"] == pytest.approx((0.5 * start @ matrix @ start).item())
    assert found["gradient"] == pytest.approx(g.norm().item())
    assert [found["loss_low"], found["loss_high"]] == pytest.approx([min(losses), max(losses)])
    assert [found["change_low"], found["change_high"]] == pytest.approx([min(changes), max(changes)])
    assert found["smoothness"] == pytest.approx(((matrix @ g).norm() / g.norm()).item())
    assert w.equal(start) and w.grad is None


def test_smoothness_is_the_largest_slope_where_the_curvature_changes() -> None:
    w = torch.tensor([1.0, 2.0]).double().requires_grad_()
    found = landscape(lambda: (w**4).sum() / 4, [w], STEPS)
    start = torch.tensor([1.0, 2.0]).double()
    g = start**3
    slopes = [((start - step * g) ** 3 - g).norm() / (step * g.norm()) for step in STEPS]
    assert found["smoothness"] == pytest.approx(max(slopes).item())


# ---- internal covariate shift


def two_layers() -> tuple[list[list[torch.Tensor]], object]:
    """A deep linear net of two weights on one example: L = ½ (b·a·x − y)² with x = 2, y = 1."""
    a, b = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (0.5, 3.0))
    return [[a], [b]], lambda: 0.5 * (b * a * 2 - 1).square().sum()


def test_covariate_shift_of_two_layers_is_as_by_hand() -> None:
    layers, loss = two_layers()
    after = {layers[0][0]: torch.tensor([0.25]).double(), layers[1][0]: torch.tensor([7.0]).double()}
    (row,) = covariate_shift(loss, layers, layers, after)
    old, new = (3 * 1.0 - 1) * 1.0, (3 * 0.5 - 1) * 0.5  # (b·ax − y)·ax, with b as it was
    assert row == pytest.approx({"layer": 1, "shift": old - new, "relative_shift": (old - new) / old, "cosine": 1.0})


def test_covariate_shift_is_none_where_lower_layers_do_not_move() -> None:
    model, _, batch = small("cnn_plain", "batchnorm")
    layers = layers_of(model)
    after = {p: p.detach().clone() + (p in {*layers[-1]}) for p in model.parameters()}
    weights = [[p for p in layer if p.ndim > 1] for layer in layers]
    found = [*covariate_shift(batch_loss(model, batch, IMAGES, 0), layers, weights, after)]
    assert [row["layer"] for row in found] == [*range(1, len(layers))]
    assert all(row["shift"] == 0 and row["cosine"] == pytest.approx(1) for row in found)


def test_layers_follow_the_data_and_have_each_parameter_once() -> None:
    for name, placement, task in (("vgg", "plain", IMAGES), ("cnn", "pre", IMAGES), ("nano", "pre", TEXT)):
        model, _, _ = small(name, "layernorm", placement, task)
        layers = layers_of(model)
        assert len([p for layer in layers for p in layer]) == len([*model.parameters()])
        assert {p for layer in layers for p in layer} == {*model.parameters()}
    names = {p: name for name, p in model.named_parameters()}
    assert [names[layer[0]].split(".")[:2] for layer in layers[1:3]] == [["blocks", "0"], ["blocks", "1"]]
    assert names[layers[0][0]].startswith("stem")


# ---- the Hessian


@pytest.mark.slow
@pytest.mark.parametrize(("name", "placement", "task"), [("mlp_plain", "plain", IMAGES), ("nano", "pre", TEXT)])
def test_eigenvalue_and_trace_are_those_of_the_full_hessian(name: str, placement: str, task: object) -> None:
    model, _, batch = small(name, "layernorm", placement, task)
    loss = batch_loss(model, batch, task, 0)  # type: ignore[arg-type]
    chosen = {key: p for key, p in model.named_parameters() if "norm" in key or "after" in key or key == "head.bias"}
    parameters = [*chosen.values()]

    def of(*values: torch.Tensor) -> torch.Tensor:
        made = functional_call(model, dict(zip(chosen, values, strict=True)), batch.arguments)
        return task.loss(made.double(), batch.targets)  # type: ignore[attr-defined]

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        parts = hessian(of, tuple(parameters))
    full = torch.cat(
        [torch.cat([b.reshape(p.numel(), -1) for b in row], 1) for p, row in zip(parameters, parts, strict=True)]
    )
    found = curvature(loss, parameters, 300, seed=0)
    eigenvalues = torch.linalg.eigvalsh(full)
    top = eigenvalues[eigenvalues.abs().argmax()].item()
    assert found["eigenvalue"] == pytest.approx(top, rel=1e-3)
    spread = (2 * (full.square().sum() - full.diag().square().sum()) / 300).sqrt().item()  # Hutchinson's
    assert abs(found["trace"] - full.trace().item()) < 4 * spread


def test_the_trace_of_a_diagonal_hessian_is_exact() -> None:
    w, loss = quadratic(torch.diag(torch.tensor([1.0, -5.0, 2.0]).double()), torch.ones(3).double())
    assert curvature(loss, [w], 60, seed=1) == pytest.approx({"eigenvalue": -5.0, "trace": -2.0})


# ---- noise, and what stays as it was


def test_noise_has_a_mean_and_a_scale_of_its_own_for_each_activation_and_is_taken_away() -> None:
    norm = nn.Identity()
    x = torch.ones(4000, 3, 2)
    with add_noise({"a": norm}):
        torch.manual_seed(0)
        first = norm(x)
        second = norm(x)
        torch.manual_seed(0)
        assert norm(x).equal(first)
    assert norm(x).equal(x)
    assert not norm._forward_hooks
    means = first.mean(0)
    assert (means > 0.4).all() and (means < 1.85).all()  # σ + μ
    assert means.std() > 0.05 and (second.mean(0) - means).abs().max() > 0.05
    assert first.std(0) == pytest.approx(torch.full((3, 2), math.sqrt(0.1**2 + 0.2**2 / 12)), rel=0.05)
    with add_noise({"a": norm}, wanted=False):
        assert norm(x).equal(x)


def test_weights_come_back_to_the_bit_after_a_fault_too() -> None:
    w = torch.randn(7)
    kept = w.clone()
    with pytest.raises(ZeroDivisionError), move_along([w], [torch.randn(7)], 1e3):
        raise ZeroDivisionError
    assert w.equal(kept)


# ---- the study, and the training in it


SMALL = ["model=cnn_plain", "model.width=4", "data.batch_size=16", "optim=sgd", "trainer.steps=4", "threads=1"]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_train_as_a_run_does(accumulate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["norm=batchnorm", "data.crop=1", "schedule=cosine", "trainer.grad_clip=0.5"]
    words += [f"trainer.accumulate={accumulate}"]
    own = subject(*SMALL, *words)
    model, norms = own.build()
    seen = [step.rate for step in steps(own, model, norms)]
    assert main(["train", *SMALL, *words, "quiet=true"]) == 0
    (run,) = (tmp_path / "outputs" / "train").iterdir()
    trained = load_model(TrainedRun(run)).state_dict()
    assert len(seen) == 4
    for name, value in model.state_dict().items():
        assert value.equal(trained[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("noise", [False, True] if WHOLE else [True])
def test_measuring_changes_nothing_of_the_training(noise: bool) -> None:
    words = ["norm=batchnorm", f"trainer.accumulate={1 + noise}"]
    own, study = subject(*SMALL, *words), Smoothness(every=1, hessian=True)
    made = own.build()
    own.build = lambda: made  # type: ignore[method-assign]  # to look at the weights behind it
    with add_noise(made[1], noise):
        plain = subject(*SMALL, *words)
        model, norms = plain.build()
        with add_noise(norms, noise):
            losses = [step.loss for step in steps(plain, model, norms)]
    rows = [*study.train_and_measure(own, noise)]
    assert [row["loss"] for row in rows if "loss" in row] == losses
    assert all(value.equal(model.state_dict()[name]) for name, value in made[0].state_dict().items())
    assert not any(norm._forward_hooks for norm in made[1].values())
    shifts = [(row["step"], row["layer"]) for row in rows if "layer" in row]
    assert shifts == [(step, layer) for step in range(3) for layer in range(1, 7)]


def test_without_momentum_the_shift_is_that_of_the_gradient_s_own_step() -> None:
    own = subject(
        *SMALL,
        "norm=none",
        "optim.momentum=0",
        "optim.nesterov=false",
        "optim.weight_decay=0",
        "trainer.grad_clip=0",
        "schedule=constant",
    )
    own = at_rate(own, 0.05, own.seed)
    (row, *_) = (row for row in Smoothness(every=4).train_and_measure(own, False) if row.get("layer") == 6)
    model, _ = own.build()
    loss = batch_loss(model.train(), own.data.train_batch(0), own.task, own.seed, "dropout", 0)
    below = [p for layer in layers_of(model)[:6] for p in layer]
    old = torch.autograd.grad(loss(), [model.head.weight])[0]  # type: ignore[list-item]
    with move_along(below, torch.autograd.grad(loss(), below), -0.05):
        new = torch.autograd.grad(loss(), [model.head.weight])[0]  # type: ignore[list-item]
    assert row["shift"] == pytest.approx((new - old).norm().item(), rel=1e-3)


def test_each_arm_trains_at_the_rate_that_is_best_on_another_seed() -> None:
    study, own = Smoothness(rates=[1e-6, 0.05, 1e9]), subject(*SMALL, "norm=none", "trainer.steps=12")
    assert study.best_rate(own) == 0.05
    assert own.tree["optim"]["lr"] == 0.1


def test_ratios_are_those_by_hand_and_say_what_could_have_been_found() -> None:
    cells = [("none", 0, 8.0), ("none", 1, 16.0), ("none", 2, 8.0)]
    cells += [("batchnorm", 0, 4.0), ("batchnorm", 1, 4.0), ("batchnorm", 2, 2.0)]
    rows = pd.DataFrame([{"norm": norm, "seed": seed, "smoothness": value / turn, "step": turn}
                         for norm, seed, value in cells for turn in (1, 4)])  # fmt: skip
    columns = Smoothness.columns
    table = compare(rows, values=["smoothness"], columns=columns, baseline={"norm": "none"}, ratio=True)
    ((table,), _) = write([table], [])
    logs = [-1.0, -2.0, -2.0]
    ends = [2**end for end in stats.t.interval(0.95, 2, np.mean(logs), stats.sem(logs))]
    none, (arm, mean, _, ratio, interval, p, factor) = table.rows
    assert none[:2] == ("no norm", "5.04") and {*none[3:]} == {"–"}
    assert (arm, mean, ratio) == ("BatchNorm", "1.59", "0.315")
    assert interval == f"{ends[0]:.3g} to {ends[1]:.3g}"
    assert p == f"{stats.ttest_1samp(logs, 0).pvalue:.3f}"
    assert paired_power(math.log2(float(factor)), np.std(logs, ddof=1), 3) == pytest.approx(0.8, abs=0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_the_command_measures_both_noises_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["norm=none,batchnorm", "seed=0,1", "study.every=2", "study.rates=0.1", "study.noise=true"]
    assert main(["study", "smoothness", *SMALL, *words, "study.hessian=true", "quiet=true"]) == 0
    folder = tmp_path / "outputs" / "smoothness" / "studies" / "smoothness"
    rows = pd.read_csv(folder / "rows.csv")
    assert {*zip(rows["norm"], rows["noise"], strict=True)} == {
        ("none", False),
        ("batchnorm", False),
        ("batchnorm", True),
    }
    assert {path.stem for path in (folder / "figures").glob("*.svg")} == {*Smoothness.captions}
    tables = read_study(folder, folder).tables
    assert [table.key for table in tables] == [*Smoothness.captions]
    assert [row[0] for row in tables[0].rows] == ["no norm", "BatchNorm", "BatchNorm + noise"]
    assert [row[3] == "–" for row in tables[0].rows] == [True, False, False]


def test_the_tables_say_which_rates_were_taken_and_how_many_seeds_diverged() -> None:
    rows = pd.DataFrame([
        {"norm": norm, "seed": seed, "noise": False, "step": step, "rate": rate, "smoothness": 1.0 + seed}
        for norm, rate, last in (("none", 0.3, 1), ("batchnorm", 0.1, 4)) for seed in (0, 1) for step in range(last)
    ])  # fmt: skip
    (table,) = tables_of(Smoothness(rates=[0.3, 0.03, 0.1]), rows)
    assert "Learning rates: no norm 0.3 (an end of study.rates), 2 seeds diverged; BatchNorm 0.1." in table.notes
