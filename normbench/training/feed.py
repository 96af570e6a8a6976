"""Training batches that a thread prepares while the device works, in pinned memory that is used again and again."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread

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
    done: Future[None] = field(default_factory=Future)


class Feed:
    """Brings training batches to one place on a CUDA device, where each replaces the one before it.

    The thread computes on the CPU alone, since CUDA work beside the recording of a graph would spoil it. Nobody waits
    for it at the end of a run, since a batch of a stream may take minutes. The host waits for the device only where
    that is more than `BEHIND` batches late.

    Args:
        train_batch: gives a batch by its number; while the thread is at work nobody else may call it (see `settle`).
        device: to which they go.
        end: how many there are.
    """

    def __init__(self, train_batch: Callable[[int], Batch], device: torch.device, end: int) -> None:
        self.train_batch = train_batch
        self.device = device
        self.end = end
        self.place: Batch | None = None
        self.loaded = -1
        self.free = deque[Slot]()
        self.orders = deque[Order]()
        self.queue = SimpleQueue[Order | None]()
        weakref.finalize(self, self.queue.put, None)  # the thread ends with this object
        Thread(target=work, args=[self.queue, train_batch], name="batches", daemon=True).start()

    def load(self, number: int) -> Batch:
        """Return the place on the device, to which the batch of this number is on its way.

        Raises:
            UsageError: it has another shape than the first batch.
        """
        if self.place is None:
            self.place = self.reserve(self.train_batch(number))
        if number == self.loaded:
            return self.place
        if self.orders and self.orders[0].number != number:
            self.forget()
        self.order_ahead(number)
        order = self.orders.popleft()
        order.done.result()
        copy(order.slot.batch, into=self.place)
        order.slot.copied.record()
        self.loaded = number
        self.free.append(order.slot)
        self.order_ahead(number + 1)
        return self.place

    def reserve(self, example: Batch) -> Batch:
        """Reserve memory for batches like this one; return the place on the device."""
        for _ in range(AHEAD + BEHIND):
            pinned = example.map(lambda tensor: torch.empty_like(tensor).pin_memory())
            self.free.append(Slot(pinned, torch.cuda.Event()))
        return example.map(lambda tensor: torch.empty_like(tensor, device=self.device))

    def order_ahead(self, number: int) -> None:
        """Let the thread prepare the batches from this number on that are not ordered, unless the run ends before."""
        first = number + len(self.orders)
        for ordered in range(first, min(number + AHEAD, self.end)):
            slot = self.free.popleft()  # that was used longest ago
            if not slot.copied.query():
                slot.copied.synchronize()
            order = Order(ordered, slot)
            self.orders.append(order)
            self.queue.put(order)

    def settle(self) -> None:
        """Let the thread stop after the batch that it has begun, so that others may ask the data for batches."""
        while self.orders and self.orders[-1].done.cancel():
            cancelled = self.orders.pop()
            self.free.append(cancelled.slot)
        wait([order.done for order in self.orders])

    def forget(self) -> None:
        """Take back what was ordered."""
        self.settle()
        self.free.extend(order.slot for order in reversed(self.orders))
        self.orders.clear()


def work(queue: SimpleQueue[Order | None], train_batch: Callable[[int], Batch]) -> None:
    """Prepare what is ordered, until there is a None."""
    while True:
        order = queue.get()
        if order is None:
            return
        if not order.done.set_running_or_notify_cancel():
            continue
        try:
            prepare(train_batch, order.number, order.slot.batch)
            order.done.set_result(None)
        except BaseException as fault:  # which `result` raises
            order.done.set_exception(fault)


def prepare(train_batch: Callable[[int], Batch], number: int, into: Batch) -> None:
    """Copy a batch into pinned memory.

    Raises:
        UsageError: it has another shape than the first batch.
    """
    batch = train_batch(number)
    given = shapes(batch)
    expected = shapes(into)
    if given != expected:
        what = f"the batch of step {number + 1:,} has tensors of {given}, and the first one of {expected}"
        raise UsageError(f"trainer.compile=graph replays steps of one shape, and {what}: use trainer.compile=false")
    copy(batch, into)


def shapes(batch: Batch) -> str:
    """Return the shapes of a batch's tensors, in words."""
    shapes_in_words = []
    for tensor in batch:
        if tensor is not None:
            shapes_in_words.append(str(tuple(tensor.shape)))
    return ", ".join(shapes_in_words)


def copy(batch: Batch, into: Batch) -> None:
    """Copy a batch into another one's memory; to a device it only begins."""
    for tensor, place in zip(batch, into, strict=True):
        if tensor is not None and place is not None:
            place.copy_(tensor, non_blocking=True)
