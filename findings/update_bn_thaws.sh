#!/usr/bin/env bash
# update_bn writes new statistics into BatchNorms that were frozen, and counts a small last batch as a whole one.
#
# Versions: torch 2.13.0.
# A good guess: torch.optim.swa_utils.update_bn recomputes what training would have moved; a backbone whose BatchNorms
# are in evaluation mode, with gradients off, keeps its statistics; the mean is that of the data.
# What happens: it resets every BatchNorm of the model and calls model.train(), which thaws them all, and they are left
# in training mode where the model was in it. It averages the batches' means with equal weights, so an example of a
# last batch of two weighs as much as 32 of a batch of 64.
# Who is hurt: whoever averages weights while fine-tuning with frozen norms, as detectors do: statistics of a large
# data set are replaced by those of a small one, at the end, where nobody looks for it. A loader without drop_last
# shifts them too.
# Output seen:
#   frozen running mean 7.0, after update_bn 3.0 (training mode before and after: False, True)
#   128 examples of 0 and 2 of 5: mean of the data 0.08, running mean after update_bn 1.67
# Source: torch's documentation, torch.optim.swa_utils.update_bn; torch/optim/swa_utils.py.
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
from torch.optim.swa_utils import update_bn

print("torch", torch.__version__)
torch.manual_seed(0)
frozen = nn.BatchNorm1d(4).eval().requires_grad_(False)
frozen.running_mean.fill_(7)
model = nn.Sequential(frozen, nn.Linear(4, 4))
model.train()
frozen.eval()
before = frozen.training
update_bn([3 + torch.randn(1000, 4)], model)
after = frozen.running_mean.mean().item()
modes = f"(training mode before and after: {before}, {frozen.training})"
print(f"frozen running mean 7.0, after update_bn {after:.1f}", modes)
norm = nn.BatchNorm1d(4)
batches = [torch.zeros(64, 4), torch.zeros(64, 4), torch.full((2, 4), 5.0)]
update_bn(batches, nn.Sequential(norm))
mean, of_data = norm.running_mean.mean().item(), torch.cat(batches).mean().item()
print(f"128 examples of 0 and 2 of 5: mean of the data {of_data:.2f}, running mean after update_bn {mean:.2f}")
sys.exit(not (abs(after - 3) < 0.2 and not before and frozen.training and abs(mean - 5 / 3) < 1e-4))
END
