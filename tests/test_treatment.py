"""How the optimizer treats parameters of which a part says so: factors on the learning rate, against torch's groups."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from support import build
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from normbench import build as builder
from normbench.config.compose import read
from normbench.errors import ContractError, UsageError
from normbench.norms.seednorm import SeeDNorm
from normbench.placements.layerscale import LayerScale
from normbench.record.recorder import Silent
from normbench.runs.plan import prepare
from normbench.runs.session import Session
from normbench.training.loop import Loop
from normbench.training.matrices import matrices_in_blocks, separate_matrices
from normbench.training.optimizer import make_optimizer, parameter_groups
from normbench.training.stack import Stack
from normbench.types import Treatment
from normbench.weights import LengthAndDirection

RATE = 0.01
DECAY = 0.1
STEPS = 8
WORDS = ["model=nano", "model.depth=1", "model.width=16", "model.heads=2", "model.context=16", "data=pydocs",
         "data.batch_size=8", "norm=seednorm", "placement=layerscale", "weights=weight_norm", "probes=off",
         "threads=1", "device=cpu", "quiet=true", f"optim.lr={RATE}", f"optim.weight_decay={DECAY}",
         f"trainer.steps={STEPS}"]  # fmt: skip


@pytest.fixture(autouse=True)
def factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm, a placement and a treatment of weights that speak of parameters of their own."""
    monkeypatch.setattr(SeeDNorm, "treated", {"alpha": Treatment(decay=True, lr=0.1), "bias": Treatment(lr=5)})
    monkeypatch.setattr(LayerScale, "treated", {"scales": Treatment(lr=0.1)})
    monkeypatch.setattr(LengthAndDirection, "treated", {"gain": Treatment(decay=True)})


def session(*words: str) -> Session:
    made = Session(prepare(read([*WORDS, *words])))
    made.loop.recorder = Silent()
    made.loop.model.train()
    return made


def expected_groups(named: Iterable[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """Groups of torch's, by the names of parameters."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        last = name.split(".")[-1]
        decays = parameter.ndim >= 2 or last in ("alpha", "gain")
        factor = 0.1 if last == "alpha" or ".scales." in name else 1.0
        groups.setdefault((DECAY * decays, RATE * factor), []).append(parameter)
    return [{"params": group, "weight_decay": decay, "lr": lr} for (decay, lr), group in groups.items()]


def take_step(loop: Loop, number: int) -> list[Tensor | None]:
    """Take a step as a run does; return the gradients by which it moved."""
    loop.stepper.set_learning_rates(number)
    loop.stepper.gradients(loop.stepper.local_batches(number))
    loop.stepper.clip()
    gradients = [None if weight.grad is None else weight.grad.clone() for weight in loop.model.parameters()]
    loop.stepper.update()
    return gradients


def assert_same_bits(ours: nn.Module, other: nn.Module) -> None:
    expected = other.state_dict()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("optim", ["adamw", "sgd"])
def test_parameters_move_as_in_groups_of_torch_also_after_a_continuation(optim: str) -> None:
    words = [f"optim={optim}", "trainer.grad_clip=0", "optim.lr=0.01", f"optim.weight_decay={DECAY}"]
    first, second = session(*words).loop, session(*words).loop
    model = copy.deepcopy(first.model)
    kind = getattr(torch.optim, type(first.optimizer).__name__)
    known = {name: first.optimizer.defaults[name] for name in ("betas", "eps", "momentum", "nesterov", "fused")
             if name in first.optimizer.defaults}  # fmt: skip
    reference = kind(expected_groups(model.named_parameters()), **known)
    scheduler = LambdaLR(reference, lambda step: first.stepper.schedule.factor(step, STEPS))
    file = io.BytesIO()
    going = first
    for step in range(STEPS):
        if step == STEPS // 2:
            torch.save(first.state(), file)
            file.seek(0)
            second.restore(torch.load(file, weights_only=True))
            going = second
        gradients = take_step(going, step)
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.grad = gradient
        reference.step()
        scheduler.step()
        assert_same_bits(going.model, model)
        assert going.stepper.learning_rate == RATE * first.stepper.schedule.factor(step, STEPS)


def test_muon_has_them_beside_its_matrices() -> None:
    model, norms = build("seednorm", "layerscale")
    groups = parameter_groups(model, norms.values(), DECAY, decay_norms=False)
    groups = separate_matrices(groups, matrices_in_blocks(model, norms.values()), "optim=muon")
    slow = [group for group in groups if group.get("lr_factor") == 0.1]
    assert len(groups) == 6 and not any("parts" in group for group in slow)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(parameter)].rsplit(".", 1)[-1] for group in slow for parameter in group["params"]}
    assert found == {"alpha", "attention", "mlp"}


def test_a_stack_is_as_single_runs() -> None:
    seeds = 0, 1
    alone, together = ([session(f"seed={seed}") for seed in seeds] for _ in range(2))
    factory = builder.factory(alone[0].run.config.recipe["optim"])
    make = partial(make_optimizer, factory, device=torch.device("cpu"))
    stack = Stack({each.settings.seed: each.loop for each in together}, seeds, make)
    for _ in range(3):
        stack.train_step()
        for single in alone:
            single.loop.train_step()
    for ours, single in zip(together, alone, strict=True):
        torch.testing.assert_close(ours.loop.state()["model"], single.loop.state()["model"], rtol=1e-3, atol=2e-5)


def test_groups_of_a_model_without_factors_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeeDNorm, "treated", {"alpha": Treatment(decay=True)})
    model, norms = build("seednorm")
    groups = parameter_groups(model, norms.values(), DECAY, decay_norms=False)
    assert [(group["weight_decay"], sorted(group)) for group in groups] == [
        (DECAY, ["params", "weight_decay"]),
        (0.0, ["params", "weight_decay"]),
    ]


def test_a_part_that_speaks_of_what_it_has_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeeDNorm, "treated", {"alhpa": Treatment(lr=0.1)})
    model, norms = build("seednorm")
    with pytest.raises(ContractError, match=r"SeeDNorm\.treated speaks of alhpa"):
        parameter_groups(model, norms.values(), DECAY, decay_norms=False)


class OwnRate(torch.optim.SGD):
    """An optimizer that gives its first group a rate of its own."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)
        self.param_groups[0]["lr"] = 3 * lr


def test_rates_that_an_optimizer_gives_its_groups_stay() -> None:
    words = [word for word in WORDS if not word.startswith("optim.")]
    stepper = Session(prepare(read([*words, "optim._target_=test_treatment.OwnRate", "optim.lr=0.01"]))).loop.stepper
    assert stepper.base_lrs[:2] == pytest.approx([0.03, 0.01])


# ---- rates that go with how weights start

MUP = ["norm=layernorm", "placement=pre", "weights=plain", "model.tied=false", "model.width=32", "probes=off"]


def test_mup_at_its_base_width_trains_as_normal_to_the_bit() -> None:
    normal = session(*MUP, "init=normal").loop
    mup = session(*MUP, "init=mup", "init.base_width=32", "model.base_head=16").loop
    for step in range(3):
        take_step(normal, step)
        take_step(mup, step)
    assert_same_bits(mup.model, normal.model)
    assert len(mup.optimizer.param_groups) == 2


def test_mup_lowers_the_rate_of_matrices_and_not_their_decay_in_a_step() -> None:
    loop = session(*MUP, "init=mup", "init.base_width=8", "model.base_head=4").loop
    model: Any = loop.model
    (slow,) = [group for group in loop.optimizer.param_groups if group.get("lr_factor")]
    assert slow["lr_factor"] == 0.25 and slow["weight_decay"] * slow["lr_factor"] == DECAY
    found = {id(weight) for weight in slow["params"]}
    of_branches = [weight for weight in model.blocks[0].branches.parameters() if weight.ndim == 2]
    assert found == {*map(id, of_branches), id(model.head.linear.weight)}
    attention = model.blocks[0].branches["attention"].inner
    q, k, v = torch.randn(3, 1, 2, 5, 16, dtype=torch.float64)
    logits = attention.logits(q, k, None)
    torch.testing.assert_close(logits.tril(), (q @ k.mT * (4**0.5 / 16)).tril())
    torch.testing.assert_close(attention(q, k, v, None), logits.softmax(-1) @ v)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("model.tied=true", "set model.tied=false"),
        ("optim=sgd", "^init=mup with optim=sgd is refused: .*; use optim=adamw"),
        ("optim._target_=torch.optim.SGD", "^init=mup with optim._target_=torch.optim.SGD is refused: "),
        ("weights=spectral", "^init=mup with weights=spectral is refused: "),
    ],
)
def test_what_mup_does_not_go_with_is_refused_in_a_sentence(word: str, sentence: str) -> None:
    words = [each for each in WORDS if not each.startswith("optim.")]
    with pytest.raises(UsageError, match=sentence):
        Session(prepare(read([*words, *MUP, "init=mup", word])))
