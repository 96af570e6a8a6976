"""What a GPU is asked: each check is a function that measures, and says what it has found."""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from outcomes import LEFT as NOT_TRIED
from outcomes import Cells, NotTried, Outcome, judge
from support import IMAGES, MATRIX, OVER_POSITIONS, TEXT
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from training import RandomData, make_loop, small

from normbench import build
from normbench.compiling import compiled
from normbench.config.compose import read
from normbench.config.groups import options, section_of
from normbench.config.recipe import resolve
from normbench.errors import UsageError, explain, is_out_of_memory
from normbench.record.recorder import Silent
from normbench.runs.plan import prepare
from normbench.runs.session import Session
from normbench.studies.timing import Call, do_nothing, seconds_of, time_in_turn
from normbench.training.clock import Clock
from normbench.training.devices import allow_tf32, seed_generators
from normbench.training.launches import count_operators
from normbench.training.loop import Loop
from normbench.training.optimizer import make_optimizer
from normbench.training.parallel import is_lost
from normbench.training.stack import Stack
from normbench.types import Batch, ImageClassification, Task

TESTS = Path(__file__).parents[3] / "tests"
WORKER = Path(__file__).with_name("worker.py")

DEVICE = "cuda"
GPU = torch.device(DEVICE)
NORMS = ["layernorm", "rmsnorm", "batchnorm", "groupnorm", "dyt"]
VARIED = {"transformer LM": ("norm", "placement", "weights", "optim", "scheme"),
          "cnn": ("norm", "placement", "weights", "optim")}  # fmt: skip
PRECISIONS = ["fp32", "bf16"]
SETTLED = 3  # steps until an optimizer has its state, and kernels are chosen

WARM = 10  # steps before one is timed
ROUNDS = 15  # measurements of each of what is timed in turn
PRESETS = {"nano": ["model=nano", "data=pydocs"], "cnn": ["model=cnn", "data=digits"]}
CONVOLUTIONS = [
    ["model=cnn", "norm=batchnorm"],
    ["model=resnet20", "norm=batchnorm"],
    ["model=resnet20", "norm=groupnorm"],
]
BENCH = ["study.rows=4096,65536", "study.features=1024", "study.steps=10"]
WAYS = ("false", "graph", "true", "cudagraphs")  # of `trainer.compile`; what takes long comes last
PARTS = ["weights=weight_norm", "weights=standardized", "weights=scaled_standardized", "weights=spectral",
         "norm@qk=rmsnorm", "optim=muon", "placement=gpas"]  # fmt: skip
PART_STEPS = 6  # of a run with one of them: more than there are before a graph is recorded
SEQUENCES = (16, 128, 256)  # batch, time and features of what norms are tried on
PICTURES = (16, 64, 16, 16)
LONG = 20  # steps of runs that are compared to the bit; a stop is half way
PHOTOGRAPHS = ImageClassification(10, (3, 32, 32))
BATCH = 128  # of them

ROUNDING = 1e-3  # by which losses of a few steps may differ where operators add in another order, as a share
MOST = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # that a norm may be off, as a share of the largest value


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        claim: what it claims.
        seconds: the most that it may take.
        measure: what measures it.
        alone: nothing may run beside it, as it measures times or fills up the memory.
    """

    claim: str
    seconds: float
    measure: Callable[[], Outcome]
    alone: bool = False

    def outcome(self) -> Outcome:
        """Measure, and return what was found, or why it was not tried."""
        try:
            return self.measure()
        except NotTried as reason:
            return Outcome(NOT_TRIED, str(reason))


# ---- small trainings


class OneBatch(RandomData):
    """The same batch at each step, so that the host has nothing to make."""

    def train_batch(self, step: int) -> Batch:
        if not hasattr(self, "batch"):
            self.batch = super().train_batch(0)
        return self.batch


def loop_of(words: Sequence[str], data: Any = None) -> Loop:
    """Return a loop that has not begun, on the configuration's own data where no other are given."""
    config = read(["trainer.steps=1000", "probes=off", f"device={DEVICE}", "quiet=true", *words])
    loop = Session(prepare(config) if data is None else prepare(config, data)).loop
    loop.recorder = Silent()
    loop.model.train()
    return loop


def settle(loop: Loop, steps: int = SETTLED) -> Loop:
    """Take a loop's first steps."""
    for _ in range(steps):
        loop.train_step()
    return loop


def trainings() -> Iterator[tuple[str, list[str], Task]]:
    """Yield each family of models with usual norms, and two with each option of several groups: a name, words, a task.

    Some do not go together.
    """
    for name, (model, task) in MATRIX.items():
        for norm in NORMS:
            yield f"{name} {norm}", [*small(model), f"norm={norm}"], task
    for name, groups in VARIED.items():
        model, task = MATRIX[name]
        for group in groups:
            for option in options(group):
                if group != "norm" or option not in NORMS:
                    yield f"{name} {group}={option}", [*small(model), f"{group}={option}"], task


@contextmanager
def refuse_waits() -> Iterator[None]:
    """Let whatever waits for the device inside raise."""
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def median_ms(calls: Mapping[str, Call]) -> dict[str, float]:
    """Return the median milliseconds of each call; they take turns, each by itself."""
    rounds = list(time_in_turn(list(calls.values()), ROUNDS, prepare=do_nothing))
    medians = 1e3 * np.median(rounds, axis=0)
    return dict(zip(calls, medians.tolist(), strict=True))


def share(difference: float, size: float) -> float:
    """Return a difference as a share; NaN stays NaN, and so does not pass for small."""
    return abs(difference) / max(abs(size), 1e-12)


def tell_failures(failures: Mapping[str, str], tried: int, what: str) -> str:
    """Say how many were tried, and what failed first."""
    if not failures:
        return f"{tried} {what}"
    name, reason = next(iter(failures.items()))
    return f"{len(failures)} of {tried} {what} failed; the first: {name}: {reason}"


# ---- what holds for a step


def check_waits() -> Outcome:
    """Train each family of models with several norms in two precisions, and let a step that waits raise."""
    failed = dict[str, str]()
    tried = 0
    for name, words, task in trainings():
        for precision in PRECISIONS:
            try:
                loop = make_loop([*words, f"trainer.precision={precision}"], task, DEVICE)
            except UsageError:
                continue  # which does not go together
            tried += 1
            try:
                settle(loop)
                with refuse_waits():
                    loop.train_step()
                if not torch.isfinite(loop.loss_sum).item():
                    failed[f"{name} {precision}"] = "the loss is not finite"
            except Exception as error:  # whatever a step raises is what the check tells
                failed[f"{name} {precision}"] = explain(error)
    return judge(not failed, tell_failures(failed, tried, "trainings"), {"tried": tried, "failed": failed})


def check_agreement() -> Outcome:
    """Compare the losses of three steps of each family with those of the CPU."""
    found = dict[str, float]()
    for name, words, task in trainings():
        model = words[0].partition("=")[2]
        if "dropout" in section_of("model", model):
            words = [*words, "model.dropout=0"]  # masks are the device's own
        try:
            here = settle(make_loop(words, task, DEVICE)).loss_sum.item()
            there = settle(make_loop(words, task, "cpu")).loss_sum.item()
        except UsageError:
            continue  # which does not go together
        found[name] = share(here - there, there)
    worst = max(found, key=lambda name: found[name])
    losses = f"the losses of {SETTLED} steps differ by {found[worst]:.1e} at the most ({worst})"
    holds = all(value <= ROUNDING for value in found.values())
    return judge(holds, f"{len(found)} trainings; {losses}", {"differences": found})


def check_repeats() -> Outcome:
    """Train twice, and once with a stop and a checkpoint on the way; compare the weights to the bit."""
    trained: dict[str, tuple[list[str], Task]] = {
        "nano": ([*small("nano"), "model.dropout=0.1"], TEXT),
        "cnn": ([*small("cnn"), "norm=batchnorm"], IMAGES),
    }
    found = dict[str, dict[str, float]]()
    for name, (words, task) in trained.items():
        first = weights_of(settle(make_loop(words, task, DEVICE), LONG))
        second = weights_of(settle(make_loop(words, task, DEVICE), LONG))
        resumed = weights_of(settle(resume_half_way(words, task), LONG - LONG // 2))
        found[name] = {"two runs": largest(first, second), "resumed": largest(first, resumed)}
    holds = True
    parts = []
    for name, own in found.items():
        holds &= own["resumed"] <= 10 * own["two runs"]
        for what, difference in own.items():
            parts.append(f"{name}, {what}: {tell_difference(difference)}")
    return judge(holds, "; ".join(parts), {"differences": found})


def resume_half_way(words: list[str], task: Task) -> Loop:
    """Return a loop that goes on from a checkpoint which another one has left half way."""
    first_half = settle(make_loop(words, task, DEVICE), LONG // 2)
    checkpoint = io.BytesIO()
    torch.save(first_half.state(), checkpoint)
    checkpoint.seek(0)
    resumed = make_loop(words, task, DEVICE)
    resumed.restore(torch.load(checkpoint, map_location="cpu", weights_only=True))
    return resumed


def weights_of(loop: Loop) -> torch.Tensor:
    """Return all weights and buffers of a loop's model as one tensor on the CPU."""
    parts = [value.detach().float().flatten() for value in loop.model.state_dict().values()]
    return torch.cat(parts).cpu()


def largest(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference, as a share of the largest weight."""
    return ((one - other).abs().max() / one.abs().max()).item()


def tell_difference(value: float) -> str:
    """Say how large a difference is."""
    return "equal to the bit" if value == 0 else f"differ by {value:.1e} of the largest weight"


def check_stack() -> Outcome:
    """Train two seeds of a model with attention as one model, and each alone."""
    words = [*small("nano"), "norm=layernorm"]
    loops = {seed: make_loop([*words, f"seed={seed}"], TEXT, DEVICE) for seed in range(2)}
    make = partial(make_optimizer, build.factory(read(words).recipe["optim"]), device=loops[0].device)
    stack = Stack(loops, [0, 1], make)
    for _ in range(SETTLED):
        stack.train_step()
    together = [loop.loss_sum.item() for loop in loops.values()]
    alone = []
    for seed in loops:
        loop = settle(make_loop([*words, f"seed={seed}"], TEXT, DEVICE))
        alone.append(loop.loss_sum.item())
    worst = max(share(one - other, other) for one, other in zip(together, alone, strict=True))
    figure = f"the losses of {SETTLED} steps differ by {worst:.1e} from those of each seed alone"
    return judge(worst <= ROUNDING, figure, {"together": together, "alone": alone})


def check_second_gpu() -> Outcome:
    """Train on a GPU that is not the first: its time, its random numbers, and nothing on the first."""
    if torch.cuda.device_count() < 2:
        raise NotTried("there is one GPU")
    torch.cuda.default_generators[0].manual_seed(7)
    before = torch.cuda.memory_allocated(0)
    loop = make_loop([*small("nano"), "norm=layernorm"], TEXT, "cuda:1")
    loop.clock = Clock(loop.device, warmup=0)
    loop.train_step()
    times = loop.clock.read()
    untouched = torch.cuda.default_generators[0].initial_seed() == 7
    on_first = torch.cuda.memory_allocated(0) - before
    torch.cuda.set_device(0)
    figure = f"a step of {times[0]:.2f} ms on cuda:1, {on_first:,} bytes on cuda:0"
    holds = len(times) == 1 and times[0] > 0 and untouched and on_first == 0
    return judge(holds, figure, {"ms": times, "bytes_on_the_first": on_first, "generator_untouched": untouched})


def check_both_gpus() -> Outcome:
    """Train one run on two GPUs, and a sweep of two runs on one each."""
    if torch.cuda.device_count() < 2:
        raise NotTried("there is one GPU")
    words = ["model=nano", "data=pydocs", "trainer.steps=30", "trainer.eval_every=30", "probes=off", "quiet=true"]
    alone = command("train", *words, f"device={DEVICE}", "outputs=alone", limit=60)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(WORKER)]
    call = [*torchrun, "train", *words, f"device={DEVICE}", "outputs=together"]
    together = subprocess.run(call, capture_output=True, text=True, timeout=90)
    swept = command("sweep", *words, "seed=0,1", "outputs=swept", "sweep.report=false", limit=120)
    for done in (alone, together, swept):
        if done.returncode:
            return judge(False, f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}", {})
    losses = [summaries(folder)[0]["metrics"]["loss/val"] for folder in ("alone", "together")]
    devices = sorted(str(summary["ledger"]["device"]) for summary in summaries("swept"))
    difference = share(losses[0] - losses[1], losses[0])
    figure = f"losses of one GPU and two differ by {difference:.1e}; a sweep uses {', '.join(devices)}"
    holds = difference <= 10 * ROUNDING and len(set(devices)) == 2
    return judge(holds, figure, {"losses": losses, "devices": devices})


def summaries(folder: str) -> list[dict[str, Any]]:
    """Return the summaries of the runs in a folder."""
    return [json.loads(file.read_text()) for file in sorted(Path(folder).rglob("summary.json"))]


# ---- the same by commands


def command(*words: str, limit: float) -> subprocess.CompletedProcess[str]:
    """Run a command of normbench, here."""
    call = [sys.executable, "-m", "normbench", *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=limit)


def check_compilation() -> Outcome:
    """Train the same run as it is, compiled, and with its steps replayed as CUDA graphs."""
    found = dict[str, Any]()
    failed = dict[str, str]()
    for how in WAYS:
        words = ["model=nano", "data=pydocs", f"device={DEVICE}", "trainer.steps=120", "trainer.eval_every=120"]
        words += ["probes=off", "quiet=true", f"outputs=compile_{how}", f"trainer.compile={how}"]
        try:
            done = command("train", *words, limit=75)
        except subprocess.TimeoutExpired:
            failed[how] = "it was stopped after 75 s"
            continue
        if done.returncode:
            failed[how] = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            continue
        (summary,) = summaries(f"compile_{how}")
        found[how] = {"loss": summary["metrics"]["loss/val"], "ms": summary["step_time"]["median_ms"]}
    if "false" not in found:
        return judge(False, tell_failures(failed, len(WAYS), "ways"), {"failed": failed})
    eager = found["false"]
    rows = list[Cells]()
    times = []
    for how, own in found.items():
        row = {
            "trainer.compile": how,
            "loss": f"{own['loss']:.4f}",
            "a step": f"{own['ms']:.2f} ms",
            "of eager": f"{own['ms'] / eager['ms']:.2f}",
        }
        rows.append(row)
        times.append(f"{how} {own['ms']:.2f} ms")
        is_alike = share(own["loss"] - eager["loss"], eager["loss"]) <= 10 * ROUNDING
        if not is_alike:
            failed[how] = f"its loss is {own['loss']:.4f}, eager's {eager['loss']:.4f}"
    figure = f"a step of nano: {', '.join(times)}"
    if failed:
        figure += f"; {tell_failures(failed, len(WAYS), 'ways')}"
    return judge(not failed, figure, {"found": found, "failed": failed}, rows)


def check_bench() -> Outcome:
    """Make a small study of what norms cost, and read its rows."""
    words = ["norm=layernorm,rmsnorm,batchnorm,dyt", f"device={DEVICE}", *BENCH, "study.rounds=6", "outputs=bench"]
    done = command("bench", *words, "study.implementations=torch,native,liger,eager", limit=120)
    if done.returncode:
        return judge(False, f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}", {})
    import pandas as pd

    (file,) = Path("bench").rglob("rows.csv")
    rows = pd.read_csv(file)
    own = rows[(rows["passes"] == "forward and backward") & (rows["cache"] == "warm")]
    largest_input = own.groupby("dtype")["moved_bytes"].transform("max")
    own = own[own["moved_bytes"] == largest_input]
    ratios = own.groupby(["norm", "implementation", "dtype"], sort=False)["ratio"].median()
    cells = list[Cells]()
    for (norm, impl, dtype), ratio in ratios.items():
        cells.append({"norm": norm, "implementation": impl, "dtype": dtype, "× torch.nn.LayerNorm": f"{ratio:.2f}"})
    figure = f"{len(rows)} rows; × LayerNorm at the largest size: {ratios.min():.2f} to {ratios.max():.2f}"
    holds = len(ratios) > 0 and bool((ratios > 0).all())
    return judge(holds, figure, {"ratios": len(ratios)}, cells)


def check_tests() -> Outcome:
    """Run the tests that need a GPU."""
    files = [str(file) for file in sorted(TESTS.glob("test_*.py")) if "mark.gpu" in file.read_text()]
    call = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", *files]
    done = subprocess.run(call, cwd=TESTS.parent, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    lines = done.stdout.strip().splitlines()
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    last = lines[-1].strip("= ") if lines else done.stderr.strip()[-300:]
    return judge(done.returncode == 0, "; ".join([last, *failures]), {"status": done.returncode, "failed": failures})


# ---- norms and kernels


def check_kernels() -> Outcome:
    """Compare what computes each norm on the GPU, forward and backward, with its formula in float64 on the CPU."""
    found = dict[str, float]()
    failed = dict[str, str]()
    missing = list[str]()
    generator = torch.Generator().manual_seed(0)
    x, dy = torch.randn(2, 4, 512, 768, generator=generator)
    for name in ("layernorm", "rmsnorm", "dyt"):
        for dtype, most in MOST.items():
            given = (x.to(dtype), dy.to(dtype))
            exact = [tensor.double() for tensor in given]
            expected = passes({**section_of("norm", name), "impl": "eager"}, *exact)
            for impl in ("torch", "native", "liger", "compile", "eager"):
                which = f"{name} {impl} {str(dtype).removeprefix('torch.')}"
                here = [tensor.to(DEVICE) for tensor in given]
                try:
                    got = passes({**section_of("norm", name), "impl": impl}, *here)
                except UsageError:
                    missing.append(f"{name} {impl}")
                    continue
                except Exception as error:  # a kernel may raise anything: it has failed
                    failed[which] = explain(error)
                    continue
                found[which] = max(error_of(one, right) for one, right in zip(got, expected, strict=True))
                if not found[which] <= most:
                    failed[which] = f"off by {found[which]:.1e} of the largest value"
    rows = [{"norm, implementation, format": which, "largest error": f"{error:.1e}"} for which, error in found.items()]
    figure = tell_failures(failed, len(found) + len(failed), "kernels")
    if not find_spec("liger_kernel"):
        figure += "; liger-kernel is not installed"
    numbers = {"errors": found, "failed": failed, "missing": sorted(set(missing))}
    return judge(not failed, figure, numbers, rows)


def passes(
    section: Any, x: torch.Tensor, dy: torch.Tensor, channel_dim: int = -1, as_module: bool = False
) -> list[torch.Tensor]:
    """Return a norm's output and the gradients of its input and parameters, which are moved away from where they start.

    Args:
        section: the norm's settings.
        x, dy: its input, and the gradient of its output.
        channel_dim: the axis of x's features.
        as_module: compile the norm as a model that is compiled does, whatever its implementation is.
    """
    norm = build.factory(resolve("norm", section))(x.shape[channel_dim], channel_dim=channel_dim, site=None)
    move_parameters(norm)
    norm = norm.to(x.device, torch.float64 if x.dtype == torch.float64 else torch.float32)
    x = x.clone().requires_grad_()
    y = compiled(norm)(x) if as_module else norm(x)
    return [y.detach(), *torch.autograd.grad(y, [x, *norm.parameters()], dy.to(y.dtype))]


def move_parameters(norm: torch.nn.Module) -> None:
    """Add a little to each parameter, as some gradients are 0 where norms start."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += 0.1 * torch.rand(parameter.shape, generator=generator)


def check_norms(dtypes: Sequence[torch.dtype], is_compiled: bool) -> Outcome:
    """Compare each norm's formula on the GPU, forward and backward, with the same in float64 on the CPU.

    Args:
        dtypes: of the input.
        is_compiled: compile it, in one layout; otherwise it runs as it is, in both.
    """
    found = dict[str, float]()
    failed = dict[str, str]()
    for name in options("norm"):
        settings = section_of("norm", name)
        if "impl" not in settings:
            continue  # which computes nothing
        for layout, shape in layouts_of(name, is_compiled).items():
            channel_dim = -1 if layout == "sequence" else 1
            generator = torch.Generator().manual_seed(0)
            x, dy = torch.randn(2, *shape, generator=generator)
            for dtype in dtypes:
                which = f"{name} {layout} {str(dtype).removeprefix('torch.')}"
                given = (x.to(dtype), dy.to(dtype))
                formula = {**settings, "impl": "eager"}
                try:
                    expected = passes(formula, *(tensor.double() for tensor in given), channel_dim)
                    here = (tensor.to(DEVICE) for tensor in given)
                    got = passes(formula, *here, channel_dim, as_module=is_compiled)
                except Exception as error:  # a kernel may raise anything: it has failed
                    failed[which] = explain(error)
                    continue
                found[which] = max(error_of(one, right) for one, right in zip(got, expected, strict=True))
                if not found[which] <= MOST[dtype]:
                    failed[which] = f"off by {found[which]:.1e} of the largest value"
    worst = max(found, key=lambda which: found[which], default="")
    figure = tell_failures(failed, len(found.keys() | failed.keys()), "cases of norms")
    if worst:
        figure += f"; off by {found[worst]:.1e} at the most ({worst})"
    return judge(not failed, figure, {"errors": found, "failed": failed})


def layouts_of(norm: str, one: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes on which a norm is tried, by layout: one or both."""
    shapes = {"sequence": SEQUENCES, "image": PICTURES}
    if not one:
        return shapes
    layout = "image" if norm in OVER_POSITIONS else "sequence"
    return {layout: shapes[layout]}


def check_parts() -> Outcome:
    """Train with treated weights, QK-norm, Muon and a placement with a stop of its gradient in three ways."""
    losses = dict[str, dict[str, float]]()
    failed = dict[str, str]()
    refused = list[str]()
    for how in ("false", "true", "graph"):  # last what may leave torch on another stream
        for part in PARTS:
            words = [*small("nano"), part, f"trainer.compile={how}"]
            try:
                loop = settle(make_loop(words, TEXT, DEVICE), PART_STEPS)
                losses.setdefault(part, {})[how] = loop.loss_sum.item()
            except UsageError:
                refused.append(f"{part} {how}")
            except Exception as error:  # whatever a compiler raises is what the check tells
                failed[f"{part} {how}"] = explain(error)
    for part, own in losses.items():
        for how, loss in own.items():
            difference = share(loss - own["false"], own["false"])
            if not difference <= ROUNDING:
                failed[f"{part} {how}"] = f"its loss is off by {difference:.1e}"
    figure = tell_failures(failed, 3 * len(PARTS), "runs")
    if refused:
        figure += f"; refused: {', '.join(refused)}"
    return judge(not failed, figure, {"losses": losses, "failed": failed, "refused": refused})


def check_attention() -> Outcome:
    """Train in bfloat16 with norms of queries and keys, where only flash attention may run, and in float32."""
    found = dict[str, float]()
    failed = dict[str, str]()
    sizes = ["model=nano", "model.depth=2", "model.width=128", "model.heads=2", "model.context=16"]
    for words in ([], ["norm@qk=rmsnorm"], ["norm@qk=layernorm"], ["norm@qk_all=rmsnorm"], ["scheme=gemma3"]):
        name = " ".join(words) or "without a norm"
        try:
            right = settle(make_loop([*sizes, *words], TEXT, DEVICE)).loss_sum.item()
            loop = make_loop([*sizes, *words, "trainer.precision=bf16"], TEXT, DEVICE)
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                settle(loop)
        except Exception as error:  # whatever attention raises is what the check tells
            failed[name] = explain(error)
            continue
        found[name] = share(loop.loss_sum.item() - right, right)
        if not found[name] <= 10 * ROUNDING:
            failed[name] = f"its loss is off by {found[name]:.1e}"
    figure = tell_failures(failed, len(found.keys() | failed.keys()), "trainings")
    return judge(not failed, figure, {"differences": found, "failed": failed})


def error_of(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest error, as a share of the largest right value."""
    return ((found.double().cpu() - right).abs().max() / right.abs().max()).item()


def check_products() -> Outcome:
    """Measure matrix products in float32, with TF32 and without, and what each rounds."""
    generator = torch.Generator().manual_seed(0)
    size = 4096
    one = torch.randn(size, size, generator=generator)
    other = torch.randn(size, size, generator=generator)
    right = one[:64].double() @ other.double()  # some of its rows
    one_here = one.to(DEVICE)
    other_here = other.to(DEVICE)

    def multiply() -> torch.Tensor:
        return one_here @ other_here

    errors = dict[str, float]()
    speeds = dict[str, float]()
    parts = []
    for word, allowed in {"full": False, "TF32": True}.items():
        allow_tf32(allowed)
        errors[word] = error_of(multiply()[:64], right)
        ms = median_ms({word: multiply})[word]
        speeds[word] = 2 * size**3 / ms / 1e9
        parts.append(f"{word}: {speeds[word]:.1f} TFLOP/s, error {errors[word]:.1e}")
    allow_tf32(False)
    return judge(errors["full"] < 1e-5, "; ".join(parts), {"errors": errors, "tflops": speeds})


def check_memory() -> Outcome:
    """Use up the memory in three ways, and see that each error is told as what it is."""
    found = dict[str, str]()
    for name, use_up in {
        "a tensor": make_large_tensor,
        "a library": fill_up_before_library,
        "a step": take_large_step,
    }.items():
        try:
            use_up()
            found[name] = "" if name == "a library" else "nothing was raised"  # one may find room for itself
        except Exception as error:  # what kind it is, is the question
            right = is_out_of_memory(error) and not is_lost(error)
            found[name] = "" if right else f"sorted wrongly: {explain(error)}"
        torch.cuda.empty_cache()
    failed = {name: reason for name, reason in found.items() if reason}
    return judge(not failed, tell_failures(failed, len(found), "ways to use it up"), {"failed": failed})


def make_large_tensor() -> None:
    """Make a tensor of twice the GPU's memory."""
    torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device=DEVICE)


def fill_up_before_library() -> None:
    """Let cuBLAS make what it needs for itself where there is no room left."""
    square = torch.ones(64, 64, device=DEVICE)
    held = []
    for size in (2**30, 2**26, 2**21):
        with suppress(torch.OutOfMemoryError):
            while True:
                held.append(torch.empty(size, dtype=torch.uint8, device=DEVICE))
    (square @ square).sum().item()


def take_large_step() -> None:
    """Take a step that needs more than this process may have."""
    loop = loop_of(["model=nano", "norm=layernorm"], OneBatch(TEXT, 4096))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.002)
    settle(loop)


# ---- what a step costs


def kernels_of(step: Callable[[], object]) -> int:
    """Return how many kernels a call starts on the device, as CUDA tells.

    Raises:
        NotTried: it tells of none, as where nobody but root may ask it.
    """
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    started = sum(event.count for event in profiled.key_averages() if "LaunchKernel" in event.key)
    if not started:
        raise NotTried("the profiler sees no kernels here")
    return started


def budgets() -> dict[str, int]:
    """Return the most operators of a step of small models, by the names of the pretended device's cases."""
    from test_pretended_gpu import BUDGETS

    return BUDGETS


def check_launches() -> Outcome:
    """Count what steps give to the device, against the pretended one's budgets, and the kernels that CUDA starts."""
    from cases import STEPS

    found = dict[str, dict[str, float]]()
    failed = dict[str, str]()
    rows = list[Cells]()
    for name, most in budgets().items():
        words, task = STEPS[name]
        loop = settle(make_loop(words, task, DEVICE))
        operators = count_operators(loop.train_step, GPU)
        started = kernels_of(loop.train_step)
        ms = median_ms({name: loop.train_step})[name]
        found[name] = {"operators": operators, "budget": most, "kernels": started, "ms": ms}
        row = {
            "training": name,
            "operators": f"{operators:,}",
            "budget": f"{most:,}",
            "kernels": f"{started:,}",
            "a step": f"{ms:.2f} ms",
            "an operator": f"{1e3 * ms / operators:.1f} µs",
        }
        rows.append(row)
        if operators > most:
            failed[name] = f"{operators} operators, and {most} are allowed"
        elif not operators / 2 <= started <= 2 * operators:
            failed[name] = f"{operators} operators start {started} kernels"
    each = statistics.median(1e3 * own["ms"] / own["operators"] for own in found.values())
    figure = f"{tell_failures(failed, len(found), 'trainings')}; an operator takes {each:.1f} µs of these small steps"
    return judge(not failed, figure, {"found": found, "failed": failed, "us_an_operator": each}, rows)


def check_probes() -> Outcome:
    """Time probed steps beside others; what probes cost a run that probes every 50 steps."""
    found = dict[str, dict[str, float]]()
    rows = list[Cells]()
    for name, words in PRESETS.items():
        for probes in ("light", "full"):
            loop = settle(loop_of([*words, f"probes={probes}", "probes.histograms_every=0"]), WARM)
            plain = partial(step_after, loop, 51)
            probed = partial(step_after, loop, 49)  # each 50th step is probed
            times = median_ms({"plain": plain, "probed": probed})
            more = count_operators(probed, GPU) - count_operators(plain, GPU)
            cost = (times["probed"] / times["plain"] - 1) / 50
            found[f"{name} {probes}"] = {**times, "share": cost, "operators": more}
            row = {
                "run": f"{name}, probes={probes}",
                "a step": f"{times['plain']:.2f} ms",
                "a probed step": f"{times['probed']:.2f} ms",
                "operators more": f"{more:,}",
                "of the training time": f"{100 * cost:.1f} %",
            }
            rows.append(row)
    light = max(own["share"] for name, own in found.items() if name.endswith("light"))
    figure = f"light probes take {100 * light:.1f} % of the training time at the most"
    return judge(light <= 0.05, figure, {"found": found}, rows)


def step_after(loop: Loop, number: int) -> None:
    """Take the step of a loop that comes after a number."""
    loop.step = number
    loop.train_step()


def check_layouts() -> Outcome:
    """Time convolutional networks with images in both layouts; the one that is chosen is the faster one."""
    from normbench.models.cnn import LAYOUTS

    chosen = LAYOUTS["cuda"]
    found = dict[str, dict[str, float]]()
    ratios = dict[str, float]()
    rows = list[Cells]()
    for words in CONVOLUTIONS:
        for precision in PRECISIONS:
            name = ", ".join([*words, precision])
            own = [*words, f"trainer.precision={precision}"]
            data = OneBatch(PHOTOGRAPHS, BATCH)
            calls = dict[str, Call]()
            for layout in ("channels_last", "contiguous"):
                calls[layout] = settle(loop_of([*own, f"model.layout={layout}"], data), WARM).train_step
            times = median_ms(calls)
            found[name] = times
            ratios[name] = times[chosen] / min(times.values())
            rows.append({"training": name, **{layout: f"{ms:.2f} ms" for layout, ms in times.items()}})
    middle = statistics.median(ratios.values())
    worst = max(ratios.values())
    figure = f"{chosen}, which is chosen, takes {middle:.2f} of the faster one's time; {worst:.2f} at most"
    return judge(middle <= 1.05, figure, {"found": found, "ratios": ratios}, rows)


def check_step_times() -> Outcome:
    """Time steps of whole presets with each norm, in turn."""
    usual = NORMS[0]
    found = dict[str, dict[str, Any]]()
    rows = list[Cells]()
    parts = []
    holds = True
    for name, words in PRESETS.items():
        calls = dict[str, Call]()
        counts = dict[str, int]()
        for norm in NORMS:
            calls[norm] = settle(loop_of([*words, f"norm={norm}"]), WARM).train_step
            counts[norm] = count_operators(calls[norm], GPU)
        times = median_ms(calls)
        found[name] = {"ms": times, "operators": counts}
        holds &= min(times.values()) > 0
        parts.append(f"{name} {times[usual]:.2f} ms with {usual}")
        for norm in NORMS:
            row = {
                "model": name,
                "norm": norm,
                "a step": f"{times[norm]:.2f} ms",
                f"× {usual}": f"{times[norm] / times[usual]:.2f}",
                "operators": f"{counts[norm]:,}",
                f"× {usual}'s operators": f"{counts[norm] / counts[usual]:.2f}",
            }
            rows.append(row)
    return judge(holds, ", ".join(parts), found, rows)


def check_seeding() -> Outcome:
    """Time the setting of a batch's seed."""
    device = torch.device(DEVICE)
    many = 1_000

    def set_seeds() -> None:
        for number in range(many):
            seed_generators(device, number)

    took = seconds_of(set_seeds) / many
    return judge(took < 20e-6, f"{1e6 * took:.1f} µs", {"us": 1e6 * took})


CHECKS = {
    "waits": Check("no family of models waits for the GPU in an ordinary step, in fp32 and bf16", 180, check_waits),
    "agrees": Check("losses are those of the CPU, to rounding", 180, check_agreement),
    "repeats": Check("a resumed run differs from one without a stop no more than two runs differ", 40, check_repeats),
    "stack": Check("seeds of a model with attention train as one model", 30, check_stack),
    "second": Check("a second GPU has its own time and random numbers", 30, check_second_gpu),
    "kernels": Check("each implementation of a norm agrees with its formula in float64", 90, check_kernels),
    "norms": Check(
        "each norm agrees with its formula in float64, on sequences and images, in fp32 and bf16",
        120,
        partial(check_norms, [*MOST], is_compiled=False),
    ),
    "compiled": Check(
        "each norm agrees with its formula in float64 when it is compiled, in fp32",
        200,
        partial(check_norms, [torch.float32], is_compiled=True),
    ),
    "compiled16": Check(
        "and in bf16",
        200,
        partial(check_norms, [torch.bfloat16], is_compiled=True),
    ),
    "attention": Check("in bf16 queries and keys that are normalized go to flash attention", 60, check_attention),
    "parts": Check("treated weights, QK-norm, Muon and GPAS learn the same compiled and as a graph", 240, check_parts),
    "tests": Check("the tests that need a GPU pass", 180, check_tests, alone=True),
    "two": Check("one run on two GPUs learns what it learns on one, and a sweep uses both", 270, check_both_gpus, True),
    "memory": Check("where a GPU's memory is full, the message says so", 40, check_memory, alone=True),
    "launches": Check(
        "a step keeps its budget of operators, and starts about as many kernels", 60, check_launches, alone=True
    ),
    "probes": Check("light probes take at most 5 % of the training time", 40, check_probes, alone=True),
    "times": Check("steps of each norm are timed in turn", 40, check_step_times, alone=True),
    "layouts": Check("images have the faster of two layouts in memory", 60, check_layouts, alone=True),
    "products": Check(
        "float32 products are not rounded to TF32 unless that is allowed", 20, check_products, alone=True
    ),
    "seeding": Check("the seed of a batch takes less than 20 µs", 20, check_seeding, alone=True),
    "bench": Check("`normbench bench` measures norms", 130, check_bench, alone=True),
    "compile": Check(
        "a run that is compiled, or replayed as a CUDA graph, learns the same", 240, check_compilation, alone=True
    ),
}
