"""What the norms decide from their options, what they refuse, and whether the facts they declare are true."""

from __future__ import annotations

import inspect
import math
import pkgutil
from typing import Any

import pytest
import torch
from support import TEXT, build, random_batch
from test_norms import EPS, FEATURES, NAMES, OPERATORS, implementations, make, options, random_input, random_norm
from torch import nn

from normbench.errors import UsageError
from normbench.norms import DyT, GroupNorm, PartialRMSNorm
from normbench.types import Norm, NormFacts, Site

AUTO = {"rmsnorm": "native", "gatedrmsnorm": "native", "dyt": "native"}  # on a CPU

# settings that came after most YAMLs, in which they would rename older runs
LATER = {"gain0", "gain0_by_depth", "offset", "detach", "noise"}

# what a norm has learned beside γ and β
OWN = {
    "dyt": ["alpha"],
    "derf": ["alpha", "shift"],
    "dyisru": ["alpha", "shift"],
    "unitnorm": ["k"],
    "bhyt": ["lam"],
    "seednorm": ["alpha", "beta"],
    "gatedrmsnorm": ["down", "up"],
    "switchable": ["mean_weight", "var_weight"],
    "frn": ["tau"],
    "evonorm_b0": ["v"],
    "evonorm_s0": ["v"],
}

# --- the YAML files are the registry


@pytest.mark.parametrize("name", NAMES)
def test_yaml_shows_every_option_with_its_default_and_auto_is_the_fastest_that_there_is(name: str) -> None:
    norm, settings = make(name, channel_dim=1, site=Site("mlp", 0)), options(name)
    assert isinstance(norm, Norm) and isinstance(norm.facts, NormFacts)
    assert (norm.channel_dim, norm.eps) == (1, settings.get("eps"))
    fixed = {"_target_": settings["_target_"], "_partial_": True, "impl": "auto"}
    assert pkgutil.resolve_name(settings["_target_"]) is type(norm)
    makers = [inspect.getfullargspec(kind.__init__) for kind in reversed(type(norm).__mro__)]
    own = {key: value for maker in makers for key, value in (maker.kwonlydefaults or {}).items()}
    later = LATER - settings.keys()
    assert settings == {key: own[key] for key in own.keys() - {"channel_dim", "site"} - later} | fixed
    assert make(name, impl="eager").implementation == "eager"
    assert make(name).implementation.startswith(
        AUTO.get(name, "torch.nn.functional." if name in OPERATORS else "eager")
    )


# --- affine


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_affine_and_bias(name: str) -> None:
    bias = {"bias": True} if "bias" in options(name) else {}
    x, plain, affine = random_input("sequence"), make(name, affine=False), make(name, affine=True, **bias)
    assert [key for key, _ in plain.named_parameters()] == OWN.get(name, [])
    torch.testing.assert_close(plain(x), affine(x))
    assert (plain.settings()["affine"], affine.settings()["affine"]) == (False, True)
    if "bias" in options(name):
        without = make(name, bias=False)
        assert (without.bias, without.settings()["bias"], affine.settings()["bias"]) == (None, False, True)
        nn.init.constant_(affine.bias, 0.5)
        torch.testing.assert_close(without(x) + 0.5, affine(x))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_a_gain_starts_where_it_is_told_and_stays_there_if_it_is_not_learned(name: str) -> None:
    x = random_input("sequence")
    usual, scaled = make(name, affine=True), make(name, affine=True, gain0=0.3)
    fixed = make(name, affine=False, gain0=0.3)
    assert scaled.settings()["gain0"] == 0.3
    assert torch.equal(scaled.weight, torch.full_like(usual.weight, 0.3))
    assert [key for key, _ in fixed.named_parameters()] == OWN.get(name, [])
    assert fixed.state_dict().keys() == make(name, affine=False).state_dict().keys()
    usual.weight.data.fill_(0.3)
    torch.testing.assert_close(scaled(x), usual(x), rtol=0, atol=0)
    torch.testing.assert_close(fixed(x), usual(x))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_a_gain_is_divided_by_the_root_of_the_depth_if_it_is_told_so(name: str) -> None:
    """Of nine blocks, or of the four of the decoder after five."""
    x = random_input("sequence")
    for site, root in ((Site("mlp", 0, depth=9), 3), (Site("mlp", 6, depth=9, side="decoder", sides=(5, 4)), 2)):
        for affine in (True, False):
            scaled = make(name, affine=affine, gain0=0.6, gain0_by_depth=True, site=site)
            usual = make(name, affine=affine, gain0=0.6 / root, site=site)
            assert scaled.settings() == usual.settings()
            torch.testing.assert_close(scaled(x), usual(x), rtol=0, atol=0)
            assert scaled.state_dict().keys() == usual.state_dict().keys()
    torch.testing.assert_close(make("scalenorm", gain0_by_depth=True, site=site).gain0, FEATURES**0.5 / 2)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_what_is_stored_of_a_gain_is_less_by_its_offset(name: str) -> None:
    x = random_input("sequence")
    usual, offset = make(name, affine=True, gain0=1.3), make(name, affine=True, gain0=1.3, offset=1.0)
    torch.testing.assert_close(offset.weight, usual.weight - 1)
    assert offset.settings()["offset"] == 1
    results = []
    for norm in (usual, offset):
        y = norm(x)
        y.pow(3).sum().backward()
        results.append((y, norm.weight.grad))
    torch.testing.assert_close(*results)
    fixed = make(name, affine=False, gain0=1.3, offset=1.0)
    torch.testing.assert_close(fixed(x), make(name, affine=False, gain0=1.3)(x), rtol=0, atol=0)


def test_a_gain_decays_to_its_offset() -> None:
    """Of a norm without a gradient, by SGD: γ − 1 goes from 2 to 2·0.95³, and without an offset γ from 3 to 3·0.95³."""
    for offset, expected in ((1.0, 1 + 2 * 0.95**3), (0.0, 3 * 0.95**3)):
        norm = make("rmsnorm", gain0=3.0, offset=offset)
        optimizer = torch.optim.SGD(norm.parameters(), lr=0.1, weight_decay=0.5)
        norm.weight.grad = torch.zeros(FEATURES)
        for _ in range(3):
            optimizer.step()
        torch.testing.assert_close(norm.gain, torch.full((FEATURES,), expected))


def test_an_offset_is_added_in_full_precision() -> None:
    """Where 16 bits hold γ − 1 finer than γ."""
    norm = make("rmsnorm", offset=1.0)
    norm.weight.data = torch.full((FEATURES,), 1e-3, dtype=torch.bfloat16)
    x = random_input("sequence")
    expected = (1 + norm.weight.float()) * make("rmsnorm", affine=False)(x)
    torch.testing.assert_close(norm(x), expected)
    assert norm.gain.unique().item() != 1


# --- decisions


@pytest.mark.parametrize(
    ("width", "groups"), [(4, 1), (6, 1), (8, 2), (64, 16), (124, 31), (128, 32), (384, 32), (18, 3), (144, 24)]
)
def test_auto_groups(width: int, groups: int) -> None:
    norm = GroupNorm(width)
    assert norm.groups == norm.settings()["groups"] == groups


LLAMA = [(64, 1.0, 1.0), (2047, 1.0, 1.0), (2048, 1.0, 0.5), (4096, 0.8, 0.2), (6000, 0.6, 0.15), (8192, 0.2, 0.05)]


@pytest.mark.parametrize(("width", "attention", "others"), LLAMA)
def test_published_alpha0(width: int, attention: float, others: float) -> None:
    norms = [DyT(width, bias=False, site=Site(role, 0, causal=True)) for role in ("attention", "mlp", "final")]
    assert [norm.settings()["alpha0"] for norm in norms] == [attention, others, others]
    torch.testing.assert_close([norm.alpha.item() for norm in norms], [attention, others, others])
    assert DyT(width).alpha0 == DyT(width, site=Site("attention", 0)).alpha0 == 0.5  # no language model
    assert DyT(width, alpha0=0.7, site=Site("attention", 0, causal=True)).alpha0 == 0.7


def test_saturation_counts_what_is_beyond_099() -> None:
    norm = DyT(4, alpha0=2.0)
    edge = math.atanh(0.99) / 2
    share = norm.saturation(torch.tensor([[0.0, edge * 1.001, -edge * 1.001, edge * 0.999]]))
    assert share.shape == () and share.item() == 0.5 and not share.requires_grad


PARTIAL = [(16, 0.0625, 8), (4, 0.0625, 4), (128, 0.0625, 8), (129, 0.0625, 9), (300, 0.07, 21), (10, 1.0, 10)]


@pytest.mark.parametrize(("width", "fraction", "k"), PARTIAL)
def test_partial_features_are_rounded_up(width: int, fraction: float, k: int) -> None:
    norm = PartialRMSNorm(width, fraction=fraction)
    assert norm.k == norm.settings()["k"] == k
    x = torch.randn(3, width)
    x[:, k:] *= 100  # what is not counted does not change the rest
    kept = nn.functional.rms_norm(x[:, :k], (k,), eps=norm.eps)
    torch.testing.assert_close(norm(x)[:, :k], kept)


# --- refusals

REFUSED: list[tuple[str, dict[str, Any], tuple[int, ...], str]] = [
    *((name, {"impl": "torch"}, (6, FEATURES), "auto or eager") for name in NAMES if name not in OPERATORS),
    ("batchnorm", {"eps": 0, "impl": "torch"}, (6, FEATURES), "auto or eager"),
    ("groupnorm", {"groups": 5}, (6, FEATURES), "choose a divisor"),
    ("groupnorm", {"groups": 12}, (6, FEATURES), "lower norm.groups"),
    # statistics of a single value
    ("batchnorm", {}, (1, FEATURES), "larger data.batch_size"),
    ("batchnorm", {"channel_dim": 1}, (1, FEATURES, 1, 1), "larger data.batch_size"),
    ("instancenorm", {}, (6, FEATURES), "another norm"),
    *((name, {}, (6, FEATURES), "another norm") for name in ("switchable", "frn", "evonorm_b0")),
    ("evonorm_b0", {}, (1, 1, FEATURES), "larger data.batch_size"),
    ("evonorm_s0", {"groups": 5}, (6, FEATURES), "choose a divisor"),
    ("evonorm_s0", {"groups": 12}, (6, FEATURES), "lower norm.groups"),
    ("groupnorm", {"channel_dim": 1, "groups": FEATURES}, (6, FEATURES, 1, 1), "lower norm.groups"),
    ("groupnorm", {"across_time": True, "groups": FEATURES}, (6, 1, FEATURES), "lower norm.groups"),
]


@pytest.mark.parametrize(("name", "changes", "shape", "words"), REFUSED)
def test_refused_options_and_inputs(name: str, changes: dict[str, Any], shape: tuple[int, ...], words: str) -> None:
    # a constructor called as a model does it, so that what is raised is not wrapped by Hydra
    settings = {key: value for key, value in options(name).items() if key[0] != "_"}
    for impl in implementations(name):
        with pytest.raises(UsageError, match=words):
            type(make(name))(FEATURES, **settings | {"impl": impl} | changes)(torch.randn(shape))


# --- statistics that are constants in the backward pass

HELD = [name for name in NAMES if make(name).facts.statistics_over != "none"]
KINDS = ("none", "mean", "variance", "both")


def gradient(name: str, detach: str, mask: torch.Tensor | None = None, **settings: Any) -> torch.Tensor:
    """The gradient of a weighted sum of the outputs in training."""
    norm = random_norm(name, "sequence", detach=detach, **settings).double()
    x = random_input("sequence", torch.float64).requires_grad_()
    weights = random_input("sequence", torch.float64, seed=1)
    (norm(x, mask=mask) * weights).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("name", HELD)
def test_detached_statistics_add_nothing_to_the_gradient(name: str) -> None:
    """What both statistics add is the sum of what each adds; without both, an output depends on its own input alone."""
    kinds = KINDS if make(name).facts.centers else ("none", "variance", "both")
    found = {kind: gradient(name, kind) for kind in kinds}
    if "mean" in kinds:
        torch.testing.assert_close(found["none"] + found["both"], found["mean"] + found["variance"])
        assert not torch.allclose(found["mean"], found["none"])
    assert not torch.allclose(found["variance"], found["none"])
    norm = random_norm(name, "sequence", detach="both").double()
    assert norm.settings()["detach"] == "both" and not norm.exact_gradient
    x = random_input("sequence", torch.float64)
    torch.testing.assert_close(norm(x), random_norm(name, "sequence", impl="eager").double()(x), rtol=0, atol=0)
    if name in ("seednorm", "gatedrmsnorm", "powernorm"):  # whose gains read all features; whose pass back moves ν
        return
    jacobian: Any = torch.autograd.functional.jacobian(norm, x)
    flat = jacobian.reshape(x.numel(), x.numel())
    assert (flat - torch.diag(flat.diagonal())).count_nonzero() == 0


def test_detached_statistics_by_formula() -> None:
    """DetachNorm's gradient is that of γ(x−a)/b with constants a and b (Xu et al. 2019), here times 3, γ."""
    x = random_input("sequence", torch.float64)
    weights = random_input("sequence", torch.float64, seed=1)
    layer = 3 * weights / (x.var(-1, correction=0, keepdim=True) + EPS).sqrt()
    expected = {
        "layernorm": layer,
        "batchnorm": 3 * weights / (x.var((0, 1), correction=0) + EPS).sqrt(),
        "rmsnorm": 3 * weights / (x.square().mean(-1, keepdim=True) + EPS).sqrt(),
        "scalenorm": 3 * weights / x.norm(dim=-1, keepdim=True),
    }
    for name, gradients in expected.items():
        for detach, change in (
            ("both", 0.0),
            ("variance", gradients.mean((0, 1) if name == "batchnorm" else -1, True)),
        ):
            norm = make(name, eps=EPS, detach=detach).double()
            nn.init.constant_(norm.weight, 3.0)
            moved = x.clone().requires_grad_()
            norm(moved).backward(weights)
            centers = norm.facts.centers
            torch.testing.assert_close(moved.grad, gradients - change if centers else gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in HELD if "masked" in options(name)])
def test_detached_statistics_of_what_is_real(name: str) -> None:
    """A mask of which nothing is padding changes no gradient."""
    settings: dict[str, Any] = {"across_time": True} if name == "groupnorm" else {}
    mask = torch.ones(4, 5, dtype=torch.bool)
    for detach in ("both", "variance"):
        found = gradient(name, detach, mask, **settings)
        torch.testing.assert_close(found, gradient(name, detach, **settings), rtol=1e-10, atol=1e-10)


def test_what_cannot_be_detached_is_refused() -> None:
    for name, detach, words in (("rmsnorm", "mean", "subtracts no mean"), ("dyt", "both", "takes no statistics")):
        with pytest.raises(UsageError, match=words):
            type(make(name))(FEATURES, detach=detach)


# --- noise


@pytest.mark.parametrize(("name", "layout"), [("batchnorm", "image"), ("layernorm", "sequence"), ("dyt", "flat")])
def test_noise_shifts_and_scales_what_a_norm_gives_in_training(name: str, layout: str) -> None:
    noisy, plain = (random_norm(name, layout, noise=noise).double() for noise in (2.0, 0.0))
    x = random_input(layout, torch.float64)
    y = plain(x)
    shape = (1, FEATURES, 1, 1) if layout == "image" else (1,) * (x.ndim - 1) + (FEATURES,)
    torch.manual_seed(3)
    mean, scale = torch.rand(shape) - 0.5, torch.rand(shape) / 4
    shift, spread = torch.rand(x.shape) / 5 - 0.1, torch.randn(x.shape) / 10
    torch.manual_seed(3)
    expected = (1 + 2 * (scale + spread)) * y + 2 * (mean + shift)
    torch.testing.assert_close(noisy(x), expected, rtol=1e-6, atol=1e-6)
    assert not torch.equal(noisy(x), noisy(x)), "drawn anew in each pass"
    plain.load_state_dict(noisy.state_dict())  # whose statistics have seen more batches
    assert torch.equal(noisy.eval()(x), plain.eval()(x))
    assert (noisy.settings()["noise"], "noise" in plain.settings()) == (2.0, False)


def test_noise_leaves_padding_at_0() -> None:
    mask = torch.arange(5) < torch.tensor([[5], [3], [2], [1]])
    y = random_norm("batchnorm", "sequence", noise=1.0)(random_input("sequence"), mask=mask)
    assert y[~mask].count_nonzero() == 0 and y[mask].count_nonzero() == mask.sum() * FEATURES


def test_noise_is_the_same_where_blocks_are_computed_again() -> None:
    found = []
    for recompute in (False, True):
        model, _ = build("batchnorm", depth=3, norm_settings={"noise": 1.0})
        model.recompute = recompute
        torch.manual_seed(0)
        batch = random_batch(TEXT)
        TEXT.loss(model.train()(*batch.arguments), batch.targets).backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(kept, again) for kept, again in zip(*found, strict=True))
