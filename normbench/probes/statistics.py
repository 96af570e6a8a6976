"""Statistics of one tensor, as tensors: nothing here waits for the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Scalar = Float[Tensor, ""]


def moments(x: Float[Tensor, "..."], channel_dim: int) -> dict[str, Scalar]:
    """What describes the values of one activation, over all of its elements.

    mean, std (biased), rms, max (of |x|), kurtosis (E(x−μ)⁴ / σ⁴; 3 for a Gaussian) and dead (share of the channels
    that are exactly 0 at every position of the batch).
    """
    x = x.detach().float()
    mean = x.mean()
    centered = x - mean
    squares = centered.square_()
    variance = squares.mean()
    fourth = squares.square().mean()
    peak = x.abs().amax(dim=[d for d in range(x.ndim) if d != channel_dim % x.ndim])
    return {
        "mean": mean,
        "std": variance.sqrt(),
        "rms": (variance + mean.square()).sqrt(),
        "max": peak.max(),
        "kurtosis": fourth / variance.square(),
        "dead": (peak == 0).float().mean(),
    }


def rms(x: Float[Tensor, "..."]) -> Scalar:
    """√ of the mean square of all elements."""
    return x.detach().float().square().mean().sqrt()


def total_norm(tensors: list[Tensor]) -> Scalar:
    """Euclidean norm of all elements of all tensors."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))


class Histogram(NamedTuple):
    """Counts of values between edges (one more edge than counts)."""

    counts: list[float]
    edges: list[float]


class DeviceHistogram(NamedTuple):
    """Counts in equal bins between two limits, still on the device."""

    counts: Int64[Tensor, " bins"]
    limits: Float[Tensor, "2"]


def histogram(x: Float[Tensor, "..."], bins: int = 64) -> DeviceHistogram:
    """Counts of x in equal bins between its extremes."""
    x = x.detach().float().flatten()
    low, high = x.aminmax()
    width = ((high - low) / bins).clamp_min(torch.finfo(torch.float32).tiny)
    index = ((x - low) / width).long().clamp_(0, bins - 1)
    counts = torch.zeros(bins, device=x.device, dtype=torch.int64).scatter_add_(0, index, torch.ones_like(index))
    return DeviceHistogram(counts, torch.stack((low, high)))


def between(counts: list[float], low: float, high: float) -> Histogram:
    """The histogram with these counts in equal bins from low to high."""
    return Histogram(counts, torch.linspace(low, high, len(counts) + 1, dtype=torch.float64).tolist())
