#!/usr/bin/env bash
# torchmetrics' MetricTracker calls an epoch whose metric is NaN the best one, of a loss as of an accuracy.
#
# Versions: torchmetrics 1.9.0, torch 2.13.0.
# A good guess: best_metric() gives the best number; NaN is better than none, as for ReduceLROnPlateau and Lightning's
# ModelCheckpoint.
# What happens: it is torch.min or torch.max over the epochs, and both give NaN where there is one, with its position.
# Who is hurt: whoever picks a checkpoint or compares runs by best_metric(return_step=True): one diverged epoch is the
# best step of the run, whatever came before it.
# Output seen, best value and step of 3, 2, NaN, 4:
#   maximize=False [nan, 2]
#   maximize=True  [nan, 2]
# Source: torchmetrics' documentation, MetricTracker; torchmetrics/wrappers/tracker.py, best_metric.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import math
import sys

import torch
import torchmetrics
from torchmetrics.aggregation import MeanMetric

print("torchmetrics", torchmetrics.__version__, "torch", torch.__version__)
seen = {}
for maximize in (False, True):
    tracker = torchmetrics.MetricTracker(MeanMetric(nan_strategy="disable"), maximize=maximize)
    for value in (3.0, 2.0, math.nan, 4.0):
        tracker.increment()
        tracker.update(value)
    seen[maximize] = list(tracker.best_metric(return_step=True))
    print(f"maximize={maximize!s:<6}", seen[maximize])
sys.exit(not all(math.isnan(value) and step == 2 for value, step in seen.values()))
END
