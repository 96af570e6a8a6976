"""What probes read in one step: kept on the device until the step is done, and then copied to the host at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normbench.probes import tensor_statistics as stats
from normbench.probes.tensor_statistics import Observation


class TagPlace(NamedTuple):
    """Where in a model something was observed.

    At ("act/final", "_in") the number `rms` has the tag act/final/rms_in.
    """

    folder: str
    suffix: str = ""

    def tag(self, word: str) -> str:
        """Return the tag of a number that was observed here. word: what it is, such as `rms`."""
        return f"{self.folder}/{word}{self.suffix}"


@dataclass
class Reading:
    """Numbers and histograms by tag, still on the device.

    Attributes:
        with_histograms: whether they are wanted of this step.
        scalars: the numbers.
        histograms: counts of values in equal bins, and the lowest and the highest value, between which the bins are.
        second_moments: of residual streams, whose ranks the host computes.
        observations: what has no number yet, by its kind and place, one for each call of a module; see `finish`.
    """

    with_histograms: bool = False
    scalars: dict[str, Tensor] = field(default_factory=dict)
    histograms: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    second_moments: dict[str, Tensor] = field(default_factory=dict)
    observations: dict[type[Observation], dict[TagPlace, list[Observation]]] = field(default_factory=dict)

    def begin_pass(self) -> None:
        """Forget the calls of an earlier forward pass."""
        self.observations.clear()
        self.histograms.clear()

    def keep(self, place: TagPlace, observation: Observation) -> None:
        """Take in what was observed in one call at a place."""
        places = self.observations.setdefault(type(observation), {})
        places.setdefault(place, []).append(observation)

    def finish(self) -> None:
        """Turn observations into scalars: the mean over the calls at a place, NaN left out."""
        for kind, places in self.observations.items():
            every_call: list[Observation] = []
            calls_of_place: list[int] = []
            for calls in places.values():
                every_call += calls
                calls_of_place.append(len(calls))
            numbers_by_word = kind.describe(every_call)
            numbers = torch.stack([*numbers_by_word.values()])  # (words, calls)
            for place, numbers_of_place in zip(places, numbers.split(calls_of_place, dim=1), strict=True):
                several = numbers_of_place.shape[1] > 1
                means = numbers_of_place.nanmean(dim=1) if several else numbers_of_place[:, 0]
                for word, mean in zip(numbers_by_word, means.unbind(), strict=True):
                    self.scalars[place.tag(word)] = mean
        self.observations.clear()

    # ---- to the host, which waits for the device

    def numbers(self) -> dict[str, float]:
        """Return all numbers, in one copy from the device, and the effective ranks, in one more for each width."""
        numbers = {}
        if self.scalars:
            scalars = []
            for value in self.scalars.values():
                scalars.append(unshard_number(value).float())
            values = torch.stack(scalars).tolist()
            numbers = dict(zip(self.scalars, values, strict=True))
        for alike in stats.by_shape(self.second_moments):
            moments = torch.stack([*alike.values()])
            on_host = moments.cpu().double()
            for tag, moment in zip(alike, on_host, strict=True):
                numbers[tag] = stats.effective_rank(moment)
        return numbers

    def host_histograms(self) -> dict[str, tuple[list[float], list[float]]]:
        """Return counts of values between edges, and the edges (one more), in two copies from the device."""
        counts_on_device, limits_on_device = [], []
        for some_counts, some_limits in self.histograms.values():
            counts_on_device.append(some_counts)
            limits_on_device.append(some_limits)
        counts = torch.stack(counts_on_device).tolist()
        limits = torch.stack(limits_on_device).tolist()
        histograms = {}
        for tag, counts_of_tag, (low, high) in zip(self.histograms, counts, limits, strict=True):
            edges = torch.linspace(low, high, len(counts_of_tag) + 1, dtype=torch.float64)
            histograms[tag] = (counts_of_tag, edges.tolist())
        return histograms


def unshard_number(value: Any) -> Tensor:
    """Return a number as it is; if several processes hold parts of it, as of weights that they share, the whole."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
