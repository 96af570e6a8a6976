"""The implementations of a norm, what runs behind each, and the memory that a call takes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from normbench import build
from normbench.config.recipe import resolve
from normbench.errors import UsageError
from normbench.studies.frame import Subject
from normbench.studies.timing import Call, forward_and_backward


class Candidate(NamedTuple):
    """A norm as it is timed. code: what runs."""

    implementation: str
    code: str
    norm: nn.Module

    def call(self, x: Tensor, dy: Tensor | None) -> Call:
        """Return a function that runs it forward, or with a gradient dy of its output backward as well."""
        norm = self.norm
        if dy is None:
            return lambda: norm(x)
        return forward_and_backward(norm, x, dy)


def chosen_norm(subject: Subject, features: int, impl: str | None = None) -> Any:
    """Return a subject's norm by itself. impl: in place of the implementation that was chosen, if the norm has any."""
    section = subject.tree["norm"]
    chosen = {**section, "impl": impl} if impl and "impl" in section else section
    factory = build.factory(resolve("norm", chosen))
    return factory(features, channel_dim=-1, site=None).to(subject.device)


def make_candidates(subject: Subject, features: int, implementations: Sequence[str]) -> Iterator[Candidate]:
    """Yield a subject's norm in each implementation that there is."""
    is_ours = "impl" in subject.tree["norm"]
    make = partial(chosen_norm, subject, features)
    make("eager")  # every norm has this one: if it fails, other settings are wrong, and the person is told so
    if not is_ours:
        implementations = [word for word in implementations if word in ("eager", "compile")]
    for word in implementations:
        try:
            norm = make(word)
        except UsageError:  # the norm has no such implementation, or not on this machine
            continue
        code = code_of(norm)
        if word == "compile" and not is_ours:
            norm.compile(fullgraph=True)
            code = f"torch.compile of {code}"
        yield Candidate(word, code, norm)


def code_of(norm: nn.Module) -> str:
    """Say what runs a norm: what it has chosen itself, or its class."""
    return str(getattr(norm, "implementation", type(norm).__qualname__))


# ---- which operators run


def name_operators(y: Tensor) -> str:
    """Name what autograd runs for y, which a norm has made of leaves: `NativeLayerNorm`, or `8 operators`; and casts.

    Views move nothing, and do not count.
    """
    names = []
    for node in nodes_of(y):
        name = re.sub(r"Backward\d*$", "", node.name())
        if not name.endswith("AccumulateGrad") and not is_view(name):
            names.append(name)
    operators = [name for name in names if name != "ToCopy"]
    casts = len(names) - len(operators)
    words = operators[0] if len(operators) == 1 else f"{len(operators)} operators"
    if casts:
        words += f", {casts} casts"
    return words


def nodes_of(y: Tensor) -> set[Any]:
    """Return all nodes of autograd's graph behind y."""
    nodes = set[Any]()
    waiting: list[Any] = [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        waiting += [before for before, _ in node.next_functions]
    return nodes


def is_view(name: str) -> bool:
    """Tell whether an operator of torch, named as autograd does, looks at its input without moving it."""
    snake_case = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    packet = getattr(torch.ops.aten, snake_case, None)
    if packet is None:
        return False
    overload = packet.overloads()[0]
    return bool(getattr(packet, overload).is_view)


def are_alike(one: str, other: str) -> bool:
    """Tell whether two norms run in one manner, by what `name_operators` says of each."""
    return manner_of(one) == manner_of(other)


def manner_of(operators: str) -> tuple[bool, bool, bool]:
    """Return three facts on how a norm runs: whether as several operators, whether compiled, whether with casts."""
    return "operators" in operators, "Compiled" in operators, "casts" in operators


# ---- memory


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
    profiler: Any = profiled.profiler
    changes = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    held_bytes = 0
    most_bytes = 0
    for change in changes:
        held_bytes += change.nbytes()
        most_bytes = max(most_bytes, held_bytes)
    return most_bytes
