"""What only a GPU can show of `trainer.compile=graph`; tests/test_pretended_gpu.py shows the rest."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import CAUSAL, IMAGES, TEXT

sys.path.append(str(Path(__file__).parent / "pretended_gpu"))

from training import Poisoned, RandomData, make_loop, rounded, small, trained

from normbench.training.guard import Diverged
from normbench.training.loop import Loop
from normbench.types import LanguageModeling

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

STEPS = 12
MODELS = {"cnn": IMAGES, "resnet20": IMAGES, "resnet50": IMAGES, "vit_tiny": IMAGES, "mlp": IMAGES, "gpt2": TEXT}
GPT2 = ["model=gpt2", "model.depth=2", "model.width=16", "model.heads=2", "model.context=16"]


def both(words: list[str], task: Any) -> list[list[float]]:
    """Return the losses of ordinary steps and of recorded ones."""
    found = []
    for how in ("false", "graph"):
        loop = make_loop([*words, f"trainer.compile={how}", f"trainer.steps={STEPS}"], task)
        if how == "false":
            rounded(loop)
        found.append(trained(loop, STEPS)["losses"])
        assert bool(loop.compile_seconds) == (how == "graph")
    return found


@pytest.mark.parametrize("norm", CAUSAL)
def test_recorded_steps_are_the_ordinary_ones_with_every_norm(norm: str) -> None:
    """Dropout masks too: others would move the loss in its second digit."""
    plain, recorded = both([*small("nano"), f"norm={norm}", "model.dropout=0.2"], TEXT)
    assert recorded == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_recorded_steps_are_the_ordinary_ones_with_every_model(model: str) -> None:
    words = GPT2 if model == "gpt2" else small(model)
    plain, recorded = both([*words, "norm=batchnorm", "optim=sgd", "optim.lr=0.01"], MODELS[model])
    assert recorded == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize(
    "words",
    [["trainer.precision=bf16"], ["trainer.tf32=true"], ["trainer.ema=0.9"], ["trainer.grad_clip=0"], ["optim=adam"],
     ["norm.freeze_after=4"], ["norm.momentum=null"], ["norm.impl=eager"], ["probes=full", "probes.every=3"],
     ["weights=weight_norm"], ["weights=standardized"], ["weights=spectral"], ["norm@qk=rmsnorm"], ["placement=gpas"]],
    ids=" ".join,
)  # fmt: skip
def test_recorded_steps_are_the_ordinary_ones_with_every_setting(words: list[str]) -> None:
    plain, recorded = both([*small("nano"), "norm=batchnorm", *words], TEXT)
    assert recorded == pytest.approx(plain, rel=1e-3 if "bf16" in words[0] else 1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")  # the mode is a prototype of torch
def test_a_replayed_step_waits_for_nothing() -> None:
    loop = make_loop([*small("nano"), "norm=batchnorm", "trainer.compile=graph"], TEXT)
    trained(loop, 5)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(5):
            loop.train_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_recorded_steps_go_on_from_a_checkpoint() -> None:
    words = [*small("nano"), "norm=batchnorm", "model.dropout=0.1", "trainer.compile=graph"]
    whole = trained(make_loop(words, TEXT), 12)["losses"]
    first, second = make_loop(words, TEXT), make_loop(words, TEXT)
    begun = trained(first, 6)
    second.restore(copy.deepcopy(begun["state"]))
    assert [*begun["losses"], *trained(second, 6)["losses"]] == pytest.approx(whole, rel=1e-4)


def test_a_recorded_step_that_is_not_finite_moves_no_weight() -> None:
    words = [*small("mlp"), "norm=layernorm", "trainer.compile=graph"]
    loop = make_loop(words, IMAGES, data=Poisoned(IMAGES))
    trained(loop, 5)
    before = copy.deepcopy(loop.model.state_dict())
    for _ in range(3):
        loop.train_step()
    assert all(torch.equal(before[name], value) for name, value in loop.model.state_dict().items())
    with pytest.raises(Diverged) as ended:
        loop.check_guard()
    assert ended.value.step == 6


def median_of(loop: Loop, steps: int) -> float:
    """Return the median time of a step, in ms."""
    loop.clock.to_skip = 20
    for _ in range(steps):
        loop.train_step()
    found: float = loop.clock.summary()["median_ms"]
    return found


@pytest.mark.parametrize("norm", ["layernorm", "batchnorm", "rmsnorm"])
def test_a_recorded_step_is_faster(norm: str, tell: Callable[[str], None]) -> None:
    """Of the default model, whose many small operators a GPU computes faster than the host starts them."""
    task, times = LanguageModeling(vocabulary_size=256, context=64), list[float]()
    for how in ("false", "graph"):
        words = ["model=nano", f"norm={norm}", f"trainer.compile={how}", "trainer.steps=200"]
        times.append(median_of(make_loop(words, task, data=RandomData(task, size=12)), 120))
    tell(f"nano with {norm}: {times[0]:.3f} ms a step, as one graph {times[1]:.3f} ({times[1] / times[0]:.2f})")
    assert times[1] < times[0]
