"""The loop's parts against independent references."""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import IMAGES, TEXT, build, random_batch, section
from torch import nn

from normbench import build as builder
from normbench.config.compose import read
from normbench.config.recipe import Recipe, resolve
from normbench.contract.trials import tiny_data
from normbench.errors import UsageError
from normbench.probes import Probes
from normbench.runs.ledger import make_ledger, parameter_counts
from normbench.runs.plan import prepare
from normbench.runs.session import Session, prepare_torch
from normbench.training.clock import Clock
from normbench.training.evaluation import evaluate
from normbench.training.guard import GRADIENT_NORM, Guard, first_nonfinite
from normbench.training.optimizer import MovingAverage, make_optimizer, parameter_groups, without_compiler
from normbench.training.precision import make_precision
from normbench.training.schedules import Constant, Cosine, Linear, OneCycle, Ramp, Schedule
from normbench.types import Batch

CPU = torch.device("cpu")
TINY = ["model.depth=1", "model.width=8", "model.heads=2", "model.context=16", "model.tied=false"]

# ---- rehearsal


def test_a_rehearsal_changes_nothing() -> None:
    made, norms = build("batchnorm", dropout=0.5)
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    generator, hooks = torch.get_rng_state(), [len(norm._forward_hooks) for norm in norms.values()]
    builder.rehearse(made, norms, tiny_data(TEXT), CPU)
    after = made.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [len(norm._forward_hooks) for norm in norms.values()] == hooks
    assert all(parameter.grad is None for parameter in made.parameters())


# ---- schedules


def curve(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.factor(step, steps) for step in range(steps)]


def test_cosine_against_nanogpt_s_formula() -> None:
    """nanoGPT's get_lr: warm-up (it + 1) / (warmup + 1), then a cosine to the smallest rate."""
    warmup, steps, final = 10, 100, 0.1
    rising = [(it + 1) / (warmup + 1) for it in range(warmup)]
    progress = [(it - warmup) / (steps - 1 - warmup) for it in range(warmup, steps)]
    falling = [final + 0.5 * (1 + math.cos(math.pi * share)) * (1 - final) for share in progress]
    assert curve(Cosine(warmup=warmup, final=final), steps) == pytest.approx([*rising, *falling])
    assert max(curve(Cosine(warmup=1000, final=0.1), 10)) < 0.02  # a warm-up longer than the run
    assert curve(Cosine(warmup=0.5, final=0.1), 1) == [1.0]


def test_one_cycle_linear_and_constant_have_their_landmarks() -> None:
    found = curve(OneCycle(warmup=0.3, start=0.04, final=1e-4), 100)
    assert found[0] < 0.06
    assert (found[30], found[-1]) == pytest.approx((1.0, 1e-4))
    assert found == [*sorted(found[:31]), *sorted(found[31:], reverse=True)]
    assert curve(Linear(warmup=0, final=0.2), 5) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert curve(Constant(warmup=0.1), 50) == curve(Constant(warmup=5), 50)
    assert curve(Constant(warmup=0.0), 5) == [1.0] * 5


def test_a_ramp_grows_by_equal_factors_or_evenly() -> None:
    found = curve(Ramp(warmup=0, start=0.01, final=100, form="exponential"), 5)
    assert found == pytest.approx([0.01, 0.1, 1, 10, 100])
    assert curve(Ramp(warmup=0, start=1, final=9, form="linear"), 5) == pytest.approx([1, 3, 5, 7, 9])
    warmed = curve(Ramp(warmup=2, start=3, final=12, form="exponential"), 5)
    assert warmed == pytest.approx([1, 2, 3, 6, 12])


# ---- optimizer


def test_decay_on_matrices_only() -> None:
    model, norms = build("layernorm", bias=True)
    decayed, rest = parameter_groups(model, norms.values(), 0.1, decay_norms=False)
    assert decayed["weight_decay"] == 0.1
    assert rest["weight_decay"] == 0.0
    assert all(parameter.ndim >= 2 for parameter in decayed["params"])
    assert all(parameter.ndim < 2 for parameter in rest["params"])
    assert sum(p.numel() for g in (decayed, rest) for p in g["params"]) == sum(p.numel() for p in model.parameters())
    with_norms, _ = parameter_groups(model, norms.values(), 0.1, decay_norms=True)
    in_norms = sum(len(list(norm.parameters())) for norm in norms.values())
    assert len(with_norms["params"]) == len(decayed["params"]) + in_norms


@pytest.mark.parametrize(("settings", "fused"), [({}, True), ({"foreach": True}, False), ({"fused": False}, False)])
def test_every_optimizer_is_fused_unless_told_otherwise(settings: dict[str, bool], fused: bool) -> None:
    groups = [{"params": [nn.Parameter(torch.ones(3))]}]
    for name in ("adamw", "adam", "sgd"):
        factory = builder.factory(resolve("optim", section("optim", name, **settings)))
        defaults = make_optimizer(factory, groups, CPU).defaults
        assert bool(defaults["fused"]) is fused and settings.items() <= defaults.items()


# ---- evaluation


def test_an_average_of_weights_begins_with_a_short_memory() -> None:
    """After n updates its decay is (1 + n) / (10 + n), as long as that is less than the one that is asked for."""
    model = nn.Linear(1, 1, bias=False)
    average = MovingAverage(model, decay=0.2)
    expected = model.weight.item()
    for number, decay in enumerate((0.1, 2 / 11, 0.2, 0.2)):
        model.weight.data.fill_(float(number))
        average.update()
        expected = decay * expected + (1 - decay) * number
        assert average.model.weight.item() == pytest.approx(expected)


def test_each_step_drops_other_units_and_the_same_when_it_is_taken_again() -> None:
    small = [*TINY, "model.dropout=0.5", "trainer.steps=4", "device=cpu", "threads=1", "quiet=true"]
    stepper = Session(prepare(read(small))).loop.stepper
    dropped: list[torch.Tensor] = []
    first = next(module for module in stepper.model.modules() if isinstance(module, nn.Dropout))
    first.register_forward_hook(lambda module, inputs, output: dropped.append(output == 0))
    stepper.model.train()
    for step in (0, 1, 0):
        stepper.gradients(stepper.local_batches(step))
    assert torch.equal(dropped[0], dropped[2]) and not torch.equal(dropped[0], dropped[1])


def test_evaluation_weighs_every_prediction_alike() -> None:
    """Batches of different sizes: the mean over all targets, not over batches; and eval mode is left again."""
    model, _ = build("batchnorm", dropout=0.5)
    batches = [random_batch(TEXT, size=n, seed=n) for n in (5, 2)]
    found = evaluate(model, batches, TEXT, CPU)
    assert model.training
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(batch.inputs).flatten(0, 1) for batch in batches]).double()
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    loss = nn.functional.cross_entropy(logits, targets).item()
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == targets).double().mean().item())
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-6)


def test_a_perplexity_that_no_number_can_hold_is_infinite() -> None:
    """Not that of a smaller loss, by which two such losses would be one perplexity."""
    losses = [709.0, 709.7, 710.0, 40536.4, math.inf, math.nan]
    found = [TEXT.metrics(loss, accuracy=0.0)["perplexity"] for loss in losses]
    assert found == [math.exp(709.0), math.exp(709.7), *[math.inf] * 4]


# ---- divergence


def test_latched_guard_freezes_the_weights_from_the_first_bad_step_on() -> None:
    """Fused AdamW honours `found_inf` (on the CPU too), so the check needs no wait for the device."""
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    guard, waiting = Guard(optimizer, CPU, latches=True), Guard(optimizer, CPU, latches=False)
    seen = []
    for step, gradient in enumerate((1.0, 2.0, math.nan, 1.0, math.inf), start=25):
        weight.grad = torch.full((4,), gradient)
        guard.admits(step, torch.tensor(0.5), weight.grad.norm())
        assert waiting.admits(step, torch.tensor(0.5), weight.grad.norm()) is math.isfinite(gradient)
        assert guard.first_bad_step() == (27 if step >= 27 else None)
        optimizer.step()
        seen.append(weight.detach().clone())
    assert not torch.equal(seen[0], seen[1])
    assert all(torch.equal(seen[1], later) for later in seen[2:])


def test_first_nonfinite_output_is_named() -> None:
    model, _ = build("batchnorm", model="cnn", task=IMAGES)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        model.blocks[1].branches["conv"].conv1.weight[0, 0, 0, 0] = math.nan  # type: ignore[union-attr,index]  # modules
    assert first_nonfinite(model, random_batch(IMAGES), IMAGES) == "output of blocks.1.branches.conv.conv1"
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_first_nonfinite_gradient_is_named() -> None:
    """√|x| has a finite value and an infinite slope at 0."""

    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.abs().sqrt()

    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), Root(), nn.Linear(4, 5))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    batch = random_batch(IMAGES)
    batch = batch._replace(inputs=torch.randn(4, 3))
    assert first_nonfinite(model, batch, IMAGES) == "gradient of 1.weight"
    model[0].weight.requires_grad_(False)  # frozen weights have no gradient to look at
    assert first_nonfinite(model, batch, IMAGES) == "gradient of 1.weight"


def test_a_gradient_behind_torch_s_own_batchnorm_is_told_and_leaves_its_statistics() -> None:
    """Its backward pass reads the running statistics: they must not be put back before it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert first_nonfinite(model, Batch(torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)), IMAGES) == GRADIENT_NORM
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


# ---- clock, ledger


def test_clock_leaves_out_warm_up_and_probed_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, later = Clock(CPU, warmup=1), Clock(CPU)
    # two marks a step that counts, one of the others
    marks = iter([0.0, 10.0, 10.002, 20.0, 30.0, 30.004])
    monkeypatch.setattr(clock, "mark", lambda: next(marks))
    for counts in (True, True, False, True):
        clock.start()
        clock.stop(counts)
    assert clock.recent() == pytest.approx(3.0)
    assert clock.recent() is None
    assert clock.summary()["n"] == 2 and clock.summary()["median_ms"] == pytest.approx(3.0)
    later.load_state_dict(clock.state_dict())
    assert later.summary() == clock.summary()


@pytest.mark.parametrize(
    ("trained", "prefixes"),
    [("norms", ["norm"]), ("head", ["head"]), ("norms+head", ["norm", "head"])],
)
def test_some_parameters_alone_are_trained(trained: str, prefixes: list[str]) -> None:
    tree = read([*TINY, f"trainer.train={trained}"]).tree
    model, norms = builder.make_model(Recipe(tree), TEXT, seed=0)
    whole, _ = builder.make_model(read(TINY).recipe, TEXT, seed=0)
    in_norms = {parameter for norm in norms.values() for parameter in norm.parameters()}
    names = {"norm": in_norms, "head": set(model.head.parameters())}
    expected = set().union(*(names[prefix] for prefix in prefixes))
    assert {parameter for parameter in model.parameters() if parameter.requires_grad} == expected
    probed = Probes(model, {"updates"}).groups
    assert {parameter for parameters in probed.values() for parameter in parameters} == expected
    data = tiny_data(TEXT)
    stepper = builder.make_stepper(Recipe(tree), model, norms, data, make_precision("fp32", CPU), steps=2)
    for number in range(2):
        stepper.set_learning_rates(number)
        stepper.gradients(stepper.local_batches(number))
        stepper.update()
    assert set(stepper.optimizer.state) == expected
    counts = parameter_counts(model, norms.values())
    assert counts["trained"] == sum(parameter.numel() for parameter in expected)
    for parameter, start in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(parameter, start) == (parameter not in expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["norm=none", "trainer.train=norms"], "the norms of this model have no parameters"),
        (["model.tied=true", "trainer.train=head"], "no output layer of its own"),
    ],
)
def test_what_has_no_parameters_cannot_be_trained_alone(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        builder.make_model(read([*TINY, *words]).recipe, TEXT, seed=0)


@pytest.mark.parametrize("trained", ["norms", "head", "norms+head"])
def test_muon_has_nothing_to_do_where_no_matrix_of_a_block_is_trained(trained: str) -> None:
    """The model has some all the same, and another model would change nothing."""
    tree = read([*TINY, "optim=muon", f"trainer.train={trained}"]).tree
    model, norms = builder.make_model(Recipe(tree), TEXT, seed=0)
    with pytest.raises(UsageError, match=r"trainer\.train leaves none .* set optim=adamw, .* or trainer\.train=all"):
        builder.make_stepper(Recipe(tree), model, norms, tiny_data(TEXT), make_precision("fp32", CPU), steps=2)


def test_training_all_is_what_runs_did_before() -> None:
    assert "train" not in read(["trainer.train=all"]).tree["trainer"]
    assert read([]).closed.trainer.train == "all"


def test_ledger_counts_and_names_what_was_built() -> None:
    model, norms = build("groupnorm", "deep", depth=2)
    trainer = {"decay_norms": False, "compile": False, "precision": "fp32", "accumulate": 1}
    tree = {"trainer": trainer, "init": section("init", "xavier")}
    ledger = make_ledger(model, norms, tree, CPU)
    assert (ledger["norms"], ledger["eps"], ledger["groups"]) == (4, 1e-5, 4)  # groups=auto: 16 features / 4
    assert ledger["parameters"]["in_norms"] == 4 * 2 * 16
    assert ledger["parameters"] == parameter_counts(model, norms.values())
    assert (ledger["residual_gain"], ledger["branch_gain"]) == pytest.approx((4**0.25, 16**-0.25), abs=1e-6)
    assert ledger["norm_parameters_decayed"] is False and "torch" in ledger["implementation"]


def test_numbers_that_slow_a_cpu_down_are_0(tmp_path: Path) -> None:
    torch.set_flush_denormal(False)
    small = torch.full((3,), 1e-39)
    assert (0.5 * small > 0).all()
    prepare_torch(prepare(read([f"outputs={tmp_path}", "device=cpu"])))
    assert (0.5 * small == 0).all()


# ---- what a step does not pay for


ONE_RUN = """
import resource, sys
from normbench.cli import main
from normbench.training.loop import Loop

def faults(step=Loop.train_step, seen=[]):
    def counted(loop):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step(loop)
        seen.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    Loop.train_step = counted
    return seen

seen = faults()
words = "train device=cpu trainer.steps=30 trainer.eval_every=30 trainer.eval_batches=1 quiet=true"
assert main(words.split()) == 0
print(sorted(seen[10:])[10], "torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="counts what glibc gives back")
def test_a_step_gives_no_memory_back_and_a_run_never_imports_the_compiler(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ONE_RUN], cwd=tmp_path, capture_output=True, text=True, check=True)
    faults, compiler = done.stdout.split()[-2:]
    assert int(faults) < 100  # 2,000 where freed memory goes back to the system
    assert compiler == "False"


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "RMSprop"])
def test_a_step_without_the_compiler_is_torch_s_own_step(name: str) -> None:
    kind = getattr(torch.optim, name)

    def trained(kind: type[torch.optim.Optimizer]) -> torch.Tensor:
        weight = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
        optimizer = kind([weight], lr=0.1)  # type: ignore[call-arg]
        for _ in range(3):
            weight.grad = weight.detach().cos()
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad()
        assert weight.grad is None
        return weight.detach()

    assert issubclass(without_compiler(kind), kind)
    assert torch.equal(trained(without_compiler(kind)), trained(kind))


def test_gradients_that_are_small_enough_are_not_clipped_and_others_as_torch_does(tmp_path: Path) -> None:
    def gradients(clip: float) -> list[torch.Tensor]:
        words = ["device=cpu", "threads=1", f"trainer.grad_clip={clip}", f"outputs={tmp_path}", "probes=off"]
        loop = Session(prepare(read(words))).loop
        loop.stepper.gradients(loop.stepper.local_batches(0))
        loop.stepper.clip()
        return [p.grad for p in loop.stepper.parameters if p.grad is not None]

    free = gradients(0)
    norm = nn.utils.get_total_norm(free)
    assert all(map(torch.equal, gradients(2 * norm.item()), free))
    expected = [gradient * (norm / 2 / (norm + 1e-6)) for gradient in free]
    torch.testing.assert_close(gradients(norm.item() / 2), expected)
