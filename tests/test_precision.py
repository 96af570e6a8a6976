"""16-bit training, accumulated gradients and averaged weights, in runs and against formulas."""

from __future__ import annotations

import copy
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import TEXT, build, random_batch, reason_against_in_a_fork, refused
from test_runs import TINY, losses, metrics_of, summary_of, train
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from normbench.cli import main
from normbench.errors import UsageError
from normbench.models.transformer import Head
from normbench.training import precision
from normbench.training.checkpoint import read
from normbench.training.devices import make_current
from normbench.training.optimizer import MovingAverage, PlainAverage, make_average
from normbench.training.precision import (
    Precision,
    check_step,
    make_precision,
    reason_against,
    reason_against_step,
)

pytest_plugins = ["refusals"]

CPU = torch.device("cpu")
MLP = ["model=mlp", "model.width=32", "data=digits", "threads=1", "device=cpu", "quiet=true", "trainer.log_every=1"]


def series(run: Path, tag: str) -> list[float]:
    """The values of one tag, in the order of the steps."""
    return [line[tag] for line in metrics_of(run) if tag in line]


# ---- accumulation


def test_accumulated_batches_are_one_large_batch(tmp_path: Path) -> None:
    """Where no norm crosses samples: same images, same mean loss, same steps to rounding."""
    words = [*MLP, "norm=layernorm", "trainer.steps=10", "probes.every=5"]
    large = train(tmp_path, *words, "data.batch_size=64")
    parts = train(tmp_path, *words, "data.batch_size=16", "trainer.accumulate=4")
    assert [loss for _, loss in losses(parts)] == pytest.approx([loss for _, loss in losses(large)], rel=1e-4)
    assert summary_of(parts)["ledger"]["batches_a_step"] == 4
    gradients = [series(run, "grad/outside/norm") for run in (large, parts)]
    assert gradients[1] == pytest.approx(gradients[0], rel=1e-3)
    assert len(gradients[0]) == 3


def test_epochs_count_what_is_seen(tmp_path: Path) -> None:
    words = [*MLP, "trainer.epochs=0.5", "data.batch_size=16"]
    assert summary_of(train(tmp_path, *words, "trainer.accumulate=4"))["steps"] == 12  # 0.5 · 93 / 4


# ---- averaged weights


def test_an_average_follows_the_formula() -> None:
    """Running statistics are averaged as weights are, and a tied weight once."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    average = MovingAverage(model, 0.9)
    expected = {name: value.double() for name, value in copy.deepcopy(model.state_dict()).items()}
    for step in range(50):
        with torch.no_grad():
            model[0].weight.add_(torch.randn(3, 3))
        model(torch.randn(4, 3) + step)
        average.update()
        decay = min(0.9, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value.double()
    found = average.model.state_dict()
    assert found.pop("1.num_batches_tracked") == 50
    for name in found:
        assert torch.allclose(found[name].double(), expected[name], atol=1e-4), name


@pytest.mark.parametrize("skipped", [0, 7])
def test_a_plain_average_is_torchs_of_the_steps_after_its_start(skipped: int) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()
    average = PlainAverage(model, skipped)
    theirs = AveragedModel(model, use_buffers=True)
    for step in range(20):
        with torch.no_grad():
            model[0].weight.add_(torch.randn(3, 3))
        model(torch.randn(4, 3).double() + step)
        average.update()
        assert average.begun == (step >= skipped)
        if step >= skipped:
            theirs.update_parameters(model)
        else:
            torch.testing.assert_close(average.model.state_dict(), model.state_dict())
    found = average.model.state_dict()
    expected = theirs.module.state_dict()
    for name in ("0.weight", "0.bias", "1.running_mean", "1.running_var"):
        torch.testing.assert_close(found[name], expected[name])


def mean_of_plain(average: PlainAverage, model: nn.Linear, steps: range) -> float:
    """Take in a weight that is the number of its step; return the average."""
    for step in steps:
        model.weight.data.fill_(float(step))
        average.update()
    return average.model.weight.item()


@pytest.mark.parametrize(("skipped", "first"), [(75, 101), (200, 201)])  # of the longer run
def test_a_plain_average_of_a_longer_run_holds_no_step_before_its_start(skipped: int, first: int) -> None:
    model = nn.Linear(1, 1, bias=False).double()
    shorter = PlainAverage(model, 50)
    assert mean_of_plain(shorter, model, range(1, 101)) == pytest.approx((51 + 100) / 2)
    longer = PlainAverage(model, skipped)
    longer.load_state_dict(shorter.state_dict())
    assert mean_of_plain(longer, model, range(101, 251)) == pytest.approx((first + 250) / 2)
    resumed = PlainAverage(model, skipped)
    resumed.load_state_dict(longer.state_dict())
    assert mean_of_plain(resumed, model, range(251, 301)) == pytest.approx((first + 300) / 2)


def test_a_share_of_the_steps_is_not_a_step_too_few() -> None:
    """0.29 · 100 is 28.999999999999996."""
    trainer: Any = SimpleNamespace(ema=None, swa=0.29)
    average = make_average(nn.Linear(1, 1), trainer, 100)
    assert isinstance(average, PlainAverage) and average.skipped == 29


def test_a_run_judges_a_plain_average_from_its_start_on(tmp_path: Path) -> None:
    words = [*MLP, "norm=batchnorm", "trainer.steps=10", "trainer.eval_every=2", "data.eval_batch_size=64"]
    run = train(tmp_path, *words, "trainer.swa=0.5")
    lines = metrics_of(run)
    assert [line["step"] for line in lines if "loss/val_swa" in line] == [6, 8, 10]
    assert summary_of(run)["metrics"]["loss/val_swa"] != summary_of(run)["metrics"]["loss/val"]
    assert read(run / "checkpoint.pt")["average"]["updates"] == 10
    assert losses(train(tmp_path, *words)) == losses(run), "an average changes nothing"


def test_a_run_judges_the_average_beside_the_weights(tmp_path: Path) -> None:
    run = train(tmp_path, *MLP, "norm=batchnorm", "trainer.steps=10", "trainer.ema=0.9")
    found = summary_of(run)["metrics"]
    assert found["loss/val_ema"] != found["loss/val"] and 0 < found["accuracy/val_ema"] <= 1
    plain = train(tmp_path, *MLP, "norm=batchnorm", "trainer.steps=10")
    assert losses(plain) == losses(run), "an average changes nothing"
    assert read(run / "checkpoint.pt")["average"]["updates"] == 10


def test_an_average_says_when_its_decay_is_not_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0.9 after 80 updates, as (1 + 80) / (10 + 80) is 0.9."""
    model = nn.Linear(1, 1)
    for decay, rise in {0.9: 80, 0.99: 890, 0.999: 8_990, 0.05: 0}.items():
        average = MovingAverage(model, decay)
        assert average.rise == rise and (1 + rise) / (10 + rise) >= decay - 1e-9
    loud = [word for word in MLP if word != "quiet=true"]
    train(tmp_path, *loud, "trainer.steps=10", "trainer.ema=0.9")
    told = capsys.readouterr().out
    assert "within 10 steps the average never reaches trainer.ema=0.9, which takes 80" in told


# ---- 16 bits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model"),
    [("bf16", ["model=nano", *TINY[:4]]), ("fp16", ["model=cnn", "data=digits", "model.width=8"])],
)
def test_16_bits_train_as_32_do(tmp_path: Path, name: str, model: list[str]) -> None:
    words = [*model, "norm=batchnorm", "trainer.steps=10", "probes=full", "probes.every=5", "threads=1", "quiet=true"]
    words += ["device=cpu", "trainer.log_every=1"]
    try:
        make_precision(name, CPU)
    except UsageError as error:
        pytest.skip(str(error))
    full, half = train(tmp_path, *words), train(tmp_path, *words, f"trainer.precision={name}")
    assert summary_of(half)["ledger"]["precision"] == name
    a, b = (dict(losses(run)) for run in (full, half))
    assert a != b, "it was not cast at all"
    assert b[1] == pytest.approx(a[1], rel=0.01)
    assert b[10] == pytest.approx(a[10], rel=0.1)
    for tag in ("act/stream00/rms", "act/stream01/effective_rank", "grad/outside/norm", "noise/variance"):
        values = [series(run, tag) for run in (full, half)]
        assert len(values[0]) == len(values[1]) == 3
        assert values[1][0] == pytest.approx(values[0][0], rel=0.1), tag


def test_overflowing_steps_are_left_out_and_counted() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaling, again = Precision("fp16", CPU), Precision("fp16", CPU)
    before = model.weight.detach().clone()
    for factor, moved in ((1e37, 0), (1.0, 2)):  # 65,536 times the first one's gradient is no float32 any more
        scaling.scaler.scale(factor * model(torch.ones(2, 4)).sum()).backward()
        scaling.scaler.unscale_(optimizer)
        scaling.step(optimizer, nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        optimizer.zero_grad()
        assert torch.allclose(model.weight, before - 0.1 * moved)
    again.load_state_dict(scaling.state_dict())
    for one in (scaling, again):
        assert int(one.skipped) == 1 and one.state_dict()["scaler"]["scale"] == 32768


def test_a_precision_that_kills_its_trial_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores_are_on: None, untried: None
) -> None:
    """The signal is named, whatever else the trial has written, and no core file is left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    monkeypatch.setattr(precision, "TRIAL", f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})")
    said = r"trainer.precision=bf16 does not run on this machine's cpu \(its trial died of SIGILL\): use fp32"
    with pytest.raises(UsageError, match=said):
        make_precision("bf16", CPU)
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def cores_are_on() -> Iterator[None]:
    """Let processes that crash leave a core file, as far as that is allowed here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@pytest.fixture
def untried() -> Iterator[None]:
    """Forget in which precisions the CPU was tried, before and after."""
    precision.reason_against_on_cpu.cache_clear()
    yield
    precision.reason_against_on_cpu.cache_clear()


def test_what_a_trial_says_is_told(monkeypatch: pytest.MonkeyPatch, untried: None) -> None:
    monkeypatch.setattr(precision, "TRIAL", "raise TypeError('no such kernel')")
    with pytest.raises(UsageError, match=r"cpu \(TypeError: no such kernel\): use fp32"):
        make_precision("bf16", CPU)


class Lacking(torch.autograd.Function):
    """An operator of which this CPU lacks a part in 16 bits."""

    lacks = ""

    @staticmethod
    def need(part: str) -> None:
        if part == Lacking.lacks and torch.is_autocast_enabled("cpu"):
            raise RuntimeError("no such primitive")

    @staticmethod
    def forward(ctx: Any, x: Tensor, trains: bool) -> Tensor:
        Lacking.need("training" if trains else "evaluation")
        ctx.casts = torch.is_autocast_enabled("cpu")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        if Lacking.lacks == "backward" and ctx.casts:
            raise RuntimeError("no such primitive")
        return dy, None


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the head of every model need the operator."""
    forward = Head.forward

    def with_it(self: Head, x: Tensor, *others: Any) -> Tensor:
        return forward(self, Lacking.apply(x, self.training), *others)

    monkeypatch.setattr(Head, "forward", with_it)
    monkeypatch.setattr(precision, "reason_against_on_cpu", reason_against_in_a_fork)


@pytest.mark.usefixtures("here", "lacking")
@pytest.mark.parametrize("part", ["training", "evaluation", "backward"])
def test_an_operator_that_a_cpu_lacks_is_told_before_anything_is_written(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Lacking, "lacks", part)
    words = ["model=nano", "data=pydocs", *TINY[:4], "device=cpu", "trainer.precision=bf16"]
    line = refused(["train", *words], capsys)
    assert line.startswith("trainer.precision=bf16 does not run this model on this machine's cpu (RuntimeError: no")
    assert "no such primitive" in refused(["study", "smoothness", *words], capsys)
    assert "no such primitive" in refused(["study", "removal", *words], capsys)
    with pytest.raises(AssertionError, match="it came to training"):
        main(["train", *words[:-1]])


def test_what_fails_in_32_bits_too_is_no_matter_of_precision() -> None:
    model, _ = build()
    batch = random_batch(TEXT)
    model.train()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    random_state = torch.get_rng_state()
    half = Precision("bf16", CPU)
    assert half.varies and not Precision("fp32", CPU).varies
    check_step(model, TEXT, batch, half)
    assert model.training and not any(parameter.grad is not None for parameter in model.parameters())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    model.register_forward_pre_hook(fail)
    assert "broken" in reason_against_step(model, TEXT, batch, half)
    check_step(model, TEXT, batch, half)  # the model's own mistake is told where it is computed


def fail(*_: object) -> None:
    raise RuntimeError("broken")


def test_a_gpu_without_a_number_is_the_current_one() -> None:
    """torch refuses to make it current, wherever a sweep or a job of a cluster has `device=cuda`."""
    make_current(torch.device("cuda"))


def test_a_full_gpu_is_not_told_as_one_that_lacks_a_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(device: torch.device, dtype: torch.dtype) -> None:
        raise errors.pop()

    monkeypatch.setattr("normbench.training.precision.try_precision", fails)
    errors = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no kernel image is available")]
    assert "no kernel image is available" in reason_against(torch.device("cuda"), torch.bfloat16)
    with pytest.raises(torch.OutOfMemoryError):
        reason_against(torch.device("cuda"), torch.bfloat16)
