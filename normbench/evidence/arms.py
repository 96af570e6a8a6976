"""Arms: the runs that differ in nothing but the seed, what they are named by, and which of them are compared."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from normbench.config.rules import short_name
from normbench.config.sections import GROUPS
from normbench.evidence.measures import final_values, loss_on
from normbench.evidence.run import REPEATABLE, RecordedRun
from normbench.settings import drop_keys
from normbench.wording import PYTHON_WORDS

LEARNING_RATE = "optim.lr"
ALL_RUNS = "all runs"  # the name of the arm where nothing varies

# The settings that an arm's partner has in a comparison; in all others it is like the arm.
Baseline = dict[str, Any]

Pair = tuple["Arm", "Arm"]  # an arm and its baseline


@dataclass(frozen=True)
class Arm:
    """The runs that differ in nothing but the seed.

    Attributes:
        settings: its values of the settings that vary in the study.
        runs: by seed.
        rates_tried: among how many learning rates its own was chosen, by the runs that are reported; 1 if it was not.
        called: its name, where it is not named by its settings, as in claims.
    """

    settings: Mapping[str, Any]
    runs: tuple[RecordedRun, ...] = ()
    rates_tried: int = 1
    called: str = ""

    @cached_property
    def name(self) -> str:
        """Name it, such as `rmsnorm · pre`: options by their words, other settings as `lr=0.001`."""
        return self.called or name_arm(self.settings)

    @property
    def seeds(self) -> set[int]:
        """Return the seeds of its runs."""
        return {run.seed for run in self.runs}

    @property
    def finished(self) -> list[RecordedRun]:
        """Return the runs that finished."""
        return [run for run in self.runs if run.status == "finished"]

    @property
    def stuck(self) -> list[RecordedRun]:
        """Return the runs that finished and did not train."""
        return [run for run in self.runs if run.trained is False]

    @property
    def trained(self) -> bool:
        """Tell whether most of its runs trained, of those that finished."""
        return 2 * len(self.stuck) < max(len(self.finished), 1)

    def has(self, settings: Mapping[str, Any]) -> bool:
        """Tell whether it has all of some settings."""
        return all(self.settings.get(key) == value for key, value in settings.items())


def name_arm(settings: Mapping[str, Any]) -> str:
    """Name an arm by its settings: options by their words, others as `lr=0.001`."""
    words = []
    for key, value in settings.items():
        word = PYTHON_WORDS.get(str(value), str(value))
        if key not in GROUPS:
            word = f"{short_name(key)}={word}"
        words.append(word)
    return " · ".join(words) or ALL_RUNS


def sort_key(value: Any) -> tuple[bool, bool, Any]:
    """Return a sort key for values of any kind: none, numbers, then words."""
    is_word = not isinstance(value, int | float)
    return value is not None, is_word, str(value) if is_word else value


def sort_keys(values: Iterable[Any]) -> list[tuple[bool, bool, Any]]:
    """Return a sort key for values of several settings: the first one decides, then the next."""
    return list(map(sort_key, values))


def canonical(text: str) -> str:
    """Return one spelling of a value that can be written in several: 0.001 of 1e-3, True of true."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return {"null": "None", "true": "True", "false": "False"}.get(text, text.replace(" ", ""))


# ---- pairs


def partner(arm: Arm, arms: Sequence[Arm], baseline: Baseline) -> Arm | None:
    """Return the arm that another one is compared with: it has the baseline's settings, and else that arm's own."""
    settings = {**arm.settings, **baseline}
    for other in arms:
        if other.settings.items() <= settings.items():
            return other
    return None


def pairs_of(arms: Sequence[Arm], baseline: Baseline) -> list[Pair]:
    """Return every arm that is compared with another, and that other one."""
    pairs = []
    for arm in arms:
        other = partner(arm, arms, baseline)
        if other is not None and other is not arm:
            pairs.append((arm, other))
    return pairs


# ---- learning rates


def families_of(arms: Iterable[Arm], *keys: str) -> tuple[tuple[Arm, ...], ...]:
    """Return arms in groups that differ only in some settings."""
    families = defaultdict[str, list[Arm]](list)
    for arm in arms:
        name = without_settings(arm, *keys).name
        families[name].append(arm)
    return tuple(map(tuple, families.values()))


def best_rate(family: Sequence[Arm]) -> Arm:
    """Return which of the arms that differ in a rate alone lost the fewest runs, then has the best validation loss.

    Only seeds that have ended at every rate count, so that no rate loses or wins by what has not run yet.
    """
    tried = [arm for arm in family if settled_seeds(arm)] or list(family)
    common = settled_seeds(tried[0])
    for arm in tried[1:]:
        common &= settled_seeds(arm)

    def badness(arm: Arm) -> tuple[float, float]:
        runs = [run for run in arm.runs if run.status in REPEATABLE]
        if common:
            runs = [run for run in runs if run.seed in common]
        losses = final_values(runs, loss_on("val"))
        share_lost = 1 - len(losses) / max(len(runs), 1)
        mean = sum(losses) / len(losses) if losses else math.inf
        return share_lost, mean

    return min(tried, key=badness)


def settled_seeds(arm: Arm) -> set[int]:
    """Return the seeds that have ended, with a result or without one."""
    return {run.seed for run in arm.runs if run.status in REPEATABLE}


def without_settings(arm: Arm, *keys: str) -> Arm:
    """Return an arm without some settings: all arms that differ only in these get the same name."""
    return replace(arm, settings=drop_keys(arm.settings, *keys))
