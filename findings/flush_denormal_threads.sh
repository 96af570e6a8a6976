#!/usr/bin/env bash
# torch.set_flush_denormal(True) flushes only what the calling thread computes.
#
# Versions: torch 2.13.0, on an x86-64 CPU.
# A good guess: the call switches subnormal numbers off in the process, as "Disables denormal floating numbers on CPU"
# reads.
# What happens: the mode belongs to a thread. Threads of the pool that exist before the call keep subnormal numbers, so
# of one product of one tensor the first quarter is flushed and the other three are not. Called before the first
# parallel operation, it reaches all, since new threads inherit the mode.
# Who is hurt: whoever sets it after a model has been built or a first batch has run: the slow path stays, and results
# depend on the number of threads and on where in a tensor a number stands. Second moments of optimizers and running
# variances hold such numbers.
# Output seen:
#   set after a parallel operation: flushed quarters [True, False, False, False]
#   set before any:                 flushed quarters [True, True, True, True]
# Source: torch's documentation, torch.set_flush_denormal, which says nothing of threads.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
[[ $(uname -m) == x86_64 ]] || exit 2  # other processors keep the mode elsewhere
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import subprocess
import sys

import torch

TRY = """
import sys
import torch
torch.set_num_threads(4)
if sys.argv[1] == "before":
    assert torch.set_flush_denormal(True), "this processor cannot flush subnormal numbers"
numbers = torch.full((4_000_000,), 71362, dtype=torch.int32).view(torch.float32)  # 1e-40
assert torch.set_flush_denormal(True), "this processor cannot flush subnormal numbers"
product = numbers * 1.0
torch.set_flush_denormal(False)
print([bool((quarter == 0).all()) for quarter in product.chunk(4)])
"""


def flushed(when: str) -> str:
    return subprocess.run([sys.executable, "-c", TRY, when], check=True, capture_output=True, text=True).stdout.strip()


print("torch", torch.__version__)
after, before = flushed("after"), flushed("before")
print("set after a parallel operation: flushed quarters", after)
print("set before any:                 flushed quarters", before)
sys.exit(not (after == "[True, False, False, False]" and before == "[True, True, True, True]"))
END
