"""Models: the whole matrix, fair pairs, initialisation, and each branch against a reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import IMAGES, MATRIX, NORMS, OVER_POSITIONS, PLACEMENTS, TEXT, WHOLE, build, random_batch, section
from torch import nn
from torch.nn import functional as F

from normbench import build as builder
from normbench.config.recipe import Recipe
from normbench.config.refusals import refusal
from normbench.models import Kaiming, Normal
from normbench.models.cnn import ConvBranch
from normbench.models.stacks import NormActivation
from normbench.models.transformer import MLP, Attention, feed_forward, rotary, rotate
from normbench.norms import NoNorm
from normbench.placements import Deep
from normbench.types import Site


def is_refused(norm: str, placement: str, kind: str) -> bool:
    model, task = MATRIX[kind]
    chosen = {"norm": norm, "placement": placement, "model": model}
    tree = {group: section(group, option) for group, option in chosen.items()}
    recipe = Recipe(tree)
    data: Any = SimpleNamespace(kind=task.kind)
    return refusal(builder.norm_facts(recipe), recipe["placement"].made, recipe["model"].made, data) is not None


PLACE: Any = {"norm": NoNorm, "site": Site("block")}  # where a branch stands that has no norm inside
ONE_BRANCH = ["cnn", "resnet20", "resnet18", "resnet50", "mlp"]
RESIDUAL = [*ONE_BRANCH, "transformer LM", "transformer image", "seq2seq"]
PLAIN = ["cnn_plain", "vgg", "mlp_plain", "rnnsearch", "rnn_lm"]

# Models whose norms see neither time nor space, or may not.
WITHOUT_POSITIONS = ["transformer LM", "seq2seq", "rnnsearch", "rnn_lm", "mlp", "mlp_plain"]

# Norms with a state that moves once a batch, and models that call a norm at each time step.
ONCE_A_PASS = ["powernorm", "tapernorm"]
RECURRENT = ["rnnsearch", "rnn_lm"]

# The complete list of what is refused: any other refusal is a bug.
REFUSED = {
    *itertools.product(OVER_POSITIONS, PLACEMENTS, WITHOUT_POSITIONS),
    *itertools.product(NORMS, ["b2t", "parallel"], ONE_BRANCH),
    *itertools.product(NORMS, ["plain"], RESIDUAL),
    *itertools.product(ONCE_A_PASS, PLACEMENTS, RECURRENT),
    *itertools.product(NORMS, [p for p in PLACEMENTS if p != "plain"], PLAIN),
}


ALLOWED = [case for case in itertools.product(NORMS, PLACEMENTS, MATRIX) if case not in REFUSED]


def sample(kind: str) -> list[tuple[str, str]]:
    """Return pairs of norm and placement for a model: every third norm and each placement once at least, or all pairs.

    Which norms these are, and with which placements, differs from model to model, so that each norm is tried in several
    of them with several placements.
    """
    allowed = [(norm, placement) for norm, placement, own_kind in ALLOWED if own_kind == kind]
    if WHOLE:
        return allowed
    shift = list(MATRIX).index(kind)
    found = []
    for number, norm in enumerate(NORMS):
        if (number + shift) % 3:
            continue
        own = [pair for pair in allowed if pair[0] == norm]
        found += own[(number + shift) % len(own) :][:1] if own else []
    for placement in PLACEMENTS:
        others = [pair for pair in allowed if pair[1] == placement]
        if others and not any(pair in found for pair in others):
            found.append(others[shift % len(others)])
    return found


def test_the_refusals_are_exactly_these() -> None:
    assert {case for case in itertools.product(NORMS, PLACEMENTS, MATRIX) if is_refused(*case)} == REFUSED


STEPS = 10 if WHOLE else 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", MATRIX)
def test_matrix_trains(kind: str) -> None:
    """Norms and placements take some steps on one batch, learn from it, and have a gradient in every parameter."""
    model_name, task = MATRIX[kind]
    batch = random_batch(task)
    exact = {"dropout": 0.0} if "dropout" in section("model", model_name) else {}  # a mask hides what few steps learn
    for norm, placement in sample(kind):
        model, _ = build(norm, placement, model_name, task, **exact)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for step in range(STEPS):
            loss = task.loss(model(*batch.arguments), batch.targets)
            loss.backward()
            if step == 1:  # at the first step, what reads a zero cannot learn yet
                for name, parameter in model.named_parameters():
                    assert parameter.grad is not None and parameter.grad.isfinite().all(), (norm, placement, name)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < losses[0], (norm, placement, losses)


STARTING_ALIKE = ["transformer LM", "transformer image", "seq2seq", "resnet20", "resnet50", "mlp"]


def half_of(pairs: Sequence[tuple[str, str]], number: int) -> list[tuple[str, str]]:
    """Return the pairs of norm and placement of which a model tries one half, and the next model the other."""
    return [
        (norm, placement)
        for norm, placement in pairs
        if (NORMS.index(norm) + PLACEMENTS.index(placement) + number) % 2 == 0
    ]


@pytest.mark.parametrize("kind", STARTING_ALIKE)
def test_pairs_start_alike(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same seed, any two norms or placements: every weight outside the norms starts alike, before the gains."""
    gain = property(lambda self: 1.0, lambda self, value: None)  # test_deepnorm_scales_the_paper_s_weights checks it
    monkeypatch.setattr(Deep, "branch_gain", gain, raising=False)
    reference = weights("layernorm", "pre", kind)
    pairs = [c[:2] for c in ALLOWED if c[2] == kind and (c[0] == "layernorm" or c[1] == "pre")]
    for norm, placement in pairs if WHOLE else half_of(pairs, STARTING_ALIKE.index(kind)):
        other = weights(norm, placement, kind)
        assert other.keys() >= reference.keys()  # a placement may have parameters of its own
        for name in reference:
            assert torch.equal(other[name], reference[name]), (norm, placement, name)
    matrices = [name for name in reference if reference[name].ndim > 1]
    assert len(matrices) > 4
    different = weights("layernorm", "pre", kind, seed=1)
    assert not any(torch.equal(different[name], reference[name]) for name in matrices)


def weights(norm: str, placement: str, kind: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Parameters outside the norms, as they start."""
    model_name, task = MATRIX[kind]
    model, norms = build(norm, placement, model_name, task, seed=seed)
    inside = {id(parameter) for made in norms.values() for parameter in made.parameters()}
    return {name: p.detach() for name, p in model.named_parameters() if id(p) not in inside}


def test_dropout_masks_are_paired() -> None:
    """The same step drops the same units whatever the norm or placement, also in parallel."""
    patterns = []
    for norm, placement in [("layernorm", "pre"), ("rmsnorm", "post"), ("batchnorm", "sandwich"), ("none", "parallel")]:
        model, _ = build(norm, placement, dropout=0.3)
        masks: list[torch.Tensor] = []
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.register_forward_hook(lambda m, i, o, masks=masks: masks.append((o == 0) & (i[0] != 0)))
        torch.manual_seed(5)
        model(random_batch(TEXT).inputs)
        patterns.append(masks)
    assert all(mask.float().mean() > 0.1 for mask in patterns[0])
    for other in patterns[1:]:
        assert all(torch.equal(a, b) for a, b in zip(patterns[0], other, strict=True))


def test_initial_standard_deviations() -> None:
    """Xavier, Kaiming, normal: the std of each weight is the formula's; GPT-2's gain comes on top."""
    settings = {"width": 64, "heads": 2, "depth": 3}
    plain = build(**settings)[0]
    gpt2 = build(init=Normal(embedding_std=0.02, residual_scale=True, weight_std=0.02), **settings)[0]
    conv = build(model="resnet20", task=IMAGES, init=Kaiming(0.02, False), width=32)[0]
    expected = [
        (plain, "blocks.0.branches.attention.qkv", math.sqrt(2 / (64 + 64))),
        (plain, "blocks.0.branches.mlp.fc1", math.sqrt(2 / (64 + 256))),
        (gpt2, "blocks.1.branches.mlp.fc1", 0.02),
        (gpt2, "blocks.1.branches.mlp.fc2", 0.02 / math.sqrt(6)),
        (conv, "blocks.4.branches.conv.conv2", math.sqrt(2 / (64 * 9))),
    ]
    assert plain.get_parameter("stem.embedding.weight").std().item() == pytest.approx(0.02, rel=0.1)
    for model, name, std in expected:
        assert model.get_parameter(f"{name}.weight").std().item() == pytest.approx(std, rel=0.05), name


def test_deepnorm_scales_the_paper_s_weights() -> None:
    """β on fc1, fc2, out_proj and v_proj; gain 1 on q and k (Wang et al. 2022, figure 2)."""
    deep, pre = (dict(build("layernorm", p, depth=3)[0].named_parameters()) for p in ("deep", "pre"))
    beta = (8 * 3) ** -0.25
    for name in ("mlp.fc1", "mlp.fc2", "attention.out"):
        assert torch.equal(deep[f"blocks.0.branches.{name}.weight"], pre[f"blocks.0.branches.{name}.weight"] * beta)
    q, k, v = pre["blocks.0.branches.attention.qkv.weight"].chunk(3)
    assert torch.equal(deep["blocks.0.branches.attention.qkv.weight"], torch.cat((q, k, v * beta)))


@pytest.mark.parametrize("causal", [True, False])
def test_attention_against_torch(causal: bool) -> None:
    """The same weights in torch's MultiheadAttention give the same output."""
    torch.manual_seed(0)
    ours = Attention(16, 4, causal=causal, bias=True, dropout=0.0, **PLACE).double()
    theirs = nn.MultiheadAttention(16, 4, batch_first=True).double()
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = ours.qkv.weight.data, ours.qkv.bias.data
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = ours.out.weight.data, ours.out.bias.data
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    mask = torch.triu(torch.ones(7, 7, dtype=torch.bool), 1) if causal else None
    assert torch.allclose(ours(x), theirs(x, x, x, attn_mask=mask, need_weights=False)[0], atol=1e-12)


def test_mlps_against_formulas() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 12)
    mlp = MLP(12, "gelu", bias=True, dropout=0.0, **PLACE)
    expected = F.gelu(x @ mlp.fc1.weight.T + mlp.fc1.bias) @ mlp.fc2.weight.T + mlp.fc2.bias
    assert torch.allclose(mlp(x), expected, atol=1e-6)
    for name, activation in {"swiglu": F.silu, "geglu": F.gelu}.items():
        gated = feed_forward(12, name, bias=False, dropout=0.0, **PLACE)
        assert gated.fc2.in_features == 32  # 8/3 × 12
        gate, up = gated.fc1.weight.chunk(2)
        assert torch.allclose(gated(x), (activation(x @ gate.T) * (x @ up.T)) @ gated.fc2.weight.T, atol=1e-6)


def test_rotary_products_depend_on_distance_alone() -> None:
    """⟨R(m)q, R(n)k⟩ is a function of n − m (Su et al. 2021, equation 11), and rotation keeps lengths."""
    rotation = rotary(32, 8)
    q, k = torch.randn(8), torch.randn(8)
    rotated_q, rotated_k = (rotate(x.expand(1, 1, 32, 8), rotation)[0, 0] for x in (q, k))
    products = rotated_q @ rotated_k.T
    for distance in (0, 3, 10):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4)
    assert torch.allclose(rotated_q.norm(dim=-1), q.norm().expand(32), atol=1e-5)


def test_embeddings() -> None:
    """The learned scale starts at √width; tied embeddings are one parameter."""
    scale = build(embedding_scale="learned")[0].scale
    assert isinstance(scale, nn.Parameter) and scale.item() == pytest.approx(4.0)
    as_it_is, images = build(embedding_scale=1.0)[0].scale, build(task=IMAGES)[0].scale
    assert as_it_is.item() == images.item() == 1 and not isinstance(as_it_is, nn.Parameter)
    tied, untied = (sum(p.numel() for p in build(tied=tied)[0].parameters()) for tied in (True, False))
    assert untied - tied == 17 * 16


def test_resnet_shortcut_is_he_s_option_a() -> None:
    """Every second pixel, and zeros for the new channels; no parameters."""
    branch = ConvBranch((4, 8), 2, NormActivation(NoNorm, 1, Site("conv", 0), nn.ReLU, "before"))
    x = torch.randn(2, 4, 6, 6)
    y = branch.shortcut(x)
    assert y.shape == (2, 8, 3, 3)
    assert torch.equal(y[:, :4], x[:, :, ::2, ::2])
    assert not y[:, 4:].any()
