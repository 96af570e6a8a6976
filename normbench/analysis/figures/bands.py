"""The numbers behind curves: several runs as one line with a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from normbench.analysis.measures import finite, seconds_at
from normbench.analysis.records import Run

# A band has at most so many points; longer curves are averaged over neighbours.
POINTS = 200

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One run's curve: where it was recorded (n,), the place on the x axis (n,), and the value (n,)."""

    steps: NDArray[np.int64]
    x: Array
    y: Array


@dataclass(frozen=True)
class Band:
    """Several lines as one. x, mean, low, high: (n,). count: number of lines. pooled: records in one point."""

    x: Array
    mean: Array
    low: Array
    high: Array
    count: int
    pooled: int


def line_of(run: Run, tag: str, *, by_time: bool = False) -> Line | None:
    """A run's finite values under a tag, by step or by seconds of training; None where it has none."""
    curve = finite(run.curves.get(tag))
    if not len(curve.steps):
        return None
    x = seconds_at(run, curve.steps) if by_time else curve.steps.astype(float)
    return Line(curve.steps, x, curve.values) if np.isfinite(x).all() else None


def band_of(lines: Sequence[Line | None]) -> Band | None:
    """Mean, lowest and highest of several lines at the steps that all have; None where they have none in common."""
    having = [line for line in lines if line is not None]
    steps = common_steps(having)
    if not len(steps):
        return None
    places = [np.searchsorted(line.steps, steps) for line in having]
    x = np.mean([line.x[place] for line, place in zip(having, places, strict=True)], axis=0)
    y = pooled(np.stack([line.y[place] for line, place in zip(having, places, strict=True)]))
    return Band(pooled(x), y.mean(0), y.min(0), y.max(0), len(having), -(-len(steps) // POINTS))


def band_over_time(lines: Sequence[Line | None]) -> Band | None:
    """Mean, lowest and highest of several lines at the same times, on straight lines between their records.

    Only times that every line covers count: where one has ended, a mean of the others would jump. None without one.
    """
    having = [(pooled(line.x), pooled(line.y)) for line in lines if line is not None]
    if not having or (begin := max(x[0] for x, _ in having)) > (end := min(x[-1] for x, _ in having)):
        return None
    times = np.unique(np.concatenate([x[(x >= begin) & (x <= end)] for x, _ in having]))
    if len(times) > POINTS:
        times = np.linspace(begin, end, POINTS)
    y = np.stack([np.interp(times, *one) for one in having])
    records = max(len(line.x) for line in lines if line is not None)
    return Band(times, y.mean(0), y.min(0), y.max(0), len(having), -(-records // POINTS))


def said(bands: Sequence[Band | None]) -> str:
    """For a caption: what line and band are."""
    having = [band for band in bands if band is not None]
    fewest, most = min(band.count for band in having), max(band.count for band in having)
    if most == 1:
        return "One seed."
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f"Line: mean of {count} seeds; band: from the lowest to the highest."


def common_steps(lines: Sequence[Line]) -> NDArray[np.int64]:
    """The steps (n,) at which every line has a value."""
    if not lines:
        return np.array([], np.int64)
    first = lines[0].steps
    if all(np.array_equal(first, line.steps) for line in lines[1:]):
        return first
    return reduce(np.intersect1d, [line.steps for line in lines])


def pooled(values: Array) -> Array:
    """Means of neighbours along the last axis, so that at most `POINTS` are left."""
    size = -(-values.shape[-1] // POINTS)
    if size <= 1:
        return values
    starts = np.arange(0, values.shape[-1], size)
    counts = np.diff([*starts, values.shape[-1]])
    means: Array = np.add.reduceat(values, starts, axis=-1) / counts
    return means
