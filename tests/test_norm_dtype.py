"""Norms whose parameters are kept in 16 bits: what they compute, which of their steps are lost, and what a run says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import make_report
from support import NORMS, TEXT, build, random_batch
from test_norms import layouts, random_input, random_norm
from test_runs import TINY, metrics_of, summary_of, train
from torch import nn

from normbench.build import make_model
from normbench.config.compose import read
from normbench.errors import UsageError
from normbench.probes import Probes
from normbench.probes.probes import LOST_STEPS
from normbench.results.caveat import CaveatKind
from normbench.runs.summary import closing_rows
from normbench.training.checkpoint import read as read_checkpoint
from normbench.training.optimizer import MovingAverage, make_optimizer

WORDS = [*TINY, "norm=layernorm", "trainer.norm_dtype=bf16", "schedule=constant"]
STEPS = ["trainer.steps=4", "trainer.epochs=null", "probes.every=2", "trainer.checkpoint_every=2"]


@pytest.mark.parametrize("name", NORMS)
def test_norms_compute_with_rounded_parameters_in_full_precision(name: str) -> None:
    """As with the same numbers in float32; a gradient is that, rounded once."""
    layout = layouts(name)[-1]
    rounded, usual = random_norm(name, layout), random_norm(name, layout)
    for parameter, other in zip(rounded.parameters(), usual.parameters(), strict=True):
        parameter.data = parameter.data.to(torch.bfloat16)
        other.data = parameter.data.float()
    results = []
    for norm in (rounded, usual):
        x = random_input(layout).requires_grad_()
        y = norm(x)
        (y * random_input(layout, seed=2)).sum().backward()
        results.append((y, x.grad, [parameter.grad for parameter in norm.parameters()]))
    (y, dx, gradients), (expected, expected_dx, others) = results
    assert y.dtype == torch.float32 and torch.equal(y, expected) and torch.equal(dx, expected_dx)
    for gradient, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, other.to(torch.bfloat16), rtol=2**-7, atol=1e-6)


def test_a_model_keeps_its_norms_in_16_bits_and_all_else_as_it_is() -> None:
    rounded, norms = make_model(read([*WORDS, *STEPS]).recipe, TEXT, 0)
    usual, _ = make_model(read([*WORDS, *STEPS, "trainer.norm_dtype=fp32"]).recipe, TEXT, 0)
    of_norms = {parameter for norm in norms.values() for parameter in norm.parameters()}
    for (name, parameter), other in zip(rounded.named_parameters(), usual.parameters(), strict=True):
        is_of_norm = parameter in of_norms
        assert parameter.dtype == (torch.bfloat16 if is_of_norm else torch.float32), name
        assert torch.equal(parameter, other.to(parameter.dtype))


def test_norms_of_other_libraries_are_refused() -> None:
    words = ["norm._target_=torch.nn.LayerNorm", "~norm.bias", "~norm.affine", "~norm.impl", "~norm.eps"]
    with pytest.raises(UsageError, match=r"torch\.nn\.modules\.normalization\.LayerNorm"):
        make_model(read([*TINY, *STEPS, "trainer.norm_dtype=bf16", "norm=layernorm", *words]).recipe, TEXT, 0)


# ---- steps that are lost


def rounded_model() -> tuple[Any, dict[str, nn.Module]]:
    model, norms = build("rmsnorm", depth=1)
    for norm in norms.values():
        for parameter in norm.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return model, norms


def test_lost_steps_by_hand() -> None:
    """From 1 the neighbours are 2⁻⁷ above and 2⁻⁸ below: steps of 2⁻⁷ and −2⁻⁸ arrive, less than half of them not."""
    model, norms = rounded_model()
    first, _, final = norms.values()
    steps = torch.tensor([2**-7, 0.9 * 2**-8, -(2**-8), -(2**-8)] * 4)
    probes = Probes(model, {"parameters"})
    with probes.watch() as reading:
        TEXT.loss(model(*random_batch(TEXT).arguments), random_batch(TEXT).targets).backward()
    for norm in norms.values():
        norm.weight.grad = torch.zeros(16, dtype=torch.bfloat16)
    first.weight.grad = -steps.to(torch.bfloat16)
    final.weight.grad[:2] = torch.tensor([1.0, 1e-3])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with probes.watch_update(reading, optimizer), torch.no_grad():
        for norm in norms.values():
            norm.weight.sub_(norm.weight.grad)
    numbers = reading.numbers()
    assert numbers["norm/block00.attention/lost"] == 0.25
    assert numbers["norm/final/lost"] == 0.5, "of the two that have a gradient"
    assert numbers["norm/block00.mlp/lost"] == 0, "which has none"
    assert numbers[LOST_STEPS] == pytest.approx(5 / 18)


def test_nothing_is_lost_where_the_rate_is_0_and_nothing_said_of_32_bits() -> None:
    for model, rate in ((rounded_model()[0], 0.0), (build("rmsnorm", depth=1)[0], 1.0)):
        probes = Probes(model, {"parameters"})
        with probes.watch() as reading:
            model(*random_batch(TEXT).arguments).sum().backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with probes.watch_update(reading, optimizer):
            optimizer.step()
        assert not [tag for tag in reading.numbers() if "lost" in tag]


def test_what_is_read_of_parameters_in_16_bits_is_not_rounded() -> None:
    model, norms = rounded_model()
    norms["final"].weight.data = torch.arange(1, 17).to(torch.bfloat16)
    with Probes(model, {"parameters"}).watch() as reading:
        model(*random_batch(TEXT).arguments).sum().backward()
    numbers = reading.numbers()
    assert (numbers["norm/final/gamma_mean"], numbers["norm/final/gamma_std"]) == (8.5, pytest.approx(21.25**0.5))


@pytest.mark.parametrize(
    ("beta", "fused", "steady"), [(0.999, True, 0.25), (0.999, False, 0.5), (0.95, True, 0.9609375)]
)
def test_adam_s_second_moment_in_16_bits_freezes_as_the_page_says(beta: float, fused: bool, steady: float) -> None:
    """In float32 it is 1 − 0.999¹⁵⁰⁰ = 0.78 after as many gradients of 1; then gradients are 0."""
    gamma = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    settings: dict[str, Any] = {} if fused else {"foreach": False}
    factory = partial(torch.optim.AdamW, lr=1e-3, betas=(0.9, beta), **settings)
    optimizer = make_optimizer(factory, [{"params": [gamma]}], torch.device("cpu"))
    assert optimizer.defaults["fused"] == (True if fused else None)
    moments = []
    for gradient in (1.0, 0.0):
        gamma.grad = torch.full_like(gamma, gradient)
        for _ in range(1500):
            optimizer.step()
        moments.append(optimizer.state[gamma]["exp_avg_sq"].item())
    assert moments[0] == steady
    assert moments[1] == steady if beta == 0.999 else moments[1] < 1e-6


# ---- runs


def test_adam_at_its_usual_rate_never_moves_gamma(tmp_path: Path) -> None:
    """Its steps of 0.001 are less than half of 2⁻⁸; β, which starts at 0, does move."""
    run = train(tmp_path, *WORDS, *STEPS)
    summary = summary_of(run)
    assert summary["ledger"]["norm_parameters_dtype"] == "bf16"
    logged = [line[LOST_STEPS] for line in metrics_of(run) if LOST_STEPS in line]
    assert summary["share_of_norm_steps_lost"] == pytest.approx(sum(logged) / len(logged))
    row = "share of norm steps lost"
    assert closing_rows(summary)[row] == summary.pop("share_of_norm_steps_lost")
    assert row not in closing_rows(summary), "of a run in 32 bits"
    weights = read_checkpoint(run / "checkpoint.pt")["model"]
    gammas = [tensor for name, tensor in weights.items() if "norm" in name and name.endswith("weight")]
    assert len(gammas) == 5 and all(gamma.dtype == torch.bfloat16 and gamma.eq(1).all() for gamma in gammas)
    assert weights["final_norm.bias"].count_nonzero() > 0
    kinds = [caveat.kind for caveat in make_report([tmp_path]).answer.caveats]
    assert CaveatKind.ROUNDED in kinds


def test_a_run_that_goes_on_has_the_same_bits(tmp_path: Path) -> None:
    first = train(tmp_path, *WORDS, *STEPS)
    longer = train(tmp_path, f"extend={first}", "trainer.steps=8", "quiet=true")
    whole = train(tmp_path, *WORDS, *STEPS, "trainer.steps=8")
    ours, expected = (read_checkpoint(run / "checkpoint.pt")["model"] for run in (longer, whole))
    assert ours.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("optim", ["sgd", "muon"])
def test_other_optimizers_take_both_formats(tmp_path: Path, optim: str) -> None:
    run = train(tmp_path, *WORDS, *STEPS, f"optim={optim}", "probes=full", "trainer.precision=fp32")
    assert summary_of(run)["status"] == "finished"


def test_an_average_of_16_bits_would_stand_still() -> None:
    """Which is why trainer.ema is refused with them."""
    norm = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    norm.weight.data.fill_(1.0)
    average = MovingAverage(norm, decay=0.999)
    average.updates = 10**6
    norm.weight.data.fill_(1.5)
    for _ in range(10):
        average.update()
    assert average.averages[0].item() == 1.0
