"""Norms of other libraries, `Norm(features, ...)`, against ours: the same numbers, and what they depend on is found."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from support import IMAGES, SMALL, TEXT, build, random_batch, refused, section
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.build import build_model, factory, norm_facts
from normbench.cli import main
from normbench.config.recipe import Recipe
from normbench.contract.checks import Fact
from normbench.contract.norms import NormPart, sees_future
from normbench.models import Xavier, initialize
from normbench.norms.foreign import POSITIONS
from normbench.record.files import read_json
from normbench.types import Model, Site

pytest_plugins = ["refusals"]

# ours with its settings, and the one of torch that has its formula in nano and in cnn
TWINS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "torch.nn.LayerNorm": ("layernorm", {}, {}),
    "torch.nn.RMSNorm": ("rmsnorm", {}, {"eps": 1e-5}),
    "torch.nn.BatchNorm1d": ("batchnorm", {"masked": False}, {}),
    "torch.nn.BatchNorm2d": ("batchnorm", {"momentum": 0.2, "masked": False}, {"momentum": 0.2}),
    "torch.nn.GroupNorm": ("groupnorm", {"groups": 4, "across_time": True, "masked": False}, {"num_groups": 4}),
    "torch.nn.InstanceNorm2d": ("instancenorm", {"affine": True, "masked": False}, {"affine": True}),
}


def tree(target: str, **settings: Any) -> dict[str, Any]:
    return {"norm": {"_target_": target, **settings}, "placement": section("placement", "pre"), "model": {"width": 16}}


def outcome(model: Model, norms: dict[str, nn.Module], x: Tensor) -> list[Tensor]:
    """What training and evaluation give, gradients and running statistics included."""
    logits = model.train()(x)
    logits.square().mean().backward()
    gradients = [p.grad for norm in norms.values() for p in norm.parameters() if p.grad is not None]
    return [logits, *gradients, *(b.double() for b in model.buffers()), model.eval()(x)]


@pytest.mark.parametrize(("name", "task"), [("nano", TEXT), ("cnn", IMAGES)])
@pytest.mark.parametrize("target", TWINS)
def test_torchs_norms_give_what_ours_give(target: str, name: str, task: Any) -> None:
    ours, our_settings, settings = TWINS[target]
    model = {"model": section("model", name, **SMALL[name])}
    foreign, norms = build_model(Recipe(tree(target, **settings) | model), task, seed=0)
    initialize(foreign, Xavier(embedding_std=0.02, residual_scale=False), 0, norms.values())
    x = random_batch(task).inputs
    expected = outcome(*build(ours, model=name, task=task, norm_settings=our_settings), x)
    for found, wanted in zip(outcome(foreign, norms, x), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", TWINS)
def test_what_a_norm_depends_on_is_measured_as_ours_declares_it(target: str) -> None:
    ours, our_settings, settings = TWINS[target]
    declared = norm_facts(Recipe({"norm": section("norm", ours, **our_settings)}))
    found = norm_facts(Recipe(tree(target, **settings)))
    assert asdict(found) == asdict(declared) | {"statistics_over": "unknown"}


class Rms(nn.Module):
    """As in transformers."""

    def __init__(self, hidden_size, eps=1e-6):  # type: ignore[no-untyped-def]  # as there
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.full((hidden_size,), 2.0)), eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        scale = torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (hidden_states * scale)


class Norm2d(nn.LayerNorm):
    """As in timm."""

    def __init__(self, num_channels: int, eps: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(num_channels, eps, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        y = x.permute(0, 2, 3, 1)
        return F.layer_norm(y, self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class Bare(nn.Module):
    """Without parameters, and without a number of features."""

    def __init__(self, eps: float = 1e-3) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().mean(-1, keepdim=True) + self.eps)


def group_norm(num_channels: int) -> nn.Module:
    return nn.GroupNorm(1, num_channels, affine=False)


HERE = "test_foreign_norms"


@pytest.mark.parametrize("channel_dim", [-1, 1])
@pytest.mark.parametrize(
    ("target", "axis", "formula"),
    [
        ("Rms", -1, lambda x: 2 * x / x.square().mean(-1, keepdim=True).sqrt()),
        ("Norm2d", 1, lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-6)),
        ("Bare", -1, lambda x: x / (x.abs().mean(-1, keepdim=True) + 1e-3)),
        ("group_norm", 1, lambda x: F.layer_norm(x, x.shape[1:])),
    ],
)
def test_where_the_features_are_is_found(target: str, axis: int, formula: Any, channel_dim: int) -> None:
    norm = factory(Recipe(tree(f"{HERE}.{target}"))["norm"])(6, channel_dim=channel_dim, site=Site("mlp"))
    x = torch.randn(3, *POSITIONS[channel_dim], 6, generator=torch.Generator().manual_seed(0))
    found = norm(x.movedim(-1, channel_dim)).movedim(channel_dim, -1)
    torch.testing.assert_close(found, formula(x), rtol=1e-3, atol=1e-4)
    assert norm.features_axis == axis


def test_a_run_records_what_a_foreign_norm_is(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(here)
    words = ["model.width=16", "model.depth=1", "trainer.steps=1", "trainer.eval_batches=1", "quiet=true", "device=cpu"]
    for norm in ([f"norm._target_={HERE}.Rms", "norm.eps=1e-4"], ["norm._target_=torch.nn.BatchNorm1d"]):
        assert main(["train", *norm, *words]) == 0
    rms, batch = (read_json(next(here.glob(f"outputs/train/{name}-*/summary.json"))) for name in ("rms", "batchnorm1d"))
    assert rms and batch
    assert rms["ledger"].items() >= {"eps": 1e-4, "affine_parameters": "weight", "features_axis": -1}.items()
    assert rms["leak"] is None and "shown its future" in batch["leak"]


def test_check_says_of_a_foreign_norm_what_train_does() -> None:
    """Whether it needs positions is measured, and train warns of what it sees without a declaration."""
    part = NormPart(tree("torch.nn.InstanceNorm1d"))
    assert part.layouts == ["sequence", "image"]
    found = sees_future(NormPart(tree("torch.nn.BatchNorm1d")))
    assert isinstance(found, Fact) and found.holds and "declare" not in found.measured


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "norm._target_=torch.nn.GroupNorm",
            "the norm needs num_groups and num_channels, one for the number of features",
        ),
        ("norm._target_=torch.nn.GroupNorm norm.num_groups=7", "must be divisible by num_groups"),
        ("norm._target_=torch.nn.LayerNorm norm.epz=1", "norm.epz is unknown: did you mean norm.eps?"),
        (
            "norm._target_=torch.nn.Embedding norm.num_embeddings=3",
            "takes its features neither last nor second (RuntimeError",
        ),
        ("norm._target_=torch.nn.InstanceNorm1d", "norm=instancenorm1d with data=pydocs is refused: its statistics"),
        ("norm._target_=torch.nn.InstanceNorm1d model=mlp", "norm=instancenorm1d with model=mlp is refused"),
    ],
)
def test_what_cannot_be_fitted_is_refused(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(["train", *line.split()], capsys)


@pytest.mark.usefixtures("here")
def test_a_long_complaint_of_torchs_is_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(["train", "norm._target_=torch.nn.LazyBatchNorm1d"], capsys)
    assert "Attempted to use an uninitialized parameter" in sentence and len(sentence) < 350
