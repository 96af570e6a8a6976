"""What a run takes of memory, time and disk, measured on a few of its own steps."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from normbench.training.checkpoint import State, write
from normbench.training.clock import Clock, forget_peak, peak_memory
from normbench.training.loop import Loop

T = TypeVar("T")


@dataclass(frozen=True)
class Estimate:
    """What was measured, and what follows for a number of steps; sizes are in bytes.

    stays: what stays in memory, by what it is. peak: the most that a step needs, of the process or, on a GPU, of its
    tensors there; None: not known. step_ms: the median of `measured` steps; None: all are probed.
    evaluation, last_evaluation: seconds of one on some batches, and of the last one on all. checkpoint, best: a file.
    record: what one log, evaluation, probe and set of histograms adds to the files of the run.
    """

    loop: Loop
    stays: dict[str, int]
    peak: int | None
    step_ms: float | None
    measured: int
    probed_ms: float
    evaluation: float
    last_evaluation: float
    checkpoint: int
    best: int
    record: dict[str, int]

    def seconds(self, steps: int) -> float:
        """Return the time that so many steps take, with probes, evaluations and what torch.compile takes before."""
        probed = self.probed(steps)
        step_ms = self.probed_ms if self.step_ms is None else self.step_ms
        training = ((steps - probed) * step_ms + probed * self.probed_ms) / 1e3
        return self.loop.compile_seconds + training + self.evaluations(steps) * self.evaluation + self.last_evaluation

    def record_bytes(self, steps: int) -> int:
        """Return what so many steps add to the event file and to metrics.jsonl."""
        times = {
            "log": times_due(steps, self.loop.trainer.log_every),
            "evaluation": self.evaluations(steps) + 1,
            "probe": self.probed(steps),
            "histograms": times_due(steps, self.loop.probes_config.histograms_every),
        }
        return sum(count * self.record[what] for what, count in times.items())

    def evaluations(self, steps: int) -> int:
        """Return how many evaluations come before the last one."""
        return max(0, steps - 1) // self.loop.trainer.eval_every

    def probed(self, steps: int) -> int:
        """Return how many steps are probed."""
        every, histograms = self.loop.probes_config.every, self.loop.probes_config.histograms_every
        return times_due(steps, every) + times_due(steps, histograms) - times_due(steps, math.lcm(every, histograms))


def times_due(steps: int, every: int) -> int:
    """Return how often something falls due that is due at the first step and then every so many (0: never)."""
    return steps // every + (every > 1 and steps > 0) if every else 0


def estimate(loop: Loop, folder: Path) -> Estimate:
    """Take a few steps of a loop that has not begun, and look at them; what the loop records goes to `folder`.

    Raises:
        Diverged: training diverges within these steps.
    """
    device, model = loop.parts.device, loop.parts.model
    model.train()
    probed_step(loop)  # it warms up, as the steps behind it do
    repeat(loop, 10, seconds=3.0)
    loop.clock = Clock(device, warmup=0)
    forget_peak(device)
    repeat(loop, 20, seconds=5.0)
    peak = peak_memory(device)
    loop.clock.flush()
    durations = list(loop.clock.durations)
    probes, record = loop.probes_config, {}
    loop.probes_config = replace(probes, histograms_every=0)
    record["probe"] = growth(folder, lambda: probed_step(loop))[0]
    loop.probes_config = probes
    both, probed = growth(folder, lambda: probed_step(loop))
    record["histograms"] = both - record["probe"]
    record["log"] = growth(folder, loop.log)[0]
    record["evaluation"], (evaluation, last_evaluation) = growth(folder, lambda: evaluation_seconds(loop))
    return Estimate(
        loop,
        stays=what_stays(loop),
        peak=peak,
        step_ms=statistics.median(durations) if durations else None,
        measured=len(durations),
        probed_ms=1e3 * probed,
        evaluation=evaluation,
        last_evaluation=last_evaluation,
        checkpoint=stored_bytes(loop.state()),
        best=stored_bytes({"step": 0, "model": model.state_dict()}),
        record=record,
    )


def probed_step(loop: Loop) -> float:
    """Take the run's first step, where all probes are due; return its seconds."""
    loop.step = 0
    begun = time.perf_counter()
    loop.train_step()
    loop.grad_norm.item()  # waits for the device
    return time.perf_counter() - begun


def growth(folder: Path, action: Callable[[], T]) -> tuple[int, T]:
    """Return how many bytes an action adds to the files in a folder, and what it returns."""
    before = sum(path.stat().st_size for path in folder.iterdir())
    result = action()
    return sum(path.stat().st_size for path in folder.iterdir()) - before, result


def repeat(loop: Loop, steps: int, seconds: float) -> None:
    """Take so many steps, or fewer in so many seconds; behind the last one of the run comes the first again."""
    begun = time.perf_counter()
    for _ in range(steps):
        loop.step %= loop.steps
        loop.train_step()
        if time.perf_counter() - begun > seconds:
            return


def evaluation_seconds(loop: Loop) -> tuple[float, float]:
    """Return the time of an evaluation, and of the last one, on all data; from the pace of two batches."""
    data, limit = loop.parts.data, loop.trainer.eval_batches

    def predictions(split: Any, limit: int | None = None) -> int:
        return sum(batch.targets.numel() for batch in data.eval_batches(split, limit))

    first = list(islice(data.eval_batches("val", limit), 2))
    begun = time.perf_counter()
    loop.record(loop.tagged("val", first))
    pace = (time.perf_counter() - begun) / sum(batch.targets.numel() for batch in first)
    models = 2 if loop.parts.average is not None else 1
    train = predictions("train", limit or 20) if loop.trainer.eval_train else 0
    test = predictions("test") if data.has_test else 0
    return pace * (models * predictions("val", limit) + train), pace * (models * predictions("val") + train + test)


def what_stays(loop: Loop) -> dict[str, int]:
    """Return the bytes in memory between two steps, by what they are."""
    model, average = loop.parts.model, loop.parts.average
    state = [value for values in loop.parts.optimizer.state.values() for value in values.values()]
    found = {
        "weights": nbytes([*model.parameters(), *model.buffers()]),
        "gradients": nbytes(parameter for parameter in model.parameters() if parameter.requires_grad),
        "optimizer": nbytes(value for value in state if isinstance(value, Tensor)),
    }
    return found if average is None else found | {"average": nbytes(average.averages.values())}


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors, each storage once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def stored_bytes(state: State) -> int:
    """Return the size of a checkpoint of this state, which is written to nowhere."""
    with open(os.devnull, "wb") as nowhere:
        return write(state, nowhere)
