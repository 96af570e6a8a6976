"""What a model is worth, over all batches of a split."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.training.parallel import Group
from normbench.types import Batch, NormFacts, Task


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on the device; copies to a GPU start from pinned memory, so that nothing waits for them.

    Raises:
        UsageError: an example has no real token.
    """
    if batch.mask is not None and batch.mask.device.type == "cpu":
        has_token = batch.mask.flatten(1).any(dim=1)
        if not has_token.all():
            raise UsageError("a batch has a text without a real token: leave empty texts out of the data")
    if device.type == "cuda":
        batch = batch.map(Tensor.pin_memory)
    return batch.map(lambda tensor: tensor.to(device, non_blocking=True))


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[Batch], task: Task, device: torch.device, group: Group | None = None
) -> dict[str, float]:
    """Return the task's metrics over all predictions, of which each process of a group judges its share.

    The device is waited for once, at the end.
    """
    group = group or Group()
    needs_whole_batch = any(reads_batch(module) for module in model.modules())
    training = model.training
    model.eval()
    # sums in place: small tensors kept from each batch would lie between the large ones and make the heap grow
    precise = torch.float32 if device.type == "mps" else torch.float64
    sums = torch.zeros(3, dtype=precise, device=device)
    for batch in batches:
        # a batch that is not shared runs in all processes, as shards need, and the first one counts it
        shared = len(batch.targets) >= group.size and not needs_whole_batch
        local_rows = group.rows(batch) if shared else batch
        ready = to_device(local_rows, device)
        loss, right = task.totals(model(*ready.arguments), ready.targets)
        if shared or group.rank == 0:
            sums[0] += loss
            sums[1] += right
            sums[2] += local_rows.predictions
    model.train(training)
    loss, right, count = group.add(sums).tolist()
    return task.metrics(loss / count, right / count)


def reads_batch(module: nn.Module) -> bool:
    """Tell whether a module is a norm that takes statistics over a batch in evaluation too."""
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm):
        return module.running_mean is None
    facts = getattr(module, "facts", None)  # as norms of ours have them
    if not isinstance(facts, NormFacts):
        return False
    return facts.crosses_samples and not getattr(module, "track_running_stats", True)
