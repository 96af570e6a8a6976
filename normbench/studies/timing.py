"""Norms as they are timed: each in the implementations that are there, its calls in turn, and the memory it takes."""

from __future__ import annotations

import os
import re
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import benchmark

from normbench import build
from normbench.errors import UsageError
from normbench.studies.frame import Subject

BLOCK = 5e-3  # seconds that one measurement with a warm cache lasts at least
USUAL_CACHE = 64 * 2**20  # bytes, where the system does not tell

Call = Callable[[], object]
Norm = Callable[[Tensor], Tensor]


# ---- one norm in one implementation


class Candidate(NamedTuple):
    """A norm as it is timed. code: what runs."""

    implementation: str
    code: str
    norm: Norm
    parameters: tuple[nn.Parameter, ...]

    def call(self, x: Tensor, dy: Tensor | None) -> Call:
        """Return a function that runs it forward, or with a gradient dy of its output backward as well.

        The gradients are returned and not added to others, as within a network.
        """
        norm, wanted = self.norm, (x, *self.parameters)
        return (lambda: norm(x)) if dy is None else (lambda: torch.autograd.grad(norm(x), wanted, dy))


def candidates(subject: Subject, features: int, implementations: Sequence[str]) -> Iterator[Candidate]:
    """Yield a subject's norm in each implementation that is there."""

    def make(impl: str) -> nn.Module:
        section = subject.tree["norm"]
        chosen = {**section, "impl": impl} if "impl" in section else section
        return build.factory({"norm": chosen}, "norm")(features, channel_dim=-1, site=None).to(subject.device)

    eager = make("eager")
    for word in implementations:
        norm: Any = eager
        if word == "torch":
            with suppress(UsageError):  # of a norm for which torch has no operator
                norm = make("torch")
        elif word == "liger" and subject.device.type == "cuda" and find_spec("liger_kernel"):
            kind = getattr(import_module("liger_kernel.transformers"), f"Liger{type(eager).__name__}", None)
            norm = kind(features).to(subject.device) if kind else eager
        if word == "compiled":
            run = torch.compile(eager, dynamic=False, fullgraph=True)
            yield Candidate(word, f"torch.compile of {code_of(eager)}", run, tuple(eager.parameters()))
        elif word == "eager" or norm is not eager:
            yield Candidate(word, code_of(norm), norm, tuple(norm.parameters()))


def code_of(norm: nn.Module) -> str:
    """Say what runs a norm: what it has chosen itself, or its class."""
    return str(getattr(norm, "implementation", type(norm).__qualname__))


def operators(y: Tensor) -> str:
    """Name what autograd runs for y, which a norm has made of leaves: `NativeLayerNorm`, or `8 operators`; and casts.

    Views move nothing, and do not count.
    """
    found, todo = set[Any](), [y.grad_fn]
    while todo:
        if (node := todo.pop()) is not None and node not in found:
            found.add(node)
            todo += [before for before, _ in node.next_functions]
    names = [re.sub(r"Backward\d*$", "", node.name()) for node in found]
    names = [name for name in names if not name.endswith("AccumulateGrad") and not is_view(name)]
    others = [name for name in names if name != "ToCopy"]
    casts = len(names) - len(others)
    return (others[0] if len(others) == 1 else f"{len(others)} operators") + f", {casts} casts" * (casts > 0)


def is_view(name: str) -> bool:
    """Tell whether an operator of torch, called as autograd calls it, looks at its input without moving it."""
    packet = getattr(torch.ops.aten, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), None)
    return packet is not None and getattr(packet, packet.overloads()[0]).is_view


def alike(one: str, other: str) -> str:
    """Say whether two norms run in one manner, by their `operators`: as one operator, compiled, or as several."""
    first, second = (("operators" in words, "Compiled" in words, "casts" in words) for words in (one, other))
    return "yes" if first == second else "no"


# ---- time and memory


class Timed:
    """A call, and how often it is made in one measurement with a warm cache. It has been warmed up."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.timer = benchmark.Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        self.number = max(1, int(BLOCK / self.timer.timeit(1).median))

    def seconds(self, prepare: Call | None) -> float:
        """Return the mean time of a block of calls; or the time of one, right after `prepare`.

        torch's `Timer` runs what it times to warm up: where the cache is to be cold, its clock alone serves.
        """
        if prepare:
            return timeit.Timer(self.call, prepare, benchmark.timer).timeit(1)
        return self.timer.timeit(self.number).median


def in_turn(calls: Sequence[Timed], number: int, prepare: Call | None = None) -> list[float]:
    """Return the time of each call in µs; each round, by its number, begins with another."""
    first = number % len(calls)
    times = {place: 1e6 * calls[place].seconds(prepare) for place in (*range(first, len(calls)), *range(first))}
    return [times[place] for place in range(len(calls))]


def peak_memory(call: Call, device: torch.device) -> int:
    """Return the most bytes that a call holds at once, with its results."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would print when it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events: Any = profiled.profiler
    changes = [event for event in events.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in changes), default=0)


def last_level_cache(device: torch.device) -> int:
    """Return the bytes of the largest cache in front of the memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((1024 * int(size.read_text().strip().removesuffix("K")) for size in sizes), default=USUAL_CACHE)
