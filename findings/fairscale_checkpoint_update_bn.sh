#!/usr/bin/env bash
# fairscale's checkpoint_wrapper and torch's update_bn leave every BatchNorm with a mean of 0 and a variance of 1.
#
# Versions: fairscale 0.4.13, torch 2.13.0.
# A good guess: the wrapper keeps BatchNorm right (it says so: a batch counts once), so statistics are recomputed.
# What happens: so that a batch counts once, the wrapper lets BatchNorm track only where gradients are on, that is in
# the second pass. update_bn resets the statistics and then passes the data without gradients: nothing is tracked, and
# the reset stays. The same holds for any recalibration under torch.no_grad().
# Who is hurt: whoever averages weights of a checkpointed model: the last step before evaluation erases what training
# had gathered, without an error; num_batches_tracked is 0.
# Output seen, data of mean 5 and standard deviation 3:
#   plain        mean 5.0  variance 9.1  batches 10
#   checkpointed mean 0.0  variance 1.0  batches 0
# Source: fairscale/nn/checkpoint/checkpoint_utils.py, patch_batchnorm; torch's documentation,
# torch.optim.swa_utils.update_bn.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 fairscale==0.4.13 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import fairscale
import torch
from fairscale.nn.checkpoint import checkpoint_wrapper
from torch import nn
from torch.optim.swa_utils import update_bn

print("fairscale", fairscale.__version__, "torch", torch.__version__)
seen = []
for label, wrap in {"plain": lambda module: module, "checkpointed": checkpoint_wrapper}.items():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(wrap(nn.Sequential(norm, nn.Linear(4, 4))))
    update_bn([5 + 3 * torch.randn(500, 4) for _ in range(10)], model)
    mean, variance = norm.running_mean.mean().item(), norm.running_var.mean().item()
    batches = int(norm.num_batches_tracked)
    seen.append((round(mean), round(variance), batches))
    print(f"{label:<12} mean {mean:.1f}  variance {variance:.1f}  batches {batches}")
sys.exit(seen != [(5, 9, 10), (0, 1, 0)])
END
