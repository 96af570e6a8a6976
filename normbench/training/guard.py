"""What ends a run as diverged: a loss or gradient that is not finite, and where that was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from normbench.training.parallel import Group
from normbench.types import Batch, Task, keep_buffers

GRADIENT_NORM = "the gradient norm"


class Diverged(Exception):
    """Training diverged: at which step (1 is the first), and why. A result, not a fault."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step = step
        self.reason = reason


class Guard:
    """Looks at each step's loss and gradient before the optimizer steps; one look costs nothing on a CPU.

    Args:
        optimizer: whose steps it guards.
        device: where losses and gradients are.
        latches: look without waiting for the device. Fused optimizers skip a step while `found_inf` is set, which stays
            so from the first bad step on: the weights stay as that step found them until somebody asks for it, which
            waits.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, latches: bool) -> None:
        self.latches = latches
        self.first_bad = torch.full((), -1, device=device)
        self.found_inf = torch.zeros((), device=device)
        if latches:  # by the attributes with which torch.amp.GradScaler asks for it
            vars(optimizer)["grad_scale"] = None
            vars(optimizer)["found_inf"] = self.found_inf

    def admits(self, step: int | Tensor, loss: Tensor, grad_norm: Tensor) -> bool:
        """Tell whether the optimizer may take this step; a guard that latches may have its number on the device."""
        if not self.latches:
            return math.isfinite(loss.item()) and math.isfinite(grad_norm.item())
        bad = ~(loss + grad_norm).isfinite()
        is_first = bad & (self.first_bad < 0)
        self.first_bad.add_(is_first * (step + 1))  # masked_fill_ waits for a number that is on a GPU
        self.found_inf.masked_fill_(bad, 1.0)
        return True

    def first_bad_step(self) -> int | None:
        """Return the first bad step that was admitted."""
        number = int(self.first_bad.item())
        return None if number < 0 else number


def first_nonfinite(model: nn.Module, batch: Batch, task: Task, group: Group | None = None) -> str:
    """Return the first module, in the order of computation, whose output is not finite on this batch.

    Where all are: the weight nearest to the loss whose gradient is not. The batch is run again with hooks; buffers
    (running statistics) are as before when it returns, and gradients are none. All processes of a group run as far as
    the first one that finds something, and return the same: forward and backward may wait for each other.
    """
    group = group or Group()
    names = {module: name for name, module in model.named_modules()}
    order: list[nn.Module] = []
    bad: list[nn.Module] = []

    def hook(module: nn.Module, inputs: object, output: object) -> None:
        order.append(module)
        if isinstance(output, Tensor) and not output.isfinite().all():
            bad.append(module)

    # buffers are put back after the backward pass, where torch's batch_norm uses the running statistics
    with ExitStack() as stack, keep_buffers(model):
        stack.callback(model.zero_grad, set_to_none=True)
        for module in names:
            stack.enter_context(module.register_forward_hook(hook))
        loss = task.loss(model(*batch.arguments), batch.targets)
        place = ""
        if bad:
            place = f"output of {names[bad[0]] or 'the model'}"
        elif not loss.isfinite():
            place = "the loss"
        place = group.any(place)
        if place:
            return place
        computed = tuple(order)  # the backward pass may compute some of it again
        loss.backward()
        weight = last_nonfinite_gradient(computed, names)
        place = group.any(f"gradient of {weight}" if weight else "")
        return place or GRADIENT_NORM


def last_nonfinite_gradient(computed: Sequence[nn.Module], names: Mapping[nn.Module, str]) -> str:
    """Return the weight nearest to the loss whose gradient is not finite; empty where there is none.

    Args:
        computed: the modules in the order of computation.
        names: by module.
    """
    for module in reversed(computed):
        for name, parameter in module.named_parameters(names[module], recurse=False):
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                return name
    return ""
