"""Step times without a stop of the device: what the loop marks is read when it is asked for."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch


class Clock:
    """Durations of training steps in milliseconds on a device that runs in step with Python (CPU).

    The first `warmup` steps of a process count for nothing: caches, allocators and lazily chosen kernels.
    """

    def __init__(self, warmup: int = 10) -> None:
        self.durations: list[float] = []
        self.pending: list[tuple[Any, Any]] = []
        self.to_skip = warmup
        self.started: Any = None
        self.reported = 0

    def mark(self) -> Any:
        """A point in time."""
        return time.perf_counter()

    def between(self, start: Any, end: Any) -> float:
        """Milliseconds from one mark to another."""
        return 1e3 * (end - start)

    def start(self) -> None:
        self.started = self.mark()

    def stop(self, counts: bool = True) -> None:
        """End a step; one that did more than train (`counts=False`: probing) is left out."""
        if self.to_skip:
            self.to_skip -= 1
        elif counts:
            self.pending.append((self.started, self.mark()))

    def flush(self) -> None:
        """Turn marks into durations; waits for the device."""
        self.durations += [self.between(start, end) for start, end in self.pending]
        self.pending.clear()

    def recent(self) -> float | None:
        """Mean step time since the last call, in ms; None if no step counted."""
        self.flush()
        recent = self.durations[self.reported :]
        self.reported = len(self.durations)
        return statistics.fmean(recent) if recent else None

    def summary(self) -> dict[str, float | int | None]:
        """Median, 90th percentile (ms) and number of all counted steps."""
        self.flush()
        n = len(self.durations)
        if n < 2:
            return {"median_ms": None, "p90_ms": None, "n": n}
        return {
            "median_ms": statistics.median(self.durations),
            "p90_ms": statistics.quantiles(self.durations, n=10)[-1],
            "n": n,
        }

    def state(self) -> torch.Tensor:
        """The durations so far, for a checkpoint."""
        self.flush()
        return torch.tensor(self.durations, dtype=torch.float64)

    def restore(self, state: torch.Tensor) -> None:
        self.durations = state.tolist()
        self.reported = len(self.durations)


class CudaClock(Clock):
    """The same with CUDA events, which cost no synchronisation until they are read."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return start.elapsed_time(end)

    def flush(self) -> None:
        torch.cuda.synchronize()
        super().flush()


class MpsClock(Clock):
    """The same on Apple's GPU, which is waited for at each mark."""

    def mark(self) -> float:
        torch.mps.synchronize()
        return time.perf_counter()


def make_clock(device: torch.device) -> Clock:
    """The clock of a device."""
    return {"cuda": CudaClock, "mps": MpsClock}.get(device.type, Clock)()
