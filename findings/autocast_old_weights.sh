#!/usr/bin/env bash
# Within one autocast context a model goes on with the weights that it had at its first call.
#
# Versions: torch 2.13.0, torch-ema 0.3.
# A good guess: autocast around a whole loop costs nothing but style; each forward pass casts the weights that are
# there.
# What happens: autocast keeps the bfloat16 copy of each weight until its outermost context ends, and an in-place
# change of the weight does not drop the copy. Optimizer steps inside the context have no effect on the forward pass,
# and the loss stays the same number. Averaged weights that torch-ema swaps in by copy are not seen either, also under
# torch.no_grad(): the average is judged by the raw model's number.
# Who is hurt: whoever opens autocast once around the epochs, or around an evaluation of raw and averaged weights. The
# second shows nothing odd: "EMA makes no difference" to the last digit.
# Output seen:
#   five losses in one context  [5.766, 5.766, 5.766, 5.766, 5.766]
#   five losses, one each       [5.766, 3.405, 2.082, 1.307, 0.848]
#   raw and averaged loss in one context 0.267, 0.267; in one each 0.267, 0.608
# Source: torch's documentation, torch.autocast, argument cache_enabled; aten/src/ATen/autocast_mode.cpp.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 torch-ema==0.3 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import importlib.metadata
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch_ema import ExponentialMovingAverage


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    inputs = torch.randn(32, 4)
    return model, inputs, inputs.sum(1, keepdim=True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    loss = F.mse_loss(model(inputs).float(), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return round(loss.item(), 3)


def train(in_one_context: bool) -> list[float]:
    model, inputs, targets = problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    if in_one_context:
        with autocast():
            for _ in range(5):
                losses.append(step(model, optimizer, inputs, targets))
    else:
        for _ in range(5):
            with autocast():
                losses.append(step(model, optimizer, inputs, targets))
    return losses


@torch.no_grad()
def raw_and_averaged(in_one_context: bool) -> tuple[float, float]:
    model, inputs, targets = problem()
    average = ExponentialMovingAverage(model.parameters(), decay=0.5)
    model.weight.add_(1.0)
    average.update()

    def loss() -> float:
        return F.mse_loss(model(inputs).float(), targets).item()

    if in_one_context:
        with autocast():
            raw = loss()
            with average.average_parameters():
                return raw, loss()
    with autocast():
        raw = loss()
    with average.average_parameters(), autocast():
        return raw, loss()


print("torch", torch.__version__, "torch-ema", importlib.metadata.version("torch-ema"))
one, each = train(True), train(False)
print("five losses in one context ", one)
print("five losses, one each      ", each)
swapped, right = raw_and_averaged(True), raw_and_averaged(False)
print("raw and averaged loss in one context", swapped, "in one each", right)
stuck = len(set(one)) == 1 and each[-1] < each[0]
sys.exit(not (stuck and swapped[0] == swapped[1] and right[0] != right[1]))
END
