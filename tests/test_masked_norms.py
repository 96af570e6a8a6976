"""Norms under masks: as without the padding, whatever stands in it; each position, frozen, and what is refused."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import TEXTS, WHOLE, build, random_batch, section
from test_norms import make
from torch import Tensor, nn

from normbench.build import norm_facts
from normbench.config.recipe import Recipe
from normbench.errors import UsageError
from normbench.norms.common import RunningNorm
from normbench.runs.notices import caveats
from normbench.training.evaluation import to_device
from normbench.types import Site

FEATURES, LENGTH = 6, 8
SITE = Site("mlp", 0, length=LENGTH)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "batchnorm": ("batchnorm", {}),
    "batchnorm without running statistics": ("batchnorm", {"track_running_stats": False}),
    "batchnorm at each position": ("batchnorm", {"per_position": True}),
    "batchrenorm": ("batchrenorm", {}),
    "batchrenorm that corrects": ("batchrenorm", {"renorm_after": 0, "r_max_at": 1, "d_max_at": 1}),
    "instancenorm": ("instancenorm", {}),
    "instancenorm with running statistics": ("instancenorm", {"track_running_stats": True}),
    "groupnorm": ("groupnorm", {"across_time": True, "groups": 2}),
}
FEW = "batchnorm in few operators"  # as on CUDA, where each operator costs a launch
CROSSING = {key: value for key, value in KINDS.items() if "running" not in key and "corrects" not in key}
OTHERS = ("layernorm", "rmsnorm", "prmsnorm", "dyt", "groupnorm", "none", "derf", "dyisru", "scalenorm", "crmsnorm",
          "unitnorm", "adanorm", "bhyt", "seednorm", "gatedrmsnorm", "scale")  # fmt: skip

lengths = st.lists(st.integers(1, LENGTH), min_size=2, max_size=5).filter(lambda given: max(given) > 1)
paddings = st.sampled_from([0.0, -7.5, 1e30, math.inf, -math.inf, math.nan])


def random_norm(kind: str, **changes: Any) -> Any:
    """A norm of KINDS, in float64 or as `dtype` says, whose parameters show in the result."""
    name, options = KINDS["batchnorm" if kind == FEW else kind]
    norm = make(name, FEATURES, site=SITE, eps=1e-3, **options | changes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return norm


def as_on_cuda(norm: Any, kind: str) -> Any:
    """Return the norm; if its kind is to mind masks in few operators, it does so here too."""
    norm.masks_in_few = kind == FEW
    return norm


def texts(counts: list[int], seed: int) -> list[Tensor]:
    """Texts of so many tokens, each with its features."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, FEATURES, generator=generator, dtype=torch.float64) * 2 + 1 for count in counts]


def masked_batch(rows: list[Tensor], padding: float, extra: int = 0) -> tuple[Tensor, Tensor]:
    """The texts in a batch, padded with a value, and its mask."""
    longest = min(LENGTH, max(map(len, rows)) + extra)
    x = torch.full((len(rows), longest, FEATURES), padding, dtype=rows[0].dtype)
    for row, text in zip(x, rows, strict=True):
        row[: len(text)] = text
    return x, torch.arange(longest) < torch.tensor([[len(text)] for text in rows])


def weights(x: Tensor) -> Tensor:
    """Something unlike elsewhere for each output, so that a sum tells them apart."""
    return torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view(x.shape)


def real_outputs(norm: Any, rows: list[Tensor], padding: float) -> tuple[Tensor, Tensor]:
    """Outputs at real tokens, one text behind another, and the gradients there, from a padded batch."""
    x, mask = masked_batch(rows, padding, extra=2)
    x.requires_grad_()
    y = norm(x, mask=mask)
    assert y.isfinite().all() and not y[~mask].any() and y.dtype == x.dtype
    (weights(y[mask]) * y[mask]).sum().backward()
    assert x.grad is not None and not x.grad[~mask].any()
    return y[mask].detach(), x.grad[mask]


def unpadded(kind: str, norm: Any, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The same of the texts as the norm's formula means them, each of its own length: nothing padded or masked."""
    rows = [row.clone().requires_grad_() for row in rows]
    if "position" in kind:
        y = by_position(norm, rows)
    elif kind.startswith("batch"):
        y = norm(torch.cat(rows))
    else:
        y = torch.cat([alone(norm, row) for row in rows])
    (weights(y) * y).sum().backward()
    return y.detach(), torch.cat([row.grad for row in rows if row.grad is not None])


def alone(norm: Any, row: Tensor) -> Tensor:
    """A text by itself; a feature that has one value is normalized to β."""
    lonely = isinstance(norm, RunningNorm) and len(row) < 2
    return 0 * row + (0 if norm.bias is None else norm.bias) if lonely else norm(row[None])[0]


def by_position(norm: Any, rows: list[Tensor]) -> Tensor:
    """BatchNorm of each position of the texts that have one: a plain BatchNorm for each, with the same γ and β."""
    out = [torch.zeros_like(row) for row in rows]
    for place in range(max(map(len, rows))):
        there = [index for index, row in enumerate(rows) if len(row) > place]
        x = torch.stack([rows[index][place] for index in there])
        y = 0 * x + (0 if norm.bias is None else norm.bias)  # of a single text
        if len(there) > 1:
            y = nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)
        for index, one in zip(there, y, strict=True):
            out[index] = out[index].index_put((torch.tensor(place),), one)
    return torch.cat(out)


@pytest.mark.slow
@settings(max_examples=25 if WHOLE else 10, deadline=None, derandomize=True)
@given(
    counts=lengths,
    padding=paddings,
    affine=st.booleans(),
    momentum=st.sampled_from([None, 0.1, 1.0]),
    impl=st.sampled_from(["auto", "eager"]),
    double=st.booleans(),
)
@pytest.mark.parametrize("kind", [*KINDS, FEW])
def test_masked_is_as_without_padding(
    kind: str, counts: list[int], padding: float, affine: bool, momentum: float | None, impl: str, double: bool
) -> None:
    """Output, gradients of input and parameters, and running statistics over two batches, then evaluation."""
    changes: dict[str, Any] = {"affine": affine, "impl": impl}
    ours = random_norm(kind, **changes | ({} if kind == "groupnorm" else {"momentum": momentum}))
    dtype = torch.float64 if double else torch.float32
    ours, theirs = as_on_cuda(ours.to(dtype), kind), copy.deepcopy(ours).to(dtype)
    tolerance: Any = {"rtol": 1e-9, "atol": 1e-10} if double else {"rtol": 1e-4, "atol": 1e-5}
    for seed in range(2):
        rows = [row.to(dtype) for row in texts(counts, seed)]
        for found, expected in zip(real_outputs(ours, rows, padding), unpadded(kind, theirs, rows), strict=True):
            torch.testing.assert_close(found, expected, **tolerance)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, **tolerance)
    if kind in ("batchnorm", FEW):  # of instancenorm and at each position: below
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), **tolerance)
        outputs = [real_outputs(ours.eval(), rows, padding)[0], theirs.eval()(torch.cat(rows))]
        torch.testing.assert_close(outputs[0], outputs[1], **tolerance)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(batches=st.lists(lengths, min_size=1, max_size=4), momentum=st.sampled_from([None, 0.1]))
def test_running_statistics_of_real_tokens_alone(batches: list[list[int]], momentum: float | None) -> None:
    """Those of instancenorm average over texts of two tokens or more; each position has those of its texts."""
    instance = random_norm("instancenorm with running statistics", momentum=momentum).double()
    place = random_norm("batchnorm at each position", momentum=momentum).double()
    samples: list[Tensor] = []
    seen: list[list[Tensor]] = [[] for _ in range(LENGTH)]
    for seed, counts in enumerate(batches):
        rows = texts(counts, seed)
        x, mask = masked_batch(rows, math.nan)
        instance(x, mask=mask)
        place(x, mask=mask)
        own = [torch.stack((row.mean(0), row.var(0))) for row in rows if len(row) > 1]
        samples.append(torch.stack(own).mean(0))
        for position in range(LENGTH):
            if len(there := [row[position] for row in rows if len(row) > position]) > 1:
                values = torch.stack(there)
                seen[position].append(torch.stack((values.mean(0), values.var(0))))
    assert_running(instance.running_mean, instance.running_var, samples, momentum)
    for position, own in enumerate(seen):
        assert_running(place.running_mean[position], place.running_var[position], own, momentum)
    assert place.num_batches_tracked.tolist() == [len(own) for own in seen]


def assert_running(mean: Tensor, var: Tensor, batches: list[Tensor], momentum: float | None) -> None:
    expected = torch.stack((torch.zeros(FEATURES), torch.ones(FEATURES))).double()
    for number, batch in enumerate(batches, 1):
        expected += (batch - expected) * (1 / number if momentum is None else momentum)
    torch.testing.assert_close(torch.stack((mean, var)), expected)


@pytest.mark.parametrize("kind", CROSSING)
def test_the_unmasked_norm_depends_on_padding(kind: str) -> None:
    """What people do by mistake: other padding, or more of it, is another output at real tokens."""
    rows = texts([3, 5, 2], 0)
    for masked in (True, False):
        norm, outputs = random_norm(kind, masked=masked).double(), []
        for padding, extra in ((0.0, 0), (0.0, 3), (2.0, 0)):
            x, mask = masked_batch(rows, padding, extra)
            outputs.append(norm(x, mask=mask)[mask].detach())
        moved = [float((output - outputs[0]).abs().max()) for output in outputs[1:]]
        no_more_padding = "position" in kind and not masked  # which adds positions, and changes none
        assert all(move < 1e-9 for move in moved) if masked else moved[1] > 0.1
        assert masked or no_more_padding or moved[0] > 0.1
        assert type(norm).facts_for(**KINDS[kind][1], masked=masked).counts_padding is not masked


@pytest.mark.parametrize("kind", CROSSING)
@pytest.mark.parametrize(
    "placement",
    [
        "pre",
        "post",
        "lns",
        "keel",
        "b2t",
        "gpas",
        "admin",
        "layerscale",
        "siamese",
        "hyper_connections",
        "mhc",
        "attnres",
    ],
)
def test_a_model_s_answer_in_training_does_not_depend_on_what_stands_in_the_padding(kind: str, placement: str) -> None:
    name, options = KINDS[kind]
    batch = random_batch(TEXTS)
    assert batch.mask is not None and not batch.mask.all()
    other = torch.where(batch.mask, batch.inputs, (batch.inputs + 5) % TEXTS.vocabulary_size)
    for masked in (True, False):
        model, _ = build(name, placement, "nano", TEXTS, norm_settings=options | {"masked": masked})
        first, second = (model.train()(inputs, batch.mask).detach() for inputs in (batch.inputs, other))
        assert torch.allclose(first, second, atol=1e-5) is masked
        recipe = Recipe({"norm": section("norm", name, **options, masked=masked)}, {"norm": name})
        run: Any = SimpleNamespace(
            facts=norm_facts(recipe),
            data=SimpleNamespace(task=TEXTS, pads=True),
            config=SimpleNamespace(recipe=recipe),
        )
        assert (caveats(run)["padding"] is None) is masked


@pytest.mark.parametrize("name", OTHERS)
def test_norms_of_one_position_take_no_notice_of_a_mask(name: str) -> None:
    norm = make(name, FEATURES, site=SITE)
    x, mask = masked_batch([row.float() for row in texts([3, 5], 0)], 0.5)
    found = norm(x) if name == "none" else norm(x, mask=mask)
    torch.testing.assert_close(found, norm(x), rtol=0, atol=0)
    assert not type(norm).facts.counts_padding


@pytest.mark.parametrize("kind", CROSSING)
def test_images_may_be_masked_too(kind: str) -> None:
    if "position" in kind:
        return
    name, options = KINDS[kind]
    x, mask = masked_batch(texts([3, 5, 4], 0), math.nan)
    image, sequence = (make(name, FEATURES, channel_dim=dim, **options).double() for dim in (1, -1))
    for training in (True, False):
        y = image.train(training)(x.movedim(-1, 1).unsqueeze(2), mask=mask.unsqueeze(1))
        torch.testing.assert_close(y.squeeze(2).movedim(1, -1), sequence.train(training)(x, mask=mask))
    torch.testing.assert_close(image.state_dict(), sequence.state_dict())


@pytest.mark.parametrize("kind", [*CROSSING, FEW])
def test_gradients_are_right(kind: str) -> None:
    norm = as_on_cuda(random_norm(kind).double(), kind)
    x, mask = masked_batch(texts([3, 4, 2], 0), 0.3)

    def call(x: Tensor, *_: Tensor) -> Tensor:
        return copy_of_buffers(norm)(x, mask=mask)

    torch.autograd.gradcheck(call, (x.requires_grad_(), *norm.parameters()), fast_mode=True)


def copy_of_buffers(norm: Any) -> Any:
    """The same norm with buffers of its own: those of the other stay."""
    memo = {id(parameter): parameter for parameter in norm.parameters()}
    return copy.deepcopy(norm, memo)


@pytest.mark.parametrize("affine", [True, False])
def test_few_operators_have_the_first_and_second_derivatives_of_the_formula(affine: bool) -> None:
    few = as_on_cuda(random_norm(FEW, affine=affine).double(), FEW)
    formula = random_norm("batchnorm", affine=affine).double()
    x, mask = masked_batch(texts([3, 4, 2], 0), 0.3)
    inputs = (x.requires_grad_(), *few.parameters())
    assert torch.autograd.gradgradcheck(lambda *_: few(x, mask=mask), inputs, fast_mode=True)
    x, mask = masked_batch(texts([3, 4, 2], 0), math.nan)  # which shows in no derivative either
    first, second = (
        torch.autograd.grad(weights(y) @ y, x, create_graph=True)[0]
        for y in (norm(x.requires_grad_(), mask=mask)[mask].flatten() for norm in (few, formula))
    )
    torch.testing.assert_close(first, second)
    wanted = [torch.autograd.grad(found.square().sum(), x)[0] for found in (first, second)]
    torch.testing.assert_close(wanted[0], wanted[1])


def test_few_operators_compute_the_formula_by_one_function() -> None:
    """Without it this would test the formula against itself."""
    x, mask = masked_batch(texts([3, 4, 2], 0), 0.3)
    y = as_on_cuda(random_norm(FEW).double(), FEW)(x.requires_grad_(), mask=mask)
    assert "MaskedBatchNormFunction" in str(y.grad_fn.next_functions)


@pytest.mark.parametrize("affine", [True, False])
def test_few_operators_keep_one_float32_tensor_of_bfloat16_and_its_numbers(affine: bool) -> None:
    """What is computed from the values in float32, and rounded after; but the input is kept as it is."""
    norm = as_on_cuda(random_norm(FEW, affine=affine).float(), FEW)
    x, mask = masked_batch(texts([3, 4, 2], 0), 0.3)
    found, kept = [], list[Tensor]()
    for cast in (False, True):
        given = x.bfloat16().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
            y = norm(given.float() if cast else given, mask=mask)
        if not cast:
            assert sum(each.numel() == x.numel() and each.dtype == torch.float32 for each in kept) == 1
        y = y.bfloat16().float()
        first = torch.autograd.grad(weights(y.flatten()) @ y.flatten(), given, create_graph=True)[0]
        second = torch.autograd.grad(first.float().square().sum(), given)[0]
        found.append([y, first, second])
    assert all(map(torch.equal, *found)) and found[0][1].dtype == torch.bfloat16


@pytest.mark.parametrize("momentum", [None, 0.1])
def test_few_operators_take_one_value_into_no_running_statistic(momentum: float | None) -> None:
    norm = as_on_cuda(random_norm(FEW, momentum=momentum), FEW)
    before = copy.deepcopy(norm.state_dict())
    for counts in ([1, 0], [0, 0]):
        x, mask = torch.full((2, 4, FEATURES), math.nan), torch.arange(4) < torch.tensor(counts)[:, None]
        x[0, 0] = 5.0
        assert norm(x, mask=mask).isfinite().all()
    torch.testing.assert_close(norm.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["batchnorm", FEW])
def test_half_precision_is_masked_in_float32(kind: str) -> None:
    rows = texts([3, 5, 2], 0)
    x, mask = masked_batch(rows, math.inf)
    found = as_on_cuda(random_norm(kind), kind)(1000 * x.half(), mask=mask)
    expected = random_norm("batchnorm").double()(1000 * x.half().double(), mask=mask)
    torch.testing.assert_close(found, expected.half(), rtol=2**-10, atol=1e-3)


@pytest.mark.parametrize(("kind", "counts"), [(kind, [0, 0, 0]) for kind in KINDS] + [("batchnorm", [1, 0, 0])])
def test_statistics_over_nothing_are_refused_and_finite(kind: str, counts: list[int]) -> None:
    x = torch.full((3, 4, FEATURES), math.nan)
    mask = torch.arange(4) < torch.tensor(counts)[:, None]
    with pytest.raises(UsageError, match="needs at least 2: "):
        random_norm(kind)(x, mask=mask)


# ---- each position


def test_positions_past_the_longest_of_training_use_the_last_ones() -> None:
    norm = random_norm("batchnorm at each position", momentum=1.0).double()
    x, mask = masked_batch(texts([3, 5, 5, 6], 0), 0.0)  # a single text has a sixth token
    norm(x, mask=mask)
    assert norm.running_mean.shape == (LENGTH, FEATURES)
    x = torch.randn(4, LENGTH, FEATURES, dtype=torch.float64)
    y = norm.eval()(x)
    for position in range(LENGTH):
        last = min(position, 4)
        own = norm.running_mean[last], norm.running_var[last], norm.weight, norm.bias
        expected = nn.functional.batch_norm(x[:, position], *own, eps=norm.eps)
        torch.testing.assert_close(y[:, position], expected)


def test_positions_have_no_statistics_without_sequences() -> None:
    for place in ({}, {"site": Site("cell")}, {"site": SITE, "channel_dim": 1}):
        with pytest.raises(UsageError, match="per_position=true finds no positions"):
            make("batchnorm", FEATURES, per_position=True, **place)
    with pytest.raises(UsageError, match="needs input with time"):
        make("batchnorm", FEATURES, per_position=True, site=SITE)(torch.randn(3, FEATURES))


def test_positions_of_their_own_tell_nothing_of_the_future() -> None:
    norm = random_norm("batchnorm at each position").double()
    x = torch.randn(4, LENGTH, FEATURES, dtype=torch.float64)
    changed = x.clone()
    changed[:, 3:] += torch.randn(4, LENGTH - 3, FEATURES, dtype=torch.float64)
    torch.testing.assert_close(norm(x)[:, :3], norm(changed)[:, :3], rtol=0, atol=0)
    assert type(norm).facts_for(per_position=True, track_running_stats=True).sees_future == "never"


# ---- frozen statistics


@pytest.mark.parametrize("kind", ["batchnorm", "instancenorm with running statistics", "batchnorm at each position"])
@pytest.mark.parametrize("impl", ["auto", "eager"])
def test_frozen_statistics_normalize_in_training_too(kind: str, impl: str) -> None:
    frozen, plain = (random_norm(kind, freeze_after=after, impl=impl).double() for after in (2, None))
    x = torch.randn(5, 4, LENGTH, FEATURES, dtype=torch.float64)
    for batch in x[:2]:
        torch.testing.assert_close(frozen(batch), plain(batch))
    torch.testing.assert_close(frozen.state_dict(), plain.state_dict())
    before = copy.deepcopy(frozen.state_dict())
    for batch in x[2:]:
        batch.requires_grad_()
        y = frozen(batch)
        torch.testing.assert_close(y, plain.eval()(batch))
        gradient = torch.autograd.grad((weights(y) * y).sum(), batch)[0]
        std = (plain.running_var + plain.eps).sqrt()
        torch.testing.assert_close(gradient, weights(y) * (1 if plain.weight is None else plain.weight) / std)
    torch.testing.assert_close(frozen.state_dict(), before, rtol=0, atol=0)


def test_what_is_of_running_statistics_needs_them() -> None:
    for changes in ({"freeze_after": 3}, {"recalibrate": 3}):
        with pytest.raises(UsageError, match=r"set norm\.track_running_stats=true"):
            make("instancenorm", FEATURES, **changes)


def test_an_example_without_a_real_token_is_refused() -> None:
    batch = random_batch(TEXTS)
    assert batch.mask is not None
    batch.mask[1] = False
    with pytest.raises(UsageError, match="without a real token: leave empty texts out"):
        to_device(batch, torch.device("cpu"))
