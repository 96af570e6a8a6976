#!/usr/bin/env bash
# torch.fx's fuse() folds two BatchNorms into one convolution that both of them follow.
#
# Versions: torch 2.13.0.
# A good guess: fuse() keeps the model's function in evaluation, or leaves alone what it cannot fold.
# What happens: it looks whether a convolution's output is used once, and not whether its module is called twice. Where
# one convolution serves two inputs, each followed by a BatchNorm of its own, both norms are folded into the same
# weights, one after the other, and both are removed. No warning comes.
# Who is hurt: detectors that share the convolutions of their heads between the levels of a pyramid and keep a
# BatchNorm for each level, siamese networks with a norm for each domain: fused for deployment, they give other
# numbers.
# Output seen:
#   one convolution a norm: largest difference 4.8e-07
#   one for both:           largest difference 1.1e+00
# Source: torch/fx/experimental/optimization.py, fuse; torch's tutorial "Building a Convolution/Batch Norm fuser in
# FX".
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
from torch.fx.experimental.optimization import fuse


class TwoInputs(nn.Module):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 1)
        self.second = self.first if shared else nn.Conv2d(3, 3, 1)
        self.first_norm, self.second_norm = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first_norm(self.first(x)) + self.second_norm(self.second(2 * x))


@torch.no_grad()
def difference(shared: bool) -> float:
    torch.manual_seed(0)
    model = TwoInputs(shared)
    for norm in (model.first_norm, model.second_norm):
        norm.running_var.uniform_(0.1, 4)
        norm.running_mean.normal_()
    model.eval()
    inputs = torch.randn(2, 3, 4, 4)
    return (model(inputs) - fuse(model)(inputs)).abs().max().item()


print("torch", torch.__version__)
own, shared = difference(shared=False), difference(shared=True)
print(f"one convolution a norm: largest difference {own:.1e}")
print(f"one for both:           largest difference {shared:.1e}")
sys.exit(not (own < 1e-5 and shared > 0.1))
END
