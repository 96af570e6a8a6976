#!/usr/bin/env bash
# msgspec's gt=0 and lt=0 let 0.0 pass once subnormal numbers are flushed to zero.
#
# Versions: msgspec 0.23.0, torch 2.13.0.
# A good guess: Meta(gt=0) of a float refuses 0.0 everywhere; a bound does not depend on what another library has set.
# What happens: after torch.set_flush_denormal(True) in the same thread, msgspec.convert(0.0, Annotated[float,
# Meta(gt=0)]) returns 0.0, and so does lt=0. gt=1 and lt=1 hold. msgspec asks whether the value is below the next
# float after the bound, which for 0 is the smallest subnormal number; the processor then compares it as 0.
# Who is hurt: whoever checks a record (a learning rate, an epsilon) in the process that trains on a CPU: a value of 0
# is taken as positive, and what divides by it comes later.
# Output seen:
#   kept     gt=0 refused, lt=0 refused, gt=1 refused, lt=1 refused
#   flushed  gt=0 passed, lt=0 passed, gt=1 refused, lt=1 refused
# Source: msgspec's documentation, page "Constraints"; torch's documentation, torch.set_flush_denormal.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 msgspec==0.23.0 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys
from typing import Annotated

import msgspec
import torch

BOUNDS = {"gt=0": {"gt": 0}, "lt=0": {"lt": 0}, "gt=1": {"gt": 1}, "lt=1": {"lt": 1}}


def passes(value: float, bound: dict) -> bool:
    try:
        msgspec.convert(value, Annotated[float, msgspec.Meta(**bound)])
    except msgspec.ValidationError:
        return False
    return True


def passing() -> list[str]:
    return [name for name, bound in BOUNDS.items() if passes(float(name[-1]), bound)]


def tell(label: str, passed: list[str]) -> None:
    print(label, ", ".join(f"{name} {'passed' if name in passed else 'refused'}" for name in BOUNDS))


print("msgspec", msgspec.__version__, "torch", torch.__version__)
kept = passing()
assert torch.set_flush_denormal(True), "this processor cannot flush subnormal numbers"
flushed = passing()
torch.set_flush_denormal(False)
tell("kept    ", kept)
tell("flushed ", flushed)
sys.exit(not (kept == [] and flushed == ["gt=0", "lt=0"]))
END
