"""How long calls take: in turn, so that a machine that slows down does so for all of them alike."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from scipy.stats import quantile_test
from torch import Tensor, nn
from torch.utils import benchmark

from normbench.results.statistics import Interval

Call = Callable[[], object]

BLOCK = 5e-3  # seconds that a block of calls lasts at least


def do_nothing() -> None:
    """Prepare nothing. As `prepare` of `time_in_turn` it has each call timed alone, neither warmed up nor repeated."""


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


def time_in_turn(calls: Sequence[Call], rounds: int, prepare: Call | None = None) -> Iterator[list[float]]:
    """Time calls in turn: yield the seconds of each, round by round. Each round begins with another call.

    A call is measured as the mean of a block of calls, after one that warms up. With `prepare` it is measured alone,
    right after that is called: torch's own Timer would first run the call to warm up, which a cold cache rules out.
    """
    if prepare is None:
        times = [calls_in_a_block(call) for call in calls]
        prepares = list(calls)
    else:
        times = [1] * len(calls)
        prepares = [prepare] * len(calls)
    indices = list(range(len(calls)))
    for round_number in range(rounds):
        first = round_number % len(calls)
        seconds = [0.0] * len(calls)
        for index in indices[first:] + indices[:first]:
            seconds[index] = seconds_of(calls[index], times[index], prepares[index])
        yield seconds


def forward_and_backward(norm: nn.Module, x: Tensor, dy: Tensor) -> Call:
    """Return a function that runs a norm forward, and backward with a gradient dy of its output.

    The gradients are returned and not added to others, as within a network.
    """
    leaves = (x, *norm.parameters())
    return lambda: torch.autograd.grad(norm(x), leaves, dy)


def median_interval(values: Sequence[float]) -> Interval:
    """Return the 95 % interval of a median, whose ends are order statistics; NaN for fewer than six values."""
    test_result = quantile_test(np.asarray(values), q=0, p=0.5)
    lower, upper = test_result.confidence_interval(0.95)
    return Interval(float(lower), float(upper))
