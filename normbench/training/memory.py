"""What training keeps in memory, counted before it starts, and what the system keeps for it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.filesize import decimal
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from normbench.errors import UsageError
from normbench.types import Model

LARGE = 5e8  # bytes that are worth a line
CASTS = ("ToCopyBackward0", "TBackward0")  # by which autocast makes of a weight what a matrix product keeps

# What glibc's mallopt takes: how much freed memory stays, and from which size on a request has pages of its own.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = 2**30  # bytes


@dataclass
class Kept:
    """What a forward pass keeps for the backward pass, in bytes.

    Attributes:
        parts: what is before the first block, the first block, what is between it and the next, and so on.
        streams: what enters each block.
    """

    parts: list[int] = field(default_factory=lambda: [0])
    streams: list[int] = field(default_factory=list)

    def of_step(self, segment: int | None) -> int:
        """Return the most that a step holds, where so many blocks in a row are computed again at once, if any are."""
        if segment is None or not self.streams:
            return sum(self.parts)
        outside = self.parts[::2]
        blocks = self.parts[1::2]
        inputs = 0
        largest = 0
        for start in range(0, len(self.streams), segment):
            inputs += self.streams[start]
            largest = max(largest, sum(blocks[start : start + segment]))
        return sum(outside) + inputs + largest


@contextmanager
def count_kept(model: Model, known: Sequence[Tensor]) -> Iterator[Kept]:
    """Count what a forward pass inside the `with` would keep for a backward pass, and let go of it block by block.

    There can be no backward pass after it.

    Args:
        model: whose forward pass it is.
        known: what is there anyway, beside parameters and buffers.
    """
    kept = Kept()
    held = dict[int, Any]()
    places_of_known = set()
    for tensor in (*known, *model.parameters(), *model.buffers()):
        places_of_known.add(tensor.untyped_storage().data_ptr())

    def keep(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place in places_of_known or place in held or is_cast(tensor):
            return
        held[place] = storage  # held, so that nothing else comes to lie there
        kept.parts[-1] += storage.nbytes()

    def enter(block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        kept.streams.append(inputs[0].nbytes)
        kept.parts.append(0)

    def leave(block: nn.Module, inputs: object, output: object) -> None:
        kept.parts.append(0)
        held.clear()

    with ExitStack() as stack:
        for block in model.anatomy().blocks:
            stack.enter_context(block.module.register_forward_pre_hook(enter))
            stack.enter_context(block.module.register_forward_hook(leave))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing))
        yield kept


def is_cast(tensor: Tensor) -> bool:
    """Tell whether a tensor is a weight in another number format, which does not grow with the batch."""
    node: Any = tensor.grad_fn
    while type(node).__name__ in CASTS:
        node = node.next_functions[0][0]
    return type(node).__name__ == "AccumulateGrad"


def state_share(optimizer: torch.optim.Optimizer, trial: nn.Parameter) -> float:
    """Return the size of an optimizer's state in that of the parameters, as a step of another parameter tells."""
    trial.grad = torch.zeros_like(trial)
    optimizer.step()
    size = 0
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                size += value.nbytes
    return size / trial.nbytes


@contextmanager
def limit_weights(device: torch.device, sizes: str) -> Iterator[None]:
    """Refuse a model that is built inside, on the CPU, as soon as its weights are more than the machine has room for.

    Args:
        device: where it will train; on the CPU gradients take as much again.
        sizes: the settings that make the model smaller, in words.

    Raises:
        UsageError: they are.
    """
    _, most = memory_of(torch.device("cpu"))
    size = 0
    seen = set[nn.Parameter]()  # shared ones are registered twice

    def add(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal size
        if parameter is not None and parameter not in seen and not parameter.is_meta:  # which takes no memory
            seen.add(parameter)
            size += parameter.nbytes * (2 if device.type == "cpu" else 1)
        if size > most:
            what = f"weights and gradients of the model need more than the {decimal(int(most))} of memory here"
            raise UsageError(f"{what}: use a smaller {sizes}")

    handle = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        handle.remove()


def memory_line(needs: Mapping[str, float], device: torch.device, cure: str) -> str:
    """Return a line on what a step needs, where that is large.

    Args:
        needs: bytes by name.
        device: where it trains.
        cure: what would need less.

    Raises:
        UsageError: the machine has less.
    """
    free, most = memory_of(device)
    free += needs["weights"]  # which lie there already
    total = sum(needs.values())
    sizes = []
    for name, size in needs.items():
        sizes.append(f"{name} {decimal(int(size))}")
    parts = ", ".join(sizes)
    whole = f"the tensors of a step need about {decimal(int(total))} of memory ({parts})"
    if total > most:
        raise UsageError(f"{whole}, and {device} has {decimal(int(most))}: {cure}")
    if total > free:
        return f"warning: {whole}, and {decimal(int(free))} are free: {cure}"
    return whole if total > LARGE else ""


def memory_of(device: torch.device) -> tuple[float, float]:
    """Return the bytes that are free on a device, and all that it has; infinity where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    kibibytes = {"MemAvailable": math.inf, "MemTotal": math.inf}
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, number = line.split(":")
            if name in kibibytes:
                kibibytes[name] = float(number.split()[0])
    return 1024 * kibibytes["MemAvailable"], 1024 * kibibytes["MemTotal"]


def keep_freed_memory() -> None:
    """Let the C library (glibc; others do as they do) keep what is freed for the next step.

    By default it gives the activations of each step back to the system, which hands them out again, page by page: 2,000
    page faults a step of `nano`, an eighth of its time.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        # older ones take 32 MiB at the most
        if libc.mallopt(M_MMAP_THRESHOLD, KEPT) or libc.mallopt(M_MMAP_THRESHOLD, 2**25):
            libc.mallopt(M_TRIM_THRESHOLD, KEPT)
