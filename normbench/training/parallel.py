"""The processes that train one run together, as torchrun starts them; a lone process is a group of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from normbench.errors import RunFailure, UsageError
from normbench.types import Batch

WAIT = "NORMBENCH_RENDEZVOUS_SECONDS"  # how long a process waits for the others at the start
WAIT_SECONDS = 300.0
LOST = "gloo", "nccl", "closed by peer", "reset by peer", "broken pipe"  # torch's words for a process that is gone


class ProcessLost(RunFailure):
    """Another process of the run has ended before it; the same command goes on from the last checkpoint."""


class Group:
    """One process: the null object of several, which need no other code.

    rank: which of the `size` processes this is. The first one alone writes and speaks; all others do the same work.
    """

    rank, size = 0, 1

    @property
    def writes(self) -> bool:
        """Tell whether this process has the run's directory."""
        return self.rank == 0

    def place(self, device: torch.device) -> torch.device:
        """Return the device of this process."""
        return device

    def check(self, batch: Batch) -> None:
        """Refuse a training batch that the processes cannot share."""

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Connect the processes while this lasts."""
        yield

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Turn what torch says of a lost process into a sentence."""
        yield

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return what trains the model, so that the gradients are the mean of all processes'."""
        return model

    def rows(self, batch: Batch) -> Batch:
        """Return this process's rows of a batch: every `size`-th one, as wide as before."""
        return batch

    def add(self, tensor: Tensor) -> Tensor:
        """Return the tensor, to which those of the others have been added."""
        return tensor

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the tensors of the first one."""

    def first(self, value: Any) -> Any:
        """Return the first process's value."""
        return value

    def all(self, value: Any) -> list[Any]:
        """Return the values of all processes."""
        return [value]

    def stopped(self, stop: Sequence[int]) -> int:
        """Return a signal that has come to one of the processes, the same one for all; 0: none."""
        return stop[0] if stop else 0


class Processes(Group):
    """Several processes, each with a device of its own and the same share of every batch.

    Collectives are entered by all of them in the same order: whatever decides about one is known to all alike. Small
    numbers on the CPU go through gloo, also where gradients go through NCCL, and wait for no GPU.
    """

    def __init__(self, rank: int, size: int, local: int) -> None:
        self.rank, self.size, self.local = rank, size, local

    def place(self, device: torch.device) -> torch.device:
        """Return the device of this process.

        Raises:
            UsageError: there is not one for each.
        """
        if device.type == "mps" or device.index is not None:
            raise UsageError(f"device={device} is one, and {self.size} processes need one each: use device=cuda or cpu")
        if device.type != "cuda":
            return device
        if self.local >= (there := torch.cuda.device_count()):
            raise UsageError(f"this machine has {there} GPUs, one for each process: use --nproc-per-node {there}")
        return torch.device("cuda", self.local)

    def check(self, batch: Batch) -> None:
        """Refuse a training batch that the processes cannot share.

        Raises:
            UsageError: it has not a multiple of `size` examples.
        """
        if (examples := len(batch.targets)) % self.size:
            what = f"data.batch_size={examples} cannot be shared by {self.size} processes"
            raise UsageError(f"{what}: it is the batch of all together, give a multiple of {self.size}")

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Connect the processes while this lasts; all but the first print nothing.

        Raises:
            UsageError: they do not all come.
            ProcessLost: one has ended before this one.
        """
        seconds = float(os.environ.get(WAIT, WAIT_SECONDS))
        try:
            wait = timedelta(seconds=seconds)
            store, rank, size = next(dist.rendezvous("env://", timeout=wait))
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        except (ValueError, RuntimeError) as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            what = f"process {self.rank} of {self.size} has not met the others at {where} within {seconds:g} s"
            raise UsageError(f"{what}: start them all, by torchrun, or let it wait longer with {WAIT}") from error
        with self.watched(), open(os.devnull, "w") as nowhere, redirect_stdout(sys.stdout if self.writes else nowhere):
            yield
        dist.destroy_process_group()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Turn what torch says of a lost process into a sentence.

        Raises:
            ProcessLost: one has ended before this one.
        """
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, RunFailure) or not any(word in str(error).lower() for word in LOST):
                raise
            cure = "the same command goes on from the last checkpoint"
            raise ProcessLost(f"another of the run's {self.size} processes has ended: {cure}") from error

    def wrap(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model)

    def rows(self, batch: Batch) -> Batch:
        return batch.map(itemgetter(slice(self.rank, None, self.size)))

    def add(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor

    def spread(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor, 0)

    def first(self, value: Any) -> Any:
        values = [value]
        dist.broadcast_object_list(values, 0)
        return values[0]

    def all(self, value: Any) -> list[Any]:
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def stopped(self, stop: Sequence[int]) -> int:
        number = torch.tensor(stop[0] if stop else 0)
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return int(number)


def from_environment() -> Group:
    """Return the group that the environment tells of, as torchrun sets it; a lone process where it tells of none."""
    rank, size, local = (int(os.environ.get(name, "")) if os.environ.get(name, "").isdigit() else None
                         for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))  # fmt: skip
    return Group() if rank is None or size is None or size < 2 else Processes(rank, size, local or 0)
