"""The most memory that a run has needed."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch


def forget_peak(device: torch.device) -> None:
    """Let the peak be that of what comes, where the system can forget."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux


def peak(device: torch.device) -> int | None:
    """The most memory that was in use since `forget_peak`, in bytes; None: not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_of_process() if device.type == "cpu" else None


def peak_of_process() -> int:
    """The most memory that this process has held, in bytes."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
