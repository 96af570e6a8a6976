"""What a process tells torch of the device that it works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from normbench.errors import UsageError
from normbench.types import stable_seed


def make_current(device: torch.device) -> None:
    """Let CUDA's timing events, kernels of other libraries and waits be on this device.

    One without a number is the current one already.
    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def allow_tf32(allowed: bool) -> None:
    """Let a GPU round float32 matrix products and convolutions to TF32, or compute them in full."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def keep_generators(device: torch.device) -> AbstractContextManager[None]:
    """While this lasts, random numbers may be drawn on the CPU and this device; then the generators are as before."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def seed_generators(device: torch.device, seed: int) -> None:
    """Set what draws random numbers on the CPU and on this device.

    `torch.manual_seed` sets the generators of all devices, and takes a hundred times as long.
    """
    if device.type == "mps":
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)


@contextmanager
def seed_draws(*words: object) -> Iterator[None]:
    """Let what is drawn inside from torch's random numbers on the CPU follow from the words; outside they stay."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stable_seed(*words))
        yield


# ---- which there are


def resolve_device(name: str) -> torch.device:
    """Return the device of this name; `auto` takes a GPU where there is one.

    Raises:
        UsageError: this machine has no such device.
    """
    if name == "auto":
        name = best_device()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device={name} is unknown: use auto, cpu, cuda, cuda:N or mps") from error
    available = device_count(device.type)
    if (device.index or 0) >= available:
        raise UsageError(f"device={name} is not there: this machine has {available} {device.type} devices; use cpu")
    return device


def best_device() -> str:
    """Return the name of a GPU where there is one, else of the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    if torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def device_count(kind: str) -> int:
    """Return how many devices of a kind this machine has; of one that torch cannot count, one."""
    if kind == "cuda":
        return torch.cuda.device_count()
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return 1


def is_here(device: str) -> bool:
    """Tell whether this machine has a device."""
    try:
        resolve_device(device)
    except UsageError:
        return False
    return True
