"""A whole training step as one CUDA graph, which the host starts with one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from normbench.errors import UsageError, explain

WARM_UP = 3  # steps on the stream of the recording before it, as torch asks for

Result = tuple[Tensor, ...]


class StepGraph:
    """Records a training step as it is taken, and replays it from then on: the same kernels on the same memory.

    What differs from step to step lies on the device, and is filled before each replay: the batch, which is the
    caller's, the learning rates and the step's `number`. Random numbers are those of the device's generator as it is
    when a step begins, as without a graph. The first steps of a process are taken as they are, on the stream of the
    recording; the recording computes nothing, so the step that is recorded is then replayed like all others.

    Attributes:
        seconds: what the recording took, 0 before it.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.model = model
        self.optimizer = optimizer
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.number = torch.zeros((), dtype=torch.int64, device=device)
        # in float32, as torch's fused optimizers read them
        self.rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self.warmed = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Result = ()
        self.seconds = 0.0

    def take(self, number: int, step: Callable[[], Result]) -> Result:
        """Take a step; return what `step` returns, which stays as it is until the next one.

        Args:
            number: of the step.
            step: computes on memory that stays, and waits for nothing. It finds `number` in the tensor of that name,
                and the optimizer's learning rates on the device.

        Raises:
            UsageError: the step waits for the device, does not leave the model's buffers where they are, or changes
                what a module notes in Python.
        """
        self.number.fill_(number)
        for rate, group in zip(self.rates, self.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        if self.graph is None and self.warmed < WARM_UP:
            self.warmed += 1
            return self.warm_up(step)
        if self.graph is None:
            self.graph = self.record(step)
        self.graph.replay()
        return self.result

    def warm_up(self, step: Callable[[], Result]) -> Result:
        """Take a step on the stream of the recording, in which libraries and the optimizer make what they keep."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream), self.readable_rates(capturable=False):
            result = step()
        current.wait_stream(self.stream)
        return result

    def record(self, step: Callable[[], Result]) -> torch.cuda.CUDAGraph:
        """Return the graph of a step, whose results will be in `result`."""
        begun = time.perf_counter()
        buffers = dict(self.model.named_buffers())
        notes = python_values(self.model)
        graph = torch.cuda.CUDAGraph()
        try:
            # torch itself stays on the stream of a recording that fails
            with (
                torch.cuda.stream(self.stream),
                self.readable_rates(capturable=True),
                torch.cuda.graph(graph, stream=self.stream),
            ):
                self.result = step()
        except RuntimeError as error:
            if "captur" not in str(error):  # CUDA's word for it
                raise
            cause = error.__context__ or error  # the end of a recording that has failed fails, too
            what = f"cannot record a step of this model ({explain(cause)})"
            cure = "let nothing in it wait for the GPU, as .item() does, or use trainer.compile=false"
            raise UsageError(f"trainer.compile=graph {what}: {cure}") from error
        self.check_replayable(buffers, notes)
        self.seconds = time.perf_counter() - begun
        return graph

    def check_replayable(self, buffers: dict[str, Tensor], notes: dict[str, Any]) -> None:
        """Refuse a recorded step that a replay would not repeat.

        Args:
            buffers: the model's, as they were before it.
            notes: what its modules noted in Python before it.

        Raises:
            UsageError: a buffer is another tensor now, or what a module notes in Python has changed.
        """
        for name, buffer in self.model.named_buffers():
            if buffer is not buffers.get(name):
                what = f"replays a step on the same memory, and {name} is another tensor after each step"
                cure = "change it in place, as copy_ does, or use trainer.compile=false"
                raise UsageError(f"trainer.compile=graph {what}: {cure}")
        for place, after in python_values(self.model).items():
            before = notes.get(place)
            if after is not before and after != before:
                what = f"runs no Python after this step, and {place} changes in it, from {before!r} to {after!r}"
                cure = "count in a buffer, in place, as add_ does, or use trainer.compile=false"
                raise UsageError(f"trainer.compile=graph {what}: {cure}")

    @contextmanager
    def readable_rates(self, capturable: bool) -> Iterator[None]:
        """Let the optimizer read its learning rates on the device while this lasts.

        Args:
            capturable: tell it that it is recorded, where it asks. (A fused one keeps all its state on the device
                anyway.)
        """
        groups = self.optimizer.param_groups
        before = [dict(group) for group in groups]
        for group, rate in zip(groups, self.rates, strict=True):
            group["lr"] = rate
            if "capturable" in group:
                group["capturable"] = capturable
        try:
            yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)


def python_values(model: nn.Module) -> dict[str, Any]:
    """Return what the modules note in Python: plain values, by module and attribute."""
    values = dict[str, Any]()
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, int | float | str | None):
                values[f"{name}.{key}".lstrip(".")] = value
    return values
