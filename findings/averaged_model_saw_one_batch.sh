#!/usr/bin/env bash
# After any number of updates a torch AveragedModel's BatchNorms have seen one batch.
#
# Versions: torch 2.13.0.
# A good guess: with use_buffers=True, AveragedModel keeps the buffers of the averaged model usable: it averages the
# running statistics, and num_batches_tracked ends near the count of the model.
# What happens: it puts integer buffers through the average too and cuts the fraction off at each update, so that the
# count stays at what the first update copied, with the equal average as with the exponential one.
# Who is hurt: whoever trains on from an averaged checkpoint with momentum=None, which weighs a batch
# by that count: the next batch counts as half of all data. Any integer buffer that a module's schedule is read from
# (a warm-up of its statistics, a number of steps) is frozen the same way in the model that is evaluated.
# Output seen, running mean after 100 batches with a mean of 0 and then one with a mean of 10, momentum=None:
#   model             count 100, running mean 0.10
#   equal average     count   1, running mean 5.00
#   exponential       count   1, running mean 5.00
# Source: torch's documentation, torch.optim.swa_utils.AveragedModel, "use_buffers", and nn.BatchNorm1d, "momentum";
# torch/optim/swa_utils.py, update_parameters.
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
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

print("torch", torch.__version__)
torch.manual_seed(0)
model = nn.Sequential(nn.BatchNorm1d(4, momentum=None))
averages = {
    "equal average": AveragedModel(model, use_buffers=True),
    "exponential": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True),
}
for _ in range(100):
    batch = torch.randn(64, 4)
    model(batch - batch.mean(0))
    for average in averages.values():
        average.update_parameters(model)
seen = {}
norms = {"model": model[0]} | {label: average.module[0] for label, average in averages.items()}
for label, norm in norms.items():
    count = norm.num_batches_tracked.item()
    norm(batch - batch.mean(0) + 10)
    seen[label] = count, norm.running_mean.mean().item()
    print("{:<16}  count {:>3}, running mean {:.2f}".format(label, *seen[label]))
count, mean = seen.pop("model")
frozen = all(count == 1 and abs(mean - 5) < 1e-3 for count, mean in seen.values())
sys.exit(not (count == 100 and abs(mean - 10 / 101) < 1e-3 and frozen))
END
