"""Each arm against its baseline, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from normbench.analysis.measures import Metric, final, known, loss_on
from normbench.analysis.power import ALPHA, detectable_difference
from normbench.analysis.records import Arm, Run, Study, setting
from normbench.analysis.statistics import Interval, PairedDifference, holm, paired_difference
from normbench.catalog import GROUPS
from normbench.config import nearest
from normbench.errors import UsageError

LEARNING_RATE = "optim.lr"

# Against what arms are compared where a person says nothing and the study has it.
USUAL = {"norm": "layernorm", "placement": "pre"}


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

    paired: None without such a seed. unpaired: the seeds that one of them finished alone. corrected: p after Holm over
    the family. detectable: the smallest difference that would have been found four times in five, Holm included.
    """

    arm: Arm
    baseline: Arm
    metric: Metric
    paired: PairedDifference | None
    unpaired: tuple[int, ...]
    corrected: float | None = None
    detectable: float | None = None

    @property
    def n(self) -> int:
        """Number of pairs."""
        return self.paired.n if self.paired else 0

    @property
    def interval(self) -> Interval | None:
        """At 95 %, from two seeds on."""
        return self.paired.interval if self.paired else None

    @property
    def real(self) -> bool:
        """Whether it may be called a difference."""
        return self.corrected is not None and self.corrected < ALPHA

    @property
    def better(self) -> bool:
        """Whether the arm's mean is the better one."""
        return self.paired is not None and (self.paired.mean < 0) == self.metric.lower_is_better


# ---- the baseline


def usual_baseline(study: Study) -> Baseline:
    """layernorm and pre, as far as they vary and are there; else what the first arm has."""
    usual = {key: value for key, value in USUAL.items() if key in study.varied}
    if usual and any(Baseline(usual).has(arm) for arm in study.arms):
        return Baseline(usual)
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
    wanted = Baseline(settings_of(study, words)) if study.varied else Baseline({})
    found = [arm for arm in study.arms if wanted.has(arm)]
    if len(found) != 1:
        raise UsageError(f"{words} names {len(found)} arms: say which of {shortened([arm.name for arm in found])}")
    return found[0]


def settings_of(study: Study, words: str, flag: str = "") -> dict[str, Any]:
    """The settings that words name; `flag` begins the complaint.

    Raises:
        UsageError: no arm has them.
    """
    settings: dict[str, Any] = {}
    for word in words.replace("·", " ").replace(",", " ").split():
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

    Where several rates were tried for the same arm, it is the one with the fewest divergences and then the best mean
    validation loss; unless rates are themselves what is compared.
    """
    others = [key for key in study.varied if key != LEARNING_RATE]
    if LEARNING_RATE not in study.varied or LEARNING_RATE in baseline.settings or not others:
        return study.arms, False
    families: dict[tuple[Any, ...], list[Arm]] = {}
    for arm in study.arms:
        families.setdefault(tuple(arm.settings[key] for key in others), []).append(arm)
    return tuple(without_rate(min(family, key=badness)) for family in families.values()), True


def badness(arm: Arm) -> tuple[float, float]:
    """What chooses a learning rate: the share of runs that did not finish, then the mean validation loss."""
    losses = known(final(run, loss_on("val")) for run in arm.runs)
    unfinished = 1 - len(losses) / len(arm.runs)
    return unfinished, sum(losses) / len(losses) if losses else math.inf


def without_rate(arm: Arm) -> Arm:
    """The arm under the name that it shares with those at other learning rates."""
    return replace(arm, settings={key: value for key, value in arm.settings.items() if key != LEARNING_RATE})


# ---- the comparisons


def compare_all(arms: Sequence[Arm], baseline: Baseline, metric: Metric) -> tuple[Comparison, ...]:
    """Every arm that has a partner with it; p corrected over all of them after Holm."""
    pairs = [(arm, partner) for arm in arms if (partner := baseline.partner(arm, arms)) is not None]
    found = [compared(arm, partner, metric) for arm, partner in pairs]
    corrected = holm([one.paired.p if one.paired else None for one in found])
    family = max(sum(p is not None for p in corrected), 1)
    return tuple(
        replace(one, corrected=p, detectable=detectable(one, family)) for one, p in zip(found, corrected, strict=True)
    )


def compared(arm: Arm, baseline: Arm, metric: Metric) -> Comparison:
    """Two arms, paired by seed."""
    ours, theirs = by_seed(arm.runs, metric), by_seed(baseline.runs, metric)
    paired = paired_difference(ours, theirs) if ours.keys() & theirs.keys() else None
    return Comparison(arm, baseline, metric, paired, tuple(sorted(ours.keys() ^ theirs.keys())))


def detectable(one: Comparison, family: int) -> float | None:
    """The smallest difference that so many seeds would have shown, as one of so many comparisons."""
    if one.paired is None or one.paired.sd is None:
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
