#!/usr/bin/env bash
# Counting a model's operations changes the model: fvcore moves BatchNorm's statistics, ptflops leaves it in
# evaluation.
#
# Versions: fvcore 0.1.5.post20221221, ptflops 0.7.5, torch 2.13.0.
# A good guess: a counter looks and puts back what it touched.
# What happens: fvcore traces the model in the mode that it is in, so one made-up batch enters the running statistics
# (torch.jit.trace itself: five times, with its check). ptflops counts in evaluation mode and stays there.
# Who is hurt: whoever prints the count between building a model and training it. After ptflops BatchNorm trains with
# its running statistics and dropout is off, for a loop that calls model.train() once, before; after fvcore two runs
# that should be equal to the bit are not.
# Output seen:
#   fvcore           batches counted 1, training True
#   torch.jit.trace  batches counted 5, training True
#   ptflops          batches counted 0, training False
# Source: fvcore's documentation, FlopCountAnalysis; ptflops' README; torch's documentation, torch.jit.trace.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 fvcore==0.1.5.post20221221 ptflops==0.7.5 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import importlib.metadata
import sys
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
from fvcore.nn import FlopCountAnalysis
from ptflops import get_model_complexity_info

COUNTERS = {
    "fvcore": lambda model: FlopCountAnalysis(model, torch.ones(1, 3, 8, 8)).unsupported_ops_warnings(False).total(),
    "torch.jit.trace": lambda model: torch.jit.trace(model, torch.ones(1, 3, 8, 8)),
    "ptflops": lambda model: get_model_complexity_info(model, (3, 8, 8), print_per_layer_stat=False),
}
print(*(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "fvcore", "ptflops")))
seen = []
for label, count in COUNTERS.items():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train()
    count(model)
    seen.append((int(model[1].num_batches_tracked), model.training))
    print(f"{label:<16} batches counted {seen[-1][0]}, training {seen[-1][1]}")
sys.exit(seen != [(1, True), (5, True), (0, False)])
END
