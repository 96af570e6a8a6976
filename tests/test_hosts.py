"""Norms of other libraries' models: where they stand, what replaces them, what stays."""

from __future__ import annotations

import copy
import importlib
import math
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from given_models import COMPUTED, HOSTS, OTHERS, SMALL, Given, images, transformers_model
from support import REPOSITORY, WHOLE, build
from torch import Tensor, nn
from torch.nn import functional as F

import normbench
from normbench import hosts
from normbench.config.rules import Rule
from normbench.config.signatures import import_target
from normbench.errors import UsageError
from normbench.hosts import Adapter, Findings, Found
from normbench.hosts.adapters import ACTING_INSIDE, TABLE
from normbench.hosts.libraries import LIBRARIES
from normbench.hosts.replacing import Keep
from normbench.norms import BatchNorm, DyT, EvoNormS0, GroupNorm, InstanceNorm, LayerNorm, NoNorm, Own, RMSNorm
from normbench.types import ImageClassification, LanguageModeling

SITES = yaml.safe_load((REPOSITORY / "tests/given_sites.yaml").read_text("utf-8"))

# Ours with the formula of each host's norms.
SAME = dict.fromkeys(HOSTS, RMSNorm) | dict.fromkeys(("resnet", "mobilenet", "torchvision resnet"), BatchNorm)
SAME |= dict.fromkeys(("vit", "convnext", "swin", "mixer", "gpt2", "bert"), LayerNorm)

NORMS = (LayerNorm, RMSNorm, GroupNorm, BatchNorm, DyT, NoNorm)


def pairs() -> list[Any]:
    """Each host with each norm; a sample of that has each host once, and each norm twice or more."""
    every = [(name, norm) for name in HOSTS for norm in NORMS]
    sample = every if WHOLE else every[:: len(NORMS) + 1] + every[5 :: len(NORMS) * 3 + 1]
    return [pytest.param(name, norm, id=f"{name}-{norm.__name__}") for name, norm in sample]


def logits(model: nn.Module, given: Given) -> Tensor:
    """What a model gives."""
    output: Any = given.call(model)
    found: Tensor = getattr(output, "logits", output)
    return found


def swapped(model: nn.Module, call: Any, norm: Any, **how: Any) -> tuple[Findings, dict[str, Any]]:
    """What was found in a model, and what stands there now."""
    findings = hosts.find(model, call)
    return findings, hosts.replace(model, findings, norm, **how)


def call_on(*shape: int) -> Any:
    """What calls a model on random numbers."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return lambda model: model(x)


# ---- finding


@pytest.mark.parametrize("name", HOSTS)
def test_norms_stand_where_the_source_has_them(name: str) -> None:
    given = HOSTS[name]
    model = given.build()
    findings = hosts.find(model, given.call)
    norms = {}
    for found in findings.found:
        norms[found.path] = [found.site.name, found.site.slot or None, found.features, found.adapter.axis]
        assert model.get_submodule(found.path) is found.module
    blocks = {block.path: list(block.branches) for block in findings.blocks}
    assert {"norms": norms, "blocks": blocks} == SITES[name]
    assert not findings.left and not findings.warnings
    names = [found.site.name for found in findings.found]
    assert len(set(names)) == len(names)
    assert [block.layer for block in findings.blocks] == list(range(len(findings.blocks)))
    assert {found.site.depth for found in findings.found} == {len(findings.blocks)}
    assert {found.site.branches for found in findings.found} == {sum(map(len, blocks.values()))}
    images_first = name in ("convnext", "resnet", "mobilenet", "torchvision resnet")
    assert {block.channel_dim for block in findings.blocks} == {1 if images_first else -1}


@pytest.mark.parametrize("name", COMPUTED)
def test_places_follow_from_what_is_computed(name: str) -> None:
    """Not from what attributes are called: attention, which norms are inside of it, and what two branches read."""
    given = COMPUTED[name]
    findings = hosts.find(given.build(), given.call)
    norms = {}
    for found in findings.found:
        site = found.site
        norms[found.path] = [site.name, site.slot or None, found.features, found.adapter.axis, *site.also]
    blocks = {block.path: list(block.branches) for block in findings.blocks}
    assert {"norms": norms, "blocks": blocks} == SITES[name]


class Mixing(nn.Module):
    """A block with one branch, whose names say nothing of what it computes."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first = nn.LayerNorm(8)
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))
        self.kernel = nn.Conv1d(8, 8, 3, padding=1)
        self.second = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        read = self.first(x)
        a, b, c = (layer(read) for layer in (self.a, self.b, self.c))
        if self.how == "softmax":
            y = (self.second(a) @ b.mT).softmax(-1) @ c
        elif self.how == "softmax over rows":
            y = (self.second(b) @ a.mT).softmax(-2).mT @ c
        elif self.how == "linear":
            y = a @ (b.mT @ self.second(c))
        elif self.how == "read":
            y = self.second(F.scaled_dot_product_attention(a, b, c))
        elif self.how == "made of":
            y = F.scaled_dot_product_attention(a, self.b(self.second(b)), c)
        elif self.how == "convolution":
            y = self.second(self.kernel(a.mT).mT)
        else:
            y = self.second(a * b.sigmoid())
        return x + self.d(y)


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("softmax", "attention.q_all"),
        ("softmax over rows", "attention.k_all"),
        ("linear", "attention.inner"),
        ("read", "attention.context"),
        ("made of", "attention.k_latent"),
        ("convolution", "linear.inner"),
        ("gate", "linear.2"),
    ],
)
def test_attention_is_known_by_its_products(how: str, place: str) -> None:
    model = nn.Sequential(Mixing(how), Mixing(how))
    places = {found.path: found.site.name for found in hosts.find(model, call_on(2, 5, 8)).found}
    assert places["0.second"] == f"block00.{place}"
    assert places["0.first"] == f"block00.{place.partition('.')[0]}"


class Residual(nn.Module):
    """A branch with a norm, added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(self.norm(x))
        return x + y


class Numbered(nn.Module):
    """A block whose branches are numbered attributes, as `EfficientVitBlock` of timm's efficientvit_msra.py is."""

    def __init__(self) -> None:
        super().__init__()
        self.ffn0 = Residual()
        self.ffn1 = Residual()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.ffn1(self.ffn0(x))
        return y


def test_numbered_attributes_of_a_block_are_its_branches() -> None:
    findings = hosts.find(nn.Sequential(Numbered(), Numbered()), call_on(2, 5, 8))
    assert [block.path for block in findings.blocks] == ["0", "1"]
    assert [found.site.name for found in findings.found][:2] == ["block00.mlp", "block00.mlp.2"]


def test_rules_fit_a_norm_that_serves_several() -> None:
    """One of two branches, one of queries, keys and values together, and what keys and values are made of."""
    places = {"cohere2": ["attention", "mlp"], "levit": ["q_all", "v_all", "qkv_all"], "deepseek_v3": ["latent"]}
    places["deepseek_v3"] += ["q_latent", "k_latent", "kv_latent"]
    for name, words in places.items():
        model = COMPUTED[name].build()
        found = hosts.find(model, COMPUTED[name].call).found
        for word in words:
            chosen = [each.path for each in found if Rule("norm", f"{word}.block0").fits(each.site)]
            assert chosen, (name, word)
            assert not any(Rule("norm", "qk").fits(each.site) for each in found)


def test_what_is_no_plain_norm_is_left_with_the_reason() -> None:
    """Mamba 2 and Qwen3-Next have norms with a gate, NanoChat one that is called twice."""
    found = {name: hosts.find(given.build(), given.call) for name, given in OTHERS.items()}
    assert reasons(found["mamba2"]) == {"MambaRMSNormGated": "takes gate beside its input"}
    assert reasons(found["qwen3_next"]) == {"Qwen3NextRMSNormGated": "takes gate beside its input"}
    twice = [each for each in found["nanochat"].found if each.calls == 2]
    assert [(each.path, each.site.name) for each in twice] == [("model.norm", "final")]
    (warning,) = found["swin2"].warnings
    assert warning.startswith("layers.0.blocks.0.attn and 3 more like it normalizes by a function, normalize")


def reasons(findings: Findings) -> dict[str, str]:
    return {left.kind: left.reason for left in findings.left}


class OwnLayerNorm(nn.Module):
    """As in nanoGPT: β may be None."""

    def __init__(self, size: int, bias: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.scale.shape, self.scale, self.bias, self.eps)


class OwnChannelNorm(OwnLayerNorm):
    """As in many ConvNeXts: over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        centered = x - x.mean(1, keepdim=True)
        y = centered / (centered.square().mean(1, keepdim=True) + self.eps).sqrt()
        assert self.bias is not None
        return self.scale[:, None, None] * y + self.bias[:, None, None]


class OffsetRMSNorm(OwnLayerNorm):
    """As in Gemma: it stores γ−1."""

    def forward(self, x: Tensor) -> Tensor:
        return (1 + self.scale) * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


class EpsOutsideNorm(OwnLayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps)


class GateNorm(OwnLayerNorm):
    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(x)


class ManyNorm(OwnLayerNorm):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.more = nn.Parameter(torch.ones(3))


class LengthNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True)


class BareNorm(nn.Module):
    """As in OLMo 1, which has neither parameters nor an attribute with ε."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=1e-6)


@pytest.mark.parametrize(
    ("norm", "shape", "expected"),
    [
        (OwnLayerNorm(6), (2, 3, 6), Adapter(-1, "layernorm", "scale", "")),
        (OwnLayerNorm(6, bias=True), (2, 3, 6), Adapter(-1, "layernorm", "scale", "bias")),
        (OwnChannelNorm(6, bias=True), (2, 6, 4, 5), Adapter(1, "layernorm", "scale", "bias")),
        (OffsetRMSNorm(6), (2, 3, 6), Adapter(-1, "rmsnorm", "scale", "", 1.0)),
        (BareNorm(), (2, 3, 6), Adapter(-1, "layernorm", "", "", usual_eps=1e-6)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_norm_of_ones_own_is_read_by_its_form(norm: nn.Module, shape: tuple[int, ...], expected: Adapter) -> None:
    (found,) = hosts.find(nn.Sequential(norm), call_on(*shape)).found
    assert (found.adapter, found.features) == (expected, 6)


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (EpsOutsideNorm(6), "computes neither LayerNorm nor RMSNorm"),
        (GateNorm(6), "takes gate beside its input"),
        (ManyNorm(6), "has more beside what a norm has"),
        (LengthNorm(), "computes neither LayerNorm nor RMSNorm"),
        (nn.LocalResponseNorm(2), "computes neither LayerNorm nor RMSNorm"),
        (nn.LayerNorm((3, 6)), "normalizes over the last 2 axes together"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_norm_that_computes_something_else_is_left(norm: nn.Module, reason: str) -> None:
    findings = hosts.find(nn.Sequential(norm), call_on(2, 3, 6))
    assert not findings.found and reasons(findings) == {type(norm).__name__: reason}


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["BatchNorm", "InstanceNorm"])
def test_norms_between_convolutions_over_one_to_three_axes_are_found(kind: str, axes: int) -> None:
    norm = getattr(nn, f"{kind}{axes}d")(4, affine=kind == "BatchNorm")
    model = nn.Sequential(getattr(nn, f"Conv{axes}d")(3, 4, 1), norm)
    x = torch.randn(2, 3, *[3] * axes, generator=torch.Generator().manual_seed(0))
    model(x)  # so that running statistics are not those of the start
    before = model.eval()(x)
    model, table = normbench.swap(model, kind.lower(), example=x)
    assert table["features"].tolist() == [4] and not isinstance(model[1], type(norm))
    torch.testing.assert_close(model(x), before)


@pytest.mark.parametrize("keep", ["weights", "nothing"])
def test_norms_that_share_a_weight_share_it_afterwards(keep: Keep) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4), nn.LayerNorm(4))
    model[3].weight = model[1].weight
    before = {name for name, _ in model.named_parameters()}
    model, table = normbench.swap(model, "layernorm", example=torch.randn(2, 3), keep=keep)
    assert len(table) == 3 and {name for name, _ in model.named_parameters()} == before
    assert model[1].weight is model[3].weight and model[1].bias is not model[3].bias
    assert model[4].weight is not model[1].weight


def test_a_norm_that_is_not_called_is_left() -> None:
    model = nn.Sequential(nn.LayerNorm(6))
    model[0].unused = nn.LayerNorm(3)  # type: ignore[union-attr]
    assert reasons(hosts.find(model, call_on(2, 6))) == {"LayerNorm": "is not called"}


def test_a_pass_leaves_the_model_as_it_is() -> None:
    """Modes, hooks, buffers and random numbers, also where it fails."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout())
    model[2].eval()
    modes = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    hosts.find(model, call_on(2, 3, 4, 4))
    with pytest.raises(UsageError, match=r"the forward pass of Sequential fails on the example .*: give an example"):
        hosts.find(model, call_on(2, 7, 4, 4))
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_model_without_memory_has_the_same_sites() -> None:
    """On the device `meta`, as for a model that is only looked at."""
    given = HOSTS["gemma3"]
    here = hosts.find(given.build(), given.call)
    with torch.device("meta"):
        model = given.make()
        tokens = given.example()["input_ids"].to("meta")
        there = hosts.find(model, lambda model: model(input_ids=tokens))
    assert [each.site for each in there.found] == [each.site for each in here.found]
    assert [each.adapter for each in there.found] == [each.adapter for each in here.found]


# Blocks that are unlike those of the hosts above, by what stands in the first or second of them.
ODD = {
    "the sum is inside of attention": ("bloom", {}, 0, ["attention", "mlp"]),
    "norms without parameters": ("olmo", {}, 1, ["attention", "mlp"]),
    "one layer in a group, called twice": ("albert", {"embedding_size": 32}, 0, ["attention", "mlp"]),
    "no norm before the first attention": ("modernbert", {}, 0, ["mlp"]),
    "one norm for both branches": ("gptj", {"rotary_dim": 8}, 1, ["attention"]),
    "a Fourier transform in place of attention": ("fnet", {}, 0, ["linear", "mlp"]),
}


@pytest.mark.parametrize("odd", ODD)
def test_norms_in_blocks_of_other_forms(odd: str) -> None:
    kind, more, layer, expected = ODD[odd]
    head = "MaskedLM" if kind in ("albert", "modernbert", "fnet") else "CausalLM"
    given = transformers_model(kind, head=head, **SMALL, **more)
    findings = hosts.find(given.build(), given.call)
    block = f"block{layer:02d}."
    names = [found.site.name for found in findings.found]
    assert [name.removeprefix(block) for name in names if name.startswith(block)] == expected
    assert not findings.left


def test_a_model_of_ours_keeps_the_sites_that_it_has() -> None:
    model, _ = build("rmsnorm", "sandwich", depth=2, width=16, heads=2, context=8)
    before = list(model.anatomy().norms)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    findings, made = swapped(model, lambda model: model(tokens), DyT)
    assert set(made) == set(before) == set(model.anatomy().norms)
    assert all(isinstance(norm, DyT) for norm in model.anatomy().norms.values())
    assert [block.module for block in findings.blocks] == list(model.blocks)


def test_sides_of_an_encoder_and_a_decoder() -> None:
    layer = {"d_model": 8, "nhead": 2, "dim_feedforward": 8, "batch_first": True, "dropout": 0.0}
    model = nn.Transformer(num_encoder_layers=1, num_decoder_layers=2, **layer)
    texts = torch.randn(2, 3, 8)
    findings = hosts.find(model, lambda model: model(texts, texts))
    sites = {found.path: (found.site.name, found.site.side) for found in findings.found}
    assert sites["encoder.layers.0.norm1"] == ("block00.attention", "encoder")
    assert sites["encoder.norm"] == ("final.encoder", "encoder")
    assert sites["decoder.layers.1.norm2"] == ("block02.cross", "decoder")
    assert sites["decoder.norm"] == ("final.decoder", "decoder")
    assert findings.found[0].site.sides == (1, 2)


# ---- replacing


@pytest.mark.parametrize("name", HOSTS)
def test_norms_of_the_same_kind_with_the_same_weights_change_nothing(name: str) -> None:
    given = HOSTS[name]
    model = given.build()
    with torch.no_grad():
        before = logits(model, given)
        weights = copy.deepcopy(model.state_dict())
        findings, made = swapped(model, given.call, SAME[name])
        after = logits(model, given)
    assert set(made) == {found.site.name for found in findings.found}
    assert all(type(norm).__name__ == SAME[name].__name__ for norm in made.values())
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6 * float(before.abs().max()))
    assert list(model.state_dict()) == list(weights)
    assert all(row.kept and not row.lost for row in hosts.tabulate(findings, made))
    hosts.restore(model, findings, made)
    assert all(torch.equal(tensor, weights[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(("name", "norm"), pairs())
def test_a_host_trains_with_other_norms(name: str, norm: Any) -> None:
    """Two steps; each parameter of a norm has a gradient, and all others keep their names."""
    given = HOSTS[name]
    model = given.build()
    others = set(model.state_dict())
    findings, made = swapped(model, given.call, norm)
    others -= {key for key in others for found in findings.found if key.startswith(f"{found.path}.")}
    assert others <= set(model.state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        logits(model, given).square().mean().backward()
        optimizer.step()
    for new in made.values():
        assert type(new).__name__ == norm.__name__
        for parameter in new.parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all()


def make_of(name: str) -> nn.Module:
    """A norm of 8 features of a class in the table."""
    module, _, kind = name.rpartition(".")
    library = pytest.importorskip(module.partition(".")[0])
    assert library
    made = getattr(importlib.import_module(module), kind)
    norm: nn.Module = made(4, 8) if name == "torch.nn.modules.normalization.GroupNorm" else None
    if norm is None:
        norm = made(8, num_groups=4) if kind in ("GroupNorm", "GroupNormAct") else made(8)
    for tensor in (*norm.parameters(), *norm.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)
    return norm.eval()


FORMULAS = {"layernorm": LayerNorm, "rmsnorm": RMSNorm, "groupnorm": GroupNorm, "batchnorm": BatchNorm}


@pytest.mark.parametrize("name", TABLE)
def test_each_class_in_the_table_is_what_it_is_said_to_be(name: str) -> None:
    """Our norm of its formula, with its weights, settings and activation, gives what it gives."""
    norm = make_of(name)
    adapter = TABLE[name]
    shape = (2, 3, 8) if adapter.axis == -1 else (2, 8, 4, 3)
    if name.endswith("1d"):
        shape = (2, 8, 5)
    elif name.endswith("3d"):
        shape = (2, 8, 4, 3, 2)
    x = torch.randn(shape)
    model = nn.Sequential(nn.Identity(), norm)
    before = model(x)
    ours = FORMULAS.get(adapter.formula) or partial(InstanceNorm, affine=True)
    findings, (new,) = (found := swapped(model, lambda model: model(x), ours))[0], list(found[1].values())
    assert findings.found[0].features == 8
    if adapter.formula:
        torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)
    gains = [each for each in norm.state_dict() if each == "weight"]
    assert not gains or torch.equal(new.weight, norm.state_dict()["weight"])


def test_no_norm_of_timm_is_missing_in_the_table() -> None:
    names = pytest.importorskip("timm.layers.create_norm_act")
    plain = importlib.import_module("timm.layers.create_norm")._NORM_TYPES
    for kind in plain | names._NORM_ACT_TYPES:
        name = f"{kind.__module__}.{kind.__qualname__}"
        assert name in TABLE or ACTING_INSIDE.fullmatch(name), name


def test_weights_are_kept_where_both_have_them() -> None:
    """Gemma's gain is stored less 1."""
    given = HOSTS["gemma3"]
    model = given.build()
    findings, made = swapped(model, given.call, DyT)
    for found in findings.found:
        new = made[found.site.name]
        assert torch.equal(new.weight, 1 + found.module.weight)
        assert torch.equal(new.bias, torch.zeros_like(new.bias))
    fresh = swapped(given.build(), given.call, DyT, keep="nothing")[1]
    assert all(torch.equal(new.weight, torch.ones_like(new.weight)) for new in fresh.values())


def test_epsilon_is_the_hosts_unless_it_is_given() -> None:
    given = HOSTS["gpt2"]
    model = given.build()
    for found in hosts.find(model, given.call).found:
        found.module.eps = 3e-4  # type: ignore[assignment]
    _, made = swapped(copy.deepcopy(model), given.call, RMSNorm)
    assert {new.eps for new in made.values()} == {3e-4}
    _, made = swapped(model, given.call, partial(RMSNorm, eps=1e-2), given=("eps",))
    assert {new.eps for new in made.values()} == {1e-2}
    _, (new,) = (found := swapped(nn.Sequential(nn.RMSNorm(4)), call_on(2, 4), RMSNorm))[0], list(found[1].values())
    assert new.eps == torch.finfo(torch.float32).eps


def test_some_norms_alone_are_replaced() -> None:
    given = HOSTS["llama"]
    model = given.build()
    findings = hosts.find(model, given.call)
    final = [found for found in findings.found if found.site.role == "final"]
    made = hosts.replace(model, Findings(tuple(final), (), (), ()), NoNorm)
    assert list(made) == ["final"]
    kinds = [row.becomes for row in hosts.tabulate(findings, made)]
    assert kinds == ["", "", "", "", "NoNorm"]


def test_activations_inside_norms_are_kept() -> None:
    """Also in copies and pickles; and a norm that acts itself stands for both."""
    layers = pytest.importorskip("timm.layers")
    x = torch.randn(2, 8, 3, 3)
    model = nn.Sequential(nn.Identity(), layers.BatchNormAct2d(8, act_layer=nn.SiLU)).eval()
    swapped(model, lambda model: model(x), LayerNorm)
    expected = F.silu(F.layer_norm(x.movedim(1, -1), (8,)).movedim(-1, 1))
    torch.testing.assert_close(model(x), expected)
    assert list(model.state_dict()) == ["1.weight", "1.bias"]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(x), expected)
    model = nn.Sequential(nn.Identity(), layers.BatchNormAct2d(8, act_layer=nn.SiLU)).eval()
    swapped(model, lambda model: model(x), EvoNormS0)
    torch.testing.assert_close(model(x), EvoNormS0(8, channel_dim=1)(x))


def test_encoder_layers_of_torch_leave_their_fast_path() -> None:
    """It computes LayerNorm from the norms' weights, whatever they are, and needs weights."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 8)
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    plain = copy.deepcopy(encoder)
    for norm in (GroupNorm, BatchNorm, RMSNorm, DyT, NoNorm):
        model = copy.deepcopy(encoder)
        findings, made = swapped(model, lambda model: model(x), norm)
        assert len(made) == 4 and [found.site.slot for found in findings.found] == ["out"] * 4
        for other in (model, pickle.loads(pickle.dumps(model))):
            with torch.no_grad():
                found = other(x, src_key_padding_mask=padding)
                slow = x
                for each in other.layers:
                    slow = each.norm1(slow + each._sa_block(slow, None, padding))
                    slow = each.norm2(slow + each._ff_block(slow))
            torch.testing.assert_close(found[~padding], slow[~padding])
            assert not torch.allclose(found[0], plain(x)[0], atol=1e-2)


def test_a_norm_at_two_paths_is_replaced_at_both() -> None:
    norm = nn.LayerNorm(4)
    model = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4), norm)
    findings, made = swapped(model, call_on(2, 4), RMSNorm)
    (new,) = made.values()
    assert model[1] is new and model[3] is new and findings.found[0].calls == 2


def test_a_model_that_looks_at_the_weight_of_a_norm_does_without_one() -> None:
    """Mamba 2 asks it for its dtype; a norm with γ set to None cannot stand there, and leaves the model as it was."""
    given = OTHERS["mamba2"]
    model = given.build()
    findings, made = swapped(model, given.call, NoNorm)
    hosts.check_runs(model, given.call, findings, made)
    model = given.build()
    with torch.no_grad():
        before = logits(model, given)
    findings, made = swapped(model, given.call, partial(RMSNorm, affine=False))
    with pytest.raises(UsageError, match=r"Mamba2ForCausalLM does not run with RMSNorm in the places of its norms"):
        hosts.check_runs(model, given.call, findings, made)
    with torch.no_grad():
        assert torch.equal(logits(model, given), before)


@pytest.mark.filterwarnings("ignore::UserWarning:timm")  # as it scales its tables of relative positions
def test_a_swin_without_norms_takes_another_size() -> None:
    """It asks the weight of its first norm on which device its masks belong; no weight is saved for that."""
    model = HOSTS["swin"].build()
    swapped(model, HOSTS["swin"].call, NoNorm)
    assert not any("norm" in key for key in model.state_dict())
    larger: Any = model
    larger.set_input_size((64, 64))
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 5)


def test_new_norms_are_like_the_old_ones() -> None:
    """In precision, mode, and in what is trained."""
    model = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4)).bfloat16()
    model[0].weight.requires_grad_(False)
    model[1].eval()
    _, made = swapped(model, lambda model: model(torch.randn(2, 4, dtype=torch.bfloat16)), DyT)
    first, second = made.values()
    assert first.weight.dtype == second.alpha.dtype == torch.bfloat16
    assert (first.training, second.training) == (True, False)
    assert (first.weight.requires_grad, first.bias.requires_grad) == (False, True)


# ---- what others do


def convert_as_dyt(module: nn.Module) -> nn.Module:
    """What `convert_ln_to_dyt` of DyT's authors does, told from its source (jiachenzhu/DyT, dynamic_tanh.py).

    Every module that is a LayerNorm or derived from one becomes γ·tanh(αx)+β with α 0.5, γ 1, β 0; its parameters
    are for channels last, unless it is timm's LayerNorm2d; modules inside of it become unused children.
    """
    first = importlib.import_module("timm.layers").LayerNorm2d
    if isinstance(module, nn.LayerNorm):
        axis = 1 if isinstance(module, first) else -1
        made = DyT(module.normalized_shape[-1], channel_dim=axis, alpha0=0.5)
        for name, child in module.named_children():
            made.add_module(name, child)
        return made
    for name, child in list(module.named_children()):
        module.add_module(name, convert_as_dyt(child))
    return module


@pytest.mark.parametrize("name", ["vit", "convnext"])
def test_dyts_own_conversion_agrees_where_norms_are_layernorms(name: str) -> None:
    given = HOSTS[name]
    given.build()
    theirs = convert_as_dyt(given.build())
    ours = given.build()
    swapped(ours, given.call, DyT, keep="nothing")
    with torch.no_grad():
        torch.testing.assert_close(logits(ours, given), logits(theirs, given))


def test_where_dyts_own_conversion_is_wrong() -> None:
    """RMSNorms stay, activations are lost, weights too, and torchvision's LayerNorm2d is taken for channels last."""
    given = HOSTS["llama"]
    kinds = {type(module).__name__ for module in convert_as_dyt(given.build()).modules()}
    assert "LlamaRMSNorm" in kinds and "DyT" not in kinds
    layers = pytest.importorskip("timm.layers")
    x = torch.randn(2, 3, 8)
    theirs = convert_as_dyt(nn.Sequential(layers.LayerNormAct(8, act_layer=nn.ReLU)))
    assert theirs(x).min() < 0
    ours = nn.Sequential(nn.Identity(), layers.LayerNormAct(8, act_layer=nn.ReLU))
    swapped(ours, lambda model: model(x), DyT)
    assert ours(x).min() >= 0
    convnext = importlib.import_module("torchvision.models.convnext")
    x = torch.randn(2, 8, 5, 8)  # as wide as there are channels, so that the mistake goes unseen
    norm = convnext.LayerNorm2d(8)
    norm.weight.data.copy_(torch.arange(8.0))
    ours = nn.Sequential(nn.Identity(), copy.deepcopy(norm))
    _, (new,) = (found := swapped(ours, lambda model: model(x), DyT))[0], list(found[1].values())
    assert torch.equal(new.weight, norm.weight) and new.channel_dim == 1
    theirs = convert_as_dyt(nn.Sequential(norm))
    assert theirs[0].channel_dim == -1 and torch.equal(theirs[0].weight, torch.ones(8))


def fix_as_opacus(module: nn.Module) -> nn.Module:
    """What `ModuleValidator.fix` of opacus does to BatchNorm, told from its source (pytorch/opacus, validators).

    In a copy, each module whose class is exactly torch's, and that has a parameter with a gradient, becomes a GroupNorm
    of gcd(32, C) groups, with new parameters and torch's ε.
    """
    module = copy.deepcopy(module)
    for path, each in list(module.named_modules()):
        exact = type(each) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
        if exact and any(parameter.requires_grad for parameter in each.parameters(recurse=False)):
            features = each.num_features
            new = nn.GroupNorm(math.gcd(32, features), features, affine=each.affine)
            module.set_submodule(path, new)
    return module.eval()


def group_as_opacus(num_features: int, **place: Any) -> nn.Module:
    return GroupNorm(num_features, groups=math.gcd(32, num_features), **place)


def test_opacus_own_conversion_agrees_where_norms_are_torchs_batchnorm() -> None:
    given = replace(HOSTS["resnet"], example=images(64))  # so that no group has a single value
    theirs = fix_as_opacus(given.build())
    ours = given.build()
    swapped(ours, given.call, group_as_opacus, keep="nothing", given=("eps", "groups"))
    with torch.no_grad():
        torch.testing.assert_close(logits(ours, given), logits(theirs, given))


def test_where_opacus_own_conversion_is_wrong() -> None:
    """Norms with an activation stay BatchNorm, and frozen ones and those without parameters; ε and weights are lost."""
    given = HOSTS["mobilenet"]
    assert not [each for each in fix_as_opacus(given.build()).modules() if isinstance(each, nn.GroupNorm)]
    _, made = swapped(given.build(), given.call, GroupNorm)
    assert len(made) == 34
    bare = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8, affine=False, eps=1e-3))
    assert isinstance(fix_as_opacus(bare)[1], nn.BatchNorm2d)
    _, (new,) = (found := swapped(bare, call_on(2, 3, 4, 4), GroupNorm))[0], list(found[1].values())
    assert new.eps == 1e-3


# ---- libraries


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            ModuleNotFoundError("No module named 'timm'", name="timm"),
            r"timm is not installed: pip install 'normbench\[timm",
        ),
        (
            RuntimeError("operator torchvision::nms does not exist"),
            "torchvision, which timm imports, does not fit torch .*: install both at once from the index",
        ),
        (ImportError("cannot import name 'x' from 'y'"), "timm cannot be imported .*: install a version that fits"),
    ],
    ids=["not installed", "torchvision", "another version"],
)
def test_a_library_that_cannot_be_imported_is_a_sentence_with_the_cure(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise error

    monkeypatch.setattr("normbench.hosts.importing.import_module_beside", refuse)
    with pytest.raises(UsageError, match=sentence):
        hosts.import_library("timm")


def test_a_model_that_cannot_be_imported_for_its_torchvision_is_the_same_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """transformers hides the reason behind an error of its own."""

    def refuse(*given: Any, **more: Any) -> None:
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module 'LlamaForCausalLM'.") from error

    library = LIBRARIES["hf"]
    monkeypatch.setattr(library, "make", refuse)
    with pytest.raises(UsageError, match=r"^torchvision, which transformers imports, does not fit torch"):
        library.build("llama", {}, LanguageModeling(vocabulary_size=17, context=16))


@pytest.mark.parametrize(
    ("name", "options", "side", "said"),
    [
        ("resnet18", {"oddly": 1}, 8, r"cannot be built \(TypeError: .*'oddly'.*model.kwargs"),
        ("vit_b_16", {}, 30, r"cannot be built \(AssertionError: Input shape"),
    ],
)
def test_what_torchvision_does_not_take_is_not_blamed_on_its_version(
    name: str, options: dict[str, Any], side: int, said: str
) -> None:
    pytest.importorskip("torchvision")
    images = ImageClassification(num_classes=3, image_shape=(3, 8, 8))
    with pytest.raises(UsageError, match=said):
        LIBRARIES["torchvision"].build(name, options, images, side)


def test_a_norm_whose_library_cannot_be_imported_is_a_sentence_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unfit.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UsageError, match=r"^norm=unfit.Norm cannot be imported: torchvision, which unfit imports, does"
    ):
        import_target("unfit.Norm", "norm=unfit.Norm")


BESIDE_BROKEN = """
from normbench.cli import main
small = ["trainer.steps=1", "trainer.eval_batches=1", "device=cpu", "quiet=true"]
texts = ["model=hf", "model.config.num_hidden_layers=1", "model.config.hidden_size=32", "data.batch_size=2"]
images = ["model=timm", "model.name=test_resnet", "data=digits"]
norm = ["norm._target_=transformers.models.llama.modeling_llama.LlamaRMSNorm", "model.depth=1", "model.width=8"]
print([main(["train", *words, *small]) for words in (texts, norm, images)])
"""


@pytest.mark.slow
def test_models_of_texts_need_no_torchvision_that_loads(tmp_path: Path) -> None:
    """A fake one stands for a build for another torch; transformers is imported for a model and for a norm."""
    fake = tmp_path / "torchvision"
    fake.mkdir()
    (fake / "__init__.py").write_text("raise RuntimeError('built for another torch')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    line = [sys.executable, "-c", BESIDE_BROKEN]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[0, 0, 2]", done.stderr
    said = done.stderr.splitlines()[-1]
    assert re.search(r"torchvision, which timm imports, does not fit torch .*built for another torch.*: install", said)


def test_findings_are_plain_values() -> None:
    """So that others can choose among them and tell of them; where a factory leaves the old norm, it stays."""
    given = HOSTS["vit"]
    model = given.build()
    findings = hosts.find(model, given.call)
    assert isinstance(findings.found[0], Found)
    rows = hosts.tabulate(findings)
    assert [(row.path, row.norm, row.eps, row.becomes) for row in rows][-1] == ("norm", "LayerNorm", 1e-6, "")
    assert hosts.replace(model, findings, Own) == {} and model.get_submodule("norm") is findings.found[-1].module
