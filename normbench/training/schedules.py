"""Learning-rate schedules: the factor on the base learning rate as a pure function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from normbench.settings import Setting

Final = Annotated[float, Setting("factor on the learning rate at the last step", low=0, high=1)]


def cosine(start: float, end: float, progress: float) -> float:
    """Return half a cosine from start (progress 0) to end (progress 1)."""
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up to 1, then what `decay` says.

    Attributes:
        ramps: whether the rate grows until runs no longer learn, so that their result is how far they came.
    """

    ramps = False

    warmup: Annotated[float, Setting("share (< 1) or number (≥ 1) of steps", low=0, high=1e9)]

    def warmup_steps(self, steps: int) -> int:
        """Return the number of warm-up steps in a run of `steps`."""
        return round(self.warmup * steps) if self.warmup < 1 else int(self.warmup)

    def factor(self, step: int, steps: int) -> float:
        """Return the factor for training step `step` (from 0) of `steps`."""
        warmup = self.warmup_steps(steps)
        if step < warmup:
            return self.rise((step + 1) / (warmup + 1))
        return self.decay((step - warmup) / max(steps - 1 - warmup, 1))

    def rise(self, progress: float) -> float:
        """Return the factor at a share of the warm-up."""
        return progress

    def decay(self, progress: float) -> float:
        """Return the factor at a share of what follows the warm-up."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Schedule):
    """Warm-up, then 1."""

    def decay(self, progress: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Cosine(Schedule):
    """Warm-up, then a cosine to `final` (Loshchilov & Hutter 2017, equation 5, one cycle)."""

    final: Final

    def decay(self, progress: float) -> float:
        return cosine(1.0, self.final, progress)


@dataclass(frozen=True)
class Linear(Schedule):
    """Warm-up, then a straight line to `final`."""

    final: Final

    def decay(self, progress: float) -> float:
        return 1.0 + (self.final - 1.0) * progress


@dataclass(frozen=True)
class OneCycle(Cosine):
    """A cosine from `start` up to 1 over the warm-up, then down to `final` (Smith & Topin 2018; fastai's form)."""

    start: Annotated[float, Setting("factor on the learning rate at the first step", low=0, high=1)]

    def rise(self, progress: float) -> float:
        return cosine(self.start, 1.0, progress)


@dataclass(frozen=True)
class Ramp(Schedule):
    """Warm-up, then from `start` to `final`: by equal factors, or evenly (the range test of Smith 2017, section 3.3).

    A run that no longer learns or diverges on the way has borne the rates up to there, which is its result.
    """

    start: Annotated[float, Setting("factor on the learning rate at the first step", above=0, high=1e9)]
    final: Annotated[float, Setting("factor on the learning rate at the last step", above=0, high=1e9)]
    form: Annotated[Literal["exponential", "linear"], Setting("the rate grows by equal factors, or evenly")]

    ramps = True

    def rise(self, progress: float) -> float:
        return self.start * progress

    def decay(self, progress: float) -> float:
        if self.form == "linear":
            return self.start + (self.final - self.start) * progress
        return self.start * (self.final / self.start) ** progress
