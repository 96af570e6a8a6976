"""What the newer norms are against the older ones: how they start, what they equal, what is particular to each."""

from __future__ import annotations

import copy
import math
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support import IMAGES, NORMS, WHOLE, build, section
from test_norm_kernels import traced
from test_norms import FEATURES, make, random_input
from torch import Tensor, nn

from normbench.contract.checks import NotApplicable
from normbench.contract.norms import NormPart, gradients_are_right
from normbench.errors import UsageError
from normbench.norms import BatchRenorm, Derf, GhostBatchNorm, SeeDNorm
from normbench.runs.notices import lone_feature_notes, what_is_lost
from normbench.training.optimizer import parameter_groups
from normbench.types import Site

__all__ = ["traced"]  # used here, too

DOUBLE = {"rtol": 1e-12, "atol": 1e-12}


def values(seed: int = 0) -> Tensor:
    return random_input("sequence", torch.float64, seed=seed)


def with_values(norm: Any, **parameters: float | Tensor) -> Any:
    """The norm in float64, with these values in its parameters."""
    norm.double()
    for name, value in parameters.items():
        parameter = norm.get_parameter(name)
        parameter.data.copy_(torch.as_tensor(value, dtype=torch.float64).expand_as(parameter))
    return norm


# --- how they start


@pytest.mark.parametrize(
    ("name", "settings"), [("scalenorm", {}), ("unitnorm", {"k0": 1.0, "learned_k": False}), ("seednorm", {})]
)
def test_some_start_as_rmsnorm(name: str, settings: dict[str, Any]) -> None:
    norm = make(name, eps=0.0, **settings).double()
    torch.testing.assert_close(norm(values()), make("rmsnorm", eps=0.0).double()(values()), rtol=1e-6, atol=1e-7)


def test_the_others_start_as_their_authors_have_them() -> None:
    x = values()
    rms = x.square().mean(-1, keepdim=True).sqrt()
    starts = {
        "derf": torch.erf(x / 2),
        "dyisru": x / (x.square() + 4).sqrt(),
        "unitnorm": x / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
        "bhyt": torch.tanh(0.2 * x / rms),
    }
    for name, expected in starts.items():
        eps = {"eps": 0.0} if "eps" in section("norm", name) else {}
        torch.testing.assert_close(make(name, **eps).double()(x), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("causal", "alpha0"), [(True, 1.0), (False, 0.5)])
def test_derf_starts_in_a_language_model_as_its_authors_gpt2(causal: bool, alpha0: float) -> None:
    norm = make("derf", site=Site("attention", 0, causal=causal))
    assert (norm.alpha.item(), norm.shift.item(), norm.settings()["alpha0"]) == (alpha0, 0, alpha0)
    assert make("derf", site=Site("attention", 0, causal=causal), alpha0=0.8).alpha0 == 0.8


# --- what they equal


def test_dyisru_is_stollenwerks_function() -> None:
    """√C·x/√(b+x²), with b = 301.1, the one of his figures."""
    x = values() * 10
    norm = with_values(make("dyisru"), weight=math.sqrt(FEATURES), alpha=301.1**-0.5)
    torch.testing.assert_close(norm(x), math.sqrt(FEATURES) * x / (301.1 + x.square()).sqrt(), **DOUBLE)


def test_crmsnorm_is_layernorm_of_one_feature_more() -> None:
    x = values()
    full = torch.cat((x, -x.sum(-1, keepdim=True)), -1)
    expected = nn.functional.layer_norm(full, (FEATURES + 1,), eps=0.3)[..., :-1]
    torch.testing.assert_close(make("crmsnorm", eps=0.3).double()(x), expected, **DOUBLE)


def test_adanorm_by_hand() -> None:
    """Deviations −1, 0 and 1 from the mean, and a standard deviation of 1."""
    x = torch.tensor([[4.0, 5.0, 6.0]], dtype=torch.float64, requires_grad=True)
    y = make("adanorm", 3, eps=0.0).double()(x)
    torch.testing.assert_close(y, torch.tensor([[-2.2, 0.0, 1.8]], dtype=torch.float64), **DOUBLE)
    y[0, 0].backward()
    # 2.2 times LayerNorm's gradient, (1 − 1/3 − 1/2, −1/3, −1/3 + 1/2): the factor of 1.1 adds none of its own
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2.2 * torch.tensor([[1, -2, 1]], dtype=torch.float64) / 6, **DOUBLE)


def test_unitnorm_scales_what_is_shifted() -> None:
    x = values()
    norm = with_values(make("unitnorm", affine=True), weight=3.0, bias=0.5, k=0.4)
    unit = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    torch.testing.assert_close(norm(x), (3 * unit + 0.5) * FEATURES**0.2, **DOUBLE)


def test_seednorm_reads_the_features() -> None:
    x = values()
    alpha = torch.linspace(-1, 1, FEATURES, dtype=torch.float64)
    beta = torch.linspace(0.3, -0.2, FEATURES, dtype=torch.float64)
    norm = with_values(make("seednorm", eps=0.2), weight=0.7, alpha=alpha, beta=beta)
    expected = torch.empty_like(x)
    for row, out in zip(x.flatten(0, 1), expected.flatten(0, 1), strict=True):
        out.copy_((torch.tanh(row @ beta) * alpha + 0.7) * row / (row.square().mean() + 0.2).sqrt())
    torch.testing.assert_close(norm(x), expected, **DOUBLE)


# --- what is particular


def test_tapernorm_by_batches() -> None:
    """RMSNorm in batches 0 to 3, whose averages and γ are kept, half of each branch in batch 5, a scale from 7 on."""
    norm = with_values(make("tapernorm", eps=0.2, taper_after=3, taper_over=4, momentum=0.25))
    gains = [torch.linspace(0.5, 1.5, FEATURES, dtype=torch.float64) + 0.1 * batch for batch in range(9)]
    since = torch.linspace(-0.2, 0.3, FEATURES, dtype=torch.float64)
    length = square = torch.zeros(())
    for batch, gain in enumerate(gains):
        with_values(norm, weight=gain, learned_since=since)
        x = values(seed=batch)
        root = (x.square().mean(-1, keepdim=True) + 0.2).sqrt()
        if batch <= 3:
            lengths = ((gain * x).square().sum(-1) / root[..., 0]).mean()
            squares = (gain * x).square().sum(-1).mean()
            share = 0.25 if batch else 1.0
            length, square = length + share * (lengths - length), square + share * (squares - square)
        gate = {4: (2 + 2**0.5) / 4, 5: 0.5, 6: (2 - 2**0.5) / 4}.get(batch, float(batch < 4))
        expected = gate * gain * x / root + (1 - gate) * length / square * (gains[min(batch, 3)] + since) * x
        torch.testing.assert_close(norm(x), expected, **DOUBLE)
        torch.testing.assert_close(norm.eval()(x), expected, **DOUBLE)
        norm.train()


def test_the_scale_that_tapernorm_ends_with_is_learned() -> None:
    norm = with_values(make("tapernorm", taper_after=0, taper_over=1))
    x = values()
    for expected in ({"weight"}, {"learned_since"}):
        norm.zero_grad()
        norm(x).square().sum().backward()
        assert {name for name, parameter in norm.named_parameters() if parameter.grad.any()} == expected
    fixed = norm(x) / x
    torch.testing.assert_close(fixed, fixed[:1, :1].expand_as(x), **DOUBLE)


def test_a_norm_that_has_tapered_takes_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """From where its mode is set on: as before in output, gradients and state, and it sees none of its input."""
    settings = {"taper_after": 1, "taper_over": 2, "momentum": 0.25}
    plain, spared = (with_values(make("tapernorm", **settings)) for _ in range(2))
    for batch in range(8):
        found = []
        for norm in (plain, spared):
            norm.zero_grad()
            x = values(seed=batch).requires_grad_()
            y = norm(x)
            y.square().sum().backward()
            gradients = [x.grad, *(parameter.grad for parameter in norm.parameters())]
            found.append([y, *gradients, *norm.state_dict().values()])
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
        spared.eval().train()
    formula = Mock(side_effect=AssertionError("RMSNorm is left out"))
    monkeypatch.setattr("normbench.norms.tapernorm.rms_formula", formula)
    spared(values())
    spared.eval()(values())
    assert not formula.called
    spared.load_state_dict(make("tapernorm", **settings).state_dict())
    with pytest.raises(AssertionError, match="left out"):
        spared.train()(values())


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_over_one_feature_is_told(name: str) -> None:
    """LayerNorm leaves nothing of it, so that all before it has a gradient of 0, and RMSNorm its sign."""
    assert what_is_lost(make(name, width=64)) == ""
    if name in ("adanorm", "groupnorm"):
        with pytest.raises(UsageError, match="has 1 value for a statistic, and needs at least 2"):
            make(name, width=1)
        return
    norm = make(name, width=1)
    is_over_features = "features of one position" in norm.facts.statistics_over
    expected = "nothing" if norm.facts.centers else "nothing but the sign"
    assert what_is_lost(norm) == (expected if is_over_features else "")


def test_norms_over_one_feature_are_told_with_their_places() -> None:
    norms = {"block00.attention.q": make("layernorm", width=1), "final": nn.LayerNorm(1), "stem": make("rmsnorm")}
    (line,) = lone_feature_notes(norms)
    assert line.startswith(
        "warning: the norm of block00.attention.q and 1 more has 1 feature, of which it leaves nothing"
    )
    (line,) = lone_feature_notes({"stem": make("rmsnorm", width=1, channel_dim=1)})
    assert "of which it leaves nothing but the sign: give it more features" in line


def test_tapernorm_leaves_padding_out_of_its_averages() -> None:
    x = values()
    mask = torch.arange(x.shape[1]) < torch.tensor([[5], [3], [2], [1]])
    padded = torch.where(mask.unsqueeze(-1), x, torch.nan)
    masked, other = (with_values(make("tapernorm")) for _ in range(2))
    y = masked(padded, mask=mask)
    torch.testing.assert_close(y[mask], other(x[mask]), **DOUBLE)
    assert y[~mask].count_nonzero() == 0
    for name in ("length", "square"):
        torch.testing.assert_close(getattr(masked, name), getattr(other, name), **DOUBLE)


def test_a_run_within_the_first_batches_of_tapernorm_has_rmsnorm() -> None:
    norm = make("tapernorm", taper_after=10)
    assert "rmsnorm" in norm.is_another(11, 1) and not norm.is_another(12, 1)


def test_gatedrmsnorm_starts_near_half_of_rmsnorm() -> None:
    x = values()
    norm = make("gatedrmsnorm", eps=0.2, rank=3).double()
    assert (norm.down.shape, norm.up.shape, norm.settings()["rank"]) == ((3, FEATURES), (FEATURES, 3), 3)
    half = make("rmsnorm", eps=0.2).double()(x) / 2
    torch.testing.assert_close(norm(x), half, rtol=0.2, atol=0)
    torch.testing.assert_close(with_values(norm, up=0.0)(x), half, **DOUBLE)


def test_gatedrmsnorm_by_hand() -> None:
    """Features 3 and −4 have the root mean square √12.5; the map down reads their difference, the one up is (1, −1)."""
    norm = with_values(
        make("gatedrmsnorm", 2, eps=0.0, rank=1), down=torch.tensor([1.0, -1.0]), up=torch.tensor([[1.0], [-1.0]])
    )
    read = 7 / math.sqrt(12.5)
    passed = read / (1 + math.exp(-read))
    gates = 1 / (1 + math.exp(-passed)), 1 / (1 + math.exp(passed))
    expected = [3 / math.sqrt(12.5) * gates[0], -4 / math.sqrt(12.5) * gates[1]]
    y = norm(torch.tensor([[3.0, -4.0]], dtype=torch.float64))
    torch.testing.assert_close(y, torch.tensor([expected], dtype=torch.float64), **DOUBLE)


def test_the_maps_of_a_gate_decay_and_are_drawn_by_site_and_seed() -> None:
    drawn = []
    for seed in (0, 1):
        model, norms = build("gatedrmsnorm", seed=seed)
        decayed, others = parameter_groups(model, norms.values(), weight_decay=0.1, decay_norms=False)
        for norm in norms.values():
            drawn.append(norm.down.flatten().tolist())
            assert {id(norm.down), id(norm.up)} <= {id(parameter) for parameter in decayed["params"]}
            assert any(parameter is norm.weight for parameter in others["params"])
    assert len({*map(tuple, drawn)}) == len(drawn)


def test_a_gate_is_computed_in_full_precision_under_autocast() -> None:
    norm = make("gatedrmsnorm")
    x = random_input("sequence")
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(x)
    assert torch.equal(y, norm(x))


@pytest.mark.parametrize("name", ["scalenorm", "unitnorm"])
def test_a_short_x_is_divided_by_the_least_norm(name: str) -> None:
    x = torch.full((1, FEATURES), 1e-7, dtype=torch.float64, requires_grad=True)
    norm = with_values(make(name, eps=1e-5))
    norm(x).sum().backward()
    gain = math.sqrt(FEATURES) if name == "scalenorm" else 1.0
    torch.testing.assert_close(norm(x), gain * x / 1e-5, rtol=1e-7, atol=0)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full_like(x, gain / 1e-5), rtol=1e-7, atol=0)
    assert not norm(torch.zeros(1, FEATURES)).any()


def test_scalenorm_starts_where_it_is_told() -> None:
    x = values()
    norm = make("scalenorm", gain0=5.0)
    assert norm.weight.shape == (1,)
    torch.testing.assert_close(torch.linalg.vector_norm(norm(x), dim=-1), torch.full(x.shape[:-1], 5.0).double())
    torch.testing.assert_close(make("scalenorm", gain0=5.0, affine=False)(x), norm(x))


@pytest.mark.parametrize(("name", "bound"), [("derf", 1.8213863677), ("dyisru", 7.0179239), ("bhyt", 2.6466524124)])
def test_saturation_is_the_share_above_the_bound(name: str, bound: float) -> None:
    """erf(1.8214) = 7.018/√(7.018²+1) = tanh(2.6467) = 0.99."""
    norm = make(name, 4)
    x = torch.tensor([[-1.01, 0.99, 0.5, 1.01]])
    if name == "bhyt":
        rms = x.square().mean().sqrt()
        norm.lam.data.fill_(bound * rms / 0.1)
    else:
        norm.alpha.data.fill_(bound)
    assert norm.saturation(x) == 0.5


def test_seednorms_own_parameters_decay_whatever_the_others_do() -> None:
    model, norms = build("seednorm")
    own = [id(parameter) for norm in norms.values() for parameter in (norm.alpha, norm.beta)]
    gains = [id(norm.weight) for norm in norms.values()]
    for decay_norms in (False, True):
        decayed = parameter_groups(model, norms.values(), 0.1, decay_norms)[0]
        ids = {id(parameter) for parameter in decayed["params"]}
        assert ids.issuperset(own)
        assert ids.issuperset(gains) == decay_norms
    assert set(SeeDNorm.treated) == {"alpha", "beta"} and not Derf.treated


# --- rmsnorm


@pytest.mark.parametrize(("size", "share"), [(1.0, 5e-6), (0.0018258, 0.5)])
def test_rmsnorm_differs_from_its_authors_pytorch_code_as_documented(size: float, share: float) -> None:
    """They divide by √ms(x) + 1e-8 (`rmsnorm_torch.py:48`@2e726f1)."""
    x = values()
    x = size * x / x.square().mean(-1, keepdim=True).sqrt()
    theirs = x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-8)
    y = make("rmsnorm").double()(x)
    torch.testing.assert_close(1 - y / theirs, torch.full_like(y, share), rtol=0.01, atol=0)
    zero = torch.zeros(1, FEATURES, dtype=torch.float64, requires_grad=True)
    make("rmsnorm").double()(zero).sum().backward()
    assert zero.grad is not None
    torch.testing.assert_close(zero.grad, torch.full_like(zero, 1e-5**-0.5))


# --- batchrenorm

SOON: dict[str, Any] = {"renorm_after": 2, "r_max_at": 4, "d_max_at": 3, "r_max": 1.5, "d_max": 0.5, "momentum": 0.3}
BOUNDS = [(1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (1.25, 0.5), (1.5, 0.5), (1.5, 0.5)]  # of r and d, batch by batch


def test_batchrenorm_is_the_paper_s_algorithm() -> None:
    """With the root of the running variance for the average of σ; its factor and shift have no gradient."""
    norm = with_values(BatchRenorm(FEATURES, eps=0.1, **SOON), weight=1.7, bias=0.3)
    running_mean = torch.zeros(FEATURES, dtype=torch.float64)
    running_var = torch.ones(FEATURES, dtype=torch.float64)
    corrected = set()
    for seed, (r_max, d_max) in enumerate(BOUNDS):
        x = (values(seed) * (1 + 0.2 * seed) + 0.3 * seed).requires_grad_()
        var, mean = torch.var_mean(x, (0, 1), correction=0)
        running_std = (running_var + 0.1).sqrt()
        r = ((var + 0.1).sqrt() / running_std).clamp(1 / r_max, r_max).detach()
        d = ((mean - running_mean) / running_std).clamp(-d_max, d_max).detach()
        corrected.add(bool((r != 1).any() or d.any()))
        y = norm(x)
        expected = 1.7 * ((x - mean) / (var + 0.1).sqrt() * r + d) + 0.3
        torch.testing.assert_close(y, expected, **DOUBLE)
        weights = torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view_as(x)
        gradients = [torch.autograd.grad((weights * each).sum(), x)[0] for each in (y, expected)]
        torch.testing.assert_close(*gradients, **DOUBLE)
        count = x.numel() / FEATURES
        running_mean += 0.3 * (mean.detach() - running_mean)
        running_var += 0.3 * (var.detach() * count / (count - 1) - running_var)
    assert corrected == {False, True}
    torch.testing.assert_close(norm.running_mean.double(), running_mean, **DOUBLE)
    torch.testing.assert_close(norm.running_var.double(), running_var, **DOUBLE)


def test_batchrenorm_has_a_larger_deviation_than_an_average_of_deviations_as_documented() -> None:
    """Of batches of n independent values the paper's and Keras's average of σ is smaller by a share of 3/(4n)."""
    n = 16
    features = 4096
    norm = BatchRenorm(features, eps=0.0, momentum=0.05).double()
    average = torch.ones(features, dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    for _ in range(200):
        x = 3 * torch.randn(n, features, generator=random, dtype=torch.float64)
        norm(x)
        average += 0.05 * (x.std(0, correction=0) - average)
    ratio = (norm.running_var.sqrt() / average).mean().item()
    assert ratio - 1 == pytest.approx(3 / (4 * n), rel=0.1)


def test_batchrenorm_without_bounds_is_what_evaluation_gives() -> None:
    soon = {"renorm_after": 0, "r_max_at": 1, "d_max_at": 1}
    norm = BatchRenorm(FEATURES, r_max=1e3, d_max=1e3, **soon).double()
    norm(values())
    expected = norm.eval()(values(1))
    torch.testing.assert_close(norm.train()(values(1)), expected, **DOUBLE)


@pytest.mark.parametrize("changes", [{"freeze_after": 3}, {"track_running_stats": False}, {"r_max_at": 5000}])
def test_batchrenorm_refuses_what_it_could_not_correct_towards(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        BatchRenorm(FEATURES, **changes)


# --- ghostbatchnorm


@pytest.mark.parametrize("impl", ["torch", "eager"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_block_is_a_batch_to_ghostbatchnorm(impl: str, masked: bool) -> None:
    """Of seven samples with two a block there are three, of 3, 2 and 2."""
    x = torch.randn(7, 5, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 4, 2, 1, 5])[:, None] if masked else None
    ours = GhostBatchNorm(FEATURES, ghost=2, impl=impl).double()
    plain = make("batchnorm", impl=impl).double()
    expected = []
    for first, last in ((0, 3), (3, 5), (5, 7)):
        expected.append(plain(x[first:last], None if mask is None else mask[first:last]))
    torch.testing.assert_close(ours(x, mask), torch.cat(expected), **DOUBLE)
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), **DOUBLE)
    torch.testing.assert_close(ours.eval()(x, mask), plain.eval()(x, mask), **DOUBLE)
    torch.testing.assert_close(ours.train()(x[:3]), plain.train()(x[:3]), **DOUBLE)


def test_a_block_whose_texts_have_ended_is_not_refused() -> None:
    x = torch.randn(4, FEATURES)
    mask = torch.tensor([True, True, False, False])
    norm = GhostBatchNorm(FEATURES, ghost=2)
    y = norm(x, mask)
    torch.testing.assert_close(y[:2], make("batchnorm")(x[:2]))
    assert not y[2:].any()
    assert norm.num_batches_tracked == 1
    with pytest.raises(UsageError, match="larger data"):
        GhostBatchNorm(FEATURES, ghost=1)(x)


def test_ghostbatchnorm_takes_no_statistics_over_processes() -> None:
    with pytest.raises(UsageError, match="leave one of them out"):
        GhostBatchNorm(FEATURES, sync=True)


# --- switchable


def test_switchable_s_running_variance_leaves_its_start_as_documented() -> None:
    """Its authors' buffer starts at 0 (`switchable_norm.py:79`@5472286), and is (1−m)ⁿ behind after n batches."""
    norm = make("switchable", momentum=0.1).double()
    theirs = torch.zeros(FEATURES, dtype=torch.float64)
    for seed in range(5):
        x = values(seed)
        norm(x)
        mean = x.mean(1)
        squares = x.var(1) + mean.square()
        theirs = 0.9 * theirs + 0.1 * (squares.mean(0) - mean.mean(0).square())
        ahead = torch.full_like(theirs, 0.9 ** (seed + 1))
        torch.testing.assert_close(norm.running_var - theirs, ahead, rtol=0, atol=1e-6)


def test_switchable_starts_with_a_third_of_each_and_keeps_the_batch_s_statistics() -> None:
    norm = make("switchable", eps=0.0).double()
    x = values()
    mean_in, var_in = x.mean(1, keepdim=True), x.var(1, keepdim=True)
    mean_bn = mean_in.mean(0, keepdim=True)
    var_bn = (var_in + mean_in.square()).mean(0, keepdim=True) - mean_bn.square()
    mean_ln = mean_in.mean(-1, keepdim=True)
    var_ln = (var_in + mean_in.square()).mean(-1, keepdim=True) - mean_ln.square()

    def mixed(mean: Tensor, var: Tensor) -> Tensor:
        return (x - (mean_in + mean_ln + mean) / 3) / ((var_in + var_ln + var) / 3).sqrt()

    torch.testing.assert_close(norm(x), mixed(mean_bn, var_bn), **DOUBLE)
    torch.testing.assert_close(norm.running_mean, 0.1 * mean_bn.flatten(), **DOUBLE)
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * var_bn.flatten(), **DOUBLE)
    in_evaluation = mixed(0.1 * mean_bn, 0.9 + 0.1 * var_bn)
    torch.testing.assert_close(norm.eval()(x), in_evaluation, **DOUBLE)


@pytest.mark.parametrize("padding", [0.0, 1e30, math.nan])
def test_switchable_leaves_padding_out(padding: float) -> None:
    """Texts of 5, 3 and 1 tokens, by the moments of each; one token has no variance, and none is no text."""
    lengths = [5, 3, 1, 0]
    x = torch.randn(4, 5, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    norm = make("switchable", eps=0.1).double()
    y = norm(x.masked_fill(~mask.unsqueeze(-1), padding), mask)
    rows = [row[:length] for row, length in zip(x, lengths, strict=True) if length]
    mean_in = torch.stack([row.mean(0) for row in rows])
    var_in = torch.stack([row.var(0) if len(row) > 1 else 0 * row[0] for row in rows])
    square = var_in + mean_in.square()
    mean = (mean_in + mean_in.mean(1, keepdim=True) + mean_in.mean(0)) / 3
    var_ln = square.mean(1, keepdim=True) - mean_in.mean(1, keepdim=True).square()
    var = (var_in + var_ln + square.mean(0) - mean_in.mean(0).square()) / 3
    assert not y[3].any()
    for row, found, length, center, spread in zip(rows, y[:3], lengths[:3], mean, var, strict=True):
        torch.testing.assert_close(found[:length], (row - center) / (spread + 0.1).sqrt(), **DOUBLE)
        assert not found[length:].any()


# --- those that contain an activation


@pytest.mark.parametrize("padding", [None, 0.0, math.nan])
def test_frn_by_its_formula(padding: float | None) -> None:
    """With texts of 5, 3 and 1 tokens, if padded."""
    lengths = [5, 5, 5] if padding is None else [5, 3, 1]
    x = torch.randn(3, 5, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tau = torch.linspace(-1, 1, FEATURES, dtype=torch.float64)
    norm = with_values(make("frn", eps=0.1), weight=1.3, bias=-0.2, tau=tau)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    y = norm(x) if padding is None else norm(x.masked_fill(~mask.unsqueeze(-1), padding), mask)
    for row, found, length in zip(x, y, lengths, strict=True):
        text = row[:length]
        expected = 1.3 * text / (text.square().sum(0) / length + 0.1).sqrt() - 0.2
        torch.testing.assert_close(found[:length], torch.where(expected > tau, expected, tau), **DOUBLE)
        assert not found[length:].any()


@pytest.mark.parametrize("padding", [0.0, math.nan])
def test_evonorm_b0_leaves_padding_out(padding: float) -> None:
    lengths = [5, 3, 1]
    x = torch.randn(3, 5, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    norm = with_values(make("evonorm_b0", eps=0.1), v=0.7)
    y = norm(x.masked_fill(~mask.unsqueeze(-1), padding), mask)
    of_batch = (x[mask].var(0, correction=0) + 0.1).sqrt()
    for row, found, length in zip(x, y, lengths, strict=True):
        text = row[:length]
        of_sample = 0.7 * text + (text.var(0, correction=0) + 0.1).sqrt()
        torch.testing.assert_close(found[:length], text / torch.maximum(of_batch, of_sample), **DOUBLE)
        assert not found[length:].any()
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * x[mask].var(0), **DOUBLE)
    single = norm.eval()(x[:, :1])
    expected = torch.maximum((norm.running_var + 0.1).sqrt(), 0.7 * x[:, :1] + 0.1**0.5)
    torch.testing.assert_close(single, x[:, :1] / expected, **DOUBLE)


@pytest.mark.parametrize("model", ["resnet20", "resnet50", "mlp", "cnn_plain", "mlp_plain"])
def test_no_activation_stands_beside_a_norm_that_contains_one(model: str) -> None:
    def activations(norm: str, placement: str) -> int:
        made, _ = build(norm, placement, model, IMAGES)
        return sum(isinstance(module, nn.ReLU | nn.Sigmoid) for module in made.modules())

    if "plain" in model:
        assert activations("groupnorm", "plain") and not activations("evonorm_s0", "plain")
        return
    assert activations("groupnorm", "pre") and not activations("evonorm_s0", "pre")
    blocks = len(build("groupnorm", "post", model, IMAGES)[0].anatomy().blocks)
    assert activations("evonorm_s0", "post") == blocks + 1  # where a branch begins, and before the head


@pytest.mark.parametrize("padding", [None, 0.0, math.nan])
def test_powernorm_trains_as_its_authors_code(padding: float | None) -> None:
    """Two batches with their own statistics and two with running ones, by the equations of MaskPowerNorm."""
    eps = 0.3
    weight = torch.linspace(0.5, 2, FEATURES, dtype=torch.float64)
    norm = with_values(make("powernorm", eps=eps, warmup_batches=2), weight=weight, bias=0.7)
    square = torch.ones(FEATURES, dtype=torch.float64)
    nu = torch.zeros(FEATURES, dtype=torch.float64)
    for number in range(1, 5):
        x = (values(number) * number).requires_grad_()
        gradient = values(10 + number)
        lengths = torch.tensor([5, 5, 5, 5] if padding is None else [5, 3, 4, 1])
        mask = torch.arange(5) < lengths[:, None]
        rows = x.detach()[mask].requires_grad_()
        scaled = rows / (rows.square().mean(1, keepdim=True) + eps).sqrt()
        own = scaled.detach().square().mean(0)
        z = scaled.detach() / ((own if number <= 2 else square) + eps).sqrt()
        corrected = gradient[mask] * weight - (1 - 0.9) * nu * z
        scaled.backward(corrected / (own + eps).sqrt())
        y = norm(x) if padding is None else norm(x.masked_fill(~mask.unsqueeze(-1), padding), mask)
        y.backward(gradient)
        torch.testing.assert_close(y[mask], weight * z + 0.7, **DOUBLE)
        assert x.grad is not None and not x.grad[~mask].any()
        torch.testing.assert_close(x.grad[mask], rows.grad, **DOUBLE)
        nu = nu + (corrected * z).mean(0)
        if number < 2:
            square = square * (number - 1) / number + own / number
        square = 0.9 * square + 0.1 * own
        torch.testing.assert_close(norm.nu, nu, **DOUBLE)
        torch.testing.assert_close(norm.running_square, square, **DOUBLE)
    x = values()
    scaled = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    torch.testing.assert_close(norm.eval()(x), weight * scaled / (square + eps).sqrt() + 0.7, **DOUBLE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_powernorm_stays_as_it_is_in_a_compiled_model() -> None:
    """No graph has its autograd function, whose backward pass torch's compilation to machine code would change."""
    functions = list[str]()

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        functions.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        if WHOLE:
            from torch._inductor.compile_fx import compile_fx  # slow to import

            return compile_fx(graph, inputs)
        return graph

    plain = nn.Sequential(nn.Linear(FEATURES, FEATURES), make("powernorm", warmup_batches=1))
    model = copy.deepcopy(plain)
    compiled = torch.compile(model, backend=look)
    for number in range(1, 4):
        for each in (plain, compiled):
            each(random_input("sequence", seed=number) * number).cos().sum().backward()
    for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model[1].nu, plain[1].nu, rtol=1e-4, atol=1e-5)
    assert len(functions) > 5 and not [name for name in functions if "autograd" in name]
    with pytest.raises(UsageError, match="impl=compile"):
        make("powernorm", impl="compile")


def test_powernorm_divides_groups_of_features_by_their_own_root() -> None:
    x = values()
    norm = make("powernorm", eps=0.0, groups=3).double().eval()
    parts = x.unflatten(-1, (3, -1))
    torch.testing.assert_close(norm(x), (parts / parts.square().mean(-1, keepdim=True).sqrt()).flatten(-2), **DOUBLE)
    with pytest.raises(UsageError, match="groups=5 does not divide 12 features"):
        make("powernorm", 12, groups=5)


@pytest.mark.parametrize("name", ["adanorm", "batchrenorm", "powernorm"])
def test_a_backward_pass_that_is_no_gradient_is_not_held_to_be_one(name: str) -> None:
    with pytest.raises(NotApplicable, match="constant in the backward pass"):
        gradients_are_right(NormPart({"norm": section("norm", name)}))


def check_compiled_under_a_mask(name: str) -> None:
    settings = {"ghost": 2} if name == "ghostbatchnorm" else {}
    compiled, formula = (make(name, impl=impl, **settings) for impl in ("compile", "eager"))
    x = random_input("sequence")
    mask = torch.arange(5) < torch.tensor([5, 3, 4, 2])[:, None]
    torch.testing.assert_close(compiled(x, mask), formula(x, mask), rtol=1e-5, atol=1e-5)


MASKED = ["batchnorm", "batchrenorm", "ghostbatchnorm", "switchable", "evonorm_b0", "evonorm_s0"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.parametrize("name", MASKED if WHOLE else ["ghostbatchnorm"])
def test_compiled_under_a_mask_as_the_formula(name: str) -> None:
    """As machine code; the graph of each is held to the formula below."""
    check_compiled_under_a_mask(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", MASKED)
def test_one_graph_under_a_mask_as_the_formula(name: str) -> None:
    check_compiled_under_a_mask(name)


def test_a_norm_says_where_it_is_another_one_throughout_a_run() -> None:
    renorm, ghost = make("batchrenorm"), make("ghostbatchnorm")
    assert "in which batchrenorm is batchnorm" in renorm.is_another(batches=5000, samples=64)
    assert renorm.is_another(batches=5001, samples=64) == ""
    assert "so that ghostbatchnorm is batchnorm" in ghost.is_another(batches=10, samples=63)
    assert ghost.is_another(batches=10, samples=64) == make("derf").is_another(batches=1, samples=1) == ""
    with pytest.raises(UsageError, match="batchrenorm computes with"):
        make("batchrenorm", recalibrate=5)
