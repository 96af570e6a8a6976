"""Step times without a stop of the device, which are read when they are asked for, and the peak of memory."""

from __future__ import annotations

import resource
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch


class Clock:
    """Durations of training steps in milliseconds, from taking the batch out of memory to the optimizer's step.

    On CUDA events take the time, which cost no wait until they are read; Apple's GPU is waited for at each mark.
    The first `warmup` steps of a process count for nothing: caches, allocators and lazily chosen kernels.
    """

    def __init__(self, device: torch.device, warmup: int = 10) -> None:
        self.device = device
        self.durations: list[float] = []
        self.pending: list[tuple[Any, Any, int]] = []
        self.to_skip = warmup
        self.started: Any = None
        self.reported = 0

    def mark(self) -> Any:
        """Return a point in time."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        if self.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter()

    def start(self) -> None:
        """Begin a step."""
        self.started = self.mark()

    def stop(self, counts: bool = True, seeds: int = 1) -> None:
        """End a step.

        Args:
            counts: false of one that did more than train, as with probes: its time is left out.
            seeds: how many it has trained together, among which its time is divided.
        """
        if self.to_skip:
            self.to_skip -= 1
        elif counts:
            self.pending.append((self.started, self.mark(), seeds))

    def read(self) -> list[float]:
        """Return the durations of all steps so far; waits for the device."""
        on_cuda = self.device.type == "cuda"
        if on_cuda:
            torch.cuda.synchronize(self.device)
        for start, end, seeds in self.pending:
            milliseconds = start.elapsed_time(end) if on_cuda else 1e3 * (end - start)
            self.durations.append(milliseconds / seeds)
        self.pending.clear()
        return self.durations

    def recent(self) -> float | None:
        """Return the mean step time since the last call, in ms; None if no step counted."""
        recent = self.read()[self.reported :]
        self.reported = len(self.durations)
        return statistics.fmean(recent) if recent else None

    def summary(self) -> dict[str, Any]:
        """Return median, 90th percentile (ms; None of fewer than two) and number of all counted steps."""
        durations = self.read()
        if len(durations) < 2:
            return {"median_ms": None, "p90_ms": None, "n": len(durations)}
        deciles = statistics.quantiles(durations, n=10)
        return {"median_ms": statistics.median(durations), "p90_ms": deciles[-1], "n": len(durations)}

    def state_dict(self) -> torch.Tensor:
        """Return the durations so far, for a checkpoint."""
        return torch.tensor(self.read(), dtype=torch.float64)

    def load_state_dict(self, state: torch.Tensor) -> None:
        """Go on from the durations of a checkpoint."""
        self.durations = state.tolist()
        self.reported = len(self.durations)


def forget_peak(device: torch.device) -> None:
    """Let the peak be that of what comes, where the system can forget."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux


def peak_memory(device: torch.device, replays: bool = False) -> int | None:
    """Return the most memory in use since `forget_peak`, in bytes (on a CPU the process's); None: not known.

    Args:
        device: whose memory.
        replays: whether a graph is replayed. Torch counts its memory as free, so then all that torch has taken is in
            use.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) if replays else torch.cuda.max_memory_allocated(device)
    if device.type != "cpu":
        return None
    with suppress(OSError):  # Linux
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS
