#!/usr/bin/env bash
# F.normalize of a zero row is NaN in float16, and its gradient there is 1e12 in float32.
#
# Versions: torch 2.13.0.
# A good guess: eps=1e-12 "to avoid division by zero" makes a zero row zeros with a tame gradient, in each dtype.
# What happens: 1e-12 is 0 in float16, so the division is 0 / 0; F.cosine_similarity of zeros is NaN as well
# (eps=1e-8). In float32 the row's value is 0, and its gradient is the output's divided by 1e-12. F.rms_norm gives
# zeros and 1/sqrt(eps).
# Who is hurt: networks that normalise queries and keys or embeddings with it: one padded position or dead row makes
# all losses NaN after .half(), and in float32 one row owns the clipped gradient, so that all others hardly move.
# Output seen:
#   float16 F.normalize         nan
#   float16 F.cosine_similarity nan
#   float16 F.rms_norm          0.0
#   float32 gradient of F.normalize 1e+12, of F.rms_norm 2.9e+03
# Source: torch's documentation, torch.nn.functional.normalize and cosine_similarity.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import torch
import torch.nn.functional as F


def gradient(function) -> float:
    row = torch.zeros(1, 4, requires_grad=True)
    function(row).sum().backward()
    return row.grad.abs().max().item()


print("torch", torch.__version__)
zeros = torch.zeros(1, 4, dtype=torch.float16)
normalized = F.normalize(zeros, dim=-1).max()
cosine = F.cosine_similarity(zeros, zeros)[0]
rms = F.rms_norm(zeros, (4,)).max()
print("float16 F.normalize        ", normalized.item())
print("float16 F.cosine_similarity", cosine.item())
print("float16 F.rms_norm         ", rms.item())
steep, tame = gradient(lambda row: F.normalize(row, dim=-1)), gradient(lambda row: F.rms_norm(row, (4,)))
print(f"float32 gradient of F.normalize {steep:.0e}, of F.rms_norm {tame:.1e}")
sys.exit(not (normalized.isnan() and cosine.isnan() and rms == 0 and steep > 1e11 and tame < 1e4))
END
