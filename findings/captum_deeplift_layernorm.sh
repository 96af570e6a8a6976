#!/usr/bin/env bash
# captum's DeepLift does not add up on a network with LayerNorm, and does not say so.
#
# Versions: captum 0.9.0, torch 2.13.0.
# A good guess: attributions add up to the output less the baseline's output, which is what DeepLift is for; a module
# that it cannot treat raises, as unsupported ones in other explainers do.
# What happens: only activations and pooling have a rule; anything else counts as linear and its gradient at the input
# is taken. BatchNorm in evaluation is linear, so all is well; LayerNorm is not, and the sum misses by more than half
# of the difference that it should explain. Only return_convergence_delta=True, which is off, shows it.
# Who is hurt: whoever explains Transformers or ConvNeXts with it, or compares attributions of a LayerNorm and a
# BatchNorm model: one of the two is not an attribution.
# Output seen, largest miss, beside the largest difference of outputs:
#   Identity    miss 0.00 of 0.23
#   BatchNorm1d miss 0.00 of 0.23
#   LayerNorm   miss 0.30 of 0.45
# Source: captum's API documentation, DeepLift, which speaks of a limited number of non-linear activations;
# captum/attr/_core/deep_lift.py, SUPPORTED_NON_LINEAR.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 captum==0.9.0 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import captum
import torch
from captum.attr import DeepLift
from torch import nn

print("captum", captum.__version__, "torch", torch.__version__)
misses = {}
for norm in (nn.Identity(), nn.BatchNorm1d(8), nn.LayerNorm(8)):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), norm, nn.ReLU(), nn.Linear(8, 1)).eval()
    inputs, baseline = torch.randn(5, 4), torch.zeros(5, 4)
    attributions = DeepLift(model).attribute(inputs, baseline)
    difference = (model(inputs) - model(baseline))[:, 0]
    miss = (attributions.sum(1) - difference).abs().max().item()
    name = type(norm).__name__
    misses[name] = miss / difference.abs().max().item()
    print(f"{name:<11} miss {miss:.2f} of {difference.abs().max():.2f}")
sys.exit(not (misses["Identity"] < 1e-4 and misses["BatchNorm1d"] < 1e-4 and misses["LayerNorm"] > 0.3))
END
