"""In which number format the forward pass runs, and what keeps its gradients in range."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.errors import UsageError, explain, is_out_of_memory
from normbench.training.devices import keep_generators
from normbench.types import Batch, Model, Task, keep_buffers

# What a process that may die of it runs, after `begin_trial`.
TRIAL = """
import sys, torch
from normbench.training.precision import try_precision
try_precision(torch.device(sys.argv[1]), getattr(torch, sys.argv[2]))
"""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Runs the forward pass in float32 (`fp32`), or matrix products, convolutions and attention in 16 bits.

    The rest and the weights stay in float32 (Micikevicius et al. 2018; which operators are cast is `torch.autocast`'s
    list). With `fp16` the loss is scaled, since small gradients would be 0 in it; a step whose gradients overflow is
    left out and counted in `skipped`, and the scale is halved (§3.2).

    Attributes:
        varies: whether the device may lack operators in it that others of its kind have, as CPUs do in 16 bits.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.device = device
        self.dtype = DTYPES[name]
        self.varies = self.dtype != torch.float32 and device.type == "cpu"
        self.scales = name == "fp16"
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.scales)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which the forward pass runs in this precision."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def step(self, optimizer: torch.optim.Optimizer, grad_norm: Tensor) -> None:
        """Let the optimizer step."""
        if self.scales:
            self.skipped += ~grad_norm.isfinite()
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()

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


def try_precision(device: torch.device, dtype: torch.dtype) -> None:
    """Compute matrix products, a convolution and attention in a number format, forward and backward.

    Raises:
        RuntimeError: the device cannot, or the gradients are not finite.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    rows = random(64, 64)
    weight = random(64, 64).requires_grad_()
    kernel = random(8, 8, 3, 3).requires_grad_()
    images = random(2, 8, 16, 16)
    with torch.autocast(device.type, dtype):
        product = rows @ weight
        filtered = F.conv2d(images, kernel)
        heads = product.view(1, 4, 16, 64)
        attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        results = [F.gelu(product), filtered, attended]
        means = [result.float().mean() for result in results]
        loss = torch.stack(means).sum()
    for gradient in torch.autograd.grad(loss, [weight, kernel]):
        if not gradient.isfinite().all():
            raise RuntimeError("its gradients are not finite")


def reason_against(device: torch.device, dtype: torch.dtype) -> str:
    """Say why a device cannot compute in a number format; empty where it can.

    On some CPUs it kills the process, whatever torch says about them: so it is tried in a process of its own there. A
    GPU raises, and a second process on it may not be allowed.
    """
    if device.type == "cpu":
        return reason_against_on_cpu(dtype)
    try:
        try_precision(device, dtype)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return explain(error)
    return ""


@cache
def reason_against_on_cpu(dtype: torch.dtype) -> str:
    """Say why the CPU cannot compute in a number format; empty where it can. It is tried once a process."""
    # -P: no file in the current directory hides a module that torch imports
    code = f"from normbench.processes import begin_trial; begin_trial({os.getpid()})\n{TRIAL}"
    command = [sys.executable, "-P", "-c", code, "cpu", str(dtype).removeprefix("torch.")]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode == 0:
        return ""
    if child.returncode < 0:  # faulthandler, where it is on, has written where Python was
        return f"its trial died of {signal.Signals(-child.returncode).name}"
    messages = child.stderr.strip().splitlines()
    return messages[-1] if messages else "its trial failed without an error message"


def check_step(model: Model, task: Task, batch: Batch, precision: Precision) -> None:
    """Refuse a precision in which a step of a model fails on this CPU, where it does not in float32.

    Which operators have 16 bits differs from CPU to CPU. `make_precision` tries those that most models have.

    Args:
        batch: a small one.

    Raises:
        UsageError: with the reason.
    """
    reason = reason_against_step(model, task, batch, precision)
    if reason and not reason_against_step(model, task, batch, Precision("fp32", precision.device)):
        raise refuse(precision, "this model on", reason)


def reason_against_step(model: Model, task: Task, batch: Batch, precision: Precision) -> str:
    """Say why a model cannot be trained, or evaluated, on a batch; empty where it can. It stays as it is."""
    trains = model.training
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with keep_buffers(model), keep_generators(precision.device):
            with precision.autocast():
                loss = task.loss(model.train()(*batch.arguments), batch.targets)
            torch.autograd.grad(loss, wanted, allow_unused=True)
            with torch.no_grad(), precision.autocast():
                model.eval()(*batch.arguments)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return explain(error)
    finally:
        model.train(trains)
    return ""


def make_precision(name: str, device: torch.device) -> Precision:
    """Return the precision of this name.

    Raises:
        UsageError: the device cannot run it.
    """
    precision = Precision(name, device)
    if precision.dtype == torch.float32:
        return precision
    reason = reason_against(device, precision.dtype)
    if reason:
        raise refuse(precision, "on", reason)
    return precision


def refuse(precision: Precision, what: str, reason: str) -> UsageError:
    """Return the refusal of a precision on its device, of all models (`on`) or of one (`this model on`)."""
    where = f"{what} this machine's {precision.device.type} ({reason})"
    return UsageError(f"trainer.precision={precision.name} does not run {where}: use fp32")
