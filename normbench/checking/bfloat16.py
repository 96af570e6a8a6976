"""A norm in bfloat16, in a process of its own: some CPUs stop one that uses it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor

from normbench.checking.norms import NormPart, run
from normbench.checking.outcomes import Outcome, failed, judged, not_applicable
from normbench.errors import explain

STEP = 2.0**-7  # between neighbours, as a share of the value at most
MOST_STEPS = 2.0  # a result that is rounded once is off by half a step
SECONDS = 120


def bfloat16_error(part: NormPart) -> Outcome:
    """Start a process that measures, and read what it found."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # -P: the current directory comes where it stands in our own path, so that no file in it hides one of Python's
    command = [sys.executable, "-P", "-m", "normbench.checking.bfloat16", json.dumps(part.tree["norm"])]
    child = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=SECONDS, stdin=subprocess.DEVNULL
    )
    if child.returncode == -signal.SIGILL:
        return not_applicable("this CPU stops bfloat16 with an illegal instruction")
    if child.returncode < 0:
        return failed(f"the process ended by {signal.Signals(-child.returncode).name}")
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1]) if child.stdout.strip() else {}
    if "steps" not in found:
        return failed(found.get("complaint") or child.stderr.strip().splitlines()[-1])
    figure = f"off by up to {found['steps']:.2g} steps of bfloat16, {found['exact']:.1%} rounded once"
    few = found["steps"] <= MOST_STEPS
    return judged(few, figure if few else f"{figure}: take statistics in float32")


def measure(part: NormPart) -> dict[str, float]:
    """How many steps the result is off, at most, and the share of it that is float64's rounded once.

    The parameters stay float32, as in a run with `trainer.precision=bf16`. Values far from 0 show statistics that were
    taken in bfloat16; small ones how the result is rounded.
    """
    steps, exact = [0.0], []
    for layout in part.layouts:
        for mean, std in ((0.5, 1.5), (16.0, 1.0)):
            x = part.input(layout, mean=mean, std=std).bfloat16()
            y = run(part.lively(layout), x)
            expected = run(part.lively(layout).double(), x.double())
            steps.append(steps_off(y, expected))
            exact.append((y == expected.bfloat16()).double().mean().item())
    return {"steps": max(steps), "exact": sum(exact) / len(exact)}


def steps_off(y: Tensor, expected: Tensor) -> float:
    """Largest difference in steps of bfloat16; below the root mean square, in steps there; infinite for a NaN."""
    scale = expected.abs().clamp_min(expected.square().mean().sqrt().item())
    steps = float(((y.double() - expected).abs() / (scale * STEP)).max())
    return steps if math.isfinite(steps) else math.inf


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        print(json.dumps(measure(NormPart({"norm": json.loads(sys.argv[1])}))))
    except Exception as error:  # whatever the norm raises is the answer that the parent waits for
        print(json.dumps({"complaint": explain(error)}))
