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
        """Return all numbers, in one copy from the device, and the effective ranks, in another."""
        scalars = [value.float() for value in self.scalars.values()]
        values = torch.stack(scalars).tolist() if scalars else []
        moments = [moment.double() for moment in self.second_moments.values()]
        host = torch.cat([moment.flatten() for moment in moments]).cpu() if moments else torch.empty(0)
        parts = host.split([moment.numel() for moment in moments]) if moments else ()
        ranks = [effective_rank(part.view(moment.shape)) for part, moment in zip(parts, moments, strict=True)]
        return dict(zip(self.scalars, values, strict=True)) | dict(zip(self.second_moments, ranks, strict=True))

    def host_histograms(self) -> dict[str, Histogram]:
        """Return all histograms as lists, in two copies from the device."""
        counts = torch.stack([histogram.counts for histogram in self.histograms.values()]).tolist()
        limits = torch.stack([histogram.limits for histogram in self.histograms.values()]).tolist()
        edges = [torch.linspace(low, high, len(counts[0]) + 1, dtype=torch.float64).tolist() for low, high in limits]
        return {tag: Histogram(*pair) for tag, *pair in zip(self.histograms, counts, edges, strict=True)}
