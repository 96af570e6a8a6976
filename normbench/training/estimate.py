"""What a run takes of memory, time and disk, measured on a few of its own steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from normbench.record.files import write_atomically
from normbench.training.checkpoint import write
from normbench.training.clock import Clock, forget_peak, peak_memory
from normbench.training.loop import Loop, due
from normbench.types import Batch


@dataclass(frozen=True)
class Estimate:
    """What was measured, and the time that follows for a number of steps.

    Attributes:
        loop: whose steps were measured.
        peak: the most bytes that a step needs, of the process or, on a GPU, of its tensors there; None: not known.
        step_ms: the median of `measured` steps; None: all are probed.
        measured: how many steps.
        probed_ms: of a step where all probes are due.
        evaluation: seconds of one on some batches.
        last_evaluation: seconds of the last one, on all batches.
        checkpoint: its bytes.
    """

    loop: Loop
    peak: int | None
    step_ms: float | None
    measured: int
    probed_ms: float
    evaluation: float
    last_evaluation: float
    checkpoint: int

    def seconds(self, steps: int) -> float:
        """Return the time that so many steps take, with probes, evaluations and what torch.compile takes before."""
        probed = self.probed(steps)
        training = (steps - probed) * (self.step_ms or 0.0) + probed * self.probed_ms
        evaluations = self.evaluations(steps) * self.evaluation + self.last_evaluation
        return self.loop.compile_seconds + training / 1e3 + evaluations

    def evaluations(self, steps: int) -> int:
        """Return how many evaluations come before the last one."""
        return max(0, steps - 1) // self.loop.eval_every

    def probed(self, steps: int) -> int:
        """Return how many steps are probed."""
        probing = self.loop.probing
        count = 0
        for step in range(1, steps + 1):
            if due(step, probing.every) or due(step, probing.histograms_every):
                count += 1
        return count


def estimate(loop: Loop, folder: Path) -> Estimate:
    """Take a few steps of a loop that has not begun, and look at them; a checkpoint goes to `folder`.

    Raises:
        Diverged: training diverges within these steps.
    """
    loop.model.train()
    take_probed_step(loop)  # it warms up, as the next ones do
    loop.clock = Clock(loop.device, warmup=5)
    forget_peak(loop.device)
    begun = time.perf_counter()
    for taken in range(1, 26):
        loop.step %= loop.steps  # after the last step of the run comes the first again
        loop.train_step()
        seconds = time.perf_counter() - begun
        if seconds > 1.5 and taken >= 10:  # five of them warmed up, and the others are long enough to tell
            break
        if seconds > 8.0 and not loop.clock.to_skip:
            break
        if seconds > 2.0:  # these steps are so long that what warms up is the lesser part
            loop.clock.to_skip = 0
    peak = peak_memory(loop.device, loop.graph is not None)
    durations = list(loop.clock.read())
    probed_seconds = take_probed_step(loop)
    pace = seconds_a_prediction(loop)
    checkpoint = folder / "checkpoint.pt"
    write_atomically(checkpoint, partial(write, loop.state()))
    return Estimate(
        loop=loop,
        peak=peak,
        step_ms=statistics.median(durations) if durations else None,
        measured=len(durations),
        probed_ms=1e3 * probed_seconds,
        evaluation=pace * predictions_of_evaluation(loop, last=False),
        last_evaluation=pace * predictions_of_evaluation(loop, last=True),
        checkpoint=checkpoint.stat().st_size,
    )


def seconds_a_prediction(loop: Loop) -> float:
    """Return what an evaluation takes for each prediction, measured on two batches."""
    evaluation = next(loop.evaluations(last=False))
    batches = list(islice(evaluation.batches, 2))
    begun = time.perf_counter()
    loop.evaluate_one(evaluation._replace(batches=batches))
    return (time.perf_counter() - begun) / predictions(batches)


def predictions_of_evaluation(loop: Loop, last: bool) -> int:
    """Return how many predictions the last evaluation judges, or another one."""
    return sum(predictions(evaluation.batches) for evaluation in loop.evaluations(last))


def predictions(batches: Iterable[Batch]) -> int:
    """Return how many predictions batches ask for."""
    return sum(batch.targets.numel() for batch in batches)


def take_probed_step(loop: Loop) -> float:
    """Take the run's first step, where all probes are due; return its seconds."""
    begun = time.perf_counter()
    loop.step = 0
    loop.train_step()
    loop.stepper.grad_norm.item()  # waits for the device
    return time.perf_counter() - begun
