"""Seeds of an arm as one model: single runs to rounding, each with batches, masks, statistics and an end of its own."""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import Server, Trap
from run_records import read_json
from tiny_sweeps import CNN, LENGTHS, assert_as, finished, own_words, run_directories, sessions

from normbench import build
from normbench.config.compose import read
from normbench.errors import UsageError
from normbench.record.directory import RunDirectory
from normbench.record.recorder import Silent
from normbench.runs.plan import prepare
from normbench.runs.session import Session
from normbench.sweep.plan import make_stacks
from normbench.sweep.sweep import plan_sweep
from normbench.sweep.tuning import tuned_grid
from normbench.training.checkpoint import Checkpoints
from normbench.training.clock import Clock
from normbench.training.guard import Diverged
from normbench.training.loop import Loop
from normbench.training.optimizer import make_optimizer
from normbench.training.stack import Stack

pytest_plugins = ["refusals", "run_fixtures"]

SEEDS = 0, 1, 2
PAIR = SEEDS[:2]
NANO = ["model=nano", "model.depth=1", "model.width=16", "model.heads=2", "model.context=16", "data=pydocs",
        "data.batch_size=8", "data.eval_batch_size=512"]  # fmt: skip
RNN = ["model=rnn_lm", "model.width=12", "model.context=8", "model.dropout=0", "data=pydocs", "data.batch_size=8",
       "data.eval_batch_size=512"]  # fmt: skip
SHORT = ["trainer.steps=12", "trainer.grad_clip=0.5", "device=cpu", "threads=1", "quiet=true"]
VIT = ["model=vit_tiny", "model.depth=1", "model.width=12", "model.heads=2", "model.dropout=0", "data=digits",
       "data.batch_size=16"]  # fmt: skip


def sessions_of(*words: str, seeds: Sequence[int] = SEEDS) -> list[Session]:
    """A session for each seed, ready for steps."""
    made = [Session(prepare(read([*SHORT, *words, f"seed={seed}"])), seeds=seeds) for seed in seeds]
    for session in made:
        session.loop.recorder = Silent()
        session.loop.model.train()
    return made


def optimizers(session: Session) -> Any:
    """What makes the session's optimizer."""
    return partial(make_optimizer, build.factory(session.run.config.recipe["optim"]), device=session.run.device)


def stack_of(made: Sequence[Session], seeds: Sequence[int] = SEEDS) -> Stack:
    return Stack({each.settings.seed: each.loop for each in made}, seeds, optimizers(made[0]))


def run(stack: Stack, steps: int) -> list[tuple[Loop, Diverged]]:
    """Take steps; return the loops that diverge."""
    ended: list[tuple[Loop, Diverged]] = []
    stack.on_divergence = lambda loop, end: ended.append((loop, end))
    for _ in range(steps):
        stack.train_step()
    return ended


def assert_close(ours: Loop, alone: Loop) -> None:
    """The same losses, weights, statistics and optimizer's state, to rounding."""
    torch.testing.assert_close(ours.loss_sum, alone.loss_sum, rtol=1e-5, atol=0)
    torch.testing.assert_close(ours.stepper.grad_norm, alone.stepper.grad_norm, rtol=1e-3, atol=0)
    found, expected = ours.state(), alone.state()
    for part in ("model", "optimizer"):
        torch.testing.assert_close({**found[part]}, {**expected[part]}, rtol=1e-3, atol=2e-5)
    if ours.average is not None and alone.average is not None:
        torch.testing.assert_close(
            {**found["average"]["model"]}, {**expected["average"]["model"]}, rtol=1e-3, atol=2e-5
        )
    assert found.keys() == expected.keys()


EVERYTHING = ["optim=sgd", "trainer.accumulate=2", "trainer.ema=0.9", "model.embedding_scale=learned", "probes=full",
              "probes.every=3", "norm=groupnorm", "model.position=rotary"]  # fmt: skip

CASES: dict[str, list[str]] = {
    "transformer, layernorm": [*NANO, "norm=layernorm"],
    "transformer, batchnorm": [*NANO, "norm=batchnorm"],
    "cnn, batchnorm": [*CNN, "norm=batchnorm"],
    "each position": [*NANO, "norm=batchnorm", "norm.per_position=true", "optim=sgd"],
    "recurrent": [*RNN, "norm=none", "trainer.grad_clip=0.1"],
    "each time step": [*RNN, "norm=batchnorm", "norm.per_position=true", "optim=sgd"],
    "frozen statistics": [*NANO, "norm=batchnorm", "norm.freeze_after=3"],
    "statistics of all batches": [*CNN, "norm=batchnorm", "norm.momentum=null", "norm.impl=eager"],
    "cnn, instancenorm": [*CNN, "norm=instancenorm", "norm.track_running_stats=true"],
    "transformer, rmsnorm": [*NANO, "norm=rmsnorm"],
    "cnn, prmsnorm": [*CNN, "norm=prmsnorm"],
    "transformer, dyt": [*NANO, "norm=dyt", "placement=sandwich"],
    "transformer, seednorm": [*NANO, "norm=seednorm"],
    "transformer, gatedrmsnorm": [
        *NANO,
        "norm=gatedrmsnorm",
        "norm.gain0=4",
        "model.attention_gate=head",
        "model.softcap=10",
    ],
    "corrected batches": [*NANO, "norm=batchrenorm", "norm.renorm_after=1", "norm.r_max_at=4", "norm.d_max_at=3"],
    "detached statistics": [*CNN, "norm=batchnorm", "norm.detach=both"],
    "norms and head alone": [*CNN, "norm=batchnorm", "trainer.train=norms+head"],
    "blocks of batches": [*NANO, "norm=ghostbatchnorm", "norm.ghost=2"],
    # at the rate of the others a ReLU meets a value of 1e-7, which rounding puts on either side of its kink
    "cnn, switchable": [*CNN, "norm=switchable", "optim.lr=2e-3"],
    "cnn, evonorm_b0": [*CNN, "norm=evonorm_b0"],
    "running power": [*NANO, "norm=powernorm", "norm.warmup_batches=2"],
    "transformer, none": [*NANO, "norm=none", "model.tied=false", "placement=parallel"],
    "residual network": ["model=resnet20", *CNN[1:], "norm=groupnorm", "optim=sgd"],
    "mlp": ["model=mlp", *CNN[1:], "norm=layernorm", "placement=post"],
    "vision transformer": [*VIT, "norm=layernorm", "optim=sgd", "optim.lr=0.01"],
    "much at once": [*NANO, *EVERYTHING],
}
# GroupNorm of four channels behind a learned scale, and BatchNorm of the eight values of a time step in a recurrence.
BADLY_CONDITIONED = ("much at once", "each time step")


def in_float64(made: Sequence[Session]) -> None:
    """Let models train in float64, where the rounding of a badly conditioned gradient is far below any tolerance."""
    for session in made:
        session.loop.model.double()
        if session.loop.average is not None:
            session.loop.average.model.double()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_stack_is_as_many_single_runs(case: str) -> None:
    alone, together = sessions_of(*CASES[case], seeds=PAIR), sessions_of(*CASES[case], seeds=PAIR)
    if case in BADLY_CONDITIONED:
        in_float64([*alone, *together])
    assert not run(stack_of(together, PAIR), 5)
    norms = []
    for ours, single in zip(together, alone, strict=True):
        for _ in range(5):
            single.loop.train_step()
            norms.append(float(single.loop.stepper.grad_norm))
        assert_close(ours.loop, single.loop)
    assert max(norms) > alone[0].loop.stepper.grad_clip > 0  # gradients were clipped
    losses = [float(each.loop.loss_sum) for each in together]
    assert len({*losses}) == len(PAIR)


def test_a_seed_that_diverges_ends_alone_and_leaves_the_others_their_bits() -> None:
    words = [*NANO, "norm=batchnorm", "model.dropout=0.2"]
    undisturbed, disturbed = sessions_of(*words), sessions_of(*words)
    run(stack_of(undisturbed), 6)
    stack = stack_of(disturbed)
    run(stack, 2)
    bad = disturbed[1].loop
    with torch.no_grad():
        bad.model.get_parameter("blocks.0.branches.mlp.fc2.weight")[0, 0] = math.inf
    before = {name: each.detach().clone() for name, each in bad.model.named_parameters()}
    ((loop, end),) = run(stack, 4)
    assert loop is bad
    assert (end.step, end.reason) == (3, "not finite: output of blocks.0.branches.mlp.fc2")
    assert all(torch.equal(each, before[name]) for name, each in bad.model.named_parameters())
    for place in (0, 2):
        ours, expected = disturbed[place].loop.state(), undisturbed[place].loop.state()
        torch.testing.assert_close({**ours["model"]}, {**expected["model"]}, rtol=0, atol=0)
    assert [loop.step for loop in (disturbed[0].loop, bad)] == [6, 2]


def test_a_stack_goes_on_with_the_same_bits_where_a_seed_is_over() -> None:
    words = [*NANO, "norm=batchnorm", "model.dropout=0.2"]
    whole, begun = sessions_of(*words), sessions_of(*words)
    run(stack_of(whole), 6)
    run(stack_of(begun), 3)
    left = [each for each in sessions_of(*words) if each.settings.seed != 0]
    for session in left:
        session.loop.restore(begun[session.settings.seed].loop.state())
    run(stack_of(left), 3)
    for session in left:
        expected = whole[session.settings.seed].loop.state()
        for part in ("model", "optimizer"):
            torch.testing.assert_close({**session.loop.state()[part]}, {**expected[part]}, rtol=0, atol=0)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_dropout_masks_differ_by_seed_and_come_again(dropout: float) -> None:
    """Two seeds with the same weights and batches, of which each time the first losses are looked at."""
    found = []
    for _ in range(2):
        first, second = sessions_of(*NANO, f"model.dropout={dropout}", seeds=(0, 1))
        second.loop.model.load_state_dict(first.loop.model.state_dict())
        second.loop.data = first.loop.data
        run(stack_of((first, second), (0, 1)), 1)
        found.append([float(each.loop.loss_sum) for each in (first, second)])
    assert found[0] == found[1]
    assert (found[0][0] != pytest.approx(found[0][1], rel=1e-6)) is (dropout > 0)


def test_probes_change_no_bit_of_a_stack() -> None:
    words = [*NANO, "norm=batchnorm", "model.dropout=0.2"]
    quiet, probed = sessions_of(*words, "probes=off"), sessions_of(*words, "probes=full", "probes.every=1")
    for made in (quiet, probed):
        run(stack_of(made), 3)
    for ours, expected in zip(probed, quiet, strict=True):
        torch.testing.assert_close({**ours.loop.state()["model"]}, {**expected.loop.state()["model"]}, rtol=0, atol=0)
        assert any(tag.startswith("grad/block00") for tag in ours.loop.latest)


def test_a_seed_has_its_share_of_a_step_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, marks = Clock(torch.device("cpu"), warmup=0), iter([0.0, 0.012])
    monkeypatch.setattr(clock, "mark", lambda: next(marks))
    clock.start()
    clock.stop(seeds=4)
    assert clock.recent() == pytest.approx(3.0)


# ---- sweeps


ARMS = ["norm=rmsnorm,batchnorm", "seed=0,1,2", *NANO, "model.dropout=0.1", *LENGTHS, "sweep.report=false"]
SWEEP = ["sweep", *ARMS, "sweep.stack=2", "launcher=local"]


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep in stacks that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    output = finished(server, SWEEP, folder)
    assert "6 of 6 runs to do, in stacks of up to 2 seeds, 1 at a time with threads=1 each" in output
    return folder


@pytest.mark.slow
def test_a_sweep_makes_its_runs_in_stacks_and_finds_them_done(server: Server, whole: Path) -> None:
    runs = run_directories(whole)
    assert len(runs) == 6
    last = {name.rsplit("-", 1)[0]: sessions(path)[-1] for name, path in runs.items()}
    assert {name.rpartition("-s")[2]: each["seeds"] for name, each in last.items()} == {
        "0": [0, 1],
        "1": [0, 1],
        "2": [2],
    }
    assert {read_json(path / "summary.json")["stack"] for path in runs.values()} == {2}
    assert all((path / "checkpoint.pt").stat().st_size < 2 * 4 * 3 * 30_000 for path in runs.values())
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()}
    assert "runs to do" not in finished(server, SWEEP, whole)
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "nth", "signals", "status"),
    [("logging > begin", 7, (signal.SIGINT,), 130), ("rename to checkpoint.pt", 4, (signal.SIGKILL,), -9)],
)
def test_a_stack_that_is_stopped_goes_on_bit_by_bit(
    server: Server, whole: Path, tmp_path: Path, place: str, nth: int, signals: tuple[int, ...], status: int
) -> None:
    child = server.start(SWEEP, tmp_path, Trap(place, nth, signals))
    assert child.wait() == status, child.output
    begun = [path for path in run_directories(tmp_path).values() if not (path / "summary.json").exists()]
    assert len(begun) == 2
    steps = {max(Checkpoints(RunDirectory(path)).steps()) for path in begun}
    assert len(steps) == (1 if status == 130 else 2)  # the kill falls between two checkpoints
    finished(server, SWEEP, tmp_path)
    assert_as(whole, tmp_path)


@pytest.mark.slow
def test_a_seed_goes_on_with_the_masks_with_which_it_began_in_another_grid_too(
    server: Server, whole: Path, tmp_path: Path
) -> None:
    assert server.start(SWEEP, tmp_path, Trap("logging > begin", 7, (signal.SIGINT,))).wait() == 130
    (begun,) = (name for name, path in run_directories(tmp_path).items() if "-s0-" in name and any(path.glob("check*")))
    finished(server, [word.replace("seed=0,1,2", "seed=0,2") for word in SWEEP], tmp_path)
    metrics = [read_json(run_directories(folder)[begun] / "summary.json")["metrics"] for folder in (whole, tmp_path)]
    assert metrics[0] == metrics[1]


@pytest.mark.slow
def test_a_failure_of_a_stack_is_that_of_its_runs_which_one_command_repeats(server: Server, tmp_path: Path) -> None:
    words = [*own_words(tmp_path, "Boom", "Fine"), "seed=0,1", "sweep.stack=2"]
    child = server.start(words, tmp_path)
    assert child.wait() == 1, child.output
    assert "4/4 runs  2 failed" in child.output
    (repeat,) = (line for line in child.output.splitlines() if line.startswith("repeat "))
    command = repeat.partition(": normbench ")[2]
    (tmp_path / "fixed").touch()
    assert "1 of 1 runs to do" in finished(server, command.split(), tmp_path)
    stands = {path.name.split("-s")[1][0]: path / "summary.json" for path in run_directories(tmp_path).values()
              if path.name.startswith("boom")}  # fmt: skip
    assert {seed: path.exists() for seed, path in stands.items()} == {"0": True, "1": False}


def test_stacks_are_of_one_arm_and_another_run_than_one_alone() -> None:
    plans = [plan_sweep([*ARMS, "seed=range(0,5)", *more]).plan for more in ([], ["sweep.stack=3"])]
    single, runs = (plan.runs for plan in plans)
    assert not {run.run for run in single} & {run.run for run in runs}
    assert [[(run.arm["norm"], run.seed) for run in each] for each in make_stacks(runs[::-1], 3)] == [
        [("batchnorm", 4), ("batchnorm", 3), ("batchnorm", 2)], [("batchnorm", 1), ("batchnorm", 0)],
        [("rmsnorm", 4), ("rmsnorm", 3), ("rmsnorm", 2)], [("rmsnorm", 1), ("rmsnorm", 0)],
    ]  # fmt: skip
    assert make_stacks(single, 1) == [[run] for run in single]
    rate_of_seed = {0: 0.01, 1: 0.1, 2: 0.01, 3: 0.01, 4: 0.1}  # as sweep.lr=each chooses one for each seed
    sweep = plan_sweep([*ARMS, "seed=range(0,5)", "sweep.stack=3", "sweep.lr=each"])
    choices = [{"name": name, "seed": seed, "lr": rate_of_seed[seed]} for name in sweep.plan.arms for seed in range(5)]
    tuned = sweep.planner.plan(tuned_grid(sweep.plan, choices, sweep.settings)).runs
    assert [[(run.arm["norm"], run.seed) for run in stack] for stack in make_stacks(tuned, 3)] == [
        [("rmsnorm", 0), ("rmsnorm", 2), ("rmsnorm", 3)], [("rmsnorm", 1), ("rmsnorm", 4)],
        [("batchnorm", 0), ("batchnorm", 2), ("batchnorm", 3)], [("batchnorm", 1), ("batchnorm", 4)],
    ]  # fmt: skip
    (one,) = plan_sweep(runs[2].words).plan.runs
    assert one.run == runs[2].run  # as environment.json has its command


REFUSED = {
    "norm.impl=compile": "norm=layernorm with sweep.stack=2 is refused: .*; set norm.impl=auto",
    "trainer.compile=true": "trainer.compile=true with sweep.stack=2 is refused: seeds become one model",
    "trainer.recompute=true": "trainer.recompute=true with sweep.stack=2 is refused",
    "trainer.precision=fp16": "trainer.precision=fp16 with sweep.stack=2 is refused",
    "sweep.stack=0": "sweep.stack=0 is not allowed",
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_needs_each_seed_by_itself_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=REFUSED[word]):
        plan_sweep(["seed=0,1", *NANO, *LENGTHS, "sweep.stack=2", word])


def test_texts_with_lengths_of_their_own_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normbench.data.text.Text.pads", True)
    with pytest.raises(UsageError, match=r"data=pydocs with sweep.stack=2 is refused: "):
        plan_sweep(["seed=0,1", *NANO, *LENGTHS, "sweep.stack=2"])


def test_an_optimizer_in_which_weights_meet_is_refused() -> None:
    made = sessions_of(*NANO, "optim._target_=torch.optim.Adafactor", "optim.lr=0.01")
    with pytest.raises(UsageError, match=r"Adafactor does not treat each weight by itself: use another"):
        stack_of(made)


# ---- speed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_stack_of_eight_is_faster_on_a_gpu_than_eight_runs(tell: Callable[[str], None]) -> None:
    words, seeds = ["model=nano", "data=pydocs", "probes=off", "device=cuda"], range(8)
    alone, together = sessions_of(*words, seeds=[0])[0].loop, stack_of(sessions_of(*words, seeds=seeds), seeds)
    times: dict[str, list[float]] = {"alone": [], "together": []}
    for _ in range(30):
        for name, step in (("alone", alone.train_step), ("together", together.train_step)):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - begun)
    single, stack = (statistics.median(found[10:]) for found in times.values())
    tell(f"a step of 8 seeds as one model takes {stack / single:.2f} of a single run's, 8 runs 8")
    assert stack < 4 * single
