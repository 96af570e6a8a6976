#!/usr/bin/env python3
"""What many runs cost behind the training: looking at their directories, going on with their sweep, and the report.

    .venv/bin/python scripts/benchmark/growth.py                          # 1,000, 3,000 and 10,000 runs, half an hour
    .venv/bin/python scripts/benchmark/growth.py --runs 300 --lines 10

A sweep of 5 norms × 4 placements is planned, and each of its runs made up as the tests make them, finished, with so
many logged lines. Then each command is a process of its own, below a folder that is deleted. TensorBoard loads real
event files, copies of one, so `--events` says how many there are at most.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
NORMS, PLACEMENTS = "layernorm,rmsnorm,dyt,groupnorm,batchnorm", "pre,post,deep,sandwich"
EVENTS = (100, 300, 1000)
LOAD_EVENTS = """
import sys, time
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
loaded = EventMultiplexer(size_guidance={"scalars": 1000, "tensors": 10}).AddRunsFromDirectory(sys.argv[1])
loaded.Reload()
print(len(loaded.Runs()))
"""


def main() -> None:
    """Measure, and print a line for each number of runs and command."""
    options = parsed()
    print(f"{processor()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, "
          f"torch {version('torch')}")  # fmt: skip
    for runs in options.runs:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            measure(Path(folder), runs, options.lines)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure_events(Path(folder), [number for number in EVENTS if number <= options.events])


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 3000, 10_000])
    parser.add_argument("--lines", type=int, default=100, help="logged lines of a run")
    parser.add_argument("--events", type=int, default=1000, help="event files for TensorBoard at most; 0: none")
    parser.add_argument("--folder", type=Path, help="where the runs are made up, by default the system's own place")
    return parser.parse_args()


def processor() -> str:
    """Return the name of the CPU."""
    from normbench.rundir import cpu_name

    return cpu_name()


def measure(folder: Path, runs: int, lines: int) -> None:
    """Make a sweep's runs up, and time what is done with them."""
    words = [f"norm={NORMS}", f"placement={PLACEMENTS}", f"seed=range(0,{max(1, runs // 20)})", "data=pydocs"]
    words += ["device=cpu", "threads=1", "trainer.steps=1000", "name=many", "sweep.report=false"]
    timed(folder, runs, "plan", ["sweep", *words, "--dry-run"])
    with ProcessPoolExecutor(1) as pool:  # what it imports would count as memory of the commands that follow
        sweep = pool.submit(made_up, folder, words, lines).result()
    print(f"{runs:6,} runs  {'a directory':24s} {size_of(sweep) / runs / 1e3:8.0f} kB")
    timed(folder, runs, "runs outputs/many", ["runs", "outputs/many"])
    timed(folder, runs, "runs", ["runs", "outputs"])
    timed(folder, runs, "sweep --resume --dry-run", ["sweep", "--resume", "outputs/many", "--dry-run"])
    timed(folder, runs, "sweep --resume", ["sweep", "--resume", "outputs/many"])
    timed(folder, runs, "load_runs", code="import normbench; normbench.load_runs('outputs')")
    timed(folder, runs, "report", ["report", "outputs/many"])


def timed(folder: Path, runs: int, name: str, words: Sequence[str] = (), code: str = "") -> None:
    """Print how long a command takes, and how much memory."""
    command = [sys.executable, *(["-c", code] if code else ["-m", "normbench", *words])]
    begun = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    if status:
        raise SystemExit(f"{' '.join(command)} has failed with status {os.waitstatus_to_exitcode(status)}")
    each = f"{seconds:8.1f} s {used.ru_utime + used.ru_stime:8.1f} s of a core {used.ru_maxrss / 2**20:6.2f} GiB"
    print(f"{runs:6,} runs  {name:24s} {each}", flush=True)


def made_up(folder: Path, words: Sequence[str], lines: int) -> Path:
    """Make the directories that a sweep of these words plans, and its note of them; return its folder."""
    sys.path.insert(0, str(TESTS))
    from made_runs import make_run

    from normbench.sweep.conduct import understand

    os.chdir(folder)
    sweep = understand([*words, "quiet=true"])
    for run in sweep.plan.runs:
        tree = run.prepared.config.tree
        make_run(
            run.prepared.directory.path.parent, norm=run.arm["norm"], placement=run.arm["placement"], seed=run.seed,
            final=2 + run.seed / 1e3, steps=1000, log_every=1000 // lines, eval_every=100, probed=100,
            name=run.run, settings={"optim.lr": tree["optim"]["lr"], "name": "many"},
        )  # fmt: skip
    sweep.folder.write_plan(sweep.plan.runs, words, sweep.asked)
    return sweep.plan.folder.absolute()


def size_of(folder: Path) -> int:
    """Return how many bytes the files below a folder hold."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure_events(folder: Path, numbers: Sequence[int]) -> None:
    """Time how long TensorBoard reads the event files of some runs, each a copy of one that was trained."""
    if not numbers:
        return
    words = ["device=cpu", "threads=1", "trainer.steps=1000", "model.depth=2", "model.width=32", "name=one"]
    subprocess.run([sys.executable, "-m", "normbench", "train", *words, "quiet=true"], cwd=folder, check=True)
    (run,) = (folder / "outputs/one").iterdir()
    print("files of a run:", json.dumps({file.name: file.stat().st_size for file in sorted(run.iterdir())}))
    for number in numbers:
        for place in range(number):
            (copy := folder / f"events/{place:05}").mkdir(parents=True, exist_ok=True)
            for file in run.glob("events.*"):
                shutil.copy(file, copy)
        timed(folder, number, "TensorBoard", code=f"import sys; sys.argv[1:] = ['events']\n{LOAD_EVENTS}")


if __name__ == "__main__":
    main()
