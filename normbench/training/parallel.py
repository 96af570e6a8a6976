"""The processes that train one run together, as torchrun starts them; a lone process is a group of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import timedelta
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from normbench.errors import RunFailure, UsageError, is_out_of_memory
from normbench.stopping import stop_asked
from normbench.training.devices import make_current
from normbench.types import Batch, Data, Model

WAIT = "NORMBENCH_RENDEZVOUS_SECONDS"  # how long a process waits for the others at the start
WAIT_SECONDS = 300.0
MOST_SECONDS = 10**6
LOST = "gloo", "nccl", "closed by peer", "reset by peer", "broken pipe"  # torch's words for a process that is gone


class ProcessLost(RunFailure):
    """Another process of the run has ended before it; the same command goes on from the last checkpoint."""


class Group:
    """One process: the null object of several, which need no other code.

    Attributes:
        rank: which of the `size` processes this is. The first one alone writes and speaks; all others do the same work.
        shards: whether the processes have parts of the model.
    """

    rank = 0
    size = 1
    shards = False

    @property
    def writes(self) -> bool:
        """Tell whether this process has the run's directory."""
        return self.rank == 0

    def place(self, device: torch.device) -> torch.device:
        """Return the device of this process."""
        return device

    def check(self, data: Data) -> None:
        """Refuse training batches that the processes cannot share."""

    @contextmanager
    def join(self, device: torch.device) -> Iterator[None]:
        """Connect the processes while this lasts."""
        yield

    @contextmanager
    def watch(self) -> Iterator[None]:
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

    def any(self, words: str) -> str:
        """Return the first process's words that has any."""
        return words

    def shard(self, model: Model, device: torch.device) -> None:
        """Let each process keep a part of each weight, on its device; they are whole while a block computes."""

    def gather(self, state: Any) -> Any:
        """Return a state in which no weight is a part: of the process that writes, on the CPU."""
        return state

    def stop_asked(self) -> int:
        """Return a signal that has come to one of the processes, the same one for all; 0: none."""
        return stop_asked()


class Processes(Group):
    """Several processes, each with a device of its own and the same share of every batch.

    Collectives are entered by all of them in the same order: whatever decides about one is known to all alike. Small
    numbers on the CPU go through gloo, also where gradients go through NCCL, and wait for no GPU.
    """

    def __init__(self, rank: int, size: int, local: int) -> None:
        self.rank = rank
        self.size = size
        self.local = local

    def place(self, device: torch.device) -> torch.device:
        """Return the device of this process.

        Raises:
            UsageError: there is not one for each.
        """
        if device.type == "mps" or device.index is not None:
            raise UsageError(f"device={device} is one, and {self.size} processes need one each: use device=cuda or cpu")
        if device.type != "cuda":
            return device
        gpus = torch.cuda.device_count()
        if self.local >= gpus:
            raise UsageError(f"this machine has {gpus} GPUs, one for each process: use --nproc-per-node {gpus}")
        return torch.device("cuda", self.local)

    def check(self, data: Data) -> None:
        """Refuse training batches that the processes cannot share.

        Raises:
            UsageError: they have not a multiple of `size` examples.
        """
        examples = len(data.train_batch(0).targets)
        if examples % self.size:
            what = f"data.batch_size={examples} cannot be shared by {self.size} processes"
            whole = examples // self.size * self.size
            near = f"{whole} or {whole + self.size}" if whole else str(self.size)
            raise UsageError(f"{what}: it is the batch of all together, use {near}")

    @contextmanager
    def join(self, device: torch.device) -> Iterator[None]:
        """Connect the processes while this lasts; all but the first print nothing.

        Raises:
            UsageError: they do not all come.
            ProcessLost: one has ended before this one.
        """
        make_current(device)  # where collectives are
        seconds = waiting_time()
        try:
            with hush_stderr():
                store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=seconds)))
                backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
                dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        except ValueError as error:
            raise UsageError(f"the environment does not say how processes meet ({error}): use torchrun") from error
        except RuntimeError as error:
            host = os.environ.get("MASTER_ADDR")
            port = os.environ.get("MASTER_PORT")
            what = f"process {self.rank} of {self.size} has not met the others at {host}:{port} within {seconds:g} s"
            raise UsageError(f"{what}: start them all, by torchrun, or let it wait longer with {WAIT}") from error
        with self.watch(), open(os.devnull, "w") as nowhere, redirect_stdout(sys.stdout if self.writes else nowhere):
            yield
        dist.destroy_process_group()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Turn what torch says of a lost process into a sentence.

        Raises:
            ProcessLost: one has ended before this one.
        """
        try:
            yield
        except RuntimeError as error:
            if not is_lost(error):
                raise
            cure = "the same command goes on from the last checkpoint"
            raise ProcessLost(f"another of the run's {self.size} processes has ended: {cure}") from error

    def wrap(self, model: nn.Module) -> nn.Module:
        return model if self.shards else DistributedDataParallel(model)

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

    def any(self, words: str) -> str:
        values = [""] * self.size
        dist.all_gather_object(values, words)
        return next(filter(None, values), "")

    def shard(self, model: Model, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # its imports take a second
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        for name, parameter in model.named_parameters():
            if parameter.ndim == 0:
                raise UsageError(f"trainer.shard=true cannot cut {name}, a single number: leave out what has it")
        self.shards = True
        mesh = init_device_mesh(device.type, (self.size,))
        # the search for translations calls what is inside a recurrent model's blocks, so that model is one piece
        if model.recompute is not None:
            for block in model.anatomy().blocks:
                fully_shard(block.module, mesh=mesh)
                if block.streams > 1:
                    register_fsdp_forward_method(block.module, "leave")  # which has norms in the last block
        # what is outside the blocks is put away after each forward too, so that its parameters are always parts
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        for name in ("begin", "advance"):  # which a search calls in place of `forward`
            if hasattr(model, name):
                register_fsdp_forward_method(model, name)

    def gather(self, state: Any) -> Any:
        if isinstance(state, dict):
            return {key: self.gather(value) for key, value in state.items()}
        tensor = unshard(state)  # to which all give their parts, and which the first one keeps
        if tensor is state:
            return state
        return tensor.cpu() if self.writes else None

    def stop_asked(self) -> int:
        number = torch.tensor(stop_asked())
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return int(number)


def is_lost(error: Exception) -> bool:
    """Tell whether torch says that another process is gone."""
    if isinstance(error, RunFailure) or is_out_of_memory(error):  # NCCL, too, may find no memory
        return False
    message = str(error).lower()
    return any(word in message for word in LOST)


def waiting_time() -> float:
    """Return for how many seconds a process waits for the others at the start.

    Raises:
        UsageError: the environment has something else.
    """
    with suppress(ValueError):
        seconds = float(os.environ.get(WAIT, WAIT_SECONDS))
        if 0 < seconds <= MOST_SECONDS:
            return seconds
    raise UsageError(f"{WAIT}={os.environ[WAIT]} is not allowed: use seconds, above 0 and up to {MOST_SECONDS:,}")


@contextmanager
def hush_stderr() -> Iterator[None]:
    """Drop what torch's C++ code writes to the standard error, pages for each try to connect."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def unshard(value: Any) -> Any:
    """Return all of a tensor of which each process has a part (a DTensor), and anything else as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def shard_like(state: Mapping[Any, Any], like: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return tensors, or what an optimizer keeps of them, as parts where those of the same key in `like` are."""

    def part(value: Any, counterpart: Any) -> Any:
        if isinstance(value, dict):
            return {key: part(each, counterpart) for key, each in value.items()}
        if not hasattr(counterpart, "full_tensor") or getattr(value, "shape", None) != counterpart.shape:
            return value
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value.to(counterpart.device), counterpart.device_mesh, counterpart.placements)

    return {key: part(value, like.get(key)) for key, value in state.items()}


def from_environment() -> Group:
    """Return the group that the environment describes, as torchrun sets it; without that, a lone process."""
    rank = number_in_environment("RANK")
    size = number_in_environment("WORLD_SIZE")
    local = number_in_environment("LOCAL_RANK")
    if rank is None or size is None or size < 2:
        return Group()
    return Processes(rank, size, local or 0)


def number_in_environment(name: str) -> int | None:
    """Return the number that a variable of the environment is; None where it is not a number."""
    word = os.environ.get(name, "")
    return int(word) if word.isdigit() else None
