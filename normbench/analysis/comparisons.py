"""Each arm against its baseline, seed by seed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from normbench.analysis.measures import Metric, final, known, loss_on
from normbench.analysis.power import ALPHA, detectable_difference
from normbench.analysis.records import Arm, Run, Study, setting
from normbench.analysis.statistics import Interval, PairedDifference, holm, paired_difference
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


@dataclass(frozen=True)
class Baseline:
    """Settings that the arm on the other side of a comparison has; in all others it is like the arm itself."""

    settings: Mapping[str, Any]

    def name(self) -> str:
        """Such as `layernorm · pre`."""
        return Arm(self.settings, ()).name

    def has(self, arm: Arm) -> bool:
        """Whether an arm is such a one."""
        return all(arm.settings.get(key) == value for key, value in self.settings.items())

    def partner(self, arm: Arm, arms: Sequence[Arm]) -> Arm | None:
        """The arm with which one is compared; None where there is none."""
        wanted = {**arm.settings, **self.settings}
        return next((other for other in arms if dict(other.settings) == wanted and other is not arm), None)


@dataclass(frozen=True)
class Comparison:
    """One arm less its baseline in a metric's unit, over the seeds that finished in both.

    paired: None without such a seed. corrected: p after Holm. detectable: the smallest difference that would have been
    found four times in five, Holm included. family: over how many comparisons Holm corrects.
    """

    arm: Arm
    baseline: Arm
    metric: Metric
    paired: PairedDifference | None
    corrected: float | None = None
    detectable: float | None = None
    family: int = 1

    @property
    def n(self) -> int:
        """Number of pairs."""
        return self.paired.n if self.paired else 0

    @property
    def runs(self) -> tuple[Run, ...]:
        """Of both arms."""
        return (*self.arm.runs, *self.baseline.runs)

    @property
    def seeds(self) -> set[int]:
        """All that were tried in either arm."""
        return {run.seed for run in self.runs}

    @property
    def survived(self) -> bool:
        """Whether the pairs are what is left where other seeds were lost."""
        paired = self.paired.seeds if self.paired else ()
        return any(run.status in LOST and run.seed not in paired for run in self.runs)

    @property
    def interval(self) -> Interval | None:
        """At 95 %, from two seeds on that do not all differ by the same."""
        return self.paired.interval if self.paired else None

    @property
    def real(self) -> bool:
        """Whether it may be called a difference."""
        return self.corrected is not None and self.corrected < ALPHA

    @property
    def possible(self) -> bool:
        """Whether it would be called a difference, were it the only comparison."""
        return not self.real and self.paired is not None and self.paired.p is not None and self.paired.p < ALPHA

    @property
    def better(self) -> bool:
        """Whether the arm's mean is the better one."""
        return self.paired is not None and (self.paired.mean < 0) == self.metric.lower_is_better


# ---- the baseline


def usual_baseline(study: Study) -> Baseline:
    """layernorm and pre, as far as they vary and are there; else what the first arm has."""
    usual = {key: value for key, value in USUAL.items() if any(arm.settings.get(key) == value for arm in study.arms)}
    for settings in (usual, *({key: value} for key, value in usual.items())):  # both may be there, and not together
        if settings and any(Baseline(settings).has(arm) for arm in study.arms):
            return Baseline(settings)
    first = study.arms[0].settings
    groups = {key: value for key, value in first.items() if key in GROUPS}
    return Baseline(groups or dict(list(first.items())[:1]))


def given_baseline(study: Study, words: str) -> Baseline:
    """The baseline that words name: `norm=layernorm placement=pre`, or an arm's options alone (`layernorm pre`).

    Raises:
        UsageError: no arm has it.
    """
    if not study.varied:
        raise UsageError(f"--baseline {words}: all runs are of one arm, so leave it out")
    return Baseline(settings_of(study, words, "--baseline "))


def chosen_arm(study: Study, words: str) -> Arm:
    """The one arm that words name, as `given_baseline` reads them.

    Raises:
        UsageError: no arm has it, or several have.
    """
    wanted = Baseline(settings_of(study, words))
    found = [arm for arm in study.arms if wanted.has(arm)]
    if len(found) != 1:
        raise UsageError(f"{words} names {len(found)} arms: say which of {shortened([arm.name for arm in found])}")
    return found[0]


def settings_of(study: Study, words: str, flag: str = "") -> dict[str, Any]:
    """The settings that words name; `flag` begins the complaint.

    Raises:
        UsageError: no arm has them.
    """
    if whole := next((arm for arm in study.arms if words.strip() == arm.name), None):
        return dict(whole.settings)
    settings: dict[str, Any] = {}
    for word in WORD.findall(words):
        settings |= named(study, word, flag)
    if not settings or not any(Baseline(settings).has(arm) for arm in study.arms):
        names = [arm.name for arm in study.arms]
        raise UsageError(f"{flag}{words} is no arm: {nearest(words, names)}allowed are {shortened(names)}")
    return settings


def named(study: Study, word: str, flag: str = "") -> dict[str, Any]:
    """The setting that a word names, with the value that arms have; nothing, where all runs have it.

    Raises:
        UsageError: no arm has it.
    """
    key, equals, value = word.rpartition("=")
    for varied in study.varied:
        if not equals or key in (varied, varied.rpartition(".")[2]):
            for had in dict.fromkeys(arm.settings[varied] for arm in study.arms):
                if same(had, value):
                    return {varied: had}
    keys = [varied for varied in study.varied if not equals or key in (varied, varied.rpartition(".")[2])]
    if not keys and all(same(setting(run, key), value) for run in study.runs):
        return {}
    values = list(dict.fromkeys(str(arm.settings[varied]) for varied in keys for arm in study.arms))
    if not keys:
        value, values = key, [varied for varied in study.varied]
    raise UsageError(f"{flag}{word} is no arm: {nearest(value, values)}allowed are {shortened(values)}")


def same(had: Any, written: str) -> bool:
    """Whether a written value is the one an arm has."""
    if str(had) == written:
        return True
    try:
        return float(had) == float(written)
    except (TypeError, ValueError):
        return False


def shortened(names: Sequence[str], most: int = 12) -> str:
    """Names in a row, the first ones where there are many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# ---- who is compared


def contenders(study: Study, baseline: Baseline) -> tuple[tuple[Arm, ...], bool]:
    """The arms that are compared, and whether a learning rate was chosen for each.

    Where several rates were tried for the same arm, it is the one at the best of them (`best_rate`); unless rates are
    themselves what is compared.
    """
    if LEARNING_RATE in baseline.settings or not (families := rate_families(study)):
        return study.arms, False
    return tuple(without_rate(best_rate(family)) for family in families), True


def rate_families(study: Study) -> tuple[tuple[Arm, ...], ...]:
    """The arms that differ in nothing but the learning rate; none where it is not what varies, or all that does."""
    others = [key for key in study.varied if key != LEARNING_RATE]
    if LEARNING_RATE not in study.varied or not others:
        return ()
    families: dict[tuple[Any, ...], list[Arm]] = {}
    for arm in study.arms:
        families.setdefault(tuple(arm.settings[key] for key in others), []).append(arm)
    return tuple(map(tuple, families.values()))


def best_rate(family: Sequence[Arm]) -> Arm:
    """The arm with the fewest lost runs, then the best mean validation loss, of one arm at several learning rates.

    Over the seeds that have ended at every rate, so that no rate loses (or wins) by what has not run yet.
    """
    tried = [arm for arm in family if settled_seeds(arm)] or list(family)
    common = set[int].intersection(*map(settled_seeds, tried))
    return min(tried, key=lambda arm: badness(arm, common or settled_seeds(arm)))


def settled_seeds(arm: Arm) -> set[int]:
    """The seeds that have ended, with a result or without one."""
    return {run.seed for run in arm.runs if run.status in SETTLED}


def badness(arm: Arm, seeds: set[int]) -> tuple[float, float]:
    """What chooses a learning rate, over some seeds: the share of runs that were lost, then the mean loss (nats)."""
    runs = [run for run in arm.runs if run.seed in seeds and run.status in SETTLED]
    losses = known(final(run, loss_on("val")) for run in runs)
    return 1 - len(losses) / max(len(runs), 1), sum(losses) / len(losses) if losses else math.inf


def without_rate(arm: Arm) -> Arm:
    """The arm under the name that it shares with those at other learning rates."""
    return replace(arm, settings={key: value for key, value in arm.settings.items() if key != LEARNING_RATE})


# ---- the comparisons


def compare_all(arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> tuple[Comparison, ...]:
    """Every arm that has a partner with it; p corrected over all of them after Holm."""
    pairs = [(arm, partner) for arm in arms if (partner := baseline.partner(arm, arms)) is not None]
    found = [compared(arm, partner, metric) for arm, partner in pairs]
    corrected, family = corrected_over([one.paired for one in found])
    return tuple(
        replace(one, corrected=p, detectable=detectable(one, family), family=family)
        for one, p in zip(found, corrected, strict=True)
    )


def corrected_over(differences: Sequence[PairedDifference | None]) -> tuple[list[float | None], int]:
    """The p values of a family after Holm, and how many count towards it.

    Differences that are all the same have no p and count all the same: that they are is chance, too.
    """
    counted = [(1.0 if one.p is None else one.p) if one and one.n > 1 else None for one in differences]
    corrected = [p if one and one.p is not None else None for one, p in zip(differences, holm(counted), strict=True)]
    return corrected, max(sum(p is not None for p in counted), 1)


def compared(arm: Arm, baseline: Arm, metric: Metric) -> Comparison:
    """Two arms, paired by seed."""
    ours, theirs = by_seed(arm.runs, metric), by_seed(baseline.runs, metric)
    paired = paired_difference(ours, theirs) if ours.keys() & theirs.keys() else None
    return Comparison(arm, baseline, metric, paired)


def detectable(one: Comparison, family: int) -> float | None:
    """The smallest difference that so many seeds would have shown, as one of so many comparisons."""
    if one.paired is None or not one.paired.sd:
        return None
    return detectable_difference(one.paired.n, one.paired.sd, family=family)


def by_seed(runs: Sequence[Run], metric: Metric) -> dict[int, float]:
    """The last values of the runs that finished; of several with one seed their mean."""
    found: dict[int, list[float]] = {}
    for run in runs:
        value = final(run, metric)
        if math.isfinite(value):
            found.setdefault(run.seed, []).append(value)
    return {seed: sum(values) / len(values) for seed, values in found.items()}
