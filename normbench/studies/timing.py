"""How long calls take: in turn, so that a machine that slows down does so for all of them alike."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from scipy.stats import quantile_test
from torch import Tensor, nn
from torch.utils import benchmark

from normbench.analysis.statistics import Interval

Call = Callable[[], object]

BLOCK = 5e-3  # seconds that a block of calls lasts at least


def do_nothing() -> None:
    """Prepare nothing: what is timed after this is neither warmed up nor repeated."""


def seconds_of(call: Call, times: int = 1, prepare: Call = do_nothing) -> float:
    """Return the mean seconds of some calls in a row, right after `prepare`, which is not counted.

    torch's clock waits until a GPU has done what it was given.
    """
    timer = timeit.Timer(call, prepare, benchmark.timer)
    return timer.timeit(times) / times


def calls_in_a_block(call: Call) -> int:
    """Return how many calls fill a block."""
    seconds = seconds_of(call, prepare=call)
    return max(1, int(BLOCK / seconds))


def in_turn(calls: Sequence[Call], rounds: int, prepare: Call | None = None) -> Iterator[list[float]]:
    """Yield the seconds of each call, round by round; each round begins with another call.

    A call is measured as the mean of a block of calls, after one that warms up. With `prepare` it is measured alone,
    right after that: torch's own Timer runs what it times to warm up, so a cold cache is out of its reach.
    """
    if prepare is None:
        times = [calls_in_a_block(call) for call in calls]
        prepares = list(calls)
    else:
        times = [1] * len(calls)
        prepares = [prepare] * len(calls)
    places = list(range(len(calls)))
    for number in range(rounds):
        first = number % len(calls)
        seconds = [0.0] * len(calls)
        for place in places[first:] + places[:first]:
            seconds[place] = seconds_of(calls[place], times[place], prepares[place])
        yield seconds


def forward_and_backward(norm: nn.Module, x: Tensor, dy: Tensor) -> Call:
    """Return a function that runs a norm forward, and backward with a gradient dy of its output.

    The gradients are returned and not added to others, as within a network.
    """
    wanted = (x, *norm.parameters())
    return lambda: torch.autograd.grad(norm(x), wanted, dy)


def median_interval(values: Sequence[float]) -> Interval:
    """Return the 95 % interval of a median, whose ends are order statistics; NaN for fewer than six values."""
    found = quantile_test(np.asarray(values), q=0, p=0.5)
    lower, upper = found.confidence_interval(0.95)
    return Interval(float(lower), float(upper))
