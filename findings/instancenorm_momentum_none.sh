#!/usr/bin/env bash
# InstanceNorm with momentum=None never learns its running statistics; BatchNorm with it averages all batches.
#
# Versions: torch 2.13.0.
# A good guess: both norms share their base class and their words, so None is the cumulative average in both.
# What happens: InstanceNorm takes None for a momentum of 0. In training all looks right, since instances normalise
# themselves; in evaluation it subtracts a mean of 0 and divides by a variance of 1: it does nothing at all.
# num_batches_tracked stays 0 whatever the momentum. update_bn passes InstanceNorm by, so it does not repair it.
# Who is hurt: whoever replaces BatchNorm by InstanceNorm(track_running_stats=True) in a model that was averaged or
# recalibrated with momentum=None, and evaluates.
# Output seen after 50 batches of mean 5 and standard deviation 3:
#   BatchNorm1d     mean 5.0  variance 9.0
#   InstanceNorm1d  mean 0.0  variance 1.0
# Source: torch/nn/modules/instancenorm.py, _apply_instance_norm; torch's documentation, torch.nn.InstanceNorm1d, which
# does not name None.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import torch
from torch import nn

print("torch", torch.__version__)
statistics = {}
for kind in (nn.BatchNorm1d, nn.InstanceNorm1d):
    torch.manual_seed(0)
    norm = kind(4, momentum=None, track_running_stats=True)
    for _ in range(50):
        norm(5 + 3 * torch.randn(8, 4, 100))
    mean, variance = norm.running_mean.mean().item(), norm.running_var.mean().item()
    statistics[kind] = (mean, variance)
    print(f"{kind.__name__:<15} mean {mean:.1f}  variance {variance:.1f}")
batch = statistics[nn.BatchNorm1d]
sys.exit(not (abs(batch[0] - 5) < 0.1 and abs(batch[1] - 9) < 0.3 and statistics[nn.InstanceNorm1d] == (0, 1)))
END
