"""What ends a run as diverged: a loss or gradient that is not finite, or a loss that runs away."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normbench.training.precision import Precision
from normbench.types import Batch, Task

GRADIENT_NORM = "the gradient norm"


class Diverged(Exception):
    """Training diverged: at which step (1 is the first), and why. A result, not a fault."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step, self.reason = step, reason


class Guard:
    """Lets every step pass: a scaled loss leaves out overflowing steps by itself, until its scale is lost."""

    def admits(self, step: int, loss: Tensor, grad_norm: Tensor) -> bool:
        """Tell whether the optimizer may take this step."""
        return True

    def tripped(self) -> int | None:
        """Return the first bad step that was admitted, if there was one."""
        return None


class WaitingGuard(Guard):
    """Looks at each step's loss and gradient before the optimizer steps; one look costs nothing on a CPU."""

    def admits(self, step: int, loss: Tensor, grad_norm: Tensor) -> bool:
        return math.isfinite(loss.item()) and math.isfinite(grad_norm.item())


class LatchedGuard(Guard):
    """The same without waiting for the device: fused optimizers skip a step while `found_inf` is set.

    It stays set from the first bad step on, so the weights stay as that step found them until somebody asks `tripped`,
    which waits for the device.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.first_bad = torch.full((), -1, device=device)
        self.found_inf = torch.zeros((), device=device)
        optimizer.grad_scale = None  # type: ignore[attr-defined]  # not in torch's stubs
        optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]  # as torch.amp.GradScaler asks for it

    def admits(self, step: int, loss: Tensor, grad_norm: Tensor) -> bool:
        bad = ~(loss + grad_norm).isfinite()
        self.first_bad.masked_fill_(bad & (self.first_bad < 0), step)
        self.found_inf.masked_fill_(bad, 1.0)
        return True

    def tripped(self) -> int | None:
        first_bad = int(self.first_bad.item())
        return None if first_bad < 0 else first_bad


def make_guard(optimizer: torch.optim.Optimizer, precision: Precision, device: torch.device) -> Guard:
    """Return the guard that does not wait where the device and the optimizer allow it."""
    if precision.scales:
        return Guard()
    fused = all(group.get("fused") for group in optimizer.param_groups)
    return LatchedGuard(optimizer, device) if fused and device.type == "cuda" else WaitingGuard()


@dataclass
class Runaway:
    """Watches logged losses: one above `factor` × the first for `patience` steps on end is a run that has run away."""

    factor: float
    patience: int
    first: float | None = None
    since: int | None = None

    def check(self, step: int, loss: float) -> None:
        """Take the loss logged at this step.

        Raises:
            Diverged: it has been too large for too long.
        """
        if self.first is None:
            self.first = loss
        if loss <= self.factor * self.first:
            self.since = None
            return
        self.since = step if self.since is None else self.since
        if step - self.since >= self.patience:
            raise Diverged(
                self.since,
                f"the loss stayed above {self.factor:g} × its first value ({self.first:.4g}) for {self.patience} steps",
            )


def first_nonfinite(model: nn.Module, batch: Batch, task: Task) -> str:
    """Return the first module, in the order of computation, whose output is not finite on this batch.

    Where all are: the weight nearest to the loss whose gradient is not. The batch is run again with hooks; buffers
    (running statistics) are as before when it returns, and gradients are none.
    """
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    names = {module: name for name, module in model.named_modules()}
    order: list[nn.Module] = []
    bad: list[nn.Module] = []

    def hook(module: nn.Module, inputs: object, output: object) -> None:
        order.append(module)
        if isinstance(output, Tensor) and not output.isfinite().all():
            bad.append(module)

    handles = [module.register_forward_hook(hook) for module in names]
    try:
        logits = model(*batch.arguments)
        if bad:
            return f"output of {names[bad[0]] or 'the model'}"
        loss = task.loss(logits, batch.targets)
        if not loss.isfinite():
            return "the loss"
        loss.backward()
        for module in reversed(order):
            for name, parameter in module.named_parameters(names[module], recurse=False):
                if parameter.grad is not None and not parameter.grad.isfinite().all():
                    return f"gradient of {name}"
        return GRADIENT_NORM
    finally:  # behind the backward pass, which torch's batch_norm lets use the running statistics
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
