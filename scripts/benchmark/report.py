#!/usr/bin/env python3
"""How long a report takes, and how much memory, on 1,000 run directories of 1,000 logged steps.

    .venv/bin/python scripts/benchmark/report.py

The runs are made up, as the tests make them: 5 norms × 4 placements × 5 learning rates × 10 seeds. Nothing else should
be at work on the machine.
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
NORMS, PLACEMENTS = ("layernorm", "rmsnorm", "dyt", "groupnorm", "batchnorm"), ("pre", "post", "deep", "sandwich")
RATES, SEEDS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2), range(10)


def main() -> None:
    """Make the runs, report on them, and print what that took."""
    sys.path.insert(0, str(TESTS))
    from made_runs import make_run

    with tempfile.TemporaryDirectory() as folder:
        for norm, placement, lr, seed in itertools.product(NORMS, PLACEMENTS, RATES, SEEDS):
            make_run(
                Path(folder), norm=norm, placement=placement, lr=lr, seed=seed, steps=10_000, eval_every=500,
                probed=1000, final=2 + lr * seed,
            )  # fmt: skip
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "normbench", "report", folder], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{seconds:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of a core, {used.ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
