"""Folding: the folded model is the unfolded one in float64, and what cannot be folded says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from support import IMAGES, SMALL, TEXT, TEXTS, TRANSLATIONS, WHOLE, build, random_batch, refused, section
from torch import nn
from torch.nn import functional as F

from normbench.build import build_model
from normbench.cli import main
from normbench.config.recipe import Recipe
from normbench.norms import RMSNorm
from normbench.runs.load import TrainedRun, load_model
from normbench.studies.folding import Folded, fold, logits_of
from normbench.types import Model, Task

pytest_plugins = ["trained_runs"]

FREE = {"tied": False}
BY_BATCHES = ["batchnorm", "batchrenorm", "ghostbatchnorm"]
LINEAR = [*BY_BATCHES, "scale"]  # of which nothing is left
AFFINE = [*BY_BATCHES, "dyt", "groupnorm", "layernorm", "prmsnorm", "rmsnorm",
          "derf", "dyisru", "scalenorm", "crmsnorm", "bhyt", "evonorm_s0", "scale"]  # fmt: skip


def stirred(model: Model, norms: dict[str, nn.Module]) -> Model:
    """Weights of norms, biases and running statistics as training might leave them."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.ndim == 1:
                tensor.add_(0.3 * torch.randn(tensor.shape, generator=generator))
        for norm in norms.values():
            if getattr(norm, "running_mean", None) is not None:
                norm.running_mean.normal_(generator=generator)
                norm.running_var.uniform_(0.5, 2, generator=generator)
    return model.double().eval()


def folded(task: Task = TEXT, **how: Any) -> tuple[Model, Folded, int]:
    """A model, the same folded, and the number of norms; both give the same logits."""
    model, norms = build(task=task, **how)
    found, batch = fold(stirred(model, norms), norms, random_batch(task)), random_batch(task, 8, seed=3)
    expected = logits_of(model, batch)
    assert (logits_of(found.model, batch) - expected).abs().max() < 1e-10 * max(1, expected.abs().max())
    return model, found, len(norms)


@pytest.mark.parametrize("norm", AFFINE)
@pytest.mark.parametrize("task", [TEXT, IMAGES], ids=["text", "images"])
@pytest.mark.parametrize("placement", ["pre", "parallel"])
def test_all_norms_before_linear_layers_are_folded(norm: str, task: Task, placement: str) -> None:
    """With the fewest parts and with more of them; without the whole matrix with one of both, in turn."""
    many = {"mlp": "swiglu", "bias": True, "pool": "class_token", "embedding_scale": "learned"}
    many |= {"attention_gate": "feature", "softcap": 10.0, "attention_softcap": 5.0}
    in_turn: dict[str, Any] = many if (task is TEXT) == (placement == "parallel") else {}
    for more in ({}, many) if WHOLE else (in_turn,):
        _, found, count = folded(task, norm=norm, placement=placement, **FREE, **more)
        assert len(found.done) == count and not found.refused
        kinds = {type(module) for name, module in found.model.named_modules() if name.endswith((".in", "final_norm"))}
        assert {issubclass(kind, nn.Identity) for kind in kinds} == {norm in LINEAR}
        if norm == "layernorm":
            assert kinds == {RMSNorm}


@pytest.mark.parametrize("norm", ["adanorm", "seednorm", "gatedrmsnorm", "unitnorm"])
def test_a_norm_is_kept_that_has_no_gain_or_more_than_that(norm: str) -> None:
    _, found, count = folded(norm=norm, **FREE)
    assert len(found.refused) == count and not found.done


@pytest.mark.parametrize("norm", ["batchnorm", "layernorm"])
def test_a_gain_is_folded_with_its_offset(norm: str) -> None:
    _, found, count = folded(norm=norm, norm_settings={"offset": 1.0}, **FREE)
    assert len(found.done) == count and not found.refused


def test_nothing_is_left_of_a_norm_that_has_tapered_to_a_scale() -> None:
    model, norms = build(norm="tapernorm", norm_settings={"taper_after": 0, "taper_over": 1}, **FREE)
    for seed in range(2):
        model.train()(*random_batch(TEXT, seed=seed).arguments)
    for norm in norms.values():
        norm.learned_since.data.uniform_(-0.3, 0.3)
    found, batch = fold(stirred(model, norms), norms, random_batch(TEXT)), random_batch(TEXT, 8, seed=3)
    torch.testing.assert_close(logits_of(found.model, batch), logits_of(model, batch), rtol=1e-10, atol=1e-10)
    assert len(found.done) == len(norms) and not found.refused
    assert not any(type(module).__name__ == "TaperNorm" for module in found.model.modules())


@pytest.mark.parametrize(("model", "task"), [("nano", TEXTS), ("seq2seq", TRANSLATIONS)])
@pytest.mark.parametrize("norm", ["batchnorm", "layernorm"])
def test_norms_of_padded_texts_are_folded(norm: str, model: str, task: Task) -> None:
    _, found, count = folded(task, norm=norm, model=model, **FREE)
    assert {*found.refused} - {"final"} <= {f"{site}, its mean" for site in found.done}
    assert len(found.done) == count - ("final" in found.refused)


@pytest.mark.parametrize("affine", [True, False])
def test_norms_of_other_libraries_are_folded_too(affine: bool) -> None:
    foreign = {"_target_": "torch.nn.LayerNorm", "elementwise_affine": affine}
    tree = {"norm": foreign, "placement": section("placement", "pre")}
    tree["model"] = section("model", "nano", **SMALL["nano"], **FREE)
    model, norms = build_model(Recipe(tree), TEXT, 0)
    found, batch = fold(stirred(model, norms), norms, random_batch(TEXT)), random_batch(TEXT, 8, seed=3)
    torch.testing.assert_close(logits_of(found.model, batch), logits_of(model, batch), rtol=0, atol=1e-10)
    assert len(found.done) == sum(isinstance(module, RMSNorm) for module in found.model.modules()) == 5


def test_layernorm_without_gamma_and_beta_is_rmsnorm_too() -> None:
    _, found, count = folded(norm="layernorm", norm_settings={"affine": False}, **FREE)
    assert len(found.done) == count and set(found.refused.values()) == {"kept, as it has neither γ nor β"}
    assert sum(isinstance(module, RMSNorm) for module in found.model.modules()) == count


def test_gamma_and_beta_go_into_the_next_layer_by_hand() -> None:
    model, found, _ = folded(norm="rmsnorm", norm_settings={"eps": 1e-6}, position="rotary", **FREE)
    norm, before = model.blocks[1].norms["mlp"]["in"], model.blocks[1].branches["mlp"].fc1
    after = found.model.blocks[1].branches["mlp"].fc1
    assert torch.equal(after.weight, before.weight * norm.weight) and after.bias is None
    model, found, _ = folded(norm="dyt", bias=True, **FREE)
    norm, before = model.final_norm, model.head.linear
    after = found.model.head.linear
    torch.testing.assert_close(after.weight, before.weight @ torch.diag(norm.weight), rtol=1e-12, atol=0)
    torch.testing.assert_close(after.bias, before.weight @ norm.bias, rtol=1e-12, atol=1e-15)
    assert found.model.final_norm.weight is None and found.model.final_norm.bias is None


def test_batchnorm_goes_into_the_layer_before_it_by_hand() -> None:
    model, found, count = folded(IMAGES, model="vgg", placement="plain", norm="batchnorm")
    assert len(found.done) == count == 4 and not found.refused
    assert not [name for name, _ in found.model.named_buffers()]
    branch, after = model.blocks[0].branches["conv"], found.model.blocks[0].branches["conv"]
    norm, x = branch.after[0], torch.randn(2, 3, 6, 6, dtype=torch.float64)
    y = F.batch_norm(branch.conv1(x), norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    torch.testing.assert_close(after.conv1(x), y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", ["cnn", "resnet18", "resnet50", "mlp"])
def test_in_residual_networks_batchnorm_inside_the_branches_is_folded(model: str) -> None:
    _, found, _ = folded(IMAGES, model=model, norm="batchnorm")
    assert all(".inner" in site for site in found.done) and found.done
    assert {site for site in found.refused if ".inner" in site} == set()
    assert set(found.refused.values()) == {"kept, as ReLU reads it, which is not a linear layer"}


@pytest.mark.parametrize(
    ("how", "reasons"),
    [
        ({"placement": "post", **FREE}, {"add reads it", "LayerNorm writes to the stream"}),
        ({"placement": "deep", **FREE}, {"mul reads it", "LayerNorm writes to the stream"}),
        ({"placement": "sandwich", **FREE}, {"add reads it", "LayerNorm writes to the stream"}),
        ({}, {"the weight beside it"}),
        ({"norm": "none"}, {"it has neither γ nor β"}),
        ({"norm": "dyt", "model": "cnn", "task": IMAGES}, {"ReLU reads it"}),
        ({"norm": "rmsnorm", "model": "mlp_plain", "placement": "plain", "task": IMAGES}, {"Sigmoid reads it"}),
        ({"task": TEXTS}, {"mul reads it"}),  # the mean over what is no padding
        ({"norm": "batchnorm", "model": "cnn", "norm_order": "after", "task": IMAGES}, {"pads", "ReLU reads"}),
    ],
)  # fmt: skip
def test_what_cannot_be_folded_says_why(how: dict[str, Any], reasons: set[str]) -> None:
    _, found, _ = folded(**how)
    for reason in reasons:
        assert any(reason in said for said in found.refused.values()), found.refused
    assert all(any(reason in said for reason in reasons) for said in found.refused.values()), found.refused


def test_a_tied_embedding_keeps_its_mean_and_its_final_norm() -> None:
    _, found, count = folded(norm="layernorm")
    assert len(found.done) == count - 1 and not any("RMSNorm" in done for done in found.done.values())
    assert {site.partition(",")[0] for site in found.refused} == {"final", *found.done}


def test_a_norm_whose_weight_is_no_scale_is_left_alone() -> None:
    class Gemma(RMSNorm):
        def normalize(self, x: Any, weight: Any, bias: Any, mask: Any) -> Any:
            return super().normalize(x, None if weight is None else 1 + weight, bias, mask)

    model, norms = build(norm="rmsnorm", **FREE)
    for norm in norms.values():
        norm.__class__ = Gemma
    found = fold(model, norms, random_batch(TEXT))
    assert not found.done and {*found.refused.values()} == {
        "kept, as its weight and bias are not a scale and a shift of each channel"
    }


# ---- the command and the study


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.mark.slow
def test_a_run_is_folded_into_a_file(runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs["images"]  # a cnn with batchnorm
    assert main(["fold", str(path), "--out", "folded.safetensors"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    with safetensors.safe_open(here / "folded.safetensors", "pt") as file:
        notes = file.metadata()
    done, kept = json.loads(notes["folded"]), json.loads(notes["kept"])
    assert set(done) == {f"block{layer:02d}.conv.inner" for layer in range(3)} and len(kept) == 4
    for site, what in (done | kept).items():
        assert f"{site} {what}" in told
    assert told.strip().endswith("folded.safetensors") and "norms folded 3 norms or means kept 4" in told
    trained = TrainedRun(path)
    _, norms = build_model(Recipe(trained.tree), trained.task(), 0)
    model = load_model(trained)
    sites = dict(zip(norms, [one for one in model.modules() if type(one).__name__ == "BatchNorm"], strict=True))
    assert fold(model, {}, random_batch(trained.task())).done == {}
    again = fold(model, by_site(model, sites), random_batch(trained.task())).model
    again.load_state_dict(safetensors.torch.load_file(here / "folded.safetensors"))
    batch = random_batch(trained.task(), 16, seed=5)
    torch.testing.assert_close(logits_of(again.double(), batch), logits_of(model.double(), batch), rtol=0, atol=1e-4)


def by_site(model: Model, norms: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The norms in any order do: only names of sites depend on it."""
    return {str(number): norm for number, norm in enumerate(norms.values())}


def test_a_folder_without_a_run_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no run" in refused(["fold", str(here)], capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("pages_alone")
def test_the_study_of_given_runs(runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "folding", str(runs["text"]), "study.pairs=9"]) == 0
    told = capsys.readouterr().out
    assert "What was folded, and what it saves" in told and "Changes" in told
