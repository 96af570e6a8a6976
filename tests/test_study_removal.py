"""Norms taken out one by one: against LayerNorm with a held deviation, written anew, and what cannot be taken out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from studied import measured, subject, subjects, tables_of
from torch import nn

from normbench.errors import UsageError
from normbench.norms import BatchNorm, DyT, GroupNorm, LayerNorm, NoNorm, RMSNorm
from normbench.studies.removal import Removal, is_linear_when_held
from normbench.training.evaluation import evaluate

SMALL = ("model.depth=2", "model.width=16", "model.heads=2", "model.context=8", "data.eval_batch_size=8",
         "data.batch_size=4", "trainer.eval_batches=1")  # fmt: skip


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
    rows = measured(Removal(), one)
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


@pytest.mark.parametrize("channel_dim", [-1, 1])
def test_what_is_linear_where_its_statistic_is_held(channel_dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 7, 8).movedim(-1, channel_dim)
    for kind, expected in ((LayerNorm, True), (RMSNorm, True), (DyT, False), (GroupNorm, False), (NoNorm, False)):
        norm = kind(8, channel_dim=channel_dim)
        for parameter in norm.parameters():
            nn.init.uniform_(parameter, 0.5, 2)
        assert is_linear_when_held(norm, x) == expected, kind
    batchnorm = BatchNorm(8, channel_dim=channel_dim).eval()
    assert not is_linear_when_held(batchnorm, x)


def test_a_model_without_such_norms_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing can be taken out of this model"):
        Removal().check(subject("norm=dyt", *SMALL))


def test_arms_are_compared_without_all_their_norms() -> None:
    study = Removal()
    rows = measured(study, *subjects(*SMALL, seeds=2, norm=("layernorm", "rmsnorm")))
    all_out, by_round = tables_of(study, rows)
    assert all_out.frame["arm"].tolist() == ["LayerNorm", "RMSNorm"]
    assert len(by_round.frame) == 12
    assert len(study.finding(rows)) == 1
    assert [figure.name for figure in study.figures(rows)]
