#!/usr/bin/env bash
# GroupNorm loses its digits on a CPU when its input is channels-last.
#
# Versions: torch 2.13.0, CPU.
# A good guess: a memory format changes speed, and results by rounding of about 1e-6.
# What happens: for a contiguous input the variance is taken about the mean; for a channels-last input it is the mean
# square less the squared mean, in float32. With a mean of 100 standard deviations the output is off by 0.02, at 1,000
# by 0.9, at 10,000 by more than 1,000. BatchNorm of the same input is off by less than 1e-3 at 1,000 in either format.
# Who is hurt: whoever calls model.to(memory_format=torch.channels_last), as guides for convolutions advise, on
# features with a large mean against their spread: images not standardised, deep residual streams, constant patches. No
# warning comes.
# Output seen, largest error against float64:
#   mean        contiguous  channels_last
#   0           5.5e-07     5.5e-07
#   100         1.2e-05     1.8e-02
#   1000        1.2e-04     9.1e-01
#   10000       1.2e-03     1.2e+03
# Source: torch's documentation, page "Channels Last Memory Format in PyTorch";
# aten/src/ATen/native/cpu/group_norm_kernel.cpp.
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
print("mean        contiguous  channels_last")
norm = nn.GroupNorm(8, 32)
exact = nn.GroupNorm(8, 32).double()
errors = {}
for mean in (0, 100, 1000, 10000):
    torch.manual_seed(0)
    inputs = torch.randn(2, 32, 16, 16) + mean
    right = exact(inputs.double())
    contiguous = (norm(inputs) - right).abs().max().item()
    channels_last = (norm(inputs.to(memory_format=torch.channels_last)) - right).abs().max().item()
    errors[mean] = (contiguous, channels_last)
    print(f"{mean:<11} {contiguous:<11.1e} {channels_last:.1e}")
sys.exit(not (errors[1000][0] < 1e-3 and errors[1000][1] > 0.1 and errors[100][1] > 100 * errors[100][0]))
END
