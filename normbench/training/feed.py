"""Training batches that a thread prepares while the device works, in pinned memory that is used again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch

from normbench.errors import UsageError
from normbench.types import Batch

AHEAD = 2  # batches that are prepared before they are asked for
BEHIND = 2  # batches whose copies to the device may still be on their way


@dataclass
class Slot:
    """Pinned memory for a batch, and the moment from which on the device no longer reads it."""

    batch: Batch
    copied: torch.cuda.Event


@dataclass
class Order:
    """A batch that the thread was asked for."""

    number: int
    slot: Slot
    done: Future[None]


class Feed:
    """Brings training batches to one place on a CUDA device, where each replaces the one before it.

    The thread computes on the CPU alone, since CUDA work beside the recording of a graph would spoil it. The host waits
    for the device only where that is more than `BEHIND` batches late.

    train_batch: gives a batch by its number; while the thread is at work nobody else may call it (see `settle`).
    end: the number behind the last one.
    """

    def __init__(self, train_batch: Callable[[int], Batch], device: torch.device, end: int) -> None:
        self.train_batch, self.device, self.end = train_batch, device, end
        self.thread = ThreadPoolExecutor(1, "batches")  # it ends with this object
        self.place: Batch | None = None
        self.loaded = -1
        self.free = deque[Slot]()
        self.orders = deque[Order]()

    def load(self, number: int) -> Batch:
        """Return the place on the device, to which the batch of this number is on its way.

        Raises:
            UsageError: it has another shape than the first batch.
        """
        if self.place is None:
            self.place = self.reserve(self.train_batch(number))
        if number == self.loaded:
            return self.place
        if not self.orders or self.orders[0].number != number:
            self.begin(number)
        order = self.orders.popleft()
        order.done.result()
        copy(order.slot.batch, into=self.place)
        order.slot.copied.record()
        self.loaded = number
        self.free.append(order.slot)
        self.order(number + AHEAD)
        return self.place

    def reserve(self, example: Batch) -> Batch:
        """Reserve memory for batches like this one; return the place on the device."""
        for _ in range(AHEAD + BEHIND):
            pinned = example.map(lambda tensor: torch.empty_like(tensor).pin_memory())
            self.free.append(Slot(pinned, torch.cuda.Event()))
        return example.map(lambda tensor: torch.empty_like(tensor, device=self.device))

    def begin(self, number: int) -> None:
        """Forget what was ordered, and order from this number on."""
        self.settle()
        while self.orders:
            self.free.append(self.orders.pop().slot)
        for ahead in range(AHEAD):
            self.order(number + ahead)

    def order(self, number: int) -> None:
        """Let the thread prepare a batch, unless the run ends before it."""
        if number >= self.end:
            return
        slot = self.free.popleft()  # that was used longest ago
        if not slot.copied.query():
            slot.copied.synchronize()
        self.orders.append(Order(number, slot, self.thread.submit(self.prepare, number, slot.batch)))

    def prepare(self, number: int, into: Batch) -> None:
        """Copy a batch into pinned memory.

        Raises:
            UsageError: it has another shape than the first batch.
        """
        batch = self.train_batch(number)
        if (found := shapes(batch)) != (known := shapes(into)):
            what = f"the batch of step {number + 1:,} has tensors of {found}, and the first one of {known}"
            raise UsageError(f"trainer.compile=graph replays steps of one shape, and {what}: use trainer.compile=false")
        copy(batch, into)

    def settle(self) -> None:
        """Wait until the thread has done what was ordered, so that others may ask the data for batches."""
        wait([order.done for order in self.orders])


def shapes(batch: Batch) -> str:
    """Return the shapes of a batch's tensors, in words."""
    return ", ".join(str(tuple(tensor.shape)) for tensor in batch if tensor is not None)


def copy(batch: Batch, into: Batch) -> None:
    """Copy a batch into another one's memory; to a device it only begins."""
    for tensor, place in zip(batch, into, strict=True):
        if tensor is not None and place is not None:
            place.copy_(tensor, non_blocking=True)
