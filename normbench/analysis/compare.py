"""Two arms side by side: what differs between them, and the paired verdict; and how many seeds a difference needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from normbench.analysis.comparisons import Comparison, chosen_arm
from normbench.analysis.fairness import in_words
from normbench.analysis.records import ASIDE, Arm, Study, read_study, setting, shortened
from normbench.analysis.statistics import paired_power, sd_upper_limit, seeds_needed
from normbench.analysis.tables import Table, made
from normbench.analysis.wording import plain
from normbench.config.groups import GROUPS
from normbench.errors import UsageError

# Of a standard deviation of the paired differences: what is planned for where no difference is asked for.
USUAL_SIZES = (0.5, 1.0, 2.0)


def read_pair(first: str, second: str, folder: Path) -> Study:
    """Read the two arms that words name: folders of runs, or arms of the runs below `folder`.

    Raises:
        UsageError: a word names no arm or several, or both name the same.
    """
    words = (first, second)
    if all(Path(word).is_dir() for word in words):
        study = read_study([Path(word) for word in words])
        arms = [arm_in(study, Path(word)) for word in words]
    else:
        study = read_study([folder])
        if len(study.arms) == 1:
            raise UsageError(f"{folder} holds one arm, and two are compared: give another folder with --in")
        arms = [chosen_arm(study, word) for word in words]
    if {run.path for run in arms[0].runs} & {run.path for run in arms[1].runs}:
        raise UsageError(f"{first} and {second} are the same runs: name two arms")
    if arms[0].name == arms[1].name:  # the same settings in two folders
        arms = [replace(arm, settings={**arm.settings, "in": word}) for arm, word in zip(arms, words, strict=True)]
    return replace(study, arms=tuple(arms))


def arm_in(study: Study, folder: Path) -> Arm:
    """Return the one arm of the runs below a folder.

    Raises:
        UsageError: there are several.
    """
    found = []
    for arm in study.arms:
        runs = tuple(run for run in arm.runs if run.path.resolve().is_relative_to(folder.resolve()))
        found += [Arm(arm.settings, runs)] if runs else []
    if len(found) != 1:
        names = shortened([arm.name for arm in found])
        raise UsageError(f"{folder} holds {len(found)} arms ({names}): name two of them, with --in {folder}")
    return found[0]


def settings_table(first: Arm, second: Arm) -> Table:
    """Say in which settings the arms differ, groups first."""
    rows = []
    for key in (*GROUPS, *sorted({key for run in (*first.runs, *second.runs) for key in run.config})):
        values = [values_of(arm, key) for arm in (first, second)]
        if values[0] != values[1] and key not in ASIDE and not key.endswith("_target_"):
            rows.append((key, *values))
    frame = pd.DataFrame(rows, columns=["setting", first.name, second.name])
    return Table("settings", "What differs", frame, () if rows else ("The configurations do not differ.",), heads=3)


def values_of(arm: Arm, key: str) -> str:
    """Write what the runs of an arm have for a setting; a dash where there is none."""
    values = dict.fromkeys(setting(run, key) for run in arm.runs)
    return ", ".join("–" if value is None or value == "None" else in_words(value) for value in values)


# ---- planning


def plan(one: Comparison, difference: float | None) -> Table:
    """Say how many seeds a difference needs, from the pilot's spread of paired differences; without one, three sizes.

    For each: by the pilot's standard deviation; by its upper 80 % limit; and the share of studies of the pilot's size
    that would find it.

    Raises:
        UsageError: the pilot has fewer than two pairs, or no spread.
    """
    n, sd = one.n, one.paired.sd
    if not sd:
        needs = "a plan needs a pilot of two seeds or more in both arms that do not all differ by the same"
        raise UsageError(f"{needs}, and {n} finished in both: run more seeds")
    sizes = [share * sd for share in USUAL_SIZES] if difference is None else [difference]
    rows = [
        {
            f"difference, {one.metric.unit}": plain(float(f"{size:.3g}")),
            "seeds": f"{seeds_needed(size, sd):,}",
            "cautious": f"{seeds_needed(size, sd_upper_limit(sd, n)):,}",
            f"found with {n} seeds": f"{100 * paired_power(size, sd, n):.0f} %",
        }
        for size in sizes
    ]
    return made("plan", "Seeds that a difference needs", rows, heads=0, n=n, sd=sd, unit=one.metric.unit)
