"""Muon for matrices and AdamW for the rest, against torch's own optimizers, and in runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix_runs import CNN, TRANSFORMER, draw_gradients, take_step
from support import IMAGES, TEXT, build, reason_against_in_a_fork, refused, section
from torch import Tensor, nn

from normbench import build as builder
from normbench.cli import main
from normbench.config.compose import read
from normbench.config.recipe import Recipe, resolve
from normbench.contract.trials import tiny_data, train
from normbench.errors import UsageError
from normbench.runs.plan import prepare
from normbench.runs.session import Session
from normbench.sweep.sweep import plan_sweep
from normbench.training import precision
from normbench.training.matrices import matrices_in_blocks, separate_matrices
from normbench.training.muon import MuonAdamW
from normbench.training.optimizer import make_optimizer, parameter_groups
from normbench.types import Model, Task

if not hasattr(torch.optim, "Muon"):
    pytest.skip("torch.optim has no Muon", allow_module_level=True)

CPU = torch.device("cpu")
DECAY = 0.1
SMALL = ["optim=muon", "threads=1", "device=cpu", "trainer.steps=12"]


def optimizer_of(model: Model, norms: dict[str, nn.Module]) -> MuonAdamW:
    """What a run would train the model with."""
    groups = parameter_groups(model, norms.values(), DECAY, decay_norms=False)
    groups = separate_matrices(groups, matrices_in_blocks(model, norms.values()), "optim=muon")
    optimizer = make_optimizer(builder.factory(resolve("optim", section("optim", "muon"))), groups, CPU)
    assert isinstance(optimizer, MuonAdamW)
    return optimizer


@pytest.mark.parametrize("shape", [(48, 12), (12, 48)])
def test_a_rate_is_0_2_root_columns_of_one_of_jordan_s_muon(shape: tuple[int, int]) -> None:
    """His factor is √max(1, rows/columns) (KellerJordan/Muon `muon.py:40`@857d1ad)."""
    rows, columns = shape
    weight = nn.Parameter(torch.zeros(shape))
    vector = nn.Parameter(torch.zeros(3))
    groups = [{"params": [weight], "parts": 1, "weight_decay": 0.0}, {"params": [vector], "weight_decay": 0.0}]
    optimizer = make_optimizer(builder.factory(resolve("optim", section("optim", "muon"))), groups, CPU)
    draw_gradients([weight, vector], 0)
    optimizer.step()
    rate = optimizer.param_groups[0]["lr"]
    gradient = weight.grad
    assert gradient is not None
    left, _, right = torch.linalg.svd(gradient, full_matrices=False)
    his = 0.2 * columns**0.5 * rate * max(1, rows / columns) ** 0.5 * (left @ right)
    # Newton and Schulz's iterations leave singular values between 0.7 and 1.2
    assert (-weight.detach() * his).sum() / his.square().sum() == pytest.approx(0.95, abs=0.2)


@pytest.mark.parametrize(("name", "task"), [("nano", TEXT), ("cnn", IMAGES)])
def test_steps_are_those_of_torch_s_muon_on_matrices_and_of_its_adamw_on_the_rest(name: str, task: Task) -> None:
    model, norms = build("layernorm", model=name, task=task)
    model.double()
    parameters = list(model.parameters())
    inside = matrices_in_blocks(model, norms.values())
    optimizer = optimizer_of(model, norms)
    of_matrices = list[tuple[nn.Parameter, list[nn.Parameter]]]()
    others = list[tuple[nn.Parameter, nn.Parameter]]()
    for parameter in parameters:
        copy = parameter.detach().clone()
        if parameter in inside:
            parts = copy.flatten(1).chunk(inside[parameter])
            of_matrices.append((parameter, [nn.Parameter(part.clone()) for part in parts]))
        else:
            others.append((parameter, nn.Parameter(copy)))
    matrices = [part for _, parts in of_matrices for part in parts]
    assert len(matrices) == (2 * (3 + 1 + 2) if name == "nano" else 6)
    decayed = [copy for parameter, copy in others if parameter.ndim >= 2]
    plain = [copy for parameter, copy in others if parameter.ndim < 2]
    muon = torch.optim.Muon(
        matrices, lr=1e-3, weight_decay=DECAY, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for seed in range(3):
        draw_gradients(parameters, seed)
        for parameter, parts in of_matrices:
            assert parameter.grad is not None
            for part, gradient in zip(parts, parameter.grad.flatten(1).chunk(len(parts)), strict=True):
                part.grad = gradient.clone()
        for parameter, copy in others:
            copy.grad = parameter.grad
        for one in (optimizer, muon, adamw):
            one.step()
    for parameter, parts in of_matrices:
        torch.testing.assert_close(parameter.detach().flatten(1), torch.cat(parts).detach(), rtol=1e-12, atol=1e-14)
    for parameter, copy in others:
        torch.testing.assert_close(parameter.detach(), copy.detach(), rtol=1e-12, atol=1e-14)


def test_embeddings_stem_head_norms_and_vectors_are_adamw_s() -> None:
    for name, task in (("nano", TEXT), ("cnn", IMAGES), ("mlp", IMAGES)):
        model, norms = build("layernorm", model=name, task=task)
        inside = matrices_in_blocks(model, norms.values())
        for path, parameter in model.named_parameters():
            assert (parameter in inside) is (path.startswith("blocks.") and parameter.ndim >= 2), path


def test_what_a_placement_learns_is_adamw_s() -> None:
    model, norms = build("layernorm", "hyper_connections")
    names = {parameter: name for name, parameter in model.named_parameters()}
    inside = {names[parameter] for parameter in matrices_in_blocks(model, norms.values())}
    beside = {name for name in names.values() if "mix" in name}
    assert beside and not inside & beside
    plain, norms = build("layernorm", "pre")
    assert len(inside) == len(matrices_in_blocks(plain, norms.values()))


def test_a_kernel_whose_channels_lie_last_moves_as_any_other() -> None:
    ends = list[Tensor]()
    for layout in (torch.contiguous_format, torch.channels_last):
        kernel = nn.Parameter(torch.linspace(-1, 1, 6 * 4 * 9).view(6, 4, 3, 3).to(memory_format=layout))
        groups = [{"params": [kernel], "parts": 1}]
        optimizer = make_optimizer(builder.factory(resolve("optim", section("optim", "muon"))), groups, CPU)
        for seed in range(3):
            draw_gradients([kernel], seed)
            optimizer.step()
        ends.append(kernel.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize(("name", "task"), [("nano", TEXT), ("cnn", IMAGES)])
def test_a_step_that_is_to_be_skipped_changes_nothing(name: str, task: Task) -> None:
    """As on a GPU, where nobody waits to learn whether gradients are finite."""
    ends = list[list[Tensor]]()
    for skips in (False, True):
        model, norms = build("layernorm", model=name, task=task)
        optimizer = optimizer_of(model, norms)
        parameters = list(model.parameters())
        found_inf = torch.zeros(())
        if skips:
            vars(optimizer).update(grad_scale=None, found_inf=found_inf)
        draw_gradients(parameters, seed=0)
        optimizer.step()
        if skips:
            found_inf.fill_(1.0)
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, torch.nan)
            optimizer.step()
            found_inf.fill_(0.0)
        draw_gradients(parameters, seed=1)
        optimizer.step()
        ends.append([parameter.detach() for parameter in parameters])
    for without, with_a_skipped_one in zip(*ends, strict=True):
        assert torch.equal(without, with_a_skipped_one)


@pytest.mark.parametrize(("words", "task"), [("model=nano model.width=16 model.heads=2", TEXT), ("model=cnn", IMAGES)])
def test_a_transformer_and_a_cnn_learn(words: str, task: Task) -> None:
    tree = read([*words.split(), "optim=muon", "optim.lr=1e-2"]).tree
    losses = train(tree, tiny_data(task), steps=16)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("words", [TRANSFORMER, CNN])
def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_bits(tmp_path: Path, words: list[str]) -> None:
    def session() -> Session:
        return Session(prepare(read([*words, *SMALL, "probes=off", "trainer.accumulate=2", f"outputs={tmp_path}"])))

    first, second = session().loop, session().loop
    file = io.BytesIO()
    for step in range(8):
        if step == 4:
            torch.save(first.state(), file)
        take_step(first, step)
    file.seek(0)
    second.restore(torch.load(file, weights_only=True))
    for step in range(4, 8):
        take_step(second, step)
    there = second.model.state_dict()
    assert all(torch.equal(value, there[name]) for name, value in first.model.state_dict().items())


def test_a_damaged_state_is_refused() -> None:
    words = [*TRANSFORMER, *SMALL, "probes=off"]
    loop = Session(prepare(read(words))).loop
    take_step(loop, 0)
    state: Any = loop.state()
    state["optimizer"]["state"][0]["momentum_buffer"] = torch.zeros(3, 5)
    with pytest.raises(ValueError, match="has the shape"):
        loop.restore(state)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["probes=full", "trainer.ema=0.9", "trainer.precision=bf16"], ["schedule=onecycle"]])
def test_a_whole_run_finishes(tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "reason_against_on_cpu", reason_against_in_a_fork)
    assert main(["train", *TRANSFORMER, *SMALL, *words, f"outputs={tmp_path}", "quiet=true"]) == 0


REFUSED = {
    "optim.momentum=1": "optim.momentum=1 is not allowed",
    "optim.betas=[0.9]": "optim.betas=[0.9] is not allowed",
    "optim.betas=[0.9,1]": "optim.betas=[0.9,1] is not allowed",
    "optim.nesterov=2": "optim.nesterov=2 is not allowed",
    "optim.eps=-1": "optim.eps=-1 is not allowed",
    "optim.lr=0": "optim.lr=0 is not allowed",
    "optim.ns_steps=3": "optim.ns_steps is unknown",
    "trainer.shard=true": "trainer.shard=true with optim=muon is refused: ",
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_does_not_go_with_it_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(["train", *TRANSFORMER, *SMALL, word], capsys).startswith(REFUSED[word])


def test_a_stack_and_one_graph_of_a_step_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^optim=muon with sweep.stack=2 is refused: "):
        plan_sweep(["seed=0,1", *TRANSFORMER, *SMALL, "sweep.stack=2"])
    with pytest.raises(UsageError, match=r"^trainer.compile=graph with optim=muon is refused: "):
        prepare(read([*TRANSFORMER, *SMALL, "trainer.compile=graph"]), device=torch.device("cuda"))


def test_a_model_without_matrices_is_refused() -> None:
    with pytest.raises(UsageError, match="finds no matrix in the blocks of this model: use optim=adamw"):
        separate_matrices([{"params": [nn.Parameter(torch.ones(3))]}], {}, "optim=muon")


def test_fused_maps_whose_weights_are_treated_are_taken_by_their_parts() -> None:
    tree = read([*TRANSFORMER, *SMALL, "weights=standardized"]).tree
    model, norms = builder.make_model(Recipe(tree), TEXT, 0)
    parts = matrices_in_blocks(model, norms.values())
    names = {name: parts[parameter] for name, parameter in model.named_parameters() if parameter in parts}
    assert sorted(names.values()) == [1, 1, 1, 3]  # qkv is three maps in one
    assert all("original" in name for name in names)
