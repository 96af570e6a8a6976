"""The parts of the benchmark: what each measures, against what, and the target of the ratio."""

from __future__ import annotations

import itertools
import json
import pstats
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import peers
from commands import NORMBENCH, Bench, Done, Failed, Left, Settings, imports
from learning import measure_learning
from results import Row, compare, shares

MNIST_WORDS = (  # chosen on training data only
    "model=cnn_plain", "norm=batchnorm", "data=mnist", "data.batch_size=128", "optim.lr=6e-3", "trainer.epochs=2",
    "trainer.eval_every=1000000",
)  # fmt: skip
NANO = ("model=nano", "data=pydocs", "device=cpu")
EXAMPLE = "experiment=nanogpt_cpu"
SPREAD = 0.03  # nats between a loss on all batches and on 20 of them, and between seeds
TRANSLATOR = ("model=seq2seq", "data=multi30k")
FEW_FEATURES = ("model.width=32", "model.hidden=64", "model.heads=2")  # of a translator that need only work
GRID = ("norm=layernorm,rmsnorm,dyt,groupnorm", "placement=pre,post,sandwich", "seed=range(3)")
TORCH = [sys.executable, "-c", "import torch"]
LARGER = {
    "width": "model.width=512",
    "depth": "model.depth=16",
    "context": "model.context=256",
    "batch": "data.batch_size=48",
}


@dataclass(frozen=True)
class Part:
    """Yields the rows of one measurement. needs: `nanogpt`, `examples` (checkouts), `data`, `torchvision`."""

    measure: Callable[[Bench], Iterator[Row]]
    pairs: int
    about: str
    needs: tuple[str, ...] = ()
    default: bool = True


# ---- where the time goes


def account(bench: Bench, *words: str, threads: int = 0, evaluates: bool = True) -> Settings:
    """Return what a run takes, measured on some of its steps."""
    bench.say("where the time goes")
    steps = bench.size(60, 12)
    return bench.worker("account", threads, words=words, steps=steps, evaluates=evaluates)[0]


def tell_time(bench: Bench, found: Settings, whole: float, threads: int = 0) -> list[str]:
    """Say where the time of a run goes, and which share of the machine's peaks its steps reach."""
    peak = bench.peak(threads)
    step = found["step"]
    flops = found["flops"] / step  # a second
    moved = found["bytes"] / step
    return [
        f"of {whole:.3g} s: {shares(found['seconds'], whole, 'the rest (Python, start)')}",
        f"a step alone {1e3 * step:.3g} ms, its kernels alone {1e3 * found['alone']:.3g} ms; "
        f"{flops / 1e9:.3g} GFLOP/s, {flops / peak['matrix']:.0%} of the matrix peak; operators touch "
        f"{moved / 1e9:.3g} GB/s, {moved / peak['copy']:.0%} of the copy peak",
    ]


def tell_time_alone(bench: Bench, found: Settings) -> str:
    """Say where the time of one run of a sweep goes, by itself on one thread."""
    first, *_ = tell_time(bench, found, found["run"], threads=1)
    return f"one run alone on one thread, {first}"


# ---- nanoGPT's example


def nanogpt(bench: Bench) -> Iterator[Row]:
    """Whole processes of nanoGPT's documented example on a CPU."""
    steps = bench.size(2000, 20)
    words = [EXAMPLE, f"trainer.steps={steps}"]
    peer = peers.nanogpt_copy(bench)
    warm_up(bench, peer)
    found = account(bench, *words)
    pairs = bench.alternate(lambda: bench.train(*words), lambda: bench.run(peers.nanogpt_command(steps), peer))
    our_seconds = statistics.median(one.seconds for one, _ in pairs)
    their_seconds = statistics.median(other.seconds for _, other in pairs)
    our_loss = statistics.median(one.summary["metrics"]["loss/val"] for one, _ in pairs)
    their_loss = statistics.median(final_loss(other) for _, other in pairs)
    step = statistics.median(one.summary["step_time"]["median_ms"] or 0 for one, _ in pairs)
    least = found["floor"]
    notes = [
        *tell_time(bench, found, our_seconds),
        f"a step within the run {step:.3g} ms",
        f"floor, the kernels of its steps and evaluations alone: {least:.3g} s, {least / their_seconds:.3g} of "
        f"nanoGPT's; ours is {our_seconds / least:.3g} × the floor, and may be 1.08",
        f"validation loss {our_loss:.4f} on all batches; nanoGPT {their_loss:.4f} on 20",
    ]
    what = f"whole process, {steps:,} steps"
    target = max(0.82, 1.08 * least / their_seconds)
    short = f"its loss is {our_loss:.4f}" if our_loss > their_loss + SPREAD else ""
    yield compare("nanogpt", what, seconds(pairs), target, peer="nanoGPT", short=short, notes=notes)
    peaks = [(one.peak / 2**20, other.peak / 2**20) for one, other in pairs]
    yield compare("nanogpt", "peak memory of a run", peaks, 1.0, unit="MiB", peer="nanoGPT")


def warm_up(bench: Bench, peer: Path) -> None:
    """Have the data of both ready, and what they import."""
    bench.warm_up([*NORMBENCH, "train", EXAMPLE, "trainer.steps=1", "trainer.eval_batches=1", "quiet=true"])
    bench.warm_up(peers.nanogpt_command(1, "--eval_iters=1"), where=peer)


def seconds(pairs: list[tuple[Done, Done]]) -> list[tuple[float, float]]:
    """Return the seconds of pairs of processes."""
    return [(one.seconds, other.seconds) for one, other in pairs]


def final_loss(done: Done) -> float:
    """Return nanoGPT's last validation loss."""
    return float(re.findall(r"val loss ([\d.]+)", done.output)[-1])


def step(bench: Bench) -> Iterator[Row]:
    """The time of a step of the same example on one thread, by each one's own clock."""
    steps = bench.size(200, 20)
    peer = peers.nanogpt_copy(bench)
    words = [EXAMPLE, f"trainer.steps={steps}", f"trainer.eval_every={steps}", "trainer.eval_batches=1"]
    command = peers.nanogpt_command(steps, "--eval_iters=1", f"--eval_interval={steps}")

    def theirs() -> float:
        times = re.findall(r"time ([\d.]+)ms", bench.run(command, peer, threads=1).output)
        return statistics.median(map(float, times[10:]))

    warm_up(bench, peer)
    found = account(bench, EXAMPLE, threads=1)
    pairs = bench.alternate(lambda: bench.train(*words, threads=1).summary["step_time"]["median_ms"], theirs)
    notes = tell_time(bench, found, found["run"], 1)
    yield compare("step", "a step on one thread", pairs, 0.85, unit="ms", peer="nanoGPT", notes=notes)


def sweep16(bench: Bench) -> Iterator[Row]:
    """Runs as a sweep against as many of nanoGPT one after another."""
    steps = bench.size(300, 20)
    runs = bench.size(16, 2)
    peer = peers.nanogpt_copy(bench)
    warm_up(bench, peer)
    words = [EXAMPLE, f"trainer.steps={steps}", f"seed=range({runs})", "quiet=true"]
    found = account(bench, *words[:2], threads=1)
    pairs = bench.alternate(
        lambda: bench.run([*NORMBENCH, "sweep", *words]), lambda: bench.run(peers.nanogpt_command(steps), peer)
    )
    times = [(ours.seconds, runs * one.seconds) for ours, one in pairs]
    notes = [f"nanoGPT's are {runs} × the time of one of its runs, measured once for each sweep"]
    notes.append(tell_time_alone(bench, found))
    yield compare("sweep16", f"{runs} runs of {steps} steps", times, 0.60, peer="nanoGPT", notes=notes)


# ---- ours against ours


def recording(bench: Bench) -> Iterator[Row]:
    """What recording and light probes cost, in blocks of steps that take turns."""
    steps = bench.size(200, 50)
    bench.say(f"{bench.pairs} rounds of three blocks of {steps} steps")
    found = bench.worker("recording", words=NANO, rounds=bench.pairs, steps=steps)
    recorded = [(1e3 * row["recording"] / steps, 1e3 * row["bare"] / steps) for row in found]
    probed = [(1e3 * row["probes"] / steps, 1e3 * row["bare"] / steps) for row in found]
    note = f"recording is a log each 10 steps and a checkpoint each {steps}"
    yield compare("recording", "a step with recording", recorded, 1.02, unit="ms", peer="bare loop", notes=[note])
    yield compare("recording", "and with light probes", probed, 1.03, unit="ms", peer="bare loop")


def start(bench: Bench) -> Iterator[Row]:
    """From the start of a process to its first training step, against importing torch."""
    words = [*NORMBENCH, "train", *NANO, "quiet=true", "trainer.steps=1", "trainer.eval_batches=1", "probes=off"]
    bench.warm_up(words, TORCH)
    pairs = bench.alternate(lambda: first_step(bench, words), lambda: bench.run(TORCH).seconds)
    notes = [imports(bench.run([sys.executable, "-X", "importtime", *words[1:]]).complaints)]
    yield compare("start", "start to first training step", pairs, 1.4, peer="import torch", notes=notes)


def first_step(bench: Bench, command: list[str]) -> float:
    """Return when the first step of a new process was recorded."""
    return bench.seen(command, "outputs/*/*/metrics.jsonl")[0][0]


def mistake(bench: Bench) -> Iterator[Row]:
    """From a mistake to the sentence that says it, against importing torch."""
    words = [*NORMBENCH, "train", "norm=rmsnrm"]
    bench.warm_up(TORCH)
    pairs = bench.alternate(lambda: bench.run(words, expected=2), lambda: bench.run(TORCH))
    notes = [imports(bench.run([sys.executable, "-X", "importtime", *words[1:]], expected=2).complaints)]
    yield compare("mistake", "a mistake to the exit", seconds(pairs), 0.20, peer="import torch", notes=notes)


def lists(bench: Bench) -> Iterator[Row]:
    """What a person asks for while looking around, against importing torch."""
    count = bench.size(3000, 20)
    folder = bench.new()
    bench.say(f"making up {count} runs")
    bench.worker("make_runs", folder=str(folder), count=count)
    asked = {
        "--help": (["--help"], 0.2),
        "claims": (["claims"], 0.2),
        f"runs on {count:,} directories": (["runs", str(folder)], 1.0),
    }
    for what, (words, target) in asked.items():
        bench.warm_up([*NORMBENCH, *words], TORCH)
        pairs = bench.alternate(partial(bench.run, [*NORMBENCH, *words]), lambda: bench.run(TORCH))
        yield compare("lists", what, seconds(pairs), target, peer="import torch")


def further(bench: Bench) -> Iterator[Row]:
    """The start of each further run of a sweep, after the end of the one before, against a fresh process."""
    runs = bench.size(9, 3)
    words = [*NANO, "quiet=true", "trainer.steps=1", "trainer.eval_batches=1", "probes=off"]
    sweep = [*NORMBENCH, "sweep", *words, f"seed=range({runs})", "sweep.jobs=1", "sweep.report=false"]
    fresh = [*NORMBENCH, "train", *words]
    bench.warm_up(fresh)
    pairs = bench.alternate(lambda: later_starts(bench, sweep), lambda: first_step(bench, fresh))
    note = f"medians of {runs - 1} runs each, from a run's summary.json to the next one's first line in metrics.jsonl"
    yield compare("further", "start of a further run", pairs, 0.05, peer="fresh process", notes=[note])


def later_starts(bench: Bench, sweep: list[str]) -> float:
    """Return the median seconds from the end of a run to the first step of the next one."""
    seen = bench.seen(sweep, "outputs/sweep/*/metrics.jsonl", "outputs/sweep/*/summary.json")
    firsts = [seconds for seconds, path in seen if path.name == "metrics.jsonl"]
    ends = [seconds for seconds, path in seen if path.name == "summary.json"]
    return statistics.median(later - end for end, later in zip(ends[:-1], firsts[1:], strict=True))


def sweep36(bench: Bench) -> Iterator[Row]:
    """A sweep against the same runs one after another, each a process."""
    steps = bench.size(100, 20)
    arms = ["seed=0,1"] if bench.quick else GRID
    lengths = [f"trainer.steps={steps}", f"trainer.eval_every={steps}"]
    found = account(bench, *NANO, "trainer.steps=100", "trainer.eval_every=100", threads=1)
    pairs = list[tuple[float, float]]()
    runs = list[Settings]()
    for number in range(bench.pairs):
        bench.say(f"pair {number + 1} of {bench.pairs}")
        where = bench.new()
        whole = bench.run([*NORMBENCH, "sweep", *arms, *NANO, *lengths, "quiet=true"], where)
        (plan,) = (where / "outputs/sweep/.sweep/plans").glob("*.json")
        runs = json.loads(plan.read_text())["runs"]
        single = {run["run"]: bench.train(*run["words"]) for run in runs}
        pairs.append((whole.seconds, sum(done.seconds for done in single.values())))
        check_same(where / "outputs/sweep", single)
    notes = ["both made the same runs, to the last bit of their losses; the sweep's report is in its time"]
    notes.append(tell_time_alone(bench, found))
    yield compare("sweep36", f"{len(runs)} runs of {steps} steps", pairs, 0.40, peer="one by one", notes=notes)


def each(bench: Bench) -> Iterator[Row]:
    """A sweep that chooses a rate for each arm and seed, stacked, against the same runs one after another."""
    steps = bench.size(100, 5)
    arms = ["norm=layernorm", "seed=range(1)"] if bench.quick else ["norm=layernorm,rmsnorm", "seed=range(10)"]
    sizes = ["model.width=64", "model.depth=2", "model.heads=2"]
    lengths = [f"trainer.steps={steps}", f"trainer.eval_every={steps}"]
    choosing = ["sweep.lr=each", "sweep.lr_grid=[1e-3,3e-3,1e-2]", "sweep.stack=10"]
    words = [*arms, *NANO, *sizes, *lengths, "probes=off", *choosing, "quiet=true"]
    pairs = list[tuple[float, float]]()
    runs = dict[Path, list[str]]()  # of one pair, by folder: plans that add rates name those before again
    for number in range(bench.pairs):
        bench.say(f"pair {number + 1} of {bench.pairs}")
        where = bench.new()
        whole = bench.run([*NORMBENCH, "sweep", *words], where)
        runs.clear()
        for plan in where.glob("outputs/*/.sweep/plans/*.json"):  # of the runs that choose rates, and of the others
            for run in json.loads(plan.read_text())["runs"]:
                runs[plan.parents[2] / run["run"]] = [word for word in run["words"] if not word.startswith("sweep.")]
        pairs.append((whole.seconds, sum(bench.train(*run_words).seconds for run_words in runs.values())))
    what = f"{len(runs)} runs of {steps} steps, with a rate for each arm and seed"
    note = (
        "the sweep trains up to ten seeds as one model, so that losses are equal to rounding; its report is in its time"
    )
    yield compare("each", what, pairs, 0.33, peer="one by one", notes=[note])


def check_same(folder: Path, single: dict[str, Done]) -> None:
    """Require that a sweep has made the very runs that single processes have made.

    Raises:
        Failed: it has not.
    """
    for run, done in single.items():
        if json.loads((folder / run / "summary.json").read_text())["metrics"] != done.summary["metrics"]:
            raise Failed(f"failed: the sweep's run {run} is not the one that a process of its own makes")


def scaling(bench: Bench) -> Iterator[Row]:
    """How a step's time grows with the model, against how its operations grow."""
    larger = {"depth": LARGER["depth"]} if bench.quick else LARGER
    bench.say(f"{bench.pairs} rounds")
    words = [*NANO, "probes=off"]
    found = bench.worker("scaling", words=words, larger=larger, rounds=bench.pairs, steps=bench.size(12, 4))
    for name in larger:
        rows = [row for row in found if row["name"] == name]
        pairs = [(row["time"], row["flops"]) for row in rows]
        step = statistics.median(row["step"] for row in rows)
        speed = f"a step takes {1e3 * step:.3g} ms"
        yield compare("scaling", f"4 × the {name}", pairs, 1.0, unit="×", peer="operations", notes=[speed])


# ---- others


def mnist(bench: Bench) -> Iterator[Row]:
    """MNIST to 99.0 %, with a cold cache, against PyTorch's example."""
    peer = peers.mnist_copy(bench)
    seeds = itertools.count()

    def ours() -> Done:
        return bench.train(*MNIST_WORDS, f"seed={next(seeds)}", cache=bench.new())

    @cache
    def theirs() -> float:
        return bench.until([sys.executable, "-u", "main.py"], peer, has_reached_99)

    found = account(bench, *MNIST_WORDS)
    pairs = bench.alternate(ours, theirs)
    reached = [one.summary["metrics"]["accuracy/val"] for one, _ in pairs]
    few = sum(share < 0.99 for share in reached)
    accuracies = ", ".join(f"{share:.2%}" for share in reached)
    our_seconds = statistics.median(one.seconds for one, _ in pairs)
    notes = [f"accuracies {accuracies}; the peer, which takes long, is run once"]
    notes += tell_time(bench, found, our_seconds)
    times = [(one.seconds, other) for one, other in pairs]
    short = f"{few} of {len(reached)} seeds stay below 99 %" if few else ""
    yield compare("mnist", "whole process to 99.0 %", times, 0.10, peer="pytorch/examples", short=short, notes=notes)


def has_reached_99(line: str) -> bool:
    """Tell whether a line of PyTorch's example says that 9,900 of 10,000 images are classified rightly."""
    said = re.search(r"Accuracy: (\d+)/", line)
    return said is not None and int(said[1]) >= 9900


def norms(bench: Bench) -> Iterator[Row]:
    """Forward and backward of norms, in rounds."""
    rows = bench.size(8192, 512)
    bench.say(f"{bench.pairs} rounds at {rows} × 512")
    about, *found = bench.worker("norms", rounds=bench.pairs, rows=rows, features=512)
    targets = {"rmsnorm": ("layernorm", 1.8), "dyt": ("dyt eager", 0.60), "rmsnorm compiled": ("layernorm", 1.3)}
    for name, (peer, target) in targets.items():
        if name not in found[0]:
            raise Left(f"left out: {name}: {about['failed']}")
        pairs = [(1e3 * row[name], 1e3 * row[peer]) for row in found]
        time = statistics.median(one for one, _ in pairs) / 1e3
        speed = about["bytes"] / time
        moved = f"{speed / 1e9:.3g} GB/s of what must move, {speed / bench.peak()['copy']:.0%} of a copy"
        notes = [f"runs as {about['runs'][name]}; {moved}"]
        what = f"{name}, forward and backward, {rows:,} × 512"
        yield compare("norms", what, pairs, target, unit="ms", peer=peer, notes=notes)


def newer(bench: Bench) -> Iterator[Row]:
    """A step of a small language model with this year's parts, against the same with their sources' modules.

    By processor time on one thread.
    """
    words = ["model.depth=2", "model.width=32"] if bench.quick else []
    peers_of = {"gated RMSNorm": "its formula", "AttnRes": "its listing", "mHC": "transformers"}
    for name, peer in peers_of.items():
        bench.say(f"{bench.pairs} rounds of {name}")
        settings = {"part": name, "rounds": bench.pairs, "words": words, "texts": bench.size(12, 2)}
        about, *found = bench.worker("newer", threads=1, **settings)
        if about["failed"]:
            raise Left(f"left out: {name}: {about['failed']}")
        pairs = [(1e3 * row["ours"], 1e3 * row["theirs"]) for row in found]
        yield compare("newer", f"{name}, forward and backward of a model", pairs, 1, unit="ms", peer=peer)


def multi30k(bench: Bench) -> Iterator[Row]:
    """Training speed of a translator against plain loops around torch's Transformer."""
    words = [*TRANSLATOR, *FEW_FEATURES] if bench.quick else [*TRANSLATOR]
    settings = {"words": [*words, "probes=off"], "steps": bench.size(40, 4)}
    found = account(bench, *words, evaluates=False)
    notes = tell_time(bench, found, found["run"])
    for shuffled, what in ((True, "tokens a second"), (False, "the same, the loop on our batches")):
        pairs = bench.alternate(
            partial(speed_of, bench, "translator", **settings),
            partial(speed_of, bench, "plain", **settings, shuffled=shuffled),
        )
        yield compare("multi30k", what, pairs, 1.3, unit="/s", peer="nn.Transformer", higher=True, notes=notes)
        notes = []


def speed_of(bench: Bench, worker: str, **settings: Any) -> float:
    """Return the tokens a second that a worker has measured."""
    (found,) = bench.worker(worker, **settings)
    speed: float = found["speed"]
    return speed


def report(bench: Bench) -> Iterator[Row]:
    """A report on many runs."""
    count = bench.size(1000, 20)
    folder = bench.new()
    bench.say(f"making up {count} runs")
    bench.worker("make_runs", folder=str(folder), count=count)
    done = []
    for number in range(bench.pairs):
        bench.say(f"report {number + 1} of {bench.pairs}")
        done.append(bench.run([*NORMBENCH, "report", str(folder)]))
    profile = bench.new() / "profile"
    bench.run([sys.executable, "-m", "cProfile", "-o", str(profile), *NORMBENCH[1:], "report", str(folder)])
    took = tuple(one.seconds for one in done)
    gibibytes = tuple(one.peak / 2**30 for one in done)
    what = f"report on {count:,} runs"
    note = f"profiled: {packages(profile)}"
    yield Row("report", what, f"{statistics.median(took):.3g} s", "", took, 15, unit=" s", notes=(note,))
    yield Row("report", "its peak memory", f"{statistics.median(gibibytes):.3g} GiB", "", gibibytes, 1.5, unit=" GiB")


def packages(profile: Path) -> str:
    """Say in which packages a profiled process has spent its time; what C functions take is their callers'."""
    took = Counter[str]()
    for (path, _, _), (_, _, own, _, callers) in pstats.Stats(str(profile)).stats.items():  # type: ignore[attr-defined]
        if path == "~" and callers:
            for (caller, _, _), numbers in callers.items():
                took[package_of(caller)] += numbers[2]
        else:
            took[package_of(path)] += own
    return shares(dict(took.most_common(6)), sum(took.values()))


def package_of(path: str) -> str:
    """Return the package that a file belongs to."""
    parts = Path(path).parts
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1]
    return "normbench" if "normbench" in parts else "Python"


PARTS = {
    "nanogpt": Part(nanogpt, 2, "nanoGPT's example on a CPU, whole processes; peak memory", ("data", "nanogpt")),
    "step": Part(step, 3, "a step of it on one thread", ("data", "nanogpt")),
    "recording": Part(recording, 5, "recording and light probes, against a bare loop"),
    "start": Part(start, 7, "start to first training step, against importing torch"),
    "mistake": Part(mistake, 7, "a mistake to the exit, against importing torch"),
    "lists": Part(lists, 5, "--help, claims, and runs on 3,000 directories, against importing torch"),
    "sweep16": Part(sweep16, 1, "16 runs as a sweep, against nanoGPT's one after another", ("data", "nanogpt")),
    "further": Part(further, 3, "start of a further run of a sweep, against a fresh process"),
    "mnist": Part(mnist, 3, "MNIST to 99 %, against PyTorch's example", ("data", "examples", "torchvision")),
    "norms": Part(norms, 15, "forward and backward of norms"),
    "newer": Part(newer, 15, "a step with gated RMSNorm, mHC and AttnRes, against their sources"),
    "scaling": Part(scaling, 5, "growth of a step's time, against that of its operations"),
    "multi30k": Part(multi30k, 2, "a Transformer that translates, against a plain loop", ("data",)),
    "sweep36": Part(sweep36, 1, "36 runs as a sweep, against one after another"),
    "each": Part(each, 1, "rates chosen seed by seed in a sweep, against one after another"),
    "report": Part(report, 2, "a report on 1,000 runs"),
    "learning": Part(
        measure_learning,
        pairs=1,
        about="what documented trainings reach, in a quarter of an hour",
        needs=("data",),
        default=False,
    ),
    "learning_long": Part(
        partial(measure_learning, long=True), pairs=1, about="and in an hour", needs=("data",), default=False
    ),
}
