"""What is tried on pretended GPUs, in a process of its own: `cases.py FILE` writes there what each case has found."""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import checks
import device
import graphs
import torch
from composing import hasten
from support import CAUSAL, IMAGES, MATRIX, TEXT, TEXTS
from training import Growing, Poisoned, RandomData, comparable, make_loop, rounded, same, small, trained

from normbench import build
from normbench.claims.claim import Claim, read_claims
from normbench.claims.on_gpu import claims_on_gpu
from normbench.cli import main as run_command
from normbench.config.compose import read
from normbench.masks import memos
from normbench.sweep.plan import read_grid
from normbench.sweep.words import settings_in
from normbench.training.clock import Clock, peak_memory
from normbench.training.estimate import estimate
from normbench.training.feed import Feed
from normbench.training.optimizer import make_optimizer
from normbench.training.stack import Stack
from normbench.translation import Translation
from normbench.types import Batch, ImageClassification, LanguageModeling, Split, Task

FEW_WORDS = Translation(vocabulary_size=17, context=3)
SETTLED = 2  # steps until the optimizer's state is there

STEPS: dict[str, tuple[list[str], Task]] = {
    **{f"nano {norm}": ([*small("nano"), f"norm={norm}"], TEXT) for norm in CAUSAL},
    "cnn instancenorm": ([*small("cnn"), "norm=instancenorm", "data=digits"], IMAGES),
    **{
        f"{name} batchnorm": ([*small(model), "norm=batchnorm"], FEW_WORDS if name == "rnnsearch" else task)
        for name, (model, task) in MATRIX.items()
    },
    **{f"texts {norm}": ([*small("nano"), f"norm={norm}"], TEXTS) for norm in ("batchnorm", "layernorm")},
    "rnnsearch layernorm": ([*small("rnnsearch"), "norm=layernorm"], FEW_WORDS),
    "bf16": ([*small("nano"), "norm=batchnorm", "trainer.precision=bf16"], TEXT),
    "average, accumulated": ([*small("nano"), "norm=batchnorm", "trainer.ema=0.9", "trainer.accumulate=2"], TEXT),
    "dropout, rotary": ([*small("nano"), "norm=rmsnorm", "model.dropout=0.1", "model.position=rotary"], TEXT),
}

PROBED = {"light": ("nano layernorm", "nano dyt", "cnn batchnorm", "texts batchnorm", "rnnsearch batchnorm"),
          "full": ("nano layernorm", "cnn batchnorm")}  # fmt: skip


def step(words: Sequence[str], task: Task) -> dict[str, Any]:
    """Count what an ordinary step asks of the device."""
    loop = make_loop([*words], task)
    for _ in range(SETTLED):
        loop.train_step()
    with device.counting() as seen:
        loop.train_step()
    return {"operators": seen.operators.total(), "waits": dict(seen.waits), "blocking": dict(seen.blocking)}


def early_steps() -> dict[str, Any]:
    """Look at the first steps as a run does, and count by both tools what each asks of the device."""
    loop, seen = make_loop([*small("nano"), "norm=batchnorm"], TEXTS), []
    for _ in range(10):
        with device.counting() as asked, loop.look_at_early_step():
            loop.train_step()
        seen.append({"operators": asked.operators.total(), "waits": dict(asked.waits)})
    return {"steps": seen, **loop.early.found()}


def evaluation() -> dict[str, Any]:
    """Evaluate with running statistics taken anew, and count what blocks."""
    loop = make_loop([*small("nano"), "norm=batchnorm", "norm.recalibrate=2"], TEXT)
    for _ in range(3):
        loop.train_step()
    with device.counting() as seen:
        loop.evaluate()
    return {"blocking": dict(seen.blocking), "loss": loop.latest["loss/val"]}


def running_statistics(words: Sequence[str], task: Task, steps: int = 3) -> dict[str, float]:
    """Compare BatchNorm's running statistics and the loss with those of the CPU; masks: what is kept of masks then."""
    found = {}
    for where in ("cuda", "cpu"):
        loop = make_loop([*words, "norm=batchnorm"], task, where)
        for _ in range(steps):
            loop.train_step()
        buffers = [each.cpu().flatten() for each in loop.model.buffers() if each.is_floating_point() and each.ndim]
        found[where] = torch.cat([*buffers, (loop.loss_sum / steps).cpu().view(1)])
    difference = float((found["cuda"] - found["cpu"]).abs().max())
    return {"difference": difference, "size": found["cpu"].numel(), "masks": len(memos)}


# A rate that changes in each step, dropout, running statistics, averaged weights, and steps that are probed beside.
WHOLE = ["trainer.ema=0.9", "optim.weight_decay=0.1", "probes=full", "probes.every=3", "probes.histograms_every=0"]
GRAPHS: dict[str, tuple[list[str], Task]] = {
    "nano batchnorm": ([*small("nano"), "norm=batchnorm", "model.dropout=0.1", *WHOLE], TEXT),
    "nano rmsnorm": ([*small("nano"), "norm=rmsnorm", "placement=sandwich", "trainer.precision=bf16"], TEXT),
    "cnn groupnorm": ([*small("cnn"), "norm=groupnorm", "optim=sgd", "optim.lr=0.01"], IMAGES),
    "resnet batchnorm": ([*small("resnet20"), "model.depth=3", "norm=batchnorm", "norm.freeze_after=4"], IMAGES),
    "mlp dyt": ([*small("mlp"), "norm=dyt", "optim=adam", "optim.lr=0.001", "trainer.grad_clip=0"], IMAGES),
}
GRAPH_STEPS = 6


def graph(words: Sequence[str], task: Task) -> dict[str, Any]:
    """Compare steps by a graph with ordinary ones."""
    loops = [
        make_loop([*words, f"trainer.compile={how}", f"trainer.steps={GRAPH_STEPS}"], task)
        for how in ("false", "graph")
    ]
    for loop in loops:
        rounded(loop)
    plain, replayed = (trained(loop, GRAPH_STEPS) for loop in loops)
    apart = {tag: (value, replayed["seen"].get(tag)) for tag, value in plain["seen"].items()}
    return {
        "losses": plain["losses"], "replayed": replayed["losses"], "seen": len(plain["seen"]),
        "seen apart": {tag: pair for tag, pair in apart.items() if pair[0] != pair[1]},
        "alike": same(comparable(plain["state"]), comparable(replayed["state"])),
        "recorded": bool(loops[1].compile_seconds),
    }  # fmt: skip


def graph_counted() -> dict[str, Any]:
    """Count what a replayed step asks of the device."""
    loop = make_loop([*small("nano"), "norm=batchnorm", "trainer.compile=graph"], TEXT)
    trained(loop, 4)
    with device.counting() as seen:
        loop.train_step()
    return {"operators": dict(seen.operators), "waits": dict(seen.waits), "blocking": dict(seen.blocking)}


def graph_goes_on() -> bool:
    """Go on from a checkpoint, by another graph."""
    words = [*small("nano"), "norm=batchnorm", "model.dropout=0.1", "trainer.ema=0.9", "trainer.compile=graph"]
    whole = trained(make_loop(words, TEXT), 10)["state"]
    first, second = make_loop(words, TEXT), make_loop(words, TEXT)
    second.restore(copy.deepcopy(trained(first, 5)["state"]))
    return same(comparable(trained(second, 5)["state"]), comparable(whole))


def feed() -> dict[str, Any]:
    """Ask for batches in and out of turn, and say which were the data's own, and what the thread was asked for."""
    data, asked = RandomData(TEXT), []

    def train_batch(number: int) -> Batch:
        asked.append(number)
        return data.train_batch(number)

    feed = Feed(train_batch, torch.device("cuda"), end=8)
    right = []
    for number in (0, 1, 2, 2, 5, 6, 3, 7):
        expected = data.train_batch(number)
        right.append(all(torch.equal(a.cpu(), b) for a, b in zip(feed.load(number)[:2], expected[:2], strict=True)))
    places = {feed.load(number).inputs.data_ptr() for number in range(8)}
    feed.settle()
    return {"right": right, "places": len(places), "first": asked[:4], "last": max(asked)}


def feed_stops() -> dict[str, Any]:
    """Stop while a batch takes long; say what was asked for before and after, and what becomes of the thread."""
    data, asked, goes_on, begun = RandomData(TEXT), list[int](), threading.Event(), threading.Event()

    def train_batch(number: int) -> Batch:
        asked.append(number)
        if number == 1:
            begun.set()
            goes_on.wait()
        return data.train_batch(number)

    others = {*threading.enumerate()}
    feed = Feed(train_batch, torch.device("cuda"), end=8)
    (thread,) = {*threading.enumerate()} - others
    feed.load(0)
    begun.wait()
    threading.Timer(0.05, goes_on.set).start()
    feed.settle()
    stopped = asked[:]
    right = [torch.equal(feed.load(number).inputs.cpu(), data.train_batch(number).inputs) for number in range(8)]
    del feed
    thread.join(5)
    return {"stopped": stopped, "right": right, "asked": asked, "daemon": thread.daemon, "ended": not thread.is_alive()}


class Overlapping(RandomData):
    """Data that note whether a training batch is in preparation when batches to judge by are asked for."""

    noted: list[bool]
    at_work = False

    def train_batch(self, step: int) -> Batch:
        self.at_work = True
        time.sleep(0.005)
        batch = super().train_batch(step)
        self.at_work = False
        return batch

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        self.noted.append(self.at_work)
        return iter([super().train_batch(-1)])


def judged_apart() -> dict[str, list[bool]]:
    """Say whether evaluations and an estimate ask for data while the thread does."""
    found = {}
    for name in ("evaluation", "estimate"):
        data = Overlapping(IMAGES)
        data.noted = []
        loop = make_loop([*small("mlp"), "norm=layernorm", "trainer.compile=graph"], IMAGES, data=data)
        if name == "estimate":
            with tempfile.TemporaryDirectory() as folder:
                estimate(loop, Path(folder))
        else:
            loop.train_step()
            loop.evaluate()
        found[name] = data.noted
    return found


class Counting(torch.nn.LayerNorm):
    """A norm that counts in Python."""

    steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        return super().forward(x)


class Rebinding(torch.nn.LayerNorm):
    """A norm that counts in another tensor each time."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return super().forward(x)


class Asking(torch.nn.LayerNorm):
    """A norm that looks at its input's numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.abs().max().item() < 1e6 else x / 2)


def graph_refused() -> dict[str, str]:
    """Say how steps end that a graph cannot be made of."""
    by_graph, plain = ([*small("mlp"), "norm=layernorm", f"trainer.compile={how}"] for how in ("graph", "false"))
    own = [*small("nano"), "~norm.impl", "trainer.compile=graph"]
    cases = {
        "poisoned": (by_graph, Poisoned(IMAGES)), "poisoned, plain": (plain, Poisoned(IMAGES)),
        "growing": (by_graph, Growing(IMAGES)),
        "rebinding": ([*own, "norm._target_=cases.Rebinding"], RandomData(TEXT)),
        "counting": ([*own, "norm._target_=cases.Counting"], RandomData(TEXT)),
        "asking": ([*own, "norm._target_=cases.Asking"], RandomData(TEXT)),
    }  # fmt: skip
    found = {}
    for name, (words, data) in cases.items():
        try:
            loop = make_loop(words, data.task, data=data)
            trained(loop, 7)
            loop.check_guard()
        except Exception as end:  # whatever it is, the test compares it
            found[name] = f"{type(end).__name__}: {end} at {getattr(end, 'step', None)}"
    found["stream"] = "as before" if graphs.current[0] is graphs.DEFAULT else "of the recording"
    return found


def second_gpu() -> dict[str, Any]:
    """Train on a GPU that is not the first, and say where time was taken, and which generators were set."""
    generators = torch.cuda.default_generators
    for generator in generators:
        generator.manual_seed(7)
    loop = make_loop([*small("nano"), "norm=layernorm"], TEXT, "cuda:1")
    loop.clock = Clock(loop.device, warmup=0)
    loop.train_step()
    device.synchronized.clear()
    durations = loop.clock.read()
    events = device.synchronized[:]
    torch.cuda.set_device(0)
    return {"durations": len(durations), "waited for": events, "untouched": generators[0].initial_seed() == 7,
            "seeded": generators[1].initial_seed() == torch.default_generator.initial_seed()}  # fmt: skip


def stack_of_seeds() -> list[float]:
    """Train two seeds of a model with attention as one."""
    words = [*small("nano"), "norm=layernorm"]
    loops = {seed: make_loop([*words, f"seed={seed}"], TEXT) for seed in range(2)}
    make = partial(make_optimizer, build.factory(read(words).recipe["optim"]), device=loops[0].device)
    stack = Stack(loops, [0, 1], make)
    for _ in range(2):
        stack.train_step()
    return [loop.loss_sum.item() for loop in loops.values()]


def probed(words: Sequence[str], task: Task, probes: str) -> dict[str, Any]:
    """Count what a probed step asks of the device more than another one."""
    loop = make_loop([*words, f"probes={probes}", "probes.histograms_every=0"], task)
    loop.probing = replace(loop.probing, every=3)
    counts = []
    for _ in range(3):  # the first one makes the optimizer's state, the last one is probed
        with device.counting() as seen:
            loop.train_step()
        counts.append(seen)
    plain, last = counts[-2:]
    return {"more": last.operators.total() - plain.operators.total(), "waits": last.waits.total()}


def check_gpu() -> dict[str, Any]:
    """Make those checks of `scripts/gpu_check` that need no real GPU, in a small form."""
    checks.NORMS, checks.PRECISIONS = ["layernorm", "batchnorm"], ["bf16"]
    checks.WARM, checks.ROUNDS, checks.LONG = 1, 1, 2
    checks.MATRIX = {name: MATRIX[name] for name in ("transformer LM",)}
    checks.VARIED = {"transformer LM": ("optim",)}
    checks.options = lambda group: ["muon"] if group == "optim" else ["rmsnorm", "frn"]
    checks.SEQUENCES, checks.PICTURES = (8, 4, 64), (4, 64, 3, 3)
    checks.PRESETS = {"nano": [*small("nano"), "data=pydocs", "data.batch_size=4"]}
    checks.CONVOLUTIONS, checks.PHOTOGRAPHS, checks.BATCH = [[*small("cnn"), "norm=batchnorm"]], IMAGES, 4
    known = checks.budgets()
    checks.budgets = lambda: {name: known[name] for name in ("nano layernorm",)}
    checks.kernels_of = partial(checks.count_operators, device=checks.GPU)
    made = ("waits", "agrees", "repeats", "stack", "second", "norms", "launches", "probes", "times", "layouts")
    return {name: vars(checks.CHECKS[name].outcome()) for name in made}


class OnGPUs(torch.nn.LayerNorm):
    """A norm whose kernel is for GPUs alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_cuda:
            raise RuntimeError("this kernel runs on CUDA")
        return super().forward(x)


def for_gpus_alone() -> dict[str, Any]:
    """Train with a norm that cannot run on the CPU."""
    words = [*small("nano"), "norm._target_=cases.OnGPUs", "~norm.impl"]
    return {"facts": vars(build.norm_facts(read(words).recipe)), **step(words, TEXT)}


def mixed() -> str:
    """Add tensors of two devices."""
    try:
        torch.ones(3, device="cuda") + torch.ones(3)
    except RuntimeError as error:
        return str(error)
    return ""


def asked() -> dict[str, Any]:
    """Do what waits, and what does not."""
    with device.counting() as seen:
        x = torch.ones(3).to("cuda")
        x = x + torch.ones(3).to("cuda", non_blocking=True)
        x.sum().item()
    return {"operators": dict(seen.operators), "waits": seen.waits.total(), "blocking": seen.blocking.total()}


# What makes the models of claims on a GPU small enough for a few steps, and the tasks that they are then given.
NARROW = ["model.width=16", "model.context=16"]
CHARACTERS, PHOTOGRAPHS = LanguageModeling(1_000, 256), ImageClassification(10, (3, 32, 32))


def planned_on_gpu(claim: Claim) -> dict[str, Any]:
    """Count the parameters of a claim's first model, and take a few steps of its first and its last run, made small."""
    points, _ = read_grid([*claim.words, "seed=0"])
    first = read(points[0].words)
    of_text = str(first.tree["data"]["_target_"]).endswith("text")
    whole = build.lay_out(first.recipe, CHARACTERS if of_text else PHOTOGRAPHS).model
    sizes = sum(weight.numel() for weight in whole.parameters())
    recorded = []
    for point in {0: points[0], len(points): points[-1]}.values():
        narrow = [*point.words, *(NARROW if of_text else NARROW[:1]), "trainer.steps=5"]
        narrow += [f"{key}=2" for key in ("model.depth", "model.heads") if key in settings_in(point.words)]
        loop = make_loop(last_of_each(narrow), TEXT if of_text else IMAGES)
        trained(loop, 5)
        recorded.append(bool(loop.compile_seconds) == ("trainer.compile=graph" in point.words))
    return {"parameters": sizes, "runs": len(points), "as asked": all(recorded)}


def last_of_each(words: Sequence[str]) -> list[str]:
    """Return words without those for whose key another one follows."""
    return [*{word.partition("=")[0]: word for word in words}.values()]


def claims_by_name() -> dict[str, Claim]:
    """Return the claims on a GPU whose runs are those of a sweep of their own."""
    derived = claims_on_gpu(read_claims())
    return {name: claim for name, claim in derived.items() if not (claim.study or claim.runs_of)}


OWN_CLAIM = {
    "claim": "RMSNorm is better than LayerNorm", "source": "Zhang & Sennrich 2019", "published": "BLEU within 0.6",
    "words": [*small("nano"), "data=pydocs", "data.batch_size=4", "data.eval_batch_size=128", "trainer.eval_batches=1",
              "trainer.steps=3", "trainer.log_every=1", "probes=off", "norm=rmsnorm,layernorm"],
    "seeds": 2, "arms": {"rms": "norm=rmsnorm", "ln": "norm=layernorm"}, "measure": "loss/val", "effect": "ln - rms",
    "kind": "any", "margin": 1, "unit": "nats", "minutes": 1, "scope": "here",
    "on_gpu": {"words": ["trainer.steps=6"], "seeds": 3, "minutes": 1, "scope": "there"},
}  # fmt: skip


def claim_command() -> dict[str, Any]:
    """Run a claim on a GPU by its command, in this process, with the page that then has a column for it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "conf/claim").mkdir(parents=True)
        (folder / "conf/claim/tiny.yaml").write_text(json.dumps(OWN_CLAIM))  # which is YAML, too
        words = ["claims", "--config-dir", str(folder / "conf"), "tiny", "--device", "cuda"]
        statuses = [run_command([*words, "--register", "--reason", "to see"])]
        machine = [f"outputs={folder}", "threads=1", "launcher=local", "sweep.jobs=1", "quiet=true"]
        statuses.append(run_command([*words, *machine, "--minutes", "25"]))
        result = json.loads((folder / "claims-on-gpu/tiny-on-gpu/claim.json").read_text())
        there = json.loads((folder / "claims-on-gpu/claims.json").read_text())
        return {
            "statuses": statuses, "seeds": len(result["values"]),
            "device": [word for word in result["words"] if word.startswith("device=")],
            "on its page": [*there["own"]["claims"]],
        }  # fmt: skip


CASES: dict[str, Callable[[], Any]] = {
    **{name: partial(step, *given) for name, given in STEPS.items()},
    "norm for GPUs alone": for_gpus_alone, "evaluation": evaluation, "early steps": early_steps,
    "running statistics": partial(running_statistics, small("nano"), TEXT),
    "running statistics of texts": partial(running_statistics, small("nano"), TEXTS),
    "running statistics of a translator": partial(running_statistics, small("rnnsearch"), FEW_WORDS, steps=1),
    "second GPU": second_gpu, "stack": stack_of_seeds,
    "mixed": mixed, "asked": asked, "checks": check_gpu,
    **{f"{name}, {probes}": partial(probed, *STEPS[name], probes)
       for probes, names in PROBED.items() for name in names},
    **{f"graph {name}": partial(graph, *given) for name, given in GRAPHS.items()},
    "graph counted": graph_counted, "graph feed": feed, "graph feed stops": feed_stops,
    "graph judged apart": judged_apart,
    "graph memory": lambda: [peak_memory(torch.device("cuda"), replays) for replays in (False, True)],
    "graph goes on": graph_goes_on, "graph refused": graph_refused,
    **{f"claim {name}": partial(planned_on_gpu, claim) for name, claim in claims_by_name().items()},
    "claim by its command": claim_command,
}  # fmt: skip


def main() -> None:
    """Try all cases; of one that fails its traceback is what was found."""
    del os.environ["LD_PRELOAD"]  # of other processes that this one starts
    torch.set_num_threads(1)
    hasten()
    device.install(devices=2)
    found = {}
    with device.pretending():
        for name, case in CASES.items():
            try:
                found[name] = case()
            except Exception:
                found[name] = traceback.format_exc()
    Path(sys.argv[1]).write_text(json.dumps(found))
    # Threads that torch has begun for a GPU may still be there when C++ takes its statics down, which then aborts the
    # process, after all that is tried here.
    os._exit(0)


if __name__ == "__main__":
    main()
