"""Each arm against its baseline, seed by seed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pandas as pd

from normbench.analysis.measures import Metric, final, known, loss_on
from normbench.analysis.records import LEARNING_RATE, Arm, Run, Study, number, read_studies, shortened
from normbench.analysis.statistics import ALPHA, Sample, detectable_difference, holm, paired_difference
from normbench.config.groups import GROUPS
from normbench.errors import UsageError
from normbench.settings import nearest

# One of the words that name an arm, as they stand in its name: a list in brackets is one, with its commas.
WORD = re.compile(r"(?:\[[^\]]*\]|[^\s,·\[])+")

# Against what arms are compared where a person says nothing and the study has it.
USUAL = {"norm": "layernorm", "placement": "pre"}

LOST = ("diverged", "failed", "out_of_memory")  # what leaves a run without a result
SETTLED = ("finished", "diverged", "out_of_memory")  # what a run ends as however often it is tried
ENDS = ("finished", *LOST)
FEWEST = 3  # seeds from which on it may be said that arms do not differ by more than so much

# The settings that the arm on the other side of a comparison has; in all others it is like the arm itself.
Baseline = dict[str, Any]


@dataclass(frozen=True)
class Compared(Sample):
    """What is found of an arm less what is found of its baseline, seed by seed.

    corrected: p after Holm, and for learning rates that one of the two had more of. family: over how many comparisons
    Holm corrects.
    """

    arm: Arm
    baseline: Arm
    metric: Metric
    corrected: float | None = None
    family: int = 1

    @property
    def tried(self) -> set[int]:
        """Return all seeds of either arm."""
        return {run.seed for arm in (self.arm, self.baseline) for run in arm.runs}

    @property
    def real(self) -> bool:
        """Say whether it may be called a difference."""
        return self.corrected is not None and self.corrected < ALPHA


@dataclass(frozen=True)
class Comparison(Compared):
    """One arm less its baseline in a metric's unit, over the seeds that finished in both."""

    @property
    def detectable(self) -> float | None:
        """Return the smallest difference that would have been found four times in five, Holm included."""
        return detectable_difference(self.n, self.sd, family=self.family) if self.sd else None

    @property
    def survived(self) -> bool:
        """Say whether the pairs are what is left where other seeds were lost."""
        runs = (*self.arm.runs, *self.baseline.runs)
        return any(run.status in LOST and run.seed not in self.seeds for run in runs)

    @property
    def lost(self) -> tuple[set[int], set[int]]:
        """Return the seeds that the arm and the baseline lost, of those that have ended in both."""
        ends = [{run.seed: run.status for run in arm.runs if run.status in ENDS} for arm in (self.arm, self.baseline)]
        ours, theirs = ({seed for seed in ends[0].keys() & ends[1].keys() if own[seed] in LOST} for own in ends)
        return ours, theirs

    @property
    def flattered(self) -> bool:
        """Say whether the side that looks better has lost more runs: its best seeds alone are then compared."""
        ours, theirs = map(len, self.lost)
        return ours != theirs and self.better == (ours > theirs)

    @property
    def ranked_p(self) -> float | None:
        """Return the p of the signed-rank test in which a lost run ranks behind all others."""
        ours, theirs = self.lost
        worst = math.inf if self.metric.lower_is_better else -math.inf
        values = (*self.values, *[worst] * len(ours - theirs), *[-worst] * len(theirs - ours))
        return replace(self, values=values).wilcoxon_p

    @property
    def trained(self) -> bool:
        """Say whether both arms trained."""
        return self.arm.trained and self.baseline.trained

    @property
    def real(self) -> bool:
        """Say whether it may be called a difference."""
        return super().real and self.trained and not self.flattered

    @property
    def better(self) -> bool:
        """Say whether the arm's mean is the better one."""
        return (self.mean < 0) == self.metric.lower_is_better

    @property
    def word(self) -> str:
        """Return what the arm is, compared with its baseline."""
        return ("better than" if self.better else "worse than") if self.metric.judges else "different from"

    def verdict(self, margin: float | None = None) -> str:
        """Return what can be said of it: the name of a sentence in sentences.jinja.

        margin: in the metric's unit; differences within it do not matter.
        """
        if not self.trained:
            return "untrained"
        if self.n < 2:
            return "one_seed" if self.n else "no_seed"
        if self.flattered and (self.p is None or self.p < ALPHA):
            return "flattered"
        if self.interval is None or self.p is None:
            return "constant" if self.mean else "same"
        if self.p < ALPHA:
            return "different" if self.real else "possible"
        if self.n < FEWEST:
            return "unknown"
        if margin is not None and self.interval.reach <= margin:
            return "within"
        values = known(final(run, self.metric) for arm in (self.arm, self.baseline) for run in arm.runs)
        return "unknown" if self.interval.reach > max(values) - min(values) else "alike"


def compare_all(arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> tuple[Comparison, ...]:
    """Compare every arm that has a partner with it; p is corrected over all of them after Holm.

    baseline: in these settings the partner differs from the arm; in all others it is its like.
    """
    pairs = [(arm, other) for arm in arms if (other := partner(arm, arms, baseline)) and other is not arm]
    found = [paired_difference(*(by_seed(arm.runs, lambda run: final(run, metric)) for arm in pair)) for pair in pairs]
    corrected, family = corrected_over(found, [1 + abs(arm.rates - other.rates) for arm, other in pairs])
    rows = zip(pairs, found, corrected, strict=True)
    return tuple(Comparison(one.values, one.resolution, one.seeds, *pair, metric, p, family) for pair, one, p in rows)


def partner(arm: Arm, arms: Sequence[Arm], baseline: Baseline) -> Arm | None:
    """Return which of some arms another one is compared with: the baseline's settings, and else its own."""
    wanted = {**arm.settings, **baseline}.items()
    return next((other for other in arms if other.settings.items() <= wanted), None)


def corrected_over(differences: Sequence[Sample], choices: Iterable[int] = repeat(1)) -> tuple[list[float | None], int]:
    """Return the p values of a family after Holm, and how many count towards it.

    Differences that are all the same have no p and count all the same: that they are is chance, too. choices: among
    how many tests each was chosen, with which its p is first multiplied (Bonferroni).
    """
    tests = zip(differences, choices, strict=False)
    counted = [min(1.0, number * (1.0 if one.p is None else one.p)) if one.n > 1 else None for one, number in tests]
    corrected = [p if one.p is not None else None for one, p in zip(differences, holm(counted), strict=True)]
    return corrected, max(sum(p is not None for p in counted), 1)


def by_seed(runs: Sequence[Run], measure: Callable[[Run], float]) -> dict[int, float]:
    """Return what is measured of runs, where it is not NaN; of several with one seed their mean."""
    found = pd.Series([measure(run) for run in runs], [run.seed for run in runs], dtype=float)
    return found.groupby(level=0).mean().dropna().to_dict()


# ---- the baseline


def usual_baseline(study: Study) -> Baseline:
    """Return layernorm and pre, or what is there of it; else what the first arm has."""
    first = study.arms[0].settings
    groups = {key: value for key, value in first.items() if key in GROUPS}
    usual = (USUAL, *({key: value} for key, value in USUAL.items()), groups, dict([*first.items()][:1]))
    return next((dict(one) for one in usual if one and any(arm.has(one) for arm in study.arms)), {})


def given_baseline(study: Study, words: str, flag: str = "--baseline ") -> Baseline:
    """Return the settings that words name: `norm=layernorm placement=pre`, or an arm's options alone.

    flag: begins the complaint.

    Raises:
        UsageError: no arm has them.
    """
    if len(study.arms) == 1:
        raise UsageError(f"{flag}{words} chooses among arms, and all these runs are of one: give other folders")
    known: dict[str, Baseline] = {arm.name: dict(arm.settings) for arm in study.arms}
    for key, value in ((key, value) for arm in study.arms for key, value in arm.settings.items()):
        names = (f"{key}=", f"{key.rpartition('.')[2]}=", "")
        known |= {f"{name}{number(str(value))}": {key: value} for name in names}
    common = [group for group in GROUPS if group not in study.varied]
    known |= {f"{group}={study.runs[0].config.get(group)}": {} for group in common}  # which every arm has
    settings: Baseline = {}
    for word in [words.strip()] if words.strip() in known else WORD.findall(words):
        name, equals, value = word.rpartition("=")
        if (found := known.get(word, known.get(f"{name}{equals}{number(value)}"))) is None:
            raise UsageError(f"{flag}{word} is no arm: {nearest(word, known)}allowed are {shortened([*known])}")
        settings |= found
    if not any(arm.has(settings) for arm in study.arms):
        raise UsageError(f"{flag}{words} is no arm: allowed are {shortened([arm.name for arm in study.arms])}")
    return settings


# ---- two arms


def read_pairs(first: str, second: str, folder: Path) -> list[Study]:
    """Read the two arms that words name, for each task that has both: folders of runs, or arms of runs below `folder`.

    Raises:
        UsageError: in no task; why, of the first one.
    """
    are_folders = all(Path(word).is_dir() for word in (first, second))
    found, errors = [], []
    for study in read_studies([Path(first), Path(second)] if are_folders else [folder]):
        try:
            found.append(pair_of(study, first, second, None if are_folders else folder))
        except UsageError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def pair_of(study: Study, first: str, second: str, folder: Path | None) -> Study:
    """Return the two arms of a study that words name. folder: where they are; none: the words are folders.

    Raises:
        UsageError: a word names no arm or several, or both name the same.
    """
    words, arms = (first, second), []
    for word in words:
        wanted = given_baseline(study, word, flag="") if folder else {}
        place = (folder or Path(word)).resolve()
        inside = ((arm, tuple(r for r in arm.runs if r.path.resolve().is_relative_to(place))) for arm in study.arms)
        found = [Arm(arm.settings, runs) for arm, runs in inside if runs and arm.has(wanted)]
        if len(found) != 1:
            names = shortened([arm.name for arm in found])
            raise UsageError(f"{word} names {len(found)} arms: name one of {names}, with --in FOLDER")
        arms += found
    if {run.path for run in arms[0].runs} & {run.path for run in arms[1].runs}:
        raise UsageError(f"{first} and {second} are the same runs: name two arms")
    if arms[0].name == arms[1].name:  # the same settings in two folders
        arms = [replace(arm, settings={**arm.settings, "in": word}) for arm, word in zip(arms, words, strict=True)]
    return replace(study, arms=tuple(arms))


# ---- learning rates


def contenders(study: Study, baseline: Baseline) -> tuple[tuple[Arm, ...], bool]:
    """Return the arms that are compared, and whether a learning rate was chosen for each.

    Where several rates were tried for the same arm, it is the one at the best of them (`best_rate`); unless rates are
    themselves what is compared.
    """
    if LEARNING_RATE in baseline or not (families := rate_families(study)):
        return study.arms, False
    return tuple(replace(without(best_rate(family), LEARNING_RATE), rates=len(family)) for family in families), True


def rate_families(study: Study) -> tuple[tuple[Arm, ...], ...]:
    """Return the arms that differ in nothing but the learning rate; none where it is not what varies, or all."""
    if LEARNING_RATE not in study.varied or len(study.varied) == 1:
        return ()
    return families_of(study.arms, LEARNING_RATE)


def families_of(arms: Iterable[Arm], *keys: str) -> tuple[tuple[Arm, ...], ...]:
    """Return the arms that differ in nothing but some settings."""
    families: dict[str, list[Arm]] = {}
    for arm in arms:
        families.setdefault(without(arm, *keys).name, []).append(arm)
    return tuple(map(tuple, families.values()))


def best_rate(family: Sequence[Arm]) -> Arm:
    """Return the arm with the fewest lost runs, then the best mean validation loss, of one arm at several rates.

    Over the seeds that have ended at every rate, so that no rate loses (or wins) by what has not run yet.
    """
    tried = [arm for arm in family if settled_seeds(arm)] or list(family)
    common = set[int].intersection(*map(settled_seeds, tried))

    def badness(arm: Arm) -> tuple[float, float]:
        runs = [run for run in arm.runs if run.status in SETTLED and (run.seed in common or not common)]
        losses = known(final(run, loss_on("val")) for run in runs)
        return 1 - len(losses) / max(len(runs), 1), sum(losses) / len(losses) if losses else math.inf

    return min(tried, key=badness)


def settled_seeds(arm: Arm) -> set[int]:
    """Return the seeds that have ended, with a result or without one."""
    return {run.seed for run in arm.runs if run.status in SETTLED}


def without(arm: Arm, *keys: str) -> Arm:
    """Return the arm under the name that it shares with those that have these settings otherwise."""
    return replace(arm, settings={key: value for key, value in arm.settings.items() if key not in keys})
