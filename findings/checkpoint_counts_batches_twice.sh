#!/usr/bin/env bash
# Whether activation checkpointing counts a batch twice in BatchNorm depends on torch.compile.
#
# Versions: torch 2.13.0.
# A good guess: checkpointing trades time for memory and changes no number; if it does, compiling does not change
# which.
# What happens: eager checkpointing runs the forward pass again in the backward pass, and BatchNorm moves its running
# statistics in each: num_batches_tracked is 2 after one step, and momentum 0.1 acts as 0.19. Compiled, the same
# function moves them once, as without checkpointing. With momentum=None both are means, of other weights.
# Who is hurt: whoever compares a compiled run with an eager one, or turns checkpointing on to make room: evaluation
# changes while the training loss stays equal, and the momentum that was tuned is no longer the one in force.
# Output seen after one step:
#   plain                  batches 1, running mean / batch mean 0.100
#   checkpointed           batches 2, running mean / batch mean 0.190
#   checkpointed, compiled batches 1, running mean / batch mean 0.100
# Source: torch's documentation, torch.utils.checkpoint, which speaks of random states and not of buffers.
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
from torch.utils.checkpoint import checkpoint


def checkpointed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model, x, use_reentrant=False)


def compiled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.compile(checkpointed, backend="aot_eager")(model, x)


def plain(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


print("torch", torch.__version__)
seen = {}
for label, forward in {"plain": plain, "checkpointed": checkpointed, "checkpointed, compiled": compiled}.items():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(norm, nn.ReLU(), nn.Linear(4, 4))
    inputs = torch.randn(64, 4) + 3
    forward(model, inputs).sum().backward()
    share = (norm.running_mean / inputs.mean(0)).mean().item()
    seen[label] = (int(norm.num_batches_tracked), round(share, 3))
    print(f"{label:<22} batches {seen[label][0]}, running mean / batch mean {share:.3f}")
sys.exit(list(seen.values()) != [(1, 0.1), (2, 0.19), (1, 0.1)])
END
