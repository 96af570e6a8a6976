"""How weights start: orthogonal, scaled by depth, times a factor, and all of it paired."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from support import IMAGES, TEXT, TRANSLATIONS, build, section

from normbench.models import Fixup, Kaiming, Magneto, MaximalUpdate, Normal, Orthogonal, Scaled, TFixup, Xavier

WORDS: dict[str, Any] = {"embedding_std": 0.02, "residual_scale": False}
INITS: dict[str, Any] = {
    "normal": Normal(**WORDS, weight_std=0.02),
    "xavier": Xavier(**WORDS),
    "kaiming": Kaiming(**WORDS),
    "scaled": Scaled(**WORDS),
    "orthogonal": Orthogonal(**WORDS),
    "fixup": Fixup(**WORDS),
    "tfixup": TFixup(**{**WORDS, "embedding_std": "auto"}),
    "magneto": Magneto(**WORDS),
}

LATER = tuple(f"blocks.{layer}." for layer in (2, 3, 4))  # those of the decoder after two of the encoder


def own_weights(init: Any, **how: Any) -> dict[str, torch.Tensor]:
    """Those of a model in its own depth and width."""
    model, _ = build(init=init, **how)
    return {name: value.detach() for name, value in model.named_parameters()}


def weights(init: Any, **how: Any) -> dict[str, torch.Tensor]:
    model, _ = build(**{"init": init, "width": 64, "depth": 4, **how})
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("name", INITS)
def test_the_factor_multiplies_all_weights_but_embeddings(name: str) -> None:
    """A power of two leaves the bits; the norms and what the text's stream starts at stay."""
    assert section("init", name)["factor"] == 1.0
    one = weights(INITS[name])
    four = weights(dataclasses.replace(INITS[name], factor=4.0))
    for key, weight in one.items():
        linear = weight.ndim == 2 and "embedding" not in key and "positions" not in key
        assert torch.equal(four[key], 4 * weight if linear else weight), key


def test_orthogonal_weights_are_what_qr_makes_of_the_draw() -> None:
    """Against torch's own, with the same draw; the parts of a fused map are orthogonal each by itself."""
    found = weights(INITS["orthogonal"])
    drawn = weights(Normal(**WORDS, weight_std=1.0))
    eye = torch.eye(64)
    qkv = found["blocks.0.branches.attention.qkv.weight"]
    for part in qkv.chunk(3):
        assert torch.allclose(part @ part.T, eye, atol=1e-5)
    wide, tall = found["blocks.0.branches.mlp.fc2.weight"], found["blocks.0.branches.mlp.fc1.weight"]
    assert torch.allclose(wide @ wide.T, eye, atol=1e-5)
    assert torch.allclose(tall.T @ tall, eye, atol=1e-5)
    assert tall.std().item() == pytest.approx(Orthogonal(**WORDS).std(64, 256), rel=0.01)
    # Q·R of the draw with a positive diagonal: Qᵀ·draw is upper triangular
    r = tall.T @ drawn["blocks.0.branches.mlp.fc1.weight"]
    assert torch.allclose(r.tril(-1), torch.zeros(64, 64), atol=1e-4)
    assert r.diagonal().min() > 0


def test_kernels_of_convolutions_are_rows() -> None:
    found = weights(INITS["orthogonal"], model="cnn", task=IMAGES, width=8, depth=3)
    kernel = found["blocks.0.branches.conv.conv2.weight"]
    rows = kernel.flatten(1)
    assert kernel.shape == (8, 8, 3, 3)
    assert torch.allclose(rows @ rows.T, torch.eye(8), atol=1e-5)


def test_an_orthogonal_linear_stack_keeps_the_length_of_what_it_is_given() -> None:
    """Saxe et al. 2014: the gain through depth is 1, which that of independent draws is not."""
    x, lengths = torch.randn(8, 64), {}
    for name in ("orthogonal", "kaiming"):
        found = weights(INITS[name], norm="none", model="mlp", task=IMAGES, depth=30)
        y = x
        for layer in range(30):
            y = y @ found[f"blocks.{layer}.branches.linear.fc1.weight"].T
        lengths[name] = (y.norm() / x.norm()).item()
    assert lengths["orthogonal"] == pytest.approx(1, rel=1e-4)
    assert not 0.1 < lengths["kaiming"] < 10


def test_scaled_is_xavier_over_the_root_of_the_place() -> None:
    xavier, scaled = weights(INITS["xavier"]), weights(INITS["scaled"])
    for key, weight in xavier.items():
        place = 1 + int(key.split(".")[1]) if ".branches." in key else 1
        assert torch.allclose(scaled[key], weight / math.sqrt(place), rtol=1e-6), key


def test_the_decoder_s_blocks_are_counted_anew() -> None:
    how = {"model": "seq2seq", "task": TRANSLATIONS, "depth": 2, "decoder_depth": 2}
    xavier, scaled = weights(INITS["xavier"], **how), weights(INITS["scaled"], **how)
    keys = [key for key in xavier if key.endswith("fc1.weight")]
    ratios = {int(key.split(".")[1]): (scaled[key] / xavier[key]).mean().item() for key in keys}
    assert ratios == pytest.approx({0: 1, 1: 0.5**0.5, 2: 1, 3: 0.5**0.5})


@pytest.mark.parametrize(
    ("name", "of_one_stack", "of_encoder", "of_decoder", "of_cross"),
    [
        ("tfixup", 0.67 * 4**-0.25, 0.67 * 2**-0.25, 27**-0.25, 27**-0.25),
        ("magneto", math.log(8) ** 0.5, (math.log(9) * math.log(4) / 3) ** 0.5, math.log(9) ** 0.5, 1),
    ],
)
def test_values_output_maps_and_mlps_of_each_stack_have_their_gain(
    name: str, of_one_stack: float, of_encoder: float, of_decoder: float, of_cross: float
) -> None:
    """Against Xavier's start: of 4 blocks, and of 2 + 3 blocks with attention of the decoder to the encoder."""
    pair: dict[str, Any] = {"model": "seq2seq", "task": TRANSLATIONS, "depth": 2, "decoder_depth": 3}
    embedding = (9 * 4) ** -0.25 if name == "tfixup" else 0.02 * 8  # of 64 features
    for how, gains, scale in (
        ({}, {"": of_one_stack}, embedding),
        (pair, {"": of_encoder, "decoder": of_decoder, "cross": of_cross}, 18**-0.25 if name == "tfixup" else 0.16),
    ):
        xavier, found = weights(INITS["xavier"], **how), weights(INITS[name], **how)
        for key, weight in xavier.items():
            where = "cross" if ".cross." in key else "decoder" if how and key.startswith(LATER) else ""
            expected = weight.double()
            parts = list(expected.chunk(3 if "qkv" in key else 2 if ".kv." in key else 1))
            if ".branches." in key and ".q." not in key and weight.ndim > 1:
                parts[-1] *= gains[where]
            if key == "stem.embedding.weight":
                expected *= scale / 0.02 / 8
            elif key == "positions.weight" and name == "tfixup":
                expected /= 0.02 * 8
            torch.testing.assert_close(found[key].double(), expected, rtol=1e-6, atol=0)


def test_fixup_scales_all_maps_of_a_branch_but_the_last_which_is_0() -> None:
    """Two maps in a branch, and three: of B blocks × 1/√B, and × B^(−1/4); √(2 / fan_out) elsewhere."""
    for model, depth, last, power in (("cnn", {"depth": 6}, "conv2", -0.5), ("resnet50", {}, "conv3", -0.25)):
        how: dict[str, Any] = {"norm": "none", "model": model, "task": IMAGES, **depth}
        found = own_weights(INITS["fixup"], **how)
        drawn = own_weights(Normal(**WORDS, weight_std=1.0), **how)
        branches = len({key.split(".")[1] for key in found if key.startswith("blocks.")})
        for key, weight in found.items():
            if weight.ndim < 2:
                continue
            std = math.sqrt(2 / weight[:, 0].numel())
            if f".{last}." in key or key == "head.weight":
                std = 0.0
            elif ".branches." in key and "projection" not in key:
                std *= branches**power
            torch.testing.assert_close(weight, drawn[key] * std, rtol=1e-6, atol=0)


def test_mup_has_table_3_s_starts_and_rates() -> None:
    """At four times the base width: of Yang et al. 2022's table 3 what differs from `normal` at the base."""
    mup = MaximalUpdate(**WORDS, weight_std=0.02, base_width=16)
    normal = weights(Normal(**WORDS, weight_std=0.02), tied=False)
    model, _ = build(init=mup, width=64, depth=4, tied=False)
    factors = mup.lr_factors(model.anatomy())
    for key, weight in model.named_parameters():
        scale, rate = 1.0, 1.0
        if ".branches." in key and weight.ndim == 2:
            scale, rate = 0.5, 0.25
        elif key == "head.linear.weight":
            scale, rate = 0.25, 0.25
        assert torch.equal(weight, normal[key] * scale), key
        assert factors.get(weight, 1.0) == rate, key


def test_mup_s_output_layer_moves_as_that_of_its_authors_package() -> None:
    """There it starts as at the base and learns at the whole rate, and what it reads is divided by m.

    microsoft/mup `mup/layer.py:56`, `mup/optim.py:74`@1981497.
    """
    width, base, rate = 64, 16, 0.01
    mup = MaximalUpdate(**WORDS, weight_std=0.02, base_width=base)
    model, _ = build(init=mup, width=width, depth=4, tied=False)
    ours: Any = model.double().head.linear.weight
    at_base = weights(Normal(**WORDS, weight_std=0.02), tied=False)["head.linear.weight"]
    theirs = torch.nn.Parameter(at_base.double())
    factor = mup.lr_factors(model.anatomy())[ours]
    x = torch.randn(7, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    steps = [torch.optim.Adam([theirs], rate, eps=1e-30), torch.optim.Adam([ours], rate * factor, eps=1e-30)]
    for _ in range(3):
        outputs = (x * base / width) @ theirs.T, x @ ours.T
        torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-12)
        for output, step in zip(outputs, steps, strict=True):
            step.zero_grad()
            output.square().sum().backward()
            step.step()


def test_magneto_s_released_code_starts_as_documented() -> None:
    """Maps keep torch's own draw, times our gains (torchscale `component/multihead_attention.py:44`@4d1e0e8)."""
    torch.manual_seed(0)
    found = weights(Xavier(**WORDS))
    shares = []
    for name in ("attention.qkv", "attention.out", "mlp.fc1", "mlp.fc2"):
        weight = found[f"blocks.0.branches.{name}.weight"]
        rows, columns = weight.shape
        theirs = torch.nn.Linear(columns, rows).weight
        shares.append((theirs.std() / weight.std()).item())
    assert shares == pytest.approx([0.58, 0.58, 0.91, 0.46], abs=0.015)


@pytest.mark.parametrize("name", INITS)
def test_starts_are_paired_over_norms_and_placements(name: str) -> None:
    reference = weights(INITS[name])
    for norm, placement in (("rmsnorm", "post"), ("none", "parallel"), ("batchnorm", "sandwich")):
        found = weights(INITS[name], norm=norm, placement=placement, task=TEXT)
        shared = [key for key in reference if ".norms." not in key and "final" not in key]
        assert all(torch.equal(found[key], reference[key]) for key in shared)


# ---- factors that placements prescribe


def test_b2t_starts_all_weights_of_its_blocks_smaller_as_the_authors_do() -> None:
    """By 1/√layers, queries and keys too, and nothing else: Takase et al.'s code, with `placement.rescale`."""
    assert check_rescaled("nano", TEXT, {"depth": 4}, {"blocks.": 4}) == 4 * len(("qkv", "out", "fc1", "fc2"))


def test_b2t_counts_the_layers_of_each_side_of_a_translator() -> None:
    how = {"depth": 2, "decoder_depth": 3}
    layers = {"blocks.0.": 2, "blocks.1.": 2, **dict.fromkeys(LATER, 3)}
    cross = ("q", "kv", "out")
    assert check_rescaled("seq2seq", TRANSLATIONS, how, layers) == 5 * len(("qkv", "out", "fc1", "fc2")) + 3 * len(
        cross
    )


def check_rescaled(model: str, task: Any, how: dict[str, int], layers: dict[str, int]) -> int:
    """Hold the starting weights with rescaling against those without, and return how many are smaller.

    layers: of a stack, by a beginning of names.
    """
    init = Xavier(**WORDS)
    plain = own_weights(init, model=model, task=task, placement="b2t", **how)
    smaller = own_weights(init, model=model, task=task, placement="b2t", placement_settings={"rescale": True}, **how)
    seen = 0
    for name, weight in plain.items():
        factors = [count**-0.5 for beginning, count in layers.items() if name.startswith(beginning)]
        is_map = weight.ndim == 2 and ".branches." in name
        seen += is_map
        expected = weight * factors[0] if is_map else weight
        assert torch.equal(smaller[name], expected), name
    return seen
