"""What a run takes of memory, time and disk, measured on a few of its own steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from normbench.rundir import write_atomically
from normbench.training.checkpoint import write
from normbench.training.clock import Clock, forget_peak, peak_memory
from normbench.training.loop import Loop, due
from normbench.types import Split


@dataclass(frozen=True)
class Cost:
    """What something takes: seconds, and bytes that it adds to the files of a run."""

    seconds: float
    size: int


@dataclass(frozen=True)
class Estimate:
    """What was measured, and what follows for a number of steps.

    peak: the most bytes that a step needs, of the process or, on a GPU, of its tensors there; None: not known.
    step_ms: the median of `measured` steps; None: all are probed. costs: of one log, evaluation, probe, probe with
    histograms and checkpoint. last_evaluation: seconds of the one on all data.
    """

    loop: Loop
    peak: int | None
    step_ms: float | None
    measured: int
    costs: dict[str, Cost]
    last_evaluation: float

    def times(self, steps: int) -> dict[str, int]:
        """Return how often each thing is due in so many steps."""
        trainer, probing, done = self.loop.trainer, self.loop.probing, range(1, steps + 1)
        histograms = sum(due(step, probing.histograms_every) for step in done)
        probes = sum(due(step, probing.every) or due(step, probing.histograms_every) for step in done)
        return {
            "log": sum(due(step, trainer.log_every) for step in done),
            "evaluation": max(0, steps - 1) // trainer.eval_every,
            "probe": probes - histograms,
            "histograms": histograms,
        }

    def seconds(self, steps: int) -> float:
        """Return the time that so many steps take, with probes, evaluations and what torch.compile takes before."""
        times = self.times(steps)
        costs = sum(count * self.costs[what].seconds for what, count in times.items())
        plain = (steps - times["probe"] - times["histograms"]) * (self.step_ms or 0.0) / 1e3
        return self.loop.compile_seconds + plain + costs + self.last_evaluation

    def record_bytes(self, steps: int) -> int:
        """Return what so many steps add to the event file and to metrics.jsonl."""
        return sum(count * self.costs[what].size for what, count in self.times(steps).items())


def estimate(loop: Loop, folder: Path) -> Estimate:
    """Take a few steps of a loop that has not begun, and look at them; what the loop records goes to `folder`.

    Raises:
        Diverged: training diverges within these steps.
    """
    loop.model.train()
    probed_step(loop)  # it warms up, as the steps behind it do
    repeat(loop, 10, seconds=3.0)
    loop.clock = Clock(loop.device, warmup=0)
    forget_peak(loop.device)
    repeat(loop, 20, seconds=5.0)
    peak, durations = peak_memory(loop.device), list(loop.clock.read())
    costs = {"histograms": cost(folder, partial(probed_step, loop))}
    loop.probing = replace(probing := loop.probing, histograms_every=0)
    costs["probe"] = cost(folder, partial(probed_step, loop))
    loop.probing = probing
    costs["log"] = cost(folder, loop.log)
    batches = list(islice(loop.data.eval_batches("val", loop.trainer.eval_batches), 2))
    some = cost(folder, lambda: loop.record(loop.tagged("val", batches)))
    pace = some.seconds / sum(batch.targets.numel() for batch in batches)
    costs["evaluation"] = Cost(pace * judged(loop, last=False), some.size)
    costs["checkpoint"] = cost(folder, lambda: write_atomically(folder / "checkpoint.pt", partial(write, loop.state())))
    step_ms = statistics.median(durations) if durations else None
    return Estimate(loop, peak, step_ms, len(durations), costs, pace * judged(loop, last=True))


def cost(folder: Path, action: Callable[[], object]) -> Cost:
    """Return what an action takes; files in the folder are those of the run."""
    before, begun = folder_size(folder), time.perf_counter()
    action()
    return Cost(time.perf_counter() - begun, folder_size(folder) - before)


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def probed_step(loop: Loop) -> None:
    """Take the run's first step, where all probes are due."""
    loop.step = 0
    loop.train_step()
    loop.grad_norm.item()  # waits for the device


def repeat(loop: Loop, steps: int, seconds: float) -> None:
    """Take so many steps, or fewer in so many seconds; behind the last one of the run comes the first again."""
    begun = time.perf_counter()
    for _ in range(steps):
        loop.step %= loop.steps
        loop.train_step()
        if time.perf_counter() - begun > seconds:
            return


def judged(loop: Loop, last: bool) -> int:
    """Return how many predictions an evaluation judges; the last one, on all data, some more."""
    trainer, models = loop.trainer, 1 if loop.average is None else 2

    def count(split: Split, limit: int | None = None) -> int:
        return sum(batch.targets.numel() for batch in loop.data.eval_batches(split, limit))

    total = models * count("val", None if last else trainer.eval_batches)
    total += count("train", trainer.eval_batches or 20) if trainer.eval_train else 0
    return total + (count("test") if last and loop.data.has_test else 0)
