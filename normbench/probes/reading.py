"""What is to be read, and what one probed step has shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from normbench.probes.statistics import DeviceHistogram, effective_rank


@dataclass(frozen=True)
class Wanted:
    """What is to be read; the same words as under `probes` in the configuration."""

    activations: bool = False
    gradients: bool = False
    parameters: bool = False
    tails: bool = False
    geometry: bool = False
    attention: bool = False
    updates: bool = False


class Histogram(NamedTuple):
    """Counts of values between edges (one more edge than counts)."""

    counts: list[float]
    edges: list[float]


@dataclass
class Reading:
    """Numbers and histograms by tag, still on the device; second moments of features, whose ranks the host computes."""

    scalars: dict[str, Tensor] = field(default_factory=dict)
    histograms: dict[str, DeviceHistogram] = field(default_factory=dict)
    second_moments: dict[str, Tensor] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """Return all numbers, in one copy from the device, and the effective rank behind each second moment."""
        scalars = [value.float() for value in self.scalars.values()]
        values = torch.stack(scalars).tolist() if scalars else []
        ranks = {tag: effective_rank(moment.cpu().double()) for tag, moment in self.second_moments.items()}
        return dict(zip(self.scalars, values, strict=True)) | ranks

    def host_histograms(self) -> dict[str, Histogram]:
        """Return all histograms as lists."""
        found = {}
        for tag, (counts, limits) in self.histograms.items():
            low, high = limits.tolist()
            edges = torch.linspace(low, high, len(counts) + 1, dtype=torch.float64)
            found[tag] = Histogram(counts.tolist(), edges.tolist())
        return found
