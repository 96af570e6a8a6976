"""Gradient noise: against gradients by hand, a model whose noise is known, and a run that does not notice."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from made_runs import make_report, make_run
from scipy import stats
from support import TEXT, build, random_batch

from normbench.config.compose import read
from normbench.evidence.measures import gradient_noise
from normbench.evidence.run import read_run
from normbench.probes import Probes, Reading, tensor_statistics
from normbench.record.directory import RunDirectory
from normbench.runs.plan import prepare
from normbench.runs.session import Session
from normbench.training.loop import Loop

TINY = "model=nano model.depth=2 model.width=16 model.heads=2 model.context=16 norm=batchnorm placement=sandwich "
TINY += "model.dropout=0.2 data=pydocs threads=1 device=cpu"


def loop_of(tmp_path: Path, *words: str) -> Loop:
    """The loop of a small run in training mode, before its first step."""
    loop = Session(prepare(read([*TINY.split(), f"outputs={tmp_path}", *words]))).loop
    loop.recorder = Silent()
    loop.model.train()
    return loop


class Silent:
    """Takes the place of a recorder, and keeps the numbers."""

    def __init__(self) -> None:
        self.taken: list[dict[str, float]] = []

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.taken.append(values)

    def histograms(self, step: int, values: Any) -> None:
        pass


# ---- the estimate


@pytest.mark.parametrize("size", [1, 2])
def test_variance_and_squared_gradient_against_gradients_by_hand(size: int) -> None:
    """In float64, each micro-batch by a backward pass of its own; by numpy, and as the paper writes its estimates."""
    model, _ = build("layernorm")
    model.double()
    batch = random_batch(TEXT, size=8)
    by_hand = []
    for start in range(0, 8, size):
        own = copy.deepcopy(model)
        rows = slice(start, start + size)
        TEXT.loss(own(batch.inputs[rows]), batch.targets[rows]).backward()
        by_hand.append({name: parameter.grad.flatten() for name, parameter in own.named_parameters()})
    probes = Probes(model, {"updates"})
    reading = Reading()
    probes.read_noise(reading, [[*gradients.values()] for gradients in by_hand], size)
    found = {tag: value.item() for tag, value in reading.scalars.items()}
    flat = np.stack([np.concatenate([*gradients.values()]) for gradients in by_hand])
    assert found["noise/variance"] == pytest.approx(size * flat.var(0, ddof=1).sum(), rel=1e-9)
    small = (flat**2).sum(1).mean()  # |G|² of the small batches, and of all as one
    big = (flat.mean(0) ** 2).sum()
    squared = (8 * big - size * small) / (8 - size)  # McCandlish et al. 2018, equation A.2
    assert found["noise/variance"] == pytest.approx((small - big) / (1 / size - 1 / 8), rel=1e-9)  # equation A.3
    assert found["noise/squared_gradient"] == pytest.approx(squared, rel=1e-9)
    assert found["noise/scale"] == pytest.approx(found["noise/variance"] / squared, rel=1e-9)
    groups = [value for tag, value in found.items() if tag.count("/") == 2]
    assert len(groups) == len(probes.groups)
    assert sum(groups) == pytest.approx(found["noise/variance"], rel=1e-9)
    names = [f"blocks.1.branches.mlp.{name}" for name, _ in model.blocks[1].branches["mlp"].named_parameters()]
    of_mlp = np.stack([np.concatenate([gradients[name] for name in names]) for gradients in by_hand])
    assert found["noise/block01.mlp/variance"] == pytest.approx(size * of_mlp.var(0, ddof=1).sum(), rel=1e-9)


def test_the_noise_scale_of_a_linear_model_is_the_known_one() -> None:
    """Least squares with x ~ N(0, I), y = σε, at w: G = w and tr Σ = (d + 1)·|w|² + d·σ², of one example.

    For g = x(xᵀw − σε), E|g|² = (d + 2)·|w|² + d·σ² by the Gaussian's fourth moments (Isserlis).
    """
    generator = torch.Generator().manual_seed(0)
    d, sigma, size, parts, repeats = 6, 1.5, 4, 4, 4000
    w = torch.linspace(-1, 1, d, dtype=torch.float64)
    x = torch.randn(repeats, parts, size, d, generator=generator, dtype=torch.float64)
    noise = sigma * torch.randn(repeats, parts, size, generator=generator, dtype=torch.float64)
    gradients = (x * (x @ w - noise)[..., None]).mean(2)
    variances = []
    squares = []
    for one in gradients:
        of_tensors, squared_gradient = tensor_statistics.gradient_noise([[part] for part in one], size)
        variances.append(of_tensors.sum())
        squares.append(squared_gradient)
    variance = float(torch.stack(variances).mean())
    squared = float(torch.stack(squares).mean())
    expected = (d + 1) * float(w @ w) + d * sigma**2
    assert variance == pytest.approx(expected, rel=0.02)
    assert squared == pytest.approx(float(w @ w), rel=0.05)
    assert variance / squared == pytest.approx(expected / float(w @ w), rel=0.05)


def test_a_small_variance_is_not_lost_beside_a_large_mean() -> None:
    deviations = torch.tensor([-1.0, 0.0, 1.0])
    variance, _ = tensor_statistics.gradient_noise([[torch.full((5,), 4096.0) + each / 64] for each in deviations], 1)
    assert variance.item() == pytest.approx(5 / 64**2, rel=1e-5)


# ---- beside the step


@pytest.mark.parametrize("accumulate", [1, 2])
def test_noise_leaves_weights_buffers_gradients_and_random_state(tmp_path: Path, accumulate: int) -> None:
    """And only probed steps pay for it."""
    states, calls = [], []
    for every, name in ((0, "off"), (3, "on")):
        words = ["probes=full", f"probes.every={every}", "probes.histograms_every=0", f"name={name}"]
        loop = loop_of(tmp_path, *words, f"trainer.accumulate={accumulate}", "trainer.steps=9")
        forward = Mock(return_value=None)
        loop.model.register_forward_hook(forward)
        own_step = loop.precision.step
        seen: list[torch.Tensor] = []

        def keep(*given: Any, seen: list[Any] = seen, loop: Loop = loop, own_step: Any = own_step) -> None:
            for parameter in loop.model.parameters():
                assert parameter.grad is not None
                seen.append(parameter.grad.clone())
            seen.append(torch.get_rng_state())
            own_step(*given)

        loop.precision.step = keep  # type: ignore[method-assign]
        for _ in range(4):
            forward.reset_mock()
            loop.train_step()
            calls.append((name, forward.call_count))
        states.append([*seen, *loop.model.parameters(), *loop.model.buffers()])
    assert len(states[0]) == len(states[1]) > 100
    for off, on in zip(*states, strict=True):
        assert torch.equal(off, on)
    beside = accumulate + 4
    assert calls == [("off", accumulate)] * 4 + [("on", n) for n in (beside, accumulate, beside, accumulate)]
    noisy = [line for line in loop.recorder.taken if "noise/variance" in line]  # type: ignore[attr-defined]
    assert len(noisy) == 2 and all(line["noise/variance"] > 0 for line in noisy)


@pytest.mark.parametrize(("examples", "parts"), [(3, 0), (4, 2), (7, 3), (8, 4), (13, 4), (64, 4)])
def test_micro_batches_have_two_examples_at_least(tmp_path: Path, examples: int, parts: int) -> None:
    loop = loop_of(tmp_path, "probes=full", f"data.batch_size={examples}")
    found = []
    loop.probes.read_noise = lambda reading, gradients, size: found.append(len([*gradients]))  # type: ignore  # a method
    loop.read_noise(Reading())
    assert found == ([parts] if parts else [])


@pytest.mark.parametrize(("kind", "power"), [(torch.optim.SGD, 2), (torch.optim.AdamW, 1)])
def test_effective_learning_rate_is_how_fast_weights_without_a_scale_turn(kind: Any, power: int) -> None:
    """Van Laarhoven 2017: the loss sees the weights' direction only, and they are made larger."""
    turns, rates = [], []
    for scale in (1, 3, 10):
        model, _ = build("layernorm")
        weights = [*model.double().blocks[1].branches["mlp"].parameters()]
        probes = Probes(model, {"updates"})
        reading = Reading()
        with torch.no_grad():
            torch._foreach_mul_(weights, scale)
        before = torch.cat([p.flatten() for p in weights])
        goal = torch.randn(before.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        (goal @ before / before.norm()).backward()
        optimizer = kind(model.parameters(), lr=1e-4)
        with probes.watch_update(reading, optimizer):
            optimizer.step()
        after = torch.cat([p.flatten() for p in weights])
        turns.append((after / after.norm() - before / before.norm()).norm().item())
        rates.append(reading.scalars["update/block01.mlp/effective_lr"].item())
    assert rates[2] == pytest.approx(1e-4 / before.norm().item() ** power)
    assert [turn / turns[0] for turn in turns] == pytest.approx([1, 3**-power, 10**-power], rel=1e-2)
    assert [rate / rates[0] for rate in rates] == pytest.approx([1, 3**-power, 10**-power])
    assert "update/block01.norms/ratio" in reading.scalars
    assert "update/block01.norms/effective_lr" not in reading.scalars


# ---- in the report


def noisy_run(folder: Path, norm: str, seed: int, variance: float, squared: float, **more: Any) -> Path:
    """A made run with noise at three steps, the first of them before the rate is at its peak."""
    path = make_run(folder, norm=norm, seed=seed, final=2.0 + 0.1 * seed, **more)
    with open(path / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 105, "optim/lr": 0.5}) + "\n")
        for step, factor in ((90, 1e3), (110, 0.5), (120, 1.5)):
            noise = {"noise/variance": factor * variance, "noise/squared_gradient": squared * (2 - factor)}
            file.write(json.dumps({"step": step, **noise}) + "\n")
    return path


def test_gradient_noise_is_a_ratio_of_means_behind_the_warm_up(tmp_path: Path) -> None:
    path = noisy_run(tmp_path, "layernorm", 0, 3.0, 0.5)
    assert gradient_noise(read_run(RunDirectory(path), "a")) == pytest.approx((3.0, 6.0))
    hidden = read_run(RunDirectory(noisy_run(tmp_path, "rmsnorm", 0, 3.0, -0.5)), "b")
    assert gradient_noise(hidden) == pytest.approx((3.0, np.nan), nan_ok=True)
    unprobed = read_run(RunDirectory(make_run(tmp_path, norm="dyt")), "c")
    assert np.isnan(gradient_noise(unprobed)).all()


def test_the_report_has_the_ratio_of_gradient_variances_with_its_interval(tmp_path: Path) -> None:
    variances = {"layernorm": [3.0, 3.3, 2.9], "rmsnorm": [2.7, 3.0, 2.5]}
    for norm, own in variances.items():
        for seed, variance in enumerate(own):
            noisy_run(tmp_path, norm, seed, variance, 0.5, probed=20)
    (table,) = [table for table in make_report([tmp_path]).tables if table.key == "noise"]
    row = dict(zip(table.frame.columns, table.rows[0], strict=True))
    test = stats.ttest_rel(*(np.log(variances[norm]) for norm in ("rmsnorm", "layernorm")))
    low, high = np.exp(test.confidence_interval())
    assert float(row["ratio of gradient variances"]) == pytest.approx(
        stats.gmean(np.divide(variances["rmsnorm"], variances["layernorm"])), abs=0.005
    )
    spans = [cell for name, cell in zip(table.frame.columns, table.rows[0], strict=True) if name == "95 % interval"]
    assert spans[0] == spans[1]  # the squared gradient is the same in all runs
    assert list(map(float, spans[0].split(" to "))) == pytest.approx([low, high], abs=0.01)
    assert row["noise scale, examples"] == f"{np.mean(variances['rmsnorm']) / 0.5:.2f}"
    assert table.title == "Gradient noise, against layernorm" and "McCandlish" in " ".join(table.notes)


def test_the_report_names_arms_whose_micro_batches_are_another_function(tmp_path: Path) -> None:
    for norm in ("layernorm", "rmsnorm"):
        noisy_run(tmp_path, norm, 0, 3.0, 0.5, probed=20)
    (table,) = [table for table in make_report([tmp_path]).tables if table.key == "noise"]
    assert "cross samples" not in " ".join(table.notes)
    noisy_run(tmp_path, "batchnorm", 0, 3.0, 0.5, probed=20)
    (table,) = [table for table in make_report([tmp_path]).tables if table.key == "noise"]
    assert "Not like the others: batchnorm. There statistics cross samples" in " ".join(table.notes)


def test_the_correlation_of_gamma_with_depth(tmp_path: Path) -> None:
    """The made runs have one γ in all blocks: then there is none; else the rank correlation over blocks."""
    path = make_run(tmp_path, probed=20)
    (table,) = [table for table in make_report([tmp_path]).tables if table.key == "activations"]
    assert "γ with depth" not in table.frame
    with open(path / "metrics.jsonl", "a") as file:
        means = {f"norm/block{block:02}.mlp/gamma_mean": mean for block, mean in enumerate((1.0, 0.8, 0.9, 0.7))}
        file.write(json.dumps({"step": 101, **means}) + "\n")
    (table,) = [table for table in make_report([tmp_path]).tables if table.key == "activations"]
    assert table.frame["γ with depth"].tolist() == ["−0.80"]
