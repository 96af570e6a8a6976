"""Probes: right numbers, and a run that does not notice them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support import IMAGES, TEXT, TEXTS, build, random_batch
from torch import nn

from normbench.models import Normal
from normbench.probes import Probes, Reading
from normbench.probes import tensor_statistics as stats
from normbench.probes.reading import TagPlace
from normbench.types import Task

FULL = {"activations", "gradients", "parameters", "tails", "geometry", "attention", "updates"}


@pytest.mark.parametrize("channel_dim", [-1, 1])
def test_moments_against_float64_formulas(channel_dim: int) -> None:
    x = torch.randn(3, 5, 7) * 2 + 0.5
    x[:, :, 2] = 0
    x[0, :, 3] = 0  # dead in one sample only
    found = stats.Moments.describe([stats.Moments.read(x.movedim(-1, channel_dim), channel_dim)])
    y = x.double()
    centered = y - y.mean()
    expected = {
        "mean": y.mean(),
        "std": y.std(correction=0),
        "rms": y.square().mean().sqrt(),
        "max": y.abs().max(),
        "kurtosis": centered.pow(4).mean() / centered.square().mean().square(),
        "dead": torch.tensor(1 / 7, dtype=torch.float64),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value.item(), rel=1e-5), name


def test_histogram_against_numpy() -> None:
    x = torch.tensor([0.0, 0.1, 0.1, 0.9, 1.0, 2.0])
    found, found_edges = Reading(histograms={"x": stats.histogram(x, bins=4)}).host_histograms()["x"]
    counts, edges = np.histogram(x.numpy(), bins=4)
    assert found == counts.tolist() == [3.0, 1.0, 1.0, 1.0]
    assert found_edges == pytest.approx(edges.tolist())
    assert stats.histogram(torch.full((5,), 3.0))[0].sum() == 5


@pytest.mark.parametrize("dead", [0, 1, 4, 6])
def test_tails_against_numpy(dead: int) -> None:
    """Outliers stick out of the channels that live."""
    x = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    x[:, -1] *= 100
    x[:, :dead] = 0
    found = stats.Tails.describe([stats.Tails.read(x, -1)])
    for share in (1, 25, 50, 75, 99):
        expected = np.quantile(x.numpy(), share / 100, method="nearest")
        assert found[f"q{share:02d}"].item() == pytest.approx(expected, rel=1e-6)
    channels = np.sqrt(np.square(x.numpy().astype(np.float64)).mean(0))
    median = np.quantile(channels[dead:], 0.5, method="lower")
    assert found["outlier_ratio"].item() == pytest.approx(channels.max() / median, rel=1e-5)
    assert found["outliers"].item() == pytest.approx(np.mean(channels / median > 6))


@pytest.mark.parametrize("shape", [(64, 256, 384), (64, 1024, 128)])
def test_quantiles_are_of_all_channels(shape: tuple[int, int, int]) -> None:
    """A stride that shares a factor with the width would see some channels only."""
    x = torch.arange(shape[-1], dtype=torch.float32).expand(shape)
    assert stats.Tails.describe([stats.Tails.read(x, -1)])["q75"].item() == pytest.approx(0.75 * shape[-1], abs=1.5)
    images = x.permute(0, 2, 1).contiguous()[..., None]
    assert stats.Tails.describe([stats.Tails.read(images, 1)])["q25"].item() == pytest.approx(0.25 * shape[-1], abs=1.5)


def test_effective_rank_is_that_of_the_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 9, 5, generator=generator)
    singular = np.linalg.svd(x.view(36, 5).double().numpy(), compute_uv=False)
    shares = singular / singular.sum()
    expected = np.exp(-(shares * np.log(shares)).sum())
    assert stats.effective_rank(stats.second_moment(x, -1).double()) == pytest.approx(expected, rel=1e-5)
    images = x.view(4, 3, 3, 5).permute(0, 3, 1, 2)
    assert stats.effective_rank(stats.second_moment(images, 1).double()) == pytest.approx(expected, rel=1e-5)
    assert stats.effective_rank(torch.eye(8, dtype=torch.float64)) == pytest.approx(8)
    assert stats.effective_rank(torch.ones(8, 8, dtype=torch.float64)) == pytest.approx(1)
    assert math.isnan(stats.effective_rank(torch.full((3, 3), math.nan)))


def test_token_similarity_is_the_mean_cosine_of_pairs() -> None:
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    x[0, 2] = 0  # like no other
    cosines = nn.functional.cosine_similarity(x[:, :, None], x[:, None], dim=-1)
    expected = cosines[:, ~torch.eye(5, dtype=torch.bool)].mean().item()
    assert stats.token_similarity(x, -1).item() == pytest.approx(expected, abs=1e-6)
    assert stats.token_similarity(x.transpose(1, 2)[..., None], 1).item() == pytest.approx(expected, abs=1e-6)


@dataclass
class Largest(stats.Observation):
    """A new statistic: the largest value of an activation."""

    value: torch.Tensor

    @classmethod
    def describe(cls, seen: Sequence[Largest]) -> dict[str, torch.Tensor]:
        return {"largest": torch.stack([one.value for one in seen])}


def test_a_new_statistic_has_a_number_at_each_place_the_mean_over_calls() -> None:
    reading = Reading()
    for place, values in ((TagPlace("act/a", "_in"), (1.0, 3.0, math.nan)), (TagPlace("act/b"), (5.0,))):
        for value in values:
            reading.keep(place, Largest(torch.tensor(value)))
    reading.finish()
    assert reading.numbers() == {"act/a/largest_in": 2.0, "act/b/largest": 5.0}


def test_entropy_of_attention() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf, -math.inf], [5.0, -math.inf, -math.inf, -math.inf]])
    assert stats.entropy(logits).item() == pytest.approx(math.log(2) / 2)


def test_attention_logits_are_those_that_torch_attends_by() -> None:
    """softmax(logits) · v is what scaled_dot_product_attention gives, with rotation, causality and padding."""
    for task, settings in ((TEXT, {"position": "rotary"}), (TEXT, {}), (TEXTS, {})):
        model, _ = build(task=task, **settings)
        attention = model.blocks[0].branches["attention"]
        compared = []

        def compare(inner: Any, inputs: tuple[Any, ...], output: torch.Tensor, compared: list[bool] = compared) -> None:
            q, k, v, mask = inputs
            logits = inner.logits(q, k, mask)
            assert torch.allclose(logits.softmax(-1) @ v, output, atol=1e-5)
            assert logits.isinf().any()
            compared.append(True)

        attention.inner.register_forward_hook(compare)
        mask = None if task is TEXT else (torch.arange(16) < torch.tensor([[16], [9]]))
        attention(torch.randn(2, 16, 16), rotation=model.rotation, mask=mask)
        assert len(compared) == 1


class Probed(NamedTuple):
    """A model after a probed step, with its norms, the reading, and what entered and left each norm."""

    model: Any
    norms: dict[str, nn.Module]
    reading: Reading
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]]


def probed_step(
    norm: str, placement: str = "pre", model: str = "nano", task: Task = TEXT, lr: float = 0.0, **settings: Any
) -> Probed:
    """Take a probed step of a model, whose gradients stay."""
    made, norms = build(norm, placement, model, task, **settings)
    batch = random_batch(task)
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def see(name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        seen[name] = inputs[0].detach(), output.detach()

    for name, module in norms.items():
        module.register_forward_hook(partial(see, name))
    probes = Probes(made, FULL)
    with probes.watch(histograms=True) as reading:
        task.loss(made(batch.inputs), batch.targets).backward()
    optimizer = torch.optim.SGD(made.parameters(), lr=lr)
    with probes.watch_update(reading, optimizer):
        optimizer.step()
    return Probed(made, norms, reading, seen)


def test_norms_streams_gradients_updates_and_attention_are_read() -> None:
    model, norms, reading, seen = probed_step("layernorm", "sandwich", lr=0.1)
    numbers = reading.numbers()
    assert list(norms)[:3] == ["block00.attention.in", "block00.attention.out", "block00.mlp.in"]
    assert (len(norms), list(norms)[-1]) == (9, "final")
    for name, (x, y) in seen.items():
        assert numbers[f"act/{name}/rms_in"] == pytest.approx(x.square().mean().sqrt().item(), rel=1e-5)
        assert numbers[f"act/{name}/mean_out"] == pytest.approx(y.mean().item(), abs=1e-6)
        assert reading.histograms[f"act/{name}/in"][0].sum() == x.numel()
    assert math.isclose(numbers["act/final/rms_out"], 1.0, rel_tol=0.02)
    mlp = list(model.blocks[1].branches["mlp"].parameters())
    gradient = stats.total_norm([parameter.grad for parameter in mlp]).item()
    assert numbers["grad/block01.mlp/norm"] == pytest.approx(gradient, rel=1e-6)
    ratio = 0.1 * gradient / stats.total_norm(mlp).item()
    assert numbers["update/block01.mlp/ratio"] == pytest.approx(ratio, rel=1e-4)
    every_gradient = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    squares = [value**2 for tag, value in numbers.items() if tag.startswith("grad/")]
    assert math.sqrt(sum(squares)) == pytest.approx(stats.total_norm(every_gradient).item(), rel=1e-5)
    assert 0 < numbers["attention/block01.attention/entropy"] < math.log(16)
    assert math.isfinite(numbers["attention/block01.attention/largest_logit"])
    assert 1 < numbers["act/stream01/effective_rank"] <= 16
    assert -1 <= numbers["act/stream01/token_similarity"] <= 1
    assert not any(module._forward_hooks for module in model.blocks.modules() if module not in norms.values())


def test_the_largest_logit_of_attention_is_that_before_its_cap() -> None:
    """Else it would say that logits do not grow, however large they are; the entropy is of what attention weighs by."""
    usual, capped = (probed_step("rmsnorm", attention_softcap=cap).reading.numbers() for cap in (None, 1e-3))
    tag = "attention/block00.attention"  # which both models give the same input
    assert usual[f"{tag}/largest_logit"] == capped[f"{tag}/largest_logit"] > 1e-3
    assert usual[f"{tag}/entropy"] < capped[f"{tag}/entropy"]


@pytest.mark.parametrize("task", [TEXT, TEXTS])
@pytest.mark.parametrize(
    "settings",
    [{"width": 64}, {"width": 384}, {"position": "rotary"}, {"pool": "class_token"}, {"init": Normal(0.3, False, 0.1)}],
)
def test_the_stream_of_a_text_starts_at_a_root_mean_square_of_1(task: Task, settings: dict[str, Any]) -> None:
    numbers = probed_step("dyt", task=task, **{"width": 128} | settings).reading.numbers()
    assert numbers["act/block00.attention/rms_in"] == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize(("model", "placement"), [("mlp", "pre"), ("resnet50", "pre"), ("vgg", "plain")])
def test_every_parameter_is_in_one_group(model: str, placement: str) -> None:
    """A block's norms are those in its branches too, and a placement may have parameters of its own."""
    made, norms = build("layernorm", placement, model, IMAGES)
    gain = nn.Parameter(torch.ones(()))
    made.blocks[1].register_parameter("gain", gain)
    groups = Probes(made, FULL).groups
    assert groups["block01.placement"] == [gain]
    assert "block00.placement" not in groups
    of_norms = set()
    for name, norm in norms.items():
        if name.startswith("block00"):
            of_norms.update(norm.parameters())
    assert set(groups["block00.norms"]) == of_norms
    grouped = list(chain(*groups.values()))
    assert len(grouped) == len(set(grouped)) == len(list(made.parameters()))


def test_norm_parameters_and_no_similarity_of_one_position() -> None:
    numbers = probed_step("dyt", model="mlp", task=IMAGES, lr=1.0).reading.numbers()  # those before the step
    assert numbers["norm/block01.linear/alpha"] == 0.5
    assert (numbers["norm/block01.linear/gamma_mean"], numbers["norm/block01.linear/beta_std"]) == (1.0, 0.0)
    assert 0 <= numbers["act/block01.linear/saturated_out"] <= 1
    assert "act/stream00/effective_rank" in numbers and "act/stream00/token_similarity" not in numbers


def test_batchnorm_s_gap_is_taken_before_its_update() -> None:
    _, norms, reading, seen = probed_step("batchnorm", model="cnn", task=IMAGES)
    name, (x, _) = next(iter(seen.items()))
    mean = x.mean((0, 2, 3))
    std = x.std((0, 2, 3), correction=0)
    running_std = math.sqrt(1 + norms[name].eps)
    numbers = reading.numbers()
    gap = (mean / running_std).square().mean().sqrt().item()
    assert numbers[f"norm/{name}/mean_gap"] == pytest.approx(gap, rel=1e-4)
    assert numbers[f"norm/{name}/std_ratio"] == pytest.approx((std / running_std).mean().item(), rel=1e-4)


@pytest.mark.parametrize("masked", [True, False])
def test_padding_counts_in_no_statistic_of_a_text(masked: bool) -> None:
    """But for the gap from running statistics, which is that of what the norm counts."""
    model, norms = build("batchnorm", "pre", "nano", TEXTS, norm_settings={"masked": masked})
    batch = random_batch(TEXTS)
    assert batch.mask is not None and not batch.mask.all()
    seen: dict[str, torch.Tensor] = {}
    norms["final"].register_forward_hook(
        lambda module, inputs, output: seen.update({"in": inputs[0].detach(), "out": output.detach()})
    )
    with Probes(model, FULL).watch() as reading:
        TEXTS.loss(model(*batch.arguments), batch.targets).backward()
    numbers = reading.numbers()
    for side, x in seen.items():
        real = x[batch.mask].double()
        assert numbers[f"act/final/rms_{side}"] == pytest.approx(real.square().mean().sqrt().item(), rel=1e-5)
        assert numbers[f"act/final/q50_{side}"] == pytest.approx(real.quantile(0.5).item(), abs=1e-2)
    counted = seen["in"][batch.mask] if masked else seen["in"].flatten(0, 1)
    running_std = math.sqrt(1 + norms["final"].eps)
    expected = counted.std(0, correction=0).mean().item() / running_std
    assert numbers["norm/final/std_ratio"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("norm", ["layernorm", "batchnorm", "dyt", "none"])
def test_probes_change_nothing(norm: str) -> None:
    """Output, gradients, buffers and random state have the same bits with a probe and without."""
    results = []
    for probed in (False, True):
        torch.manual_seed(3)
        model, _ = build(norm, "sandwich", dropout=0.2)
        batch = random_batch(TEXT)
        probes = Probes(model, FULL)
        for _ in range(2):
            with probes.watch(histograms=True) if probed else nullcontext():
                logits = model(batch.inputs)
                TEXT.loss(logits, batch.targets).backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        results.append([logits, *gradients, *model.buffers(), torch.random.get_rng_state()])
    assert len(results[0]) == len(results[1]) > 10
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore::UserWarning")  # the mode is a prototype of torch
def test_probing_does_not_wait_for_a_gpu() -> None:
    """Everything up to `numbers` runs under CUDA's sync debug mode `error`."""
    model, _ = build("batchnorm", "sandwich")
    inputs, targets, *_ = random_batch(TEXT).map(torch.Tensor.cuda)
    TEXT.loss(model.cuda()(inputs), targets).backward()
    try:
        torch.cuda.set_sync_debug_mode("error")
        with Probes(model, FULL).watch(histograms=True) as reading:
            TEXT.loss(model(inputs), targets).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(math.isfinite(value) for value in reading.numbers().values())


def test_statistics_of_each_position_are_not_compared_with_a_batch() -> None:
    for settings, there in (({}, True), ({"per_position": True}, False)):
        model, _ = build("batchnorm", task=TEXTS, norm_settings=settings)
        with Probes(model, {"parameters"}).watch() as reading:
            model(*random_batch(TEXTS).arguments)
        assert any(tag.endswith("mean_gap") for tag in reading.scalars) == there


def test_saturation_leaves_out_padding() -> None:
    model, _ = build("dyt", task=TEXTS)
    batch = random_batch(TEXTS)
    assert batch.mask is not None and not batch.mask.all()
    with torch.no_grad():
        model.stem.embedding.weight[0] = 1e4  # of the tokens that stand for padding
    padded = batch._replace(inputs=batch.inputs.clamp_min(1).where(batch.mask, 0))
    with Probes(model, {"activations"}).watch() as reading:
        model(*padded.arguments)
    assert reading.scalars["act/block00.attention/saturated_out"] == 0
