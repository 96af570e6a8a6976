"""Two arms side by side: what differs between them, and the paired verdict; and how many seeds a difference needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from normbench.analysis.comparisons import Comparison, chosen_arm, compared, detectable, shortened
from normbench.analysis.facts import Finding, in_words
from normbench.analysis.fairness import findings
from normbench.analysis.measures import Metric, measured, yardstick
from normbench.analysis.power import paired_power, sd_upper_limit, seeds_needed
from normbench.analysis.records import ASIDE, Arm, Run, Study, read_study
from normbench.analysis.sentences import compared_words
from normbench.analysis.tabulated import (
    PRIMARY,
    Table,
    differences_table,
    results_table,
    step_times_table,
    transposed,
)
from normbench.analysis.verdict import diverged_words, failed_words
from normbench.analysis.wording import plain
from normbench.config.groups import GROUPS
from normbench.errors import UsageError

# Of a standard deviation of the paired differences: what is planned for where no difference is asked for.
USUAL_SIZES = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Pair:
    """What is said of two arms, the second one the baseline. comparison: in the primary metric."""

    comparison: Comparison
    tables: tuple[Table, ...]
    verdict: tuple[str, ...]
    findings: tuple[Finding, ...]


def read_pair(first: str, second: str, folder: Path) -> tuple[Arm, Arm, Study]:
    """The two arms that words name: folders of runs, or arms of the runs below `folder`.

    Raises:
        UsageError: a word names no arm or several, or both name the same.
    """
    words = (first, second)
    if all(Path(word).is_dir() for word in words):
        study = read_study([Path(word) for word in words])
        arms = [arm_in(study, Path(word)) for word in words]
    else:
        study = read_study([folder])
        arms = arms_named(study, words, folder)
    if {run.path for run in arms[0].runs} & {run.path for run in arms[1].runs}:
        raise UsageError(f"{first} and {second} are the same runs: name two arms")
    if arms[0].name == arms[1].name:  # the same settings in two folders
        arms = [replace(arm, settings={**arm.settings, "in": word}) for arm, word in zip(arms, words, strict=True)]
    return arms[0], arms[1], replace(study, arms=tuple(arms))


def arms_named(study: Study, words: Sequence[str], folder: Path) -> list[Arm]:
    """The arms of a study that words name.

    Raises:
        UsageError: a word names no arm or several, or there is but one.
    """
    if len(study.arms) == 1:
        raise UsageError(f"{folder} holds one arm, and two are compared: give another folder with --in")
    try:
        return [chosen_arm(study, word) for word in words]
    except UsageError as error:
        if folders := [word for word in words if Path(word).is_dir()]:
            (other,) = set(words) - set(folders)
            message = f"{folders[0]} is a folder and {other} is none: give two folders, or two arms below one with --in"
            raise UsageError(message) from error
        raise


def arm_in(study: Study, folder: Path) -> Arm:
    """The one arm of the runs below a folder.

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


def compare(first: Arm, second: Arm, study: Study, margin: float | None = None) -> Pair:
    """What the runs say of the first arm against the second."""
    by = yardstick(study, [second])
    found = [judged(first, second, metric) for metric in by.metrics]
    sentences = [*compared_words(found[:1], margin), *diverged_words(study), *failed_words(study)]
    tables = [results_table(measured(study, by), by)]
    tables += [differences_table([one], one.metric, PRIMARY if one is found[0] else one.metric.tag) for one in found]
    tables += [table] if (table := step_times_table(found[:1])) else []
    return Pair(found[0], tuple(map(transposed, tables)), tuple(sentences), findings(study, comparisons=found[:1]))


def judged(first: Arm, second: Arm, metric: Metric) -> Comparison:
    """The one comparison, which needs no correction."""
    one = compared(first, second, metric)
    return replace(one, corrected=one.paired.p if one.paired else None, detectable=detectable(one, 1))


def differing(first: Arm, second: Arm) -> list[tuple[str, str, str]]:
    """The settings in which the arms differ, groups first: name, what the first has, what the second has."""
    rows = []
    for key in (*GROUPS, *sorted({key for run in (*first.runs, *second.runs) for key in run.config})):
        if key in ASIDE or key.endswith("_target_"):
            continue
        mine, theirs = (shown(arm, key) for arm in (first, second))
        if mine != theirs:
            rows.append((key, mine, theirs))
    return rows


def shown(arm: Arm, key: str) -> str:
    """What the runs of an arm have."""
    values = dict.fromkeys(value_of(run, key) for run in arm.runs)
    return ", ".join(values)


def value_of(run: Run, key: str) -> str:
    """A setting as it is written; a dash where there is none."""
    value = run.choices.get(key) if key in GROUPS else run.config.get(key)
    return "–" if value is None or value == "None" else in_words(value)


# ---- planning


@dataclass(frozen=True)
class Planned:
    """What a difference needs. difference: in the metric's unit. seeds: by the pilot's sd; cautious: by its upper
    80 % limit. found: share of studies of the pilot's size that would find it."""

    difference: float
    seeds: int
    cautious: int
    found: float


def planned(one: Comparison, difference: float | None) -> Iterator[Planned]:
    """How many seeds a difference needs, from the pilot's spread of paired differences; without one, three sizes.

    Raises:
        UsageError: the pilot has fewer than two pairs, or no spread.
    """
    if one.paired is None or one.paired.sd is None:
        raise UsageError(
            f"a plan needs a pilot of two seeds or more in both arms, and {one.n} finished in both: run more seeds"
        )
    sd, n = one.paired.sd, one.paired.n
    if not one.paired.spreads:
        raise UsageError(f"the {n} pairs of the pilot differ by exactly the same: there is no spread to plan with")
    limit = sd_upper_limit(sd, n)
    for size in (difference,) if difference is not None else tuple(share * sd for share in USUAL_SIZES):
        yield Planned(size, seeds_needed(size, sd), seeds_needed(size, limit), paired_power(size, sd, n))


def plan_table(one: Comparison, difference: float | None) -> Table:
    """`planned` as a table."""
    rows = [
        (
            plain(float(f"{item.difference:.2g}") if difference is None else difference),
            f"{item.seeds:,}",
            f"{item.cautious:,}",
            f"{100 * item.found:.0f} %",
        )
        for item in planned(one, difference)
    ]
    assert one.paired is not None
    notes = (
        f"To be found four times in five by a paired t test at 5 %. Pilot: {one.n} seeds, standard deviation of the "
        f"paired differences {plain(float(f'{one.paired.sd:.2g}'))} {one.metric.unit}.",
        "A pilot knows its spread only roughly: with the cautious number the plan holds in four of five cases.",
    )
    columns = (f"difference, {one.metric.unit}", "seeds", "cautious", f"found with {one.n} seeds")
    return Table("plan", "Seeds that a difference needs", notes, columns, tuple(rows), heads=0)
