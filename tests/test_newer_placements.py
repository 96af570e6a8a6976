"""The placements with one stream that came after DeepNorm, each against its formula in float64, and how they start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import IMAGES, TEXT, TRANSLATIONS, build, random_batch, section
from torch import Tensor, nn

from normbench import build as builder
from normbench.config.recipe import resolve
from normbench.types import Branch, Placement, Site

WIDTH = 5
DEPTH = 3
NEWER = ("lns", "keel", "b2t", "gpas", "admin", "layerscale", "rezero", "skipinit", "ngpt", "nf", "fixup")
NEWER += ("orthogonal",)
TWO = 2 * DEPTH  # branches in a stack of blocks with two


class Function(Branch):
    """A branch that is a function, and sees the context."""

    in_features = out_features = WIDTH

    def __init__(self, function: Callable[[Tensor], Tensor], channel_dim: int = -1) -> None:
        super().__init__()
        self.function = function
        self.channel_dim = channel_dim

    def forward(self, x: Tensor, **context: object) -> Tensor:
        assert context == {"mark": 7}
        return self.function(x)


class Normed(nn.Module):
    """A norm with nothing learned."""

    def forward(self, x: Tensor) -> Tensor:
        return n(x)


def n(x: Tensor) -> Tensor:
    return (x - 0.3) / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()


def f(x: Tensor) -> Tensor:
    return torch.tanh(1.3 * x + 0.2)


def g(x: Tensor) -> Tensor:
    return x.flip(-1) * torch.sigmoid(x) - 0.4


def make(name: str, layer: int, *functions: Any, side: Any = "", channel_dim: int = -1, **settings: Any) -> Placement:
    roles = ("attention", "cross", "mlp") if len(functions) == 3 else ("attention", "mlp")
    branches = {role: Function(each, channel_dim) for role, each in zip(roles, functions, strict=False)}
    site = Site("block", layer, DEPTH, branches=DEPTH * len(functions), side=side, sides=(2, 4) if side else (0, 0))
    factory = builder.factory(resolve("placement", section("placement", name, **settings)))
    made: Placement = factory(branches, lambda *_, **__: Normed(), site)
    return made.double()


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


X = numbers(2, 3, WIDTH)


def moved(block: Placement) -> list[Tensor]:
    """Return what a placement has learned itself, after it has moved away from its start."""
    own = [parameter for name, parameter in block.named_parameters() if not name.startswith(("branches", "norms"))]
    with torch.no_grad():
        for number, parameter in enumerate(own):
            parameter.add_(0.1 + numbers(*parameter.shape) * 0.2 + number)
    return [parameter.detach() for parameter in own]


def lns(x: Tensor, layer: int, own: list[Tensor]) -> Tensor:
    root = math.sqrt(layer + 1)
    x = x + f(n(x) / root)
    return x + g(n(x) / root)


def keel(x: Tensor, layer: int, own: list[Tensor]) -> Tensor:
    if layer == 0:
        x = x + f(n(x))
        return n(x + g(n(x)))
    x = n(TWO * x + f(n(x)))
    return n(TWO * x + g(n(x)))


def b2t(x: Tensor, layer: int, own: list[Tensor]) -> Tensor:
    m = n(x + f(x))
    return n(x + m + g(m))


def gpas(x: Tensor, layer: int, own: list[Tensor]) -> Tensor:
    (gate,) = own
    kept = 1 - gate / (1 + torch.exp(-gate))
    x = kept * (x + f(n(x)))
    return kept * (x + g(n(x)))


def admin(x: Tensor, layer: int, own: list[Tensor]) -> Tensor:
    first, second = own
    x = n(first * x + f(x))
    return n(second * x + g(x))


def scaled(x: Tensor, layer: int, own: list[Tensor]) -> Tensor:
    first, second = own[0], own[-1]
    x = x + first * f(n(x))
    return x + second * g(n(x))


def ngpt(x: Tensor, layer: int, own: list[Tensor]) -> Tensor:
    for function, rate in zip((f, g), own, strict=True):
        alpha = (0.05 * math.sqrt(WIDTH) * rate).abs()
        x = n(x + alpha * (n(function(x)) - x))
    return x


def nf(x: Tensor, layer: int, own: list[Tensor]) -> Tensor:
    first, second = own
    x = x + 0.2 * first * f(n(x / math.sqrt(1 + 0.04 * 2 * layer)))
    return x + 0.2 * second * g(n(x / math.sqrt(1 + 0.04 * (2 * layer + 1))))


def fixup(x: Tensor, layer: int, own: list[Tensor]) -> Tensor:
    before_1, before_2, gain_1, gain_2, after_1, after_2 = own
    x = x + gain_1 * f(n(x + before_1)) + after_1
    return x + gain_2 * g(n(x + before_2)) + after_2


def orthogonal(x: Tensor, layer: int, own: list[Tensor]) -> Tensor:
    """Of what is along x the share ε / (‖x‖² + ε) stays."""
    for function in (f, g):
        y = function(n(x))
        across = at_right_angles(y, x)
        left = 1e-6 / (x.square().sum(-1, keepdim=True) + 1e-6)
        x = x + across + left * (y - across)
    return x


def at_right_angles(y: Tensor, x: Tensor) -> Tensor:
    """Return the part of y at right angles to x, row by row, from an orthogonal basis of both that begins with x."""
    rows = torch.stack((x, y), dim=-1).reshape(-1, x.shape[-1], 2)
    basis, triangle = torch.linalg.qr(rows)
    return (basis[..., 1] * triangle[..., 1, 1:]).view_as(y)


REFERENCES = {"nf": nf, "fixup": fixup, "lns": lns, "keel": keel, "b2t": b2t, "gpas": gpas, "admin": admin}
REFERENCES |= {"ngpt": ngpt, "orthogonal": orthogonal}
REFERENCES |= dict.fromkeys(("layerscale", "rezero", "skipinit"), scaled)


@pytest.mark.parametrize("layer", range(DEPTH))
@pytest.mark.parametrize("name", NEWER)
def test_formula(name: str, layer: int) -> None:
    block = make(name, layer, f, g)
    expected = REFERENCES[name](X, layer, moved(block))
    assert (block(X, mark=7) - expected).abs().max() < 1e-12


def test_features_of_images_come_first() -> None:
    """What is learned for each feature is along the channels; the norm of this test is along the last axis here too."""
    x = numbers(2, WIDTH, 3, 4)
    block = make("admin", 1, f, channel_dim=1)
    (gain,) = moved(block)
    assert (block(x, mark=7) - n(gain.view(-1, 1, 1) * x + f(x))).abs().max() < 1e-12
    for name in ("layerscale", "rezero", "skipinit"):
        block = make(name, 1, f, channel_dim=1)
        (scale,) = moved(block)
        assert (block(x, mark=7) - (x + scale.view(-1, 1, 1) * f(n(x)))).abs().max() < 1e-12


def test_keel_in_a_stack_of_blocks_with_one_branch() -> None:
    first, second = make("keel", 0, f), make("keel", 1, f)
    assert (first(X, mark=7) - (X + f(n(X)))).abs().max() < 1e-12
    assert (second(X, mark=7) - n(DEPTH * X + f(n(X)))).abs().max() < 1e-12


def test_bottom_to_top_passes_the_attention_to_the_encoder() -> None:
    """In the authors' decoder layer x joins before the last norm alone."""
    block = make("b2t", 3, f, torch.cos, g, side="decoder")
    m = n(X + f(X))
    m = n(m + torch.cos(m))
    assert (block(X, mark=7) - n(X + m + g(m))).abs().max() < 1e-12


@pytest.mark.parametrize(("side", "layer", "place"), [("encoder", 1, 2), ("decoder", 2, 1), ("decoder", 5, 4)])
def test_each_side_of_a_translator_is_a_stack(side: str, layer: int, place: int) -> None:
    """Two blocks of the encoder and four of the decoder, whose first is the model's third."""
    functions = (f, g) if side == "encoder" else (f, torch.cos, g)
    made: Any = make("lns", layer, *functions, side=side)
    assert made.scale == place**-0.5
    first, _, *_ = make("keel", layer, *functions, side=side).norms.values()
    assert ("out" in first) == (place > 1)
    branches = 4 if side == "encoder" else 12
    assert make("keel", layer, *functions, side=side).residual_gain == (branches if place > 1 else 1)
    assert make("admin", layer, *functions, side=side, gain="linear").residual_gain == math.sqrt(branches)


def test_nf_expects_the_deviation_anew_where_the_shape_has_changed() -> None:
    """DeepMind's loop over the blocks of stages, the last three of which change the shape."""
    model, _ = build("none", "nf", "resnet18", IMAGES, blocks=[2, 3, 1, 1])
    blocks: Any = model.blocks
    expected = 1.0
    for layer, block in enumerate(blocks):
        assert block.betas["conv"] == pytest.approx(1 / expected, rel=1e-12)
        expected = math.sqrt((1.0 if layer in (2, 5, 6) else expected**2) + 0.04)
    block = blocks[2].double()
    (gain,) = moved(block)
    branch = block.branches["conv"]
    x = numbers(2, branch.in_features, 6, 6)
    read = torch.relu(x / math.sqrt(1.08))
    y = branch.conv2(torch.relu(branch.conv1(read)))
    skip = branch.projection(read[:, :, ::2, ::2])
    assert (block(x) - (skip + 0.2 * gain * y)).abs().max() < 1e-12


@pytest.mark.parametrize("projection", ["feature", "global"])
def test_what_is_orthogonal_in_an_image(projection: str) -> None:
    """Each pixel, or the image as one vector; in a text each token all the same, so that none depends on later ones."""
    block = make("orthogonal", 1, f, channel_dim=1, projection=projection, eps=0.0)
    x = numbers(2, WIDTH, 3, 4)
    added = block(x, mark=7) - x
    axes = (1,) if projection == "feature" else (1, 2, 3)
    assert (added * x).sum(axes).abs().max() < 1e-12
    assert (added * x).sum(1).abs().max() > 0.1 or projection == "feature"
    text = make("orthogonal", 1, f, g, projection=projection)
    assert (text(X, mark=7) - orthogonal(X, 1, [])).abs().max() < 1e-12


def test_what_is_orthogonal_where_a_block_changes_the_shape() -> None:
    """What is added is at right angles to what the shortcut gives, as in the authors' ResNets."""
    block: Any = make("orthogonal", 1, lambda x: x[..., ::2, ::2] + 0.3, channel_dim=1)
    block.branches["attention"].shortcut = lambda x: 5 * x[..., ::2, ::2].cos()
    x = numbers(2, WIDTH, 4, 4)
    skip = 5 * x[..., ::2, ::2].cos()
    added = block(x, mark=7) - skip
    assert added.abs().max() > 0.1 and (added * skip).sum(1).abs().max() < 1e-5


def test_orthogonal_divides_by_no_zero() -> None:
    """A stream of zeros has no direction, and takes all of what a branch gives."""
    x = torch.zeros(2, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    y = make("orthogonal", 1, f)(x, mark=7)
    y.sum().backward()
    assert torch.equal(y, f(n(x))) and x.grad is not None and x.grad.isfinite().all()


# ---- how they start


@pytest.mark.parametrize("name", ["rezero", "skipinit", "nf"])
def test_a_factor_of_0_is_the_identity(name: str) -> None:
    block = make(name, 1, f, g)
    assert torch.equal(block(X, mark=7), X)
    assert len(list(block.parameters())) == (1 if name == "rezero" else 2)


def test_gpas_starts_as_pre_norm_and_scales_no_gradient() -> None:
    assert torch.equal(make("gpas", 1, f, g)(X, mark=7), make("pre", 1, f, g)(X, mark=7))
    block = make("gpas", 1, torch.zeros_like, torch.zeros_like)
    (gate,) = moved(block)
    x, weight = X.clone().requires_grad_(), numbers(*X.shape)
    y = block(x, mark=7)
    (y * weight).sum().backward()
    kept = 1 - torch.nn.functional.silu(gate)
    assert torch.allclose(y, kept * kept * X, rtol=0, atol=1e-12)
    assert torch.equal(x.grad, weight)  # type: ignore[arg-type]  # it has one by now
    sigmoid = torch.sigmoid(gate)
    slope = sigmoid * (1 + gate * (1 - sigmoid))
    (found,) = [parameter.grad for parameter in block.parameters()]
    assert torch.allclose(found, -slope * ((X + kept * X) * weight).sum(), rtol=0, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize(("gain", "start"), [("log", math.sqrt(7 / math.log(7) - 1)), ("linear", math.sqrt(6))])
def test_admin_starts_at_the_published_gain(gain: str, start: float) -> None:
    block = make("admin", 1, f, g, gain=gain)
    assert block.residual_gain == pytest.approx(start)
    for parameter in block.parameters():
        assert parameter.shape == (WIDTH,)
        assert torch.allclose(parameter, torch.tensor(start, dtype=torch.float64))


def test_ngpt_starts_with_small_steps_and_takes_them_forwards() -> None:
    block = make("ngpt", 1, f, g, start=0.2)
    rates = list(block.parameters())
    assert [rate.tolist() for rate in rates] == [pytest.approx([WIDTH**-0.5] * WIDTH)] * 2
    first = n(0.8 * X + 0.2 * n(f(X)))
    expected = n(0.8 * first + 0.2 * n(g(first)))
    assert (block(X, mark=7) - expected).abs().max() < 1e-6
    for rate in rates:
        rate.data.neg_()
    assert (block(X, mark=7) - expected).abs().max() < 1e-6


@pytest.mark.parametrize(("depth", "start"), [(1, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6), (48, 1e-6)])
def test_layerscale_starts_by_depth(depth: int, start: float) -> None:
    factory = builder.factory(resolve("placement", section("placement", "layerscale")))
    block = factory({"mlp": Function(f)}, lambda *_, **__: Normed(), Site("block", 0, depth, branches=depth))
    (scale,) = block.parameters()
    assert scale.shape == (WIDTH,) and scale.unique().tolist() == pytest.approx([start])


@pytest.mark.parametrize("name", [*NEWER, "resi_dual", "siamese", "x0", "hyper_connections", "mhc", "attnres"])
@pytest.mark.parametrize("model", ["nano", "seq2seq"])
def test_other_weights_start_as_with_any_placement(name: str, model: str) -> None:
    """And each parameter has a gradient."""
    task = TRANSLATIONS if model == "seq2seq" else TEXT
    made, norms = build("layernorm", name, model, task)
    usual, _ = build("layernorm", "pre", model, task)
    in_norms = {id(parameter) for norm in norms.values() for parameter in norm.parameters()}
    expected = dict(usual.named_parameters())
    for path, parameter in made.named_parameters():
        if id(parameter) not in in_norms and path in expected:
            assert torch.equal(parameter, expected.pop(path)), path
    assert all("norm" in path for path in expected)
    batch = random_batch(task)
    task.loss(made(*batch.arguments), batch.targets).backward()
    assert all(parameter.grad is not None for parameter in made.parameters())
