"""Each arm against its baseline, seed by seed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from normbench.analysis.measures import Metric, final, known, loss_on
from normbench.analysis.records import Arm, Run, Study, setting, shortened
from normbench.analysis.statistics import (
    ALPHA,
    Interval,
    PairedDifference,
    detectable_difference,
    holm,
    paired_difference,
)
from normbench.config.groups import GROUPS
from normbench.errors import UsageError
from normbench.settings import nearest

LEARNING_RATE = "optim.lr"

# One of the words that name an arm, as they stand in its name: a list in brackets is one, with its commas.
WORD = re.compile(r"(?:\[[^\]]*\]|[^\s,·\[])+")

# Against what arms are compared where a person says nothing and the study has it.
USUAL = {"norm": "layernorm", "placement": "pre"}

LOST = ("diverged", "failed", "out_of_memory")  # what leaves a run without a result
SETTLED = ("finished", "diverged", "out_of_memory")  # what a run ends as however often it is tried

# The settings that the arm on the other side of a comparison has; in all others it is like the arm itself.
Baseline = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """One arm less its baseline in a metric's unit, over the seeds that finished in both.

    corrected: p after Holm. detectable: the smallest difference that would have been found four times in five, Holm
    included. family: over how many comparisons Holm corrects.
    """

    arm: Arm
    baseline: Arm
    metric: Metric
    paired: PairedDifference
    corrected: float | None = None
    detectable: float | None = None
    family: int = 1

    @property
    def n(self) -> int:
        """Return the number of pairs."""
        return self.paired.n

    @property
    def interval(self) -> Interval | None:
        """Return that at 95 %, from two seeds on that do not all differ by the same."""
        return self.paired.interval

    @property
    def seeds(self) -> set[int]:
        """Return all that were tried in either arm."""
        return {run.seed for arm in (self.arm, self.baseline) for run in arm.runs}

    @property
    def survived(self) -> bool:
        """Say whether the pairs are what is left where other seeds were lost."""
        runs = (*self.arm.runs, *self.baseline.runs)
        return any(run.status in LOST and run.seed not in self.paired.seeds for run in runs)

    @property
    def real(self) -> bool:
        """Say whether it may be called a difference."""
        return self.corrected is not None and self.corrected < ALPHA

    @property
    def better(self) -> bool:
        """Say whether the arm's mean is the better one."""
        return (self.paired.mean < 0) == self.metric.lower_is_better

    def verdict(self, margin: float | None = None) -> str:
        """Return what can be said of it: the name of a sentence in sentences.jinja.

        margin: in the metric's unit; differences within it do not matter.
        """
        if self.n < 2:
            return "one_seed" if self.n else "no_seed"
        if self.interval is None or self.paired.p is None:
            return "constant" if self.paired.mean else "same"
        if self.paired.p < ALPHA:
            return "different" if self.real else "possible"
        if margin is not None and self.interval.reach <= margin:
            return "within"
        values = known(final(run, self.metric) for arm in (self.arm, self.baseline) for run in arm.runs)
        return "unknown" if self.interval.reach > max(values) - min(values) else "alike"


def compare_all(arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> tuple[Comparison, ...]:
    """Compare every arm that has a partner with it; p is corrected over all of them after Holm.

    baseline: in these settings the partner differs from the arm; in all others it is its like.
    """
    pairs = []
    for arm in arms:
        wanted = {**arm.settings, **baseline}
        pairs += [(arm, other) for other in arms if other.settings == wanted and other is not arm][:1]
    found = [paired_difference(*(by_seed(arm.runs, partial(final, metric=metric)) for arm in pair)) for pair in pairs]
    corrected, family = corrected_over(found)
    detectable = [detectable_difference(one.n, one.sd, family=family) if one.sd else None for one in found]
    rows = zip(pairs, found, corrected, detectable, strict=True)
    return tuple(Comparison(*pair, metric, one, p, least, family) for pair, one, p, least in rows)


def corrected_over(differences: Sequence[PairedDifference]) -> tuple[list[float | None], int]:
    """Return the p values of a family after Holm, and how many count towards it.

    Differences that are all the same have no p and count all the same: that they are is chance, too.
    """
    counted = [(1.0 if one.p is None else one.p) if one.n > 1 else None for one in differences]
    corrected = [p if one.p is not None else None for one, p in zip(differences, holm(counted), strict=True)]
    return corrected, max(sum(p is not None for p in counted), 1)


def by_seed(runs: Sequence[Run], measure: Callable[[Run], float]) -> dict[int, float]:
    """Return what is measured of runs, where it is finite; of several with one seed their mean."""
    found: dict[int, list[float]] = {}
    for run in runs:
        if math.isfinite(value := measure(run)):
            found.setdefault(run.seed, []).append(value)
    return {seed: sum(values) / len(values) for seed, values in found.items()}


# ---- the baseline


def usual_baseline(study: Study) -> Baseline:
    """Return layernorm and pre, or what is there of it; else what the first arm has."""
    first = study.arms[0].settings
    groups = {key: value for key, value in first.items() if key in GROUPS}
    usual = (USUAL, *({key: value} for key, value in USUAL.items()), groups, dict([*first.items()][:1]))
    return next((dict(one) for one in usual if one and any(arm.has(one) for arm in study.arms)), {})


def given_baseline(study: Study, words: str) -> Baseline:
    """Return the baseline that words name: `norm=layernorm placement=pre`, or an arm's options alone.

    Raises:
        UsageError: no arm has it.
    """
    if not study.varied:
        raise UsageError(f"--baseline {words}: all runs are of one arm, so leave it out")
    return settings_of(study, words, "--baseline ")


def chosen_arm(study: Study, words: str) -> Arm:
    """Return the one arm that words name, as `given_baseline` reads them.

    Raises:
        UsageError: no arm has it, or several have.
    """
    wanted = settings_of(study, words)
    found = [arm for arm in study.arms if arm.has(wanted)]
    if len(found) != 1:
        raise UsageError(f"{words} names {len(found)} arms: say which of {shortened([arm.name for arm in found])}")
    return found[0]


def settings_of(study: Study, words: str, flag: str = "") -> dict[str, Any]:
    """Return the settings that words name; `flag` begins the complaint.

    Raises:
        UsageError: no arm has them.
    """
    known: dict[str, dict[str, Any]] = {arm.name: dict(arm.settings) for arm in study.arms}
    for key, value in ((key, value) for arm in study.arms for key, value in arm.settings.items()):
        names = (f"{key}=", f"{key.rpartition('.')[2]}=", "")
        known |= {f"{name}{number(str(value))}": {key: value} for name in names}
    common = [(group, setting(study.runs[0], group)) for group in GROUPS if group not in study.varied]
    known |= {f"{group}={option}": {} for group, option in common}  # which every arm has
    settings: dict[str, Any] = {}
    for word in [words.strip()] if words.strip() in known else WORD.findall(words):
        name, equals, value = word.rpartition("=")
        if (found := known.get(f"{name}{equals}{number(value)}")) is None:
            raise UsageError(f"{flag}{word} is no arm: {nearest(word, known)}allowed are {shortened([*known])}")
        settings |= found
    if not any(arm.has(settings) for arm in study.arms):
        raise UsageError(f"{flag}{words} is no arm: allowed are {shortened([arm.name for arm in study.arms])}")
    return settings


def number(text: str) -> str:
    """Return a number as it is written without need, such as 0.001 for 1e-3; any other text as it is."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


# ---- learning rates


def contenders(study: Study, baseline: Baseline) -> tuple[tuple[Arm, ...], bool]:
    """Return the arms that are compared, and whether a learning rate was chosen for each.

    Where several rates were tried for the same arm, it is the one at the best of them (`best_rate`); unless rates are
    themselves what is compared.
    """
    if LEARNING_RATE in baseline or not (families := rate_families(study)):
        return study.arms, False
    return tuple(without_rate(best_rate(family)) for family in families), True


def rate_families(study: Study) -> tuple[tuple[Arm, ...], ...]:
    """Return the arms that differ in nothing but the learning rate; none where it is not what varies, or all."""
    if LEARNING_RATE not in study.varied or len(study.varied) == 1:
        return ()
    families: dict[str, list[Arm]] = {}
    for arm in study.arms:
        families.setdefault(without_rate(arm).name, []).append(arm)
    return tuple(map(tuple, families.values()))


def best_rate(family: Sequence[Arm]) -> Arm:
    """Return the arm with the fewest lost runs, then the best mean validation loss, of one arm at several rates.

    Over the seeds that have ended at every rate, so that no rate loses (or wins) by what has not run yet.
    """
    tried = [arm for arm in family if settled_seeds(arm)] or list(family)
    common = set[int].intersection(*map(settled_seeds, tried))

    def badness(arm: Arm) -> tuple[float, float]:
        seeds = common or settled_seeds(arm)
        runs = [run for run in arm.runs if run.seed in seeds and run.status in SETTLED]
        losses = known(final(run, loss_on("val")) for run in runs)
        return 1 - len(losses) / max(len(runs), 1), sum(losses) / len(losses) if losses else math.inf

    return min(tried, key=badness)


def settled_seeds(arm: Arm) -> set[int]:
    """Return the seeds that have ended, with a result or without one."""
    return {run.seed for run in arm.runs if run.status in SETTLED}


def without_rate(arm: Arm) -> Arm:
    """Return the arm under the name that it shares with those at other learning rates."""
    return replace(arm, settings={key: value for key, value in arm.settings.items() if key != LEARNING_RATE})
