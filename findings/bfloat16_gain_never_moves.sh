#!/usr/bin/env bash
# In pure bfloat16 the gain of a norm never leaves 1, while the weights around it train.
#
# Versions: torch 2.13.0.
# A good guess: bfloat16 parameters train coarsely; a gain that should be 3 gets near it.
# What happens: next to 1 bfloat16 numbers are 0.0039 (below) and 0.0078 (above) apart, and a step of Adam is about the
# learning rate. A step of less than half of that rounds back to 1 each time, so with a rate up to 0.0019 nothing ever
# adds up: after 500 steps each gain is exactly 1, with gradients that are not zero. Weight decay rounds away as well.
# The bias, which starts at 0, moves, and so does a gain stored as its difference from 1, as Gemma has it.
# Who is hurt: whoever fine-tunes a model that was loaded in bfloat16 (which from_pretrained and "bf16-true" give):
# norm gains are frozen without a word, and a comparison of norms compares frozen ones.
# Output seen, AdamW with rate 0.001, 500 steps, target gain 3:
#   gain stored as it is    1.0000 to 1.0000, bias moved: True
#   gain stored as gain - 1 1.2500 to 1.5000
# Source: torch's documentation, page "Tensor Attributes" (torch.bfloat16) and torch.optim.AdamW.
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
from torch import nn


class GainFromOne(nn.Module):
    """A LayerNorm that stores its gain less 1."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(features)), nn.Parameter(torch.zeros(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, 1 + self.weight, self.bias)


def train(norm: nn.Module) -> None:
    torch.manual_seed(0)
    norm.bfloat16()
    optimizer = torch.optim.AdamW(norm.parameters(), lr=1e-3)
    inputs = torch.randn(64, 8, dtype=torch.bfloat16)
    targets = 3 * F.layer_norm(inputs.float(), (8,)) + 1
    for _ in range(500):
        optimizer.zero_grad()
        F.mse_loss(norm(inputs).float(), targets).backward()
        assert (norm.weight.grad != 0).all()
        optimizer.step()


print("torch", torch.__version__)
plain, from_one = nn.LayerNorm(8), GainFromOne(8)
train(plain)
train(from_one)
moved = bool((plain.bias != 0).all())
gains = 1 + from_one.weight.float()
print(f"gain stored as it is    {plain.weight.min():.4f} to {plain.weight.max():.4f}, bias moved: {moved}")
print(f"gain stored as gain - 1 {gains.min():.4f} to {gains.max():.4f}")
sys.exit(not ((plain.weight == 1).all() and moved and (gains > 1.1).all()))
END
