#!/usr/bin/env python3
"""What a study of many runs costs: the runs themselves, their directories, their report, and TensorBoard.

    .venv/bin/python scripts/lib/benchmark/growth.py                               # all of it, half an hour
    .venv/bin/python scripts/lib/benchmark/growth.py presets --presets nano cnn    # what a run takes
    .venv/bin/python scripts/lib/benchmark/growth.py probes --presets nano cnn     # what probes take of its time
    .venv/bin/python scripts/lib/benchmark/growth.py folders --runs 300            # directories that are made up
    .venv/bin/python scripts/lib/benchmark/growth.py tensorboard --events 100

presets: the time, arithmetic and operations of a step are measured on one core. What a GPU would take is computed from
them, from a share of its peak that it might reach and the time to start an operation, both assumed: see `Preset`.

probes: steps with probes and without take turns; seconds of the process, which other work disturbs less.

folders: a sweep of 5 norms × 4 placements is planned and its runs made up as the tests make them, finished. Each
command is a process of its own. tensorboard: its data server reads copies of what one run of nano has written.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from normbench.record.machine import cpu_name

TESTS = Path(__file__).parents[3] / "tests"
NORMS = "layernorm,rmsnorm,dyt,groupnorm,batchnorm"
PLACEMENTS = "pre,post,deep,sandwich"
LINES = 100  # logged in each run that is made up
ALONE = ["device=cpu", "threads=1", "quiet=true"]

SPARSE = ("light", "full")  # probes that look at some steps
ROUNDS = 10  # steps of each kind that are timed

FLOPS = 20e12  # a second, of float32: 30 % of the 67e12 that an H100's data sheet has, without tensor cores
LAUNCH = 10e-6  # seconds of the host for each operation
START = 5.0  # seconds of a process up to its first step, once data are decoded


def main() -> None:
    """Measure what was asked for."""
    options = parse_options()
    machine = f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores"
    print(f"{machine}, Python {platform.python_version()}, torch {version('torch')}")
    if "presets" in options.parts:
        for preset in options.presets:
            print(Preset.measure(preset), flush=True)
    if "probes" in options.parts:
        for preset in options.presets:
            print(probing(preset), flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if "folders" in options.parts:
            for runs in options.runs:
                measure_folders(Path(folder, str(runs)), runs)
        if "tensorboard" in options.parts:
            measure_tensorboard(Path(folder), options.events)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["presets", "probes", "folders", "tensorboard"]
    parser.add_argument("parts", nargs="*", default=parts, metavar="PART", help=", ".join(parts))
    parser.add_argument("--presets", nargs="+", default=["nano", "small", "cnn", "resnet20", "vit_tiny"])
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 3000, 10_000])
    parser.add_argument("--events", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--folder", type=Path, help="where runs are made, by default the system's temporary folder")
    return parser.parse_args()


# ---- what a run takes


@dataclass
class Preset:
    """What a run of a preset takes.

    Attributes:
        step_ms: milliseconds of a step, on one core.
        seconds: from the first step to the end of the run.
        flops: floating-point operations of a step.
        operations: how many a step gives to the device.
        checkpoint: bytes.
    """

    name: str
    parameters: int
    steps: int
    step_ms: float
    seconds: float
    flops: int
    operations: int
    checkpoint: int

    @classmethod
    def measure(cls, name: str) -> Preset:
        """Measure a few steps of a run."""
        from kernels import operations, record

        from normbench.config.compose import read
        from normbench.record.recorder import Recorder
        from normbench.runs.plan import prepare
        from normbench.runs.session import Session
        from normbench.training.estimate import estimate

        run = prepare(read([f"model={name}", *ALONE]))
        loop = Session(run).loop
        with tempfile.TemporaryDirectory() as folder, closing(Recorder(Path(folder))) as loop.recorder:
            found = estimate(loop, Path(folder))
            flops = operations(loop.train_step)
            calls = record(loop.train_step).calls
        return cls(
            name,
            parameters=sum(parameter.numel() for parameter in loop.model.parameters()),
            steps=run.steps,
            step_ms=found.step_ms or found.probed_ms,
            seconds=found.seconds(run.steps),
            flops=flops,
            operations=len(calls),
            checkpoint=found.checkpoint,
        )

    def __str__(self) -> str:
        kernels = self.flops / FLOPS
        launches = self.operations * LAUNCH
        steps = self.seconds / self.step_ms * 1e3  # that would take as long as the run
        gpu = START + max(kernels, launches) * steps
        return (
            f"{self.name:9s} {self.parameters:11,} parameters, {self.steps:,} steps: {self.step_ms:.1f} ms a step, "
            f"{self.flops / 1e9:.3g} GFLOP, {self.operations:,} operations, checkpoint {self.checkpoint / 1e6:.1f} MB, "
            f"{3600 / (START + self.seconds):,.0f} runs a core-hour; a GPU, computed: arithmetic "
            f"{kernels * 1e3:.2f} ms, launches {launches * 1e3:.1f} ms, {3600 / gpu:,.0f} runs an hour"
        )


def probing(preset: str) -> str:
    """Say which share of a preset's training time its probes take, and which share of a step its batch does."""
    probes = ", ".join(f"probes={probes} {100 * share_of(preset, probes):.1f} %" for probes in SPARSE)
    return f"{preset:9s} {probes} of the training time; the batch {100 * share_of_batch(preset):.1f} % of a step"


def loop_of(preset: str, probes: str) -> Any:
    """Return the loop of a preset, which records nothing."""
    from normbench.config.compose import read
    from normbench.record.recorder import Silent
    from normbench.runs.plan import prepare
    from normbench.runs.session import Session

    loop = Session(prepare(read([f"model={preset}", f"probes={probes}", "trainer.steps=1000", *ALONE]))).loop
    loop.recorder = Silent()
    loop.model.train()
    return loop


def own_seconds(call: Callable[[], object]) -> float:
    """Return the seconds that this process spends on a call."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def share_of_batch(preset: str) -> float:
    """Return what taking a batch out of memory takes of a step."""
    loop = loop_of(preset, "off")
    loop.train_step()  # which makes the optimizer's state
    steps = list[float]()
    batches = list[float]()
    for _ in range(ROUNDS):  # each after a step, which leaves the caches as it does in a run
        steps.append(own_seconds(loop.train_step))
        batches.append(own_seconds(lambda: loop.stepper.local_batch(loop.step)))
    return statistics.median(batches) / statistics.median(steps)


def share_of(preset: str, probes: str) -> float:
    """Return what probes take of the training time: of so many steps one is probed, and one with histograms."""
    loop = loop_of(preset, probes)
    every = loop.probing.every
    histograms_every = loop.probing.histograms_every

    def seconds(number: int) -> float:
        loop.step = number - 1
        return own_seconds(loop.train_step)

    seconds(every + 1)  # which makes the optimizer's state
    plain, probed, drawn = list[float](), list[float](), list[float]()
    for _ in range(ROUNDS):
        plain.append(seconds(every + 1))
        probed.append(seconds(every))
        drawn.append(seconds(histograms_every))
    usual = statistics.median(plain)
    of_probed = statistics.median(probed) / usual - 1
    of_drawn = statistics.median(drawn) / usual - 1
    return of_probed * (1 / every - 1 / histograms_every) + of_drawn / histograms_every


# ---- what is done with many directories


def measure_folders(folder: Path, runs: int) -> None:
    """Make a sweep's runs up, and time what is done with them."""
    folder.mkdir()
    words = [f"norm={NORMS}", f"placement={PLACEMENTS}", f"seed=range(0,{max(1, runs // 20)})", "data=pydocs"]
    words += [*ALONE[:2], "trainer.steps=1000", "name=many", "sweep.report=false"]
    time_command(folder, f"{runs:,} runs: sweep --dry-run, new", ["sweep", *words, "--dry-run"])
    with ProcessPoolExecutor(1) as pool:  # what it imports would count as memory of the commands that follow
        pool.submit(make_up, folder, words).result()
    time_command(folder, f"{runs:,} runs: runs", ["runs", "outputs"])
    time_command(folder, f"{runs:,} runs: runs FOLDER", ["runs", "outputs/many"])
    time_command(folder, f"{runs:,} runs: load_runs", code="import normbench; normbench.load_runs('outputs')")
    time_command(folder, f"{runs:,} runs: sweep --resume --dry-run", ["sweep", "--resume", "outputs/many", "--dry-run"])
    time_command(folder, f"{runs:,} runs: sweep --resume", ["sweep", "--resume", "outputs/many"])
    time_command(folder, f"{runs:,} runs: report", ["report", "outputs/many"])
    arms = "from pathlib import Path; from normbench.show.tensorboard import write_arms; write_arms(Path('outputs'))"
    time_command(folder, f"{runs:,} runs: arms for TensorBoard", code=arms)
    shutil.rmtree(folder)


def make_up(folder: Path, words: Sequence[str]) -> None:
    """Make the directories that a sweep of these words plans, and its note of them."""
    sys.path.insert(0, str(TESTS))
    from made_runs import make_run

    from normbench.sweep.sweep import plan_sweep

    os.chdir(folder)
    sweep = plan_sweep([*words, "quiet=true"])
    for run in sweep.plan.runs:
        make_run(
            run.prepared.directory.path.parent, norm=run.arm["norm"], placement=run.arm["placement"], seed=run.seed,
            final=2 + run.seed / 1e3, steps=1000, log_every=1000 // LINES, eval_every=100, probed=100, name=run.run,
        )  # fmt: skip
    sweep.folder.write_plan(sweep.plan.runs, words, sweep.asked_runs)


def time_command(folder: Path, name: str, words: Sequence[str] = (), code: str = "") -> None:
    """Print how long a command takes, and how much memory."""
    what = ["-c", code] if code else ["-m", "normbench", *words]
    command = [sys.executable, *what]
    begun = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} has failed with status {process.returncode}")
    print(line_of(name, time.perf_counter() - begun, used), flush=True)


def line_of(name: str, seconds: float, used: resource.struct_rusage) -> str:
    """Return a line on the time and memory of a process."""
    return (
        f"{name:40s} {seconds:7.1f} s {used.ru_utime + used.ru_stime:7.1f} s of cores {used.ru_maxrss / 2**20:.2f} GiB"
    )


# ---- TensorBoard


def measure_tensorboard(folder: Path, numbers: Sequence[int]) -> None:
    """Train a run, say how large its files are, and time how long TensorBoard's data server reads so many of them."""
    from tensorboard_data_server import server_binary

    words = ["model=nano", "trainer.steps=2000", "name=one", *ALONE]
    time_command(folder, "a run of nano, 2,000 steps", ["train", *words])
    (run,) = (folder / "outputs/one").iterdir()
    print("bytes:", json.dumps({file.name: file.stat().st_size for file in sorted(run.iterdir())}))
    for number in numbers:
        for place in range(number):
            copy = folder / f"events/{place:05}"
            copy.mkdir(parents=True, exist_ok=True)
            for file in run.glob("events.*"):
                shutil.copy(file, copy)
        begun = time.perf_counter()
        command = [server_binary(), "--logdir", "events", "--port", "0", "--reload", "once", "-vv"]
        server = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        next(line for line in server.stderr or () if "Finished load cycle" in line)
        seconds = time.perf_counter() - begun
        server.kill()
        _, server.returncode, used = os.wait4(server.pid, 0)
        print(line_of(f"{number:,} runs: TensorBoard has read all", seconds, used), flush=True)


if __name__ == "__main__":
    main()
