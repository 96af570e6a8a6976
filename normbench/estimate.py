"""What a run takes of memory, time and disk, measured on a few of its own steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from normbench.memory import forget_peak, peak
from normbench.recording import Histogram, JsonLinesSink, Sink, TensorBoardSink
from normbench.training.checkpoint import State, write
from normbench.training.clock import make_clock
from normbench.training.loop import Loop
from normbench.types import Batch

EVALUATED = 2, 2.0  # batches, or seconds
SLOW = 3.0  # seconds; what takes longer is not done twice


@dataclass(frozen=True)
class Effort:
    """How many steps are taken to warm up and then to measure; or seconds: whichever is over first."""

    warm_up: tuple[int, float]
    measured: tuple[int, float]


THOROUGH = Effort((10, 3.0), (20, 5.0))
BRIEF = Effort((2, 1.0), (5, 2.0))  # for one of many


@dataclass(frozen=True)
class Memory:
    """In bytes. peak: of the process or, on a GPU, of its tensors there, in one step; None: not known."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    peak: int | None


@dataclass(frozen=True)
class Times:
    """step_ms: of a training step, the median of `steps`; None: every step is probed. probed_ms: of a probed step.

    evaluation, last_evaluation: seconds of one on some batches, and of the last one on all.
    """

    step_ms: float | None
    steps: int
    probed_ms: float
    evaluation: float
    last_evaluation: float


@dataclass(frozen=True)
class Disk:
    """In bytes.

    checkpoint: each one. best: that of the lowest validation loss. probe, histogram, log, evaluation: record of one.
    """

    checkpoint: int
    best: int
    probe: int
    histogram: int
    log: int
    evaluation: int


@dataclass(frozen=True)
class Estimate:
    """What was measured, and what follows for a number of steps."""

    loop: Loop
    memory: Memory
    times: Times
    disk: Disk

    def seconds(self, steps: int) -> float:
        """The time that so many steps take, with probes, evaluations and what torch.compile takes before."""
        probed = self.probed(steps)
        step_ms = self.times.probed_ms if self.times.step_ms is None else self.times.step_ms
        training = ((steps - probed) * step_ms + probed * self.times.probed_ms) / 1e3
        evaluation = self.evaluations(steps) * self.times.evaluation + self.times.last_evaluation
        return self.loop.compile_seconds + training + evaluation

    def record_bytes(self, steps: int) -> int:
        """What so many steps add to the event file and to metrics.jsonl."""
        disk, trainer, probes = self.disk, self.loop.trainer, self.loop.probes_config
        return (
            times_due(steps, trainer.log_every) * disk.log
            + (self.evaluations(steps) + 1) * disk.evaluation
            + self.probed(steps) * disk.probe
            + times_due(steps, probes.histograms_every) * disk.histogram
        )

    def evaluations(self, steps: int) -> int:
        """How many evaluations come before the last one."""
        return max(0, steps - 1) // self.loop.trainer.eval_every

    def probed(self, steps: int) -> int:
        """How many steps are probed."""
        every, histograms = self.loop.probes_config.every, self.loop.probes_config.histograms_every
        return times_due(steps, every) + times_due(steps, histograms) - times_due(steps, math.lcm(every, histograms))


class WeighingSink(Sink):
    """Writes a run's files where they do not stay, and notes the bytes that the last call of each method has added."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="normbench-")
        folder = Path(self._folder.name)
        super().__init__(JsonLinesSink(folder / "metrics.jsonl"), TensorBoardSink(folder))
        self.scalar_bytes = self.histogram_bytes = 0

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        before = self._size()
        super().scalars(step, values)
        self.scalar_bytes = self._size() - before

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        before = self._size()
        super().histograms(step, values)
        self.histogram_bytes = self._size() - before

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

    def _size(self) -> int:
        return sum(path.stat().st_size for path in Path(self._folder.name).iterdir())


def times_due(steps: int, every: int) -> int:
    """On how many of the steps something falls that is due at the first one and then every so many (0: never)."""
    return steps // every + (every > 1 and steps > 0) if every else 0


def estimate(loop: Loop, sink: WeighingSink, effort: Effort = THOROUGH) -> Estimate:
    """Take a few steps of a loop that has not begun, and look at them; the loop records to `sink`.

    Raises:
        Diverged: training diverges within these steps.
    """
    loop.parts.model.train()
    first = probed_step(loop, sink)
    repeat(loop, *effort.warm_up)
    loop.clock = make_clock(loop.parts.device)
    loop.clock.to_skip = 0
    forget_peak(loop.parts.device)
    repeat(loop, *effort.measured)
    step_time, memory = loop.clock.summary(), measure_memory(loop)
    probed = first if first.seconds > SLOW else probed_step(loop, sink)  # the first one also warms up
    loop.log()
    log = sink.scalar_bytes
    evaluation, last_evaluation = evaluation_seconds(loop)
    n = int(step_time["n"] or 0)
    step_ms = loop.clock.durations[0] if n == 1 else step_time["median_ms"]
    best = stored_bytes({"step": 0, "model": loop.parts.model.state_dict()})
    return Estimate(
        loop,
        memory,
        Times(step_ms, n, 1e3 * probed.seconds, evaluation, last_evaluation),
        Disk(stored_bytes(loop.state()), best, probed.scalar_bytes, probed.histogram_bytes, log, sink.scalar_bytes),
    )


def repeat(loop: Loop, most_steps: int, most_seconds: float) -> None:
    """Take steps, up to a number or a time, but one at least; behind the last one of the run comes the first again."""
    begun = time.perf_counter()
    for _ in range(most_steps):
        if loop.step >= loop.steps:
            loop.step = 0
        loop.train_step()
        if time.perf_counter() - begun > most_seconds:
            return


@dataclass(frozen=True)
class Probed:
    """A probed step: how long it took, and what its record weighs."""

    seconds: float
    scalar_bytes: int
    histogram_bytes: int


def probed_step(loop: Loop, sink: WeighingSink) -> Probed:
    """The run's first step, where all probes are due."""
    loop.step = sink.scalar_bytes = 0
    begun = time.perf_counter()
    loop.train_step()
    loop.grad_norm.item()  # waits for the device
    return Probed(time.perf_counter() - begun, sink.scalar_bytes, sink.histogram_bytes)


def evaluation_seconds(loop: Loop) -> tuple[float, float]:
    """How long an evaluation takes, and the last one, on all data; from the pace of the first batches."""
    data, trainer = loop.parts.data, loop.trainer
    pace = evaluation_pace(loop, data.eval_batches("val", trainer.eval_batches))
    some = pace * targets(data.eval_batches("val", trainer.eval_batches))
    if pace * targets(islice(data.eval_batches("val"), EVALUATED[0])) < SLOW:  # these batches may be larger
        pace = evaluation_pace(loop, data.eval_batches("val"))
    every = pace * targets(data.eval_batches("val"))
    train = pace * targets(data.eval_batches("train", trainer.eval_batches or 20)) if trainer.eval_train else 0.0
    test = pace * targets(data.eval_batches("test")) if data.has_test else 0.0
    models = 2 if loop.parts.average is not None else 1
    return models * some + train, models * every + train + test


def evaluation_pace(loop: Loop, batches: Iterable[Batch]) -> float:
    """Seconds for each prediction, from the first batches."""
    seconds, count = 0.0, 0
    for batch in islice(batches, EVALUATED[0]):
        begun = time.perf_counter()
        loop.record(loop.tagged("val", [batch]))
        seconds += time.perf_counter() - begun
        count += batch.targets.numel()
        if seconds > EVALUATED[1]:
            break
    return seconds / count


def targets(batches: Iterable[Batch]) -> int:
    """How many predictions batches ask for."""
    return sum(batch.targets.numel() for batch in batches)


# ---- memory and disk


def measure_memory(loop: Loop) -> Memory:
    """What stays, and what the steps since `forget_peak` have needed at their peak."""
    parts = loop.parts
    parameters = [parameter for parameter in parts.model.parameters() if parameter.requires_grad]
    state = (value for values in parts.optimizer.state.values() for value in values.values())
    return Memory(
        weights=nbytes([*parts.model.parameters(), *parts.model.buffers()]),
        gradients=nbytes(parameters),
        optimizer=nbytes(value for value in state if isinstance(value, Tensor)),
        average=0 if parts.average is None else nbytes(parts.average.averages.values()),
        peak=peak(parts.device),
    )


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors, each storage once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


class Counter:
    """A file that only counts what is written to it."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        size = memoryview(data).nbytes
        self.size += size
        return size

    def flush(self) -> None:
        """Nothing is kept."""


def stored_bytes(state: State) -> int:
    """The size of a checkpoint of this state."""
    counter = Counter()
    write(state, counter)  # type: ignore[arg-type]  # it needs no more of a file
    return counter.size
