"""Loss and accuracy in eval mode."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from normbench.types import Batch, Task


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device; copies to a GPU start from pinned memory, so that nothing waits for them."""
    if device.type == "cuda":
        batch = batch.map(Tensor.pin_memory)
    return batch.map(lambda tensor: tensor.to(device, non_blocking=True))


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Batch], task: Task, device: torch.device) -> dict[str, float]:
    """Return the task's metrics over all predictions.

    The device is waited for once, at the end.
    """
    training = model.training
    model.eval()
    # sums in place: small tensors kept from each batch would lie between the large ones and make the heap grow
    precise = torch.float32 if device.type == "mps" else torch.float64
    sums = torch.zeros(2, dtype=precise, device=device)
    count = 0
    for batch in batches:
        batch = to_device(batch, device)
        logits = model(*batch.arguments)
        loss, right = task.totals(logits, batch.targets)
        sums[0] += loss
        sums[1] += right
        count += batch.targets.numel()
    model.train(training)
    return task.metrics(*(sums / count).tolist())
