"""Studies that cross factors: what a setting does to an arm, less what it does to the baseline, seed by seed.

Of a setting with words, or with two values, that is the change from its usual value to another (so their difference is
an interaction, a difference of differences); of one with three numbers or more the slope per doubling; of the learning
rate the largest at which an arm still trains, and how sensitive the arm is to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pandas as pd

from normbench.analysis.comparisons import LEARNING_RATE, USUAL, Baseline, corrected_over
from normbench.analysis.measures import NAN, Metric, final, loss_on
from normbench.analysis.records import Arm, Run, Study, in_order
from normbench.analysis.sensitivity import tried_rates
from normbench.analysis.statistics import ALPHA, Interval, Sample, paired_difference
from normbench.analysis.wording import at_most, in_words, paragraphs

# What is said to have an effect, by the kind of effect.
STEPS = {
    "change": "{last} instead of {usual}",
    "slope": "Each doubling of {factor}",
    "rate": "The largest learning rate that trains",
    "sensitivity": "The sensitivity to the learning rate",
}

MOST = 4  # sentences of a kind

Effects = Mapping[int, float]  # by seed


@dataclass(frozen=True)
class Contrast(Sample):
    """The effect of a factor on an arm less that on its baseline, in each seed that has all it takes.

    kind: of effect, `change`, `slope`, `rate` (logarithm to base 2 of the largest that trains) or `sensitivity`.
    levels: of the factor, the usual one first, or all from low to high. own, other: the effects on the arm and on the
    baseline. tried: how many seeds there are. corrected: p after Holm. family: over how many contrasts Holm corrects.
    """

    kind: str
    factor: str
    levels: tuple[Any, ...]
    arm: Arm
    baseline: Arm
    own: tuple[float, ...]
    other: tuple[float, ...]
    metric: Metric
    tried: int
    corrected: float | None = None
    family: int = 1

    @property
    def real(self) -> bool:
        """Say whether it may be called a difference."""
        return self.corrected is not None and self.corrected < ALPHA

    @property
    def found(self) -> bool:
        """Say whether a sentence is about it: a difference, or what may be one; the same in each seed is one, too."""
        return self.p < ALPHA if self.p is not None else self.n > 1

    @property
    def sides(self) -> list[tuple[str, tuple[float, ...]]]:
        """Return the names of arm and baseline, each with the effects on it, the one that gains more first."""
        better = (self.mean > 0) == (self.kind == "rate" or not self.metric.lower_is_better)
        return [(self.arm.name, self.own), (self.baseline.name, self.other)][:: 1 if better else -1]

    @property
    def gap(self) -> Interval | None:
        """Return the interval of the difference as that of a size, from whichever side it is one."""
        one = self.interval
        return Interval(-one.upper, -one.lower) if one and self.mean < 0 else one

    @property
    def step(self) -> str:
        """Name what has the effect, such as `warmup=0.1 instead of 0`."""
        last, name = Arm({self.factor: self.levels[-1]}).name, self.factor.rpartition(".")[2]
        return STEPS[self.kind].format(usual=in_words(self.levels[0]), last=last, factor=name)

    def helps(self, effects: Sequence[float]) -> bool:
        """Say whether effects are good on the whole."""
        return sum(effects) != 0 and (sum(effects) < 0) == self.metric.lower_is_better


def contrasts(study: Study, arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> tuple[Contrast, ...]:
    """Return all contrasts of a study with two factors or more; p is corrected over all of them after Holm.

    arms: those that are compared, each at its best learning rate where that was a choice.
    """
    crossed = [one for crossing in crossings(arms, metric) for one in crossing.contrasts(baseline)]
    found = [*crossed, *over_rates(study, baseline)]
    corrected, family = corrected_over(found)
    return tuple(replace(one, corrected=p, family=family) for one, p in zip(found, corrected, strict=True))


def contrast(own: Effects, other: Effects, **about: Any) -> Contrast:
    """Return the contrast of two effects over the seeds that both have; about: what `Contrast` has beside."""
    found = paired_difference(own, other)
    about |= {name: tuple(side[seed] for seed in found.seeds) for name, side in (("own", own), ("other", other))}
    return Contrast(found.values, found.resolution, found.seeds, **about)


# ---- two factors


@dataclass(frozen=True)
class Crossing:
    """Two factors of a study.

    levels: of the subject and of the factor. cells: a column for each pair of their places in `levels`, a row for each
    setting of what else varies and each seed.
    """

    subject: str
    factor: str
    levels: tuple[list[Any], list[Any]]
    cells: pd.DataFrame
    metric: Metric

    @property
    def tried(self) -> int:
        """Return how many seeds there are."""
        return self.cells.index.get_level_values("seed").nunique()

    def arm(self, place: int) -> Arm:
        """Return a level of the subject as an arm, without runs."""
        return Arm({self.subject: self.levels[0][place]})

    def contrasts(self, baseline: Baseline) -> list[Contrast]:
        """Compare how each level of the subject takes to the factor, against how the baseline's does."""
        keys = zip((self.subject, self.factor), self.levels, strict=True)
        usual, start = (own.index(at) if (at := (USUAL | baseline).get(key)) in own else 0 for key, own in keys)
        found, every = [], dict(enumerate(self.levels[1]))
        for place in set(range(len(self.levels[0]))) - {usual}:
            shared = {key: level for key, level in every.items() if {(place, key), (usual, key)} <= {*self.cells}}
            for kind, weights in effects(shared, start):
                sides = [
                    sum(weight * self.cells[side, key] for key, weight in weights.items()) for side in (place, usual)
                ]
                both = pd.concat(sides, axis=1).dropna().groupby(level="seed").mean()
                about = {
                    "arm": self.arm(place),
                    "baseline": self.arm(usual),
                    "factor": self.factor,
                    "metric": self.metric,
                }
                about |= {"kind": kind, "levels": tuple(every[key] for key in weights), "tried": self.tried}
                found.append(contrast(*(both[side].to_dict() for side in both), **about))
        return found


def effects(levels: Mapping[int, Any], start: int) -> list[tuple[str, dict[int, float]]]:
    """Return a factor's effects as weights of its levels, which have their places as keys.

    That is the slope over the logarithm to base 2, by least squares, of three numbers above 0 or more; else the change
    from the level at `start` to each other.
    """
    if len(levels) > 2 and all(type(level) in (int, float) and level > 0 for level in levels.values()):
        x = np.log2([*levels.values()])
        x -= x.mean()
        return [("slope", dict(zip(levels, x / (x @ x), strict=True)))]
    return [("change", {start: -1.0, key: 1.0}) for key in levels if key != start and start in levels]


def crossings(arms: Sequence[Arm], metric: Metric) -> list[Crossing]:
    """Return every two factors, with how the runs ended under both."""
    levels = {key: sorted({arm.settings.get(key) for arm in arms}, key=in_order) for key in arms[0].settings}
    keys = [key for key, values in levels.items() if len(values) > 1]
    rows = [
        {
            **{key: levels[key].index(arm.settings.get(key)) for key in keys},
            "seed": run.seed,
            "end": ending(run, metric),
        }
        for arm in arms
        for run in arm.runs
    ]
    found = []
    for pair in combinations(keys, 2):
        cells = pd.DataFrame(rows).pivot_table("end", [*(key for key in keys if key not in pair), "seed"], [*pair])
        found.append(Crossing(*pair, (levels[pair[0]], levels[pair[1]]), cells, metric))
    return found


def ending(run: Run, metric: Metric) -> float:
    """Return how a run ended, in the metric's unit: at worst as a constant predictor, which a diverged run counts as.

    NaN where it has failed or not ended.
    """
    worst = (run.session["data"].get("constant") or {}).get(f"{metric.tag.partition('/')[0]}/val")
    worst = NAN if worst is None or run.status not in ("finished", "diverged") else metric.scale * worst
    return float((np.fmin if metric.lower_is_better else np.fmax)(final(run, metric), worst))


# ---- learning rates


def over_rates(study: Study, baseline: Baseline) -> list[Contrast]:
    """Compare arms that were trained at the same learning rates: the largest that trains, and the sensitivity."""
    tried, found = tried_rates(study), []
    for one, other in permutations(tried, 2):
        if other.arm.settings == {**one.arm.settings, **baseline} and [*other.by_rate] == [*one.by_rate]:
            seeds = len({run.seed for arm in (*one.by_rate.values(), *other.by_rate.values()) for run in arm.runs})
            about = {"arm": one.arm, "baseline": other.arm, "factor": LEARNING_RATE, "metric": loss_on("val")}
            about |= {"levels": tuple(one.by_rate), "tried": seeds}
            found.append(contrast(one.largest, other.largest, kind="rate", **about))
            found.append(contrast(one.sensitivity, other.sensitivity, kind="sensitivity", **about))
    return found


# ---- sentences


def said(found: Sequence[Contrast]) -> list[str]:
    """Return what contrasts show, those of a kind together, the largest first; nothing where each has one seed."""
    ordered = sorted((one for one in found if one.n > 1), key=lambda one: (not one.real, -abs(one.mean)))
    sentences = list[str]()
    for kind in STEPS:
        shown = [one for one in ordered if one.found and one.kind == kind]
        sentences += at_most(paragraphs("designs.jinja", "found", shown), MOST)
    return [*sentences, *paragraphs("designs.jinja", "open", [one for one in ordered if not one.found])]
