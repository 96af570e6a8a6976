"""Streams and CUDA graphs of the pretended device.

While a graph is recorded operators are computed, since their results' shapes are needed, and what they have changed is
put back at the end, with the random numbers: as on a GPU nothing has happened then. What a GPU refuses in a recording
is refused. A replay computes the recorded operators again, on the same memory, with the host's numbers as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Compute = Callable[..., Any]


class Recording:
    """What is recorded: operators with their arguments and results, on the CPU, and memory as it was before."""

    def __init__(self) -> None:
        self.done: list[tuple[Compute, Any, Any, Any]] = []
        self.before: dict[int, tuple[Any, Any]] = {}
        self.random = torch.default_generator.get_state()

    def compute(self, function: Compute, args: Any, kwargs: Any) -> Any:
        """Compute an operator, and record it."""
        for leaf in tensors((args, kwargs)):
            storage = leaf.untyped_storage()
            if storage.data_ptr() not in self.before:
                self.before[storage.data_ptr()] = storage, storage.clone()
        found = function(*args, **kwargs)
        self.done.append((function, args, kwargs, found))
        return found

    def undo(self) -> None:
        """Let it be as if nothing had been computed."""
        for storage, before in self.before.values():
            storage.copy_(before)
        torch.default_generator.set_state(self.random)


recordings: list[Recording] = []  # one at the most


def tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors among arguments or results."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return []
    return [tensor for value in values for tensor in tensors(value)]


def mapped(change: Callable[[Any], Any], values: Any) -> Any:
    """Return arguments or results with each changed, in lists and dictionaries too, faster than torch's own."""
    if isinstance(values, dict):
        return {name: mapped(change, value) for name, value in values.items()}
    if isinstance(values, list):
        return [mapped(change, value) for value in values]
    if isinstance(values, tuple):
        return tuple([mapped(change, value) for value in values])
    return change(values)


def computed(function: Compute, args: Any, kwargs: Any) -> Any:
    """Compute an operator on the CPU; a recording takes it in."""
    if recordings:
        return recordings[0].compute(function, args, kwargs)
    return function(*args, **kwargs)


def refuse(what: str) -> None:
    """Refuse what a GPU does not do while it records.

    Raises:
        RuntimeError: it is recording.
    """
    if recordings:
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")


class Generator(torch.Generator):
    """A GPU's generator, which cannot be set while a graph is recorded."""

    def manual_seed(self, seed: int) -> torch.Generator:
        refuse("set_current_seed")
        return super().manual_seed(seed)


class Stream:
    """A stream, which here computes at once."""

    def __init__(self, device: Any = None) -> None:
        self.warm = False

    def wait_stream(self, other: Stream) -> None:
        """Wait for another stream."""


DEFAULT = Stream()
current = [DEFAULT]  # alone


@contextmanager
def stream(chosen: Stream) -> Iterator[None]:
    """Let a stream be the current one."""
    before, current[0], chosen.warm = current[0], chosen, True
    try:
        yield
    finally:
        current[0] = before


class CUDAGraph:
    """A recording that can be replayed."""

    recording: Recording

    def replay(self) -> None:
        """Compute again what was recorded, into the memory that held the results."""
        for function, args, kwargs, results in self.recording.done:
            found = function(*args, **kwargs)
            for result, again in zip(tensors(results), tensors(found), strict=True):
                if result.untyped_storage().data_ptr() != again.untyped_storage().data_ptr():
                    result.copy_(again)


@contextmanager
def graph(cuda_graph: CUDAGraph, stream: Stream) -> Iterator[None]:
    """Record what is done inside, on that stream, which stays the current one if it fails.

    Raises:
        RuntimeError: nothing has warmed the stream up.
    """
    if not stream.warm:
        raise RuntimeError("the stream of the recording was not warmed up")
    recording = Recording()
    recordings.append(recording)
    before, current[0] = current[0], stream
    try:
        yield
    finally:
        recordings.remove(recording)
        recording.undo()
    current[0] = before
    cuda_graph.recording = recording
