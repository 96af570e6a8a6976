"""In which number format the forward pass runs, and what keeps its gradients in range."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from normbench.errors import UsageError
from normbench.training.optimizer import plain_step

# Matrix products and a convolution, forward and backward, in a process that may die of it.
TRIAL = """
import sys, torch
from torch.nn import functional as F
device, dtype = torch.device(sys.argv[1]), getattr(torch, sys.argv[2])
a, w = (torch.randn(64, 64, device=device, requires_grad=True) for _ in range(2))
x, k = torch.randn(2, 8, 16, 16, device=device), torch.randn(8, 8, 3, 3, device=device, requires_grad=True)
with torch.autocast(device.type, dtype):
    loss = F.gelu(a @ w).float().mean() + F.conv2d(x, k).float().mean()
    loss = loss + F.scaled_dot_product_attention(*[(a @ w).view(1, 4, 16, 64)] * 3, is_causal=True).float().mean()
loss.backward()
assert w.grad.isfinite().all() and k.grad.isfinite().all()
"""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Runs the forward pass in float32 (`fp32`), or matrix products, convolutions and attention in 16 bits.

    The rest and the weights stay in float32 (Micikevicius et al. 2018; which operators are cast is `torch.autocast`'s
    list). With `fp16` the loss is scaled, since small gradients would be 0 in it; a step whose gradients overflow is
    left out and counted in `skipped`, and the scale is halved (§3.2).
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.device, self.dtype = device, DTYPES[name]
        self.scales = name == "fp16"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.scales)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which the forward pass runs in this precision."""
        return nullcontext() if self.dtype == torch.float32 else torch.autocast(self.device.type, self.dtype)

    def step(self, optimizer: torch.optim.Optimizer, grad_norm: Tensor) -> None:
        """Let the optimizer step."""
        if self.scales:
            self.skipped += ~grad_norm.isfinite()
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            plain_step(optimizer)

    def lost(self) -> bool:
        """Tell whether the gradients overflow even where the loss is not scaled up; waits for the device."""
        return self.scales and self.scaler.get_scale() < 1

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"skipped": self.skipped, "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.skipped.copy_(state["skipped"])
        self.scaler.load_state_dict(state["scaler"])


def make_precision(name: str, device: torch.device) -> Precision:
    """Return the precision of this name.

    Raises:
        UsageError: the device cannot run it. On some CPUs it kills the process, whatever torch says about them: so it
            is tried in a process of its own.
    """
    precision = Precision(name, device)
    if precision.dtype != torch.float32:
        # -P: no file in the current directory hides a module that torch imports
        code = f"from normbench.processes import begin_trial; begin_trial({os.getpid()})\n{TRIAL}"
        command = [sys.executable, "-P", "-c", code, str(device), str(precision.dtype).removeprefix("torch.")]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        if child.returncode < 0:  # faulthandler, where it is on, has written where Python was
            reason = f"its trial died of {signal.Signals(-child.returncode).name}"
        elif child.returncode:
            reason = (child.stderr.strip().splitlines() or ["its trial failed without a word"])[-1]
        if child.returncode:
            here = f"this machine's {device.type} ({reason})"
            raise UsageError(f"trainer.precision={name} does not run on {here}: use fp32")
    return precision
