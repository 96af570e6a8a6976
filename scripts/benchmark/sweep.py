#!/usr/bin/env python3
"""How long a sweep takes against the same runs one after another, each a process of `normbench train`.

    .venv/bin/python scripts/benchmark/sweep.py            # 36 runs of 100 steps of nano, twice: several minutes
    .venv/bin/python scripts/benchmark/sweep.py --norms rmsnorm --seeds 2 --steps 20

Both are given the same words, threads included, in new folders, with data that are decoded already. The last line is
the ratio; nothing else should be at work on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from normbench.rundir import cpu_name

NORMS = "layernorm,rmsnorm,dyt,groupnorm"
PLACEMENTS = "pre,post,sandwich"
NANO = ["model=nano", "data=pydocs", "device=cpu"]


def main() -> None:
    """Measure both, and print what was measured."""
    options = parsed()
    lengths = [f"trainer.steps={options.steps}", f"trainer.eval_every={options.steps}"]
    words = [f"norm={options.norms}", f"placement={options.placements}", f"seed=range({options.seeds})"]
    words += [*NANO, *lengths]
    with tempfile.TemporaryDirectory() as folder:
        whole, single = Path(folder) / "sweep", Path(folder) / "single"
        sweep = seconds(["sweep", *words], whole)
        (plan,) = (whole / "outputs" / "sweep" / ".sweep" / "plans").glob("*.json")
        runs = json.loads(plan.read_text())["runs"]
        alone = sum(seconds(["train", *run["words"], "quiet=true"], single) for run in runs)
        assert same_metrics(whole, single)
    print(f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, "
          f"torch {version('torch')}")  # fmt: skip
    print(f"{len(runs)} runs of {options.steps} steps: sweep {sweep:.1f} s, one after another {alone:.1f} s")
    print(f"ratio {sweep / alone:.3f}")


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norms", default=NORMS)
    parser.add_argument("--placements", default=PLACEMENTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    return parser.parse_args()


def seconds(words: list[str], folder: Path) -> float:
    """How long a command takes."""
    folder.mkdir(exist_ok=True)
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "normbench", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def same_metrics(whole: Path, single: Path) -> bool:
    """Whether both have made the same runs, to the last bit of their losses."""
    losses = [
        {path.parent.name: json.loads(path.read_text())["metrics"]["loss/val"] for path in folder.rglob("summary.json")}
        for folder in (whole, single)
    ]
    return losses[0] == losses[1] and bool(losses[0])


if __name__ == "__main__":
    main()
