"""Adam and Muon that keep the norms of matrices, against their formula in float64, and in runs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix_runs import CNN, TRANSFORMER, draw_gradients, take_step
from support import IMAGES, TEXT, build, refused, section
from torch import Tensor, nn

from normbench import build as builder
from normbench.cli import main
from normbench.config.compose import read
from normbench.config.recipe import Recipe, resolve
from normbench.contract.trials import tiny_data, train
from normbench.errors import UsageError
from normbench.probes.probes import Probes
from normbench.probes.reading import Reading
from normbench.runs.plan import prepare
from normbench.runs.session import Session
from normbench.sweep.sweep import plan_sweep
from normbench.training.hyperball import check_start
from normbench.training.matrices import matrices_in_blocks, separate_matrices
from normbench.training.optimizer import make_optimizer, parameter_groups
from normbench.types import Model, Task

CPU = torch.device("cpu")
RATE, ADAM_RATE, DECAY, BETAS, EPS, MOMENTUM = 0.05, 2e-3, 0.3, (0.8, 0.9), 1e-8, 0.95
SMALL = ["threads=1", "device=cpu", "trainer.steps=12"]
needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim has no Muon")
BOTH = ["adamh", pytest.param("muonh", marks=needs_muon)]
MODELS = [("nano", TEXT), ("cnn", IMAGES)]


def optimizer_of(name: str, model: Model, norms: dict[str, nn.Module]) -> torch.optim.Optimizer:
    """What a run would train the model with."""
    groups = parameter_groups(model, norms.values(), DECAY, decay_norms=False)
    groups = separate_matrices(groups, matrices_in_blocks(model, norms.values()), f"optim={name}")
    return make_optimizer(builder.factory(part_of(name)), groups, CPU)


def part_of(name: str) -> Any:
    settings = section("optim", name, lr=RATE, adam_lr=ADAM_RATE, weight_decay=DECAY, betas=[*BETAS], eps=EPS)
    return resolve("optim", settings)


def on_sphere(weight: Tensor, update: Tensor) -> Tensor:
    """The paper's rule: W ← R·Normalize(W − η·R·Normalize(u))."""
    radius = weight.square().sum().sqrt()
    moved = weight - RATE * radius * update / update.square().sum().sqrt()
    return radius * moved / moved.square().sum().sqrt()


def adam_updates(gradients: list[Tensor]) -> list[Tensor]:
    """Adam's steps for a learning rate of 1 (Kingma & Ba 2015, algorithm 1)."""
    updates = list[Tensor]()
    mean = square = torch.zeros_like(gradients[0])
    for number, gradient in enumerate(gradients, 1):
        mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
        updates.append((mean / (1 - BETAS[0] ** number)) / ((square / (1 - BETAS[1] ** number)).sqrt() + EPS))
    return updates


def muon_updates(gradients: list[Tensor]) -> list[Tensor]:
    """What torch's own Muon takes from a weight of 0, with its default factor for the shape."""
    weight = nn.Parameter(torch.zeros_like(gradients[0]))
    muon = torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, momentum=MOMENTUM, nesterov=True)
    updates = list[Tensor]()
    for gradient in gradients:
        weight.detach().zero_()
        weight.grad = gradient.clone()
        muon.step()
        updates.append(-weight.detach().clone())
    return updates


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(("kind", "task"), MODELS)
def test_each_matrix_moves_by_the_formula_and_all_else_as_with_adamw(name: str, kind: str, task: Task) -> None:
    model, norms = build("layernorm", model=kind, task=task)
    model.double()
    parameters = list(model.parameters())
    inside = matrices_in_blocks(model, norms.values())
    optimizer = optimizer_of(name, model, norms)
    starts = [parameter.detach().clone() for parameter in parameters]
    gradients: list[list[Tensor]] = [[] for _ in parameters]
    for seed in range(3):
        draw_gradients(parameters, seed)
        for parameter, drawn in zip(parameters, gradients, strict=True):
            assert parameter.grad is not None
            drawn.append(parameter.grad.clone())
        optimizer.step()
    updates_of = adam_updates if name == "adamh" else muon_updates
    number = 0
    for parameter, start, drawn in zip(parameters, starts, gradients, strict=True):
        if parameter in inside:
            chunks = [gradient.flatten(1).chunk(inside[parameter]) for gradient in drawn]
            ends = list(start.flatten(1).chunk(inside[parameter]))
            for part, end in enumerate(ends):
                for update in updates_of([chunk[part] for chunk in chunks]):
                    end = on_sphere(end, update)
                ends[part] = end
                number += 1
            wanted = torch.cat(ends).view_as(start)
        else:
            wanted = start
            for update in adam_updates(drawn):
                decay = DECAY if parameter.ndim >= 2 else 0.0
                wanted = (1 - ADAM_RATE * decay) * wanted - ADAM_RATE * update
        torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-9, atol=1e-12)
    assert number == (2 * (3 + 1 + 2) if kind == "nano" else 6)


@pytest.mark.parametrize("name", BOTH)
def test_norms_stay_over_many_steps_and_parts_have_their_own(name: str) -> None:
    weight = torch.randn(3 * 8, 8, generator=torch.Generator().manual_seed(0))
    weight[:8] *= 10
    parameter = nn.Parameter(weight)
    vector = nn.Parameter(torch.zeros(3))
    optimizer = make_optimizer(
        builder.factory(part_of(name)), [{"params": [parameter], "parts": 3}, {"params": [vector]}], CPU
    )
    before = [part.norm().item() for part in parameter.detach().chunk(3)]
    start = parameter.detach().clone()
    for seed in range(300):
        draw_gradients([parameter, vector], seed)
        optimizer.step()
    assert [part.norm().item() for part in parameter.detach().chunk(3)] == pytest.approx(before, rel=1e-5)
    assert (parameter.detach() - start).norm() > 0.5 * start.norm()


def test_a_kernel_whose_channels_lie_last_moves_as_any_other() -> None:
    ends = list[Tensor]()
    for layout in (torch.contiguous_format, torch.channels_last):
        kernel = nn.Parameter(torch.linspace(-1, 1, 6 * 4 * 9).view(6, 4, 3, 3).to(memory_format=layout))
        optimizer = make_optimizer(builder.factory(part_of("adamh")), [{"params": [kernel], "parts": 1}], CPU)
        for seed in range(3):
            draw_gradients([kernel], seed)
            optimizer.step()
        ends.append(kernel.detach())
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(("kind", "task"), MODELS)
def test_a_step_that_is_to_be_skipped_changes_nothing(name: str, kind: str, task: Task) -> None:
    """As on a GPU, where nobody waits to learn whether gradients are finite."""
    model, norms = build("layernorm", model=kind, task=task)
    optimizer = optimizer_of(name, model, norms)
    parameters = list(model.parameters())
    found_inf = torch.zeros(())
    vars(optimizer).update(grad_scale=None, found_inf=found_inf)
    draw_gradients(parameters, seed=0)
    optimizer.step()
    before = [parameter.detach().clone() for parameter in parameters]
    found_inf.fill_(1.0)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, torch.nan)
    optimizer.step()
    for parameter, old in zip(parameters, before, strict=True):
        assert torch.equal(parameter, old)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(("words", "task"), [("model=nano model.width=16 model.heads=2", TEXT), ("model=cnn", IMAGES)])
def test_a_transformer_and_a_cnn_learn(name: str, words: str, task: Task) -> None:
    tree = read([*words.split(), f"optim={name}", "optim.lr=0.05", "optim.adam_lr=1e-2"]).tree
    losses = train(tree, tiny_data(task), steps=16)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("words", [TRANSFORMER, CNN])
def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_bits(tmp_path: Path, name: str, words: list[str]) -> None:
    def session() -> Session:
        return Session(prepare(read([*words, *SMALL, f"optim={name}", "probes=off", f"outputs={tmp_path}"])))

    first, second = session().loop, session().loop
    file = io.BytesIO()
    for step in range(6):
        if step == 3:
            torch.save(first.state(), file)
        take_step(first, step)
    for step in range(3):  # its weights leave their start before they are put back
        take_step(second, step + 6)
    file.seek(0)
    second.restore(torch.load(file, weights_only=True))
    for step in range(3, 6):
        take_step(second, step)
    there = second.model.state_dict()
    assert all(torch.equal(value, there[name]) for name, value in first.model.state_dict().items())


def test_both_learning_rates_follow_the_schedule_and_the_logged_one_is_that_of_matrices() -> None:
    words = [*TRANSFORMER, *SMALL, "optim=adamh", "optim.lr=0.04", "optim.adam_lr=2e-3", "schedule=cosine"]
    stepper = Session(prepare(read(words))).loop.stepper
    stepper.set_learning_rates(8)
    factor = stepper.schedule.factor(8, 12)
    assert 0 < factor < 1
    assert stepper.learning_rate == pytest.approx(0.04 * factor)
    rates = {"parts" in group: group["lr"] for group in stepper.optimizer.param_groups}
    assert rates == pytest.approx({True: 0.04 * factor, False: 2e-3 * factor})


def test_the_effective_rate_is_the_learning_rate() -> None:
    model, norms = build("layernorm")
    optimizer = optimizer_of("adamh", model, norms)
    reading = Reading()
    draw_gradients(list(model.parameters()), seed=0)
    with Probes(model, {"updates"}).watch_update(reading, optimizer):
        optimizer.step()
    assert reading.scalars["update/block01.mlp/effective_lr"].item() == pytest.approx(RATE)
    assert reading.scalars["update/block01.mlp/ratio"].item() == pytest.approx(RATE, rel=0.1)


def test_a_run_tells_that_decay_does_nothing_to_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *TRANSFORMER, *SMALL, "optim=adamh", "trainer.steps=2", f"outputs={tmp_path}"]
    assert main([*words, "name=plain"]) == 0
    assert "on which decay does nothing" not in capsys.readouterr().out
    assert main([*words, "name=decayed", "optim.weight_decay=0.1"]) == 0
    assert "on which decay does nothing: optim.weight_decay=0.1 is of embeddings" in capsys.readouterr().out
    (summary,) = (tmp_path / "decayed").glob("*/summary.json")
    assert json.loads(summary.read_text())["ledger"]["matrices_kept_at_their_norm"] == 3 + 1 + 2


def test_matrices_that_start_at_0_are_refused() -> None:
    tree = read([*TRANSFORMER, "optim=adamh", "init=fixup"]).tree
    model, norms = builder.make_model(Recipe(tree), TEXT, 0)
    groups = parameter_groups(model, norms.values(), DECAY, decay_norms=False)
    groups = separate_matrices(groups, matrices_in_blocks(model, norms.values()), "optim=adamh")
    with pytest.raises(UsageError, match=r"^optim=adamh keeps each matrix at .* starts at 0, where it would stay: use"):
        check_start(model, groups, "optim=adamh")


REFUSED = {
    "optim.betas=[0.9]": "optim.betas=[0.9] is not allowed",
    "optim.lr=0": "optim.lr=0 is not allowed",
    "optim.adam_lr=0": "optim.adam_lr=0 is not allowed",
    "optim.momentum=0.9": "optim.momentum is not a setting of optim=adamh",
    "trainer.shard=true": "trainer.shard=true with optim=adamh is refused: ",
    "weights=unit": "optim=adamh with weights=unit is refused: ",
    "weights@mlp=unit": "optim=adamh with weights@mlp=unit is refused: ",
    "scheme=ngpt": "optim=adamh with weights=unit is refused: ",
    "init=mup": "init=mup with optim=adamh is refused: ",
    "init=fixup": "optim=adamh keeps each matrix at the norm with which it starts, and ",
    "trainer.train=norms": "optim=adamh is for the matrices of blocks, and trainer.train leaves none",
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_does_not_go_with_it_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model.tied=false"] if word == "init=mup" else []
    said = refused(["train", *TRANSFORMER, *SMALL, *words, "optim=adamh", word], capsys)
    assert said.startswith(REFUSED[word])


def test_a_stack_of_seeds_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^optim=adamh with sweep.stack=2 is refused: "):
        plan_sweep(["seed=0,1", *TRANSFORMER, *SMALL, "optim=adamh", "sweep.stack=2"])


@pytest.mark.parametrize("weights", ["weight_norm", "standardized", "spectral"])
def test_what_a_treatment_computes_weights_of_keeps_its_norm(weights: str) -> None:
    tree = read([*TRANSFORMER, "optim=adamh", "optim.lr=0.05", f"weights={weights}"]).tree
    recipe = Recipe(tree)
    model, norms = builder.make_model(recipe, TEXT, 0)
    inside = matrices_in_blocks(model, norms.values())
    assert sorted(inside.values()) == [1, 1, 1, 3]
    assert all("original" in name for name, parameter in model.named_parameters() if parameter in inside)
    optimizer = optimizer_of("adamh", model, norms)
    before = {parameter: parameter.detach().norm().item() for parameter in inside}
    for seed in range(3):
        draw_gradients(list(model.parameters()), seed)
        optimizer.step()
    assert {parameter: parameter.detach().norm().item() for parameter in inside} == pytest.approx(before, rel=1e-5)
