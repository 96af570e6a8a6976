"""What one probed step has shown."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from normbench.probes.statistics import DeviceHistogram, Histogram, between, effective_rank


@dataclass
class Reading:
    """Numbers and histograms by tag, still on the device; second moments of features, whose ranks the host computes."""

    scalars: dict[str, Tensor] = field(default_factory=dict)
    histograms: dict[str, DeviceHistogram] = field(default_factory=dict)
    second_moments: dict[str, Tensor] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """All numbers, in one copy from the device, and all effective ranks, in another."""
        scalars = [value.float() for value in self.scalars.values()]
        values = torch.stack(scalars).tolist() if scalars else []
        return dict(zip(self.scalars, values, strict=True)) | self.ranks()

    def ranks(self) -> dict[str, float]:
        """The effective rank behind each second moment."""
        if not self.second_moments:
            return {}
        moments = self.second_moments.values()
        host = torch.cat([moment.flatten() for moment in moments]).double().cpu()
        parts = host.split([moment.numel() for moment in moments])
        matrices = (part.view(moment.shape) for part, moment in zip(parts, moments, strict=True))
        return {tag: effective_rank(matrix) for tag, matrix in zip(self.second_moments, matrices, strict=True)}

    def host_histograms(self) -> dict[str, Histogram]:
        """All histograms, in two copies from the device."""
        found = self.histograms.values()
        counts = torch.stack([histogram.counts for histogram in found]).tolist()
        limits = torch.stack([histogram.limits for histogram in found]).tolist()
        made = [between(c, *low_high) for c, low_high in zip(counts, limits, strict=True)]
        return dict(zip(self.histograms, made, strict=True))
