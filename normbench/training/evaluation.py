"""Loss and accuracy in eval mode."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.types import Batch, Task


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of logits (..., classes) against targets (...)."""
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction=reduction)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device; copies to a GPU start from pinned memory, so that nothing waits for them."""
    if device.type == "cuda":
        batch = batch.map(Tensor.pin_memory)
    return batch.map(lambda tensor: tensor.to(device, non_blocking=True))


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Batch], task: Task, device: torch.device) -> dict[str, float]:
    """Means over all predictions: `loss` (nats), `accuracy` (share), and `perplexity` (language models).

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
        sums[0] += cross_entropy(logits, batch.targets, reduction="sum")
        sums[1] += (logits.argmax(dim=-1) == batch.targets).sum()
        count += batch.targets.numel()
    model.train(training)
    loss, accuracy = (sums / count).tolist()
    result = {"loss": loss, "accuracy": accuracy}
    if task.causal:
        result["perplexity"] = math.exp(min(loss, 700.0)) if math.isfinite(loss) else math.inf
    return result
