"""How sweeps have chosen learning rates: what was tried, what was chosen, and how much the choice of a rate matters."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any

from msgspec import ValidationError, convert

from normbench.evidence.arms import Arm
from normbench.evidence.measures import NAN, finite_numbers
from normbench.evidence.study import RecordedStudy
from normbench.record.forms import TriedRate


@dataclass(frozen=True)
class RateChoice:
    """One choice of a learning rate, on data and with seeds that are not reported, as a sweep notes it.

    Attributes:
        arm: the settings of the arm that it is for, as words.
        lr: the rate; None where a run was lost at each one.
        curve: the final losses of the seeds that chose (nats), at each rate that was tried; None of a lost run.
        seed: the reported seed that it is for; None: it is for all seeds of the arm.
        edge: at which end of the rates tried it lies, `highest` or `lowest`; None where it lies at neither.
        length: of the runs that chose, as a share of those that are reported.
    """

    arm: Mapping[str, str]
    lr: float | None
    curve: tuple[TriedRate, ...] = ()
    seed: int | None = None
    edge: str | None = None
    length: float = 1.0

    @cached_property
    def means(self) -> dict[float, float]:
        """Return the mean of the losses by rate; NaN where a run was lost."""
        means = {}
        for point in self.curve:
            finite = finite_numbers(point["losses"])
            is_whole = len(finite) == len(point["losses"]) > 0
            means[point["lr"]] = fmean(finite) if is_whole else NAN
        return means


@dataclass(frozen=True)
class Search:
    """How the learning rate of an arm was chosen, or that of each of its seeds.

    Attributes:
        arm: that the rates were chosen for.
        choices: one for all of its seeds, or one for each.
    """

    arm: Arm
    choices: tuple[RateChoice, ...] = field(default_factory=tuple)

    DERIVED = ("best", "curvature", "neighbours")  # what follows, and is written with them

    @cached_property
    def losses(self) -> dict[float, list[float | None]]:
        """Return the final losses of all seeds that chose (nats), by rate; None where a run was lost."""
        losses = defaultdict[float, list[float | None]](list)
        for choice in self.choices:
            for point in choice.curve:
                losses[point["lr"]] += point["losses"]
        return dict(sorted(losses.items()))

    @property
    def chosen(self) -> list[float]:
        """Return the rates that were chosen; none where no rate was good, so that there are no runs."""
        return [choice.lr for choice in self.choices if choice.lr is not None]

    @property
    def edges(self) -> list[str]:
        """Return for each choice at which end of the rates tried its rate lies, where it lies at one."""
        return [choice.edge for choice in self.choices if choice.edge]

    @property
    def means(self) -> dict[float, float]:
        """Return the mean of the losses by rate; NaN where a run was lost."""
        means = dict[float, float]()
        for rate, losses in self.losses.items():
            means[rate] = NAN if self.lost[rate] else fmean(finite_numbers(losses))
        return means

    @property
    def lost(self) -> dict[float, int]:
        """Return how many runs were lost, by rate."""
        return {rate: losses.count(None) for rate, losses in self.losses.items()}

    @property
    def length(self) -> float:
        """Return the length of the shortest runs that chose, as a share of those that are reported."""
        return min((choice.length for choice in self.choices), default=1.0)

    # ---- how much the choice matters

    @property
    def best(self) -> float | None:
        """Return the rate that was chosen most often, of several the smallest; None where none was."""
        times = Counter(self.chosen)
        return min(times, key=lambda rate: (-times[rate], rate), default=None)

    @property
    def neighbours(self) -> dict[float, float]:
        """Return how much higher the loss is at the rates next to the best one (nats), by rate, where it is known.

        That is the mean over the choices that have tried both: as each of these has the same seeds at both rates, what
        seeds share is not in it. Of one choice by one seed it has the noise of two runs.
        """
        excess = {}
        for rate in self._next_to_best():
            differences = self._excess([rate])
            if differences:
                excess[rate] = fmean(difference for (difference,) in differences)
        return excess

    @property
    def curvature(self) -> float | None:
        """Return the second derivative of the loss over log2 of the rate at the best one (nats per doubling²).

        It is that of the parabola through the losses there and at both neighbours, the mean over the choices that have
        tried all three; None where none has.
        """
        rates = self._next_to_best()
        differences = self._excess(rates)
        if len(rates) < 2 or not differences:
            return None
        assert self.best is not None  # as it has neighbours
        down, up = (abs(math.log2(rate / self.best)) for rate in rates)
        curvatures = [2 * (below / down + above / up) / (down + up) for below, above in differences]
        return fmean(curvatures)

    def _next_to_best(self) -> list[float]:
        """Return the rates tried that are next to the best one, the smaller one first."""
        rates = list(self.losses)
        if self.best not in rates:
            return []
        place = rates.index(self.best)
        return [*rates[max(0, place - 1) : place], *rates[place + 1 : place + 2]]

    def _excess(self, rates: Sequence[float]) -> list[list[float]]:
        """Return how far the losses at some rates are above that at the best one, of choices that tried all of them."""
        found = list[list[float]]()
        if self.best is None:
            return found
        for choice in self.choices:
            known = [choice.means.get(rate, NAN) for rate in (self.best, *rates)]
            if all(map(math.isfinite, known)):
                at_best, *others = known
                found.append([loss - at_best for loss in others])
        return found


# ---- of a study


def searches(study: RecordedStudy) -> list[Search]:
    """Return how sweeps chose the learning rate of each arm, or of each of its seeds; arms without runs come last."""
    arm_of_choice = dict[int, Arm]()  # by the identity of what was noted
    for arm, run in study.pairs:
        if run.path in study.choices:
            arm_of_choice[id(study.choices[run.path])] = arm
    for arm, noted in study.without_rate():
        arm_of_choice[id(noted)] = arm
    choices_of = defaultdict[str, list[RateChoice]](list)
    arms = dict[str, Arm]()
    for all_noted in study.noted.values():
        for noted in all_noted:
            choice = read_choice(noted)
            if choice is None or id(noted) not in arm_of_choice:
                continue
            arm = arm_of_choice[id(noted)]
            arms[arm.name] = arm
            choices_of[arm.name].append(choice)
    order = [arm.name for arm in study.arms]
    with_runs = [name for name in order if name in arms]
    without_runs = [name for name in arms if name not in order]
    return [Search(arms[name], tuple(choices_of[name])) for name in (*with_runs, *without_runs)]


def read_choice(noted: Mapping[str, Any]) -> RateChoice | None:
    """Return a choice that a sweep has noted; None where it has not noted what was tried."""
    try:
        choice = convert(noted, RateChoice)
    except ValidationError:
        return None
    return choice if choice.curve else None
