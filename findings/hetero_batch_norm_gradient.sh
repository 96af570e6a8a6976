#!/usr/bin/env bash
# PyTorch Geometric's HeteroBatchNorm returns what BatchNorm returns, and another gradient.
#
# Versions: torch-geometric 2.8.1, torch 2.13.0.
# A good guess: HeteroBatchNorm is a BatchNorm for each type of node, so that with a single type it is BatchNorm1d, in
# training as in evaluation, forward and backward.
# What happens: it takes the batch's mean and variance under no_grad, as if they were constants. Outputs agree, but the
# gradient of the input is neither free of its mean nor of its part along the input, which are 0 in BatchNorm: to shift
# or to scale the input seems to change the loss, though it changes nothing. The biases and lengths of the weights
# before it, which BatchNorm leaves alone, move and grow. The running variance is the biased one.
# Who is hurt: whoever goes from a homogeneous to a heterogeneous graph, or replaces a dictionary of BatchNorms, and
# compares: the first loss is equal, the training is not, and learning rates do not carry over. No
# test of outputs shows it.
# Output seen:
#   largest difference of outputs 2.6e-06
#                    gradient by x   of a shift of x   of a scaling of x
#   BatchNorm1d             6.14            0.00              0.00
#   HeteroBatchNorm         6.25            8.14             33.02
#   running variance 1.69, with BatchNorm1d 1.70
# Source: PyTorch Geometric's documentation, nn.norm.HeteroBatchNorm; torch_geometric/nn/norm/batch_norm.py, forward;
# Ioffe and Szegedy, 2015, section 3, on gradients that ignore the normalization.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile torch==2.13.0 numpy==2.4.6 torch-geometric==2.8.1 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import sys

import torch
import torch_geometric
from torch import Tensor, nn
from torch_geometric.nn import HeteroBatchNorm

print("torch-geometric", torch_geometric.__version__, "torch", torch.__version__)
torch.manual_seed(0)
inputs = 5 + 3 * torch.randn(64, 4)
upstream = torch.randn(64, 4)
one_type = torch.zeros(64, dtype=torch.long)
plain, hetero = nn.BatchNorm1d(4), HeteroBatchNorm(4, num_types=1)


def gradient(norm: nn.Module, *types: Tensor) -> tuple[Tensor, Tensor]:
    """The output in training, and the gradient of its product with random numbers by the input."""
    x = inputs.clone().requires_grad_()
    output = norm(x, *types)
    (output * upstream).sum().backward()
    return output.detach(), x.grad


outputs, gradients = zip(gradient(plain), gradient(hetero, one_type))
apart = (outputs[0] - outputs[1]).abs().max().item()
print(f"largest difference of outputs {apart:.1e}")
print("                 gradient by x   of a shift of x   of a scaling of x")
parts = []
for norm, by_input in zip((plain, hetero), gradients):
    shift = by_input.sum(0).norm().item()
    scaling = (by_input * inputs).sum(0).norm().item()
    parts.append((shift, scaling))
    print(f"{type(norm).__name__:<15} {by_input.norm():>12.2f} {shift:>15.2f} {scaling:>17.2f}")
variances = hetero.running_var.mean().item(), plain.running_var.mean().item()
print("running variance {:.2f}, with BatchNorm1d {:.2f}".format(*variances))
agree = apart < 1e-4 and max(parts[0]) < 1e-3
sys.exit(not (agree and min(parts[1]) > 1 and variances[0] < variances[1] - 1e-3))
END
