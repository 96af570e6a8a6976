"""What a process tells torch of the device that it works on."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


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
