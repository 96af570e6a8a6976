"""Norms taken out one by one: against LayerNorm with a held deviation, written anew, tuned and folded."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from studied import measured, subject, subjects, tables_of
from torch import nn

from normbench.errors import UsageError
from normbench.norms import BatchNorm, DyT, GroupNorm, LayerNorm, NoNorm, RMSNorm
from normbench.studies.folding import take_apart
from normbench.studies.removal import Removal, Tuning, fix, fold_held, hold_at_mean, see_norms
from normbench.training.evaluation import evaluate

SMALL = ("model.depth=2", "model.width=16", "model.heads=2", "model.context=8", "data.eval_batch_size=8",
         "data.batch_size=4", "trainer.eval_batches=1", "trainer.steps=5")  # fmt: skip


class Held(nn.Module):
    """LayerNorm that divides by a number."""

    def __init__(self, norm: Any, sigma: float) -> None:
        super().__init__()
        self.norm = norm
        self.sigma = sigma

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y: torch.Tensor = (x - x.mean(-1, keepdim=True)) / self.sigma * self.norm.weight + self.norm.bias
        return y


def test_each_round_is_that_of_a_held_deviation() -> None:
    one = subject("norm=layernorm", *SMALL)
    rows = measured(Removal(tune_steps=[0]), one)
    order = ["none", "block00.mlp", "block01.mlp", "block00.attention", "block01.attention", "final"]
    assert rows["site"].tolist() == order and rows["round"].tolist() == list(range(6))
    model, norms = one.build()
    paths = {module: path for path, module in model.named_modules()}
    batches = list(one.data.eval_batches("val", 1))
    for site, expected in zip(order[1:], rows["loss"][1:], strict=True):
        seen = list[torch.Tensor]()
        hook = norms[site].register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
        with torch.no_grad():
            model(one.data.train_batch(0).inputs)
        hook.remove()
        sigma = (seen[0].var(-1, correction=0) + 1e-5).sqrt().mean().item()
        model.set_submodule(paths[norms[site]], Held(norms[site], sigma))
        loss = evaluate(model, batches, one.task, one.device)["loss"]
        assert expected == pytest.approx(loss, rel=1e-5)
    assert rows["increase"][5] == pytest.approx(rows["loss"][5] - rows["loss"][0])
    assert rows["left"].tolist() == [5, 4, 3, 2, 1, 0] and {*rows["control"]} == {rows["loss"][0]}


def test_a_held_norm_has_the_gradients_of_one_that_divides_by_a_number() -> None:
    one = subject("norm=layernorm", *SMALL)
    batch = one.task.random_batch(4, torch.Generator().manual_seed(0))
    gradients = list[list[torch.Tensor]]()
    for by_hand in (False, True):
        model, norms = one.build()
        model.double()
        for number, norm in enumerate(norms.values()):
            generator = torch.Generator().manual_seed(number)
            nn.init.normal_(norm.get_parameter("weight"), 1, 0.3, generator=generator)
            nn.init.normal_(norm.get_parameter("bias"), 0, 0.3, generator=generator)
        parameters = list(model.parameters())
        paths = {module: path for path, module in model.named_modules()}
        for site in ("block00.mlp", "final"):
            held = hold_at_mean(norms[site], *see_norms(model, norms, batch)[site])
            if by_hand:
                model.set_submodule(paths[norms[site]], Held(norms[site], held.scale.item()))
            else:
                norms[site].register_forward_hook(held.hold)
        loss = one.task.loss(model(batch.inputs), batch.targets)
        gradients.append(list(torch.autograd.grad(loss, parameters)))
    for own, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-13)


def test_loss_is_added_to_that_of_the_model_tuned_as_long_with_its_norms() -> None:
    one = subject("norm=rmsnorm", *SMALL)
    rows = measured(Removal(tune_steps=[7], tune_lr=1e-2), one)
    assert (rows["increase"] == rows["loss"] - rows["control"]).all()
    assert rows["control"][1] == rows["control"][0]  # the first norm goes before the first step
    model, norms = one.build()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0)
    groups = Tuning(one, model, norms, 7, 1e-2).stepper.optimizer.param_groups
    optimizer.param_groups = [{**optimizer.param_groups[0], **group} for group in groups]
    for step in range(7):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / 6)))
        batch = one.data.train_batch(5 + step)
        loss = one.task.loss(model(batch.inputs), batch.targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    found = evaluate(model, one.data.eval_batches("val", 1), one.task, one.device)["loss"]
    assert rows["control"].iloc[-1] == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_held_norms_go_into_the_layers_after_them(norm: str) -> None:
    one = subject(f"norm={norm}", "model.tied=false", *SMALL)
    last = measured(Removal(tune_steps=[3]), one).iloc[-1]
    assert last["left"] == 0 and last["folded"] == 5 and last["unfolded"] == 0
    assert last["change"] < 1e-12


def test_a_tied_output_layer_and_a_sum_keep_a_scale_and_a_shift() -> None:
    for words, folded in (("model.tied=true", 4), ("placement=post", 0)):
        model, norms = (one := subject("norm=layernorm", words, *SMALL)).build()
        batch = one.task.random_batch(2, torch.Generator().manual_seed(0))
        held = {site: hold_at_mean(norms[site], *seen) for site, seen in see_norms(model, norms, batch).items()}
        for site, norm in held.items():
            norms[site].register_forward_hook(norm.hold)
        found = fold_held(model, norms, held, [batch])
        assert (found["folded"], found["folded"] + found["unfolded"]) == (folded, len(norms))
        assert found["change"] < 1e-12


def test_a_mean_and_a_scale_in_a_weight_by_hand() -> None:
    norm = LayerNorm(6).double()
    nn.init.uniform_(norm.get_parameter("weight"), 0.5, 2)
    nn.init.normal_(norm.get_parameter("bias"))
    x = torch.randn(5, 6, dtype=torch.float64)
    fixed = fix(norm, x, hold_at_mean(norm, x, None))
    assert fixed is not None
    sigma = (x.var(-1, correction=0) + 1e-5).sqrt().mean()
    expected = (x - x.mean(-1, keepdim=True)) / sigma * norm.weight + norm.bias
    torch.testing.assert_close(fixed(x), expected, rtol=1e-12, atol=1e-12)
    parts = take_apart(fixed, x)
    assert parts.is_whole and parts.centers
    torch.testing.assert_close(parts.scale, norm.weight / sigma, rtol=1e-12, atol=0)


@pytest.mark.parametrize("channel_dim", [-1, 1])
def test_what_is_linear_where_its_statistic_is_held(channel_dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 7, 8).movedim(-1, channel_dim)
    for kind, expected in ((LayerNorm, True), (RMSNorm, True), (DyT, False), (GroupNorm, False), (NoNorm, False)):
        norm = kind(8, channel_dim=channel_dim)
        for parameter in norm.parameters():
            nn.init.uniform_(parameter, 0.5, 2)
        assert (fix(norm, x) is not None) == expected, kind
    batchnorm = BatchNorm(8, channel_dim=channel_dim).eval()
    assert fix(batchnorm, x) is None


def test_a_model_without_such_norms_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing can be taken out of this model"):
        Removal().check(subject("norm=dyt", *SMALL))


def test_arms_are_told_without_all_their_norms() -> None:
    study = Removal(tune_steps=[0, 4])
    rows = measured(study, *subjects(*SMALL, seeds=2, norm=("layernorm", "rmsnorm")))
    all_out, folded, by_round = tables_of(study, rows)
    assert all_out.frame["arm"].tolist() == folded.frame["arm"].tolist() == ["LayerNorm", "RMSNorm"] * 2
    assert len(by_round.frame) == 24
    told = study.finding(rows)
    assert len(told) == 4
    of_layernorm = rows[(rows["norm"] == "layernorm") & (rows["tune_steps"] == 4) & (rows["left"] == 0)]
    assert list(told[2].values.values()) == of_layernorm["increase"].tolist()
    assert [figure.name for figure in study.figures(rows)]
