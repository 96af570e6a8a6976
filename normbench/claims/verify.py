"""Verifies claims: whether what a folder says of them follows from its runs, and from the claims as registered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from normbench.claims.checks import PlannedPoint, is_in_blocks, plan_points, seed_word, study_of
from normbench.claims.claim import Claim
from normbench.claims.files import (
    ALTERED,
    CLAIM_FILE,
    CheckedResult,
    check_result,
    find_differences,
    is_digested,
    to_json,
)
from normbench.claims.measuring import Measured, as_word, fits
from normbench.claims.registering import name_run, read_runs
from normbench.claims.registration import (
    OUTSIDE,
    WORDS_ALONE,
    covered_by,
    digest_of,
    registrations_of,
    why_unregistered,
)
from normbench.claims.run import ClaimRun, block_name, describe
from normbench.claims.suite import is_of_machine
from normbench.config.schema import list_unwritten
from normbench.errors import UsageError
from normbench.evidence.arms import LEARNING_RATE, canonical
from normbench.evidence.run import read_run
from normbench.evidence.study import ASIDE
from normbench.record.directory import RunDirectory
from normbench.record.forms import DIGESTS
from normbench.results.claimed import ClaimResult, Status, judge
from normbench.results.rules import Verdict
from normbench.settings import drop_keys
from normbench.sweep.folder import Entry, SweepFolder
from normbench.sweep.words import settings_in

LENGTH, STEPS = "trainer.epochs", "trainer.steps"  # of epochs a run keeps the steps alone
ROUNDED = 0.005  # of minutes in claim.json, which have two decimals
ONE_DAY = timedelta(days=1)  # between dates of one moment in two places
ArmKey = tuple[tuple[str, str], ...]  # the settings of an arm and their values, sorted


JUDGING = "normbench"  # the version that judged, among what is noted of the machine

# What of claim.json no run tells, with the reason; verification compares all else, of whatever name.
NOT_COMPARED = {
    "claim.at_scale": "its words are in the digest of the registration",
    "minutes": "it is no more than what is noted beside the runs",
    "date": "it is a day from the registration on, wherever either was",
    "words": "those of the machine differ; all others are compared",
    f"machine.{JUDGING}": "it is the version that judged",
    "registered": "it is any day on which the same was registered",
}


def list_not_compared(scheme: int) -> dict[str, str]:
    """Return what of claim.json is not compared, where a claim is registered in a scheme."""
    beside = {f"claim.{key}": "it is said beside the claim, and decides nothing" for key in OUTSIDE[scheme]}
    return {**beside, **NOT_COMPARED}


BY_RUNS = "by its runs "  # begins what is told of a value that runs give otherwise
LATER_FIELDS = ("unreached", "worth", "tuning", "commits", "cells")  # which results of before 2026-11-28 to 30 lack


@dataclass(frozen=True)
class Verification:
    """What verification has found of one claim.

    Attributes:
        wrong: a phrase for each thing; empty where all is right.
        undigested: what was made before records had digests, so that nothing tells whether it was changed.
        changed: in which settings its words ask for other runs now than when it was registered; empty for none.
    """

    name: str
    verdict: str
    wrong: Sequence[str]
    undigested: Sequence[str] = ()
    changed: str = ""


def verify(runs: Iterable[ClaimRun]) -> Iterator[Verification]:
    """Verify claims, each by its claim.json and its runs, and yield what is found of each at once.

    Args:
        runs: the claims, whose folders are those that are verified.
    """
    for run in runs:
        path = run.folder / CLAIM_FILE
        undigested = [] if is_digested(path) else [CLAIM_FILE]
        yield verify_file(run, path, undigested, partial(find_wrong, run, undigested=undigested))


def verify_published(runs: Iterable[ClaimRun], folder: Path) -> Iterator[Verification]:
    """Verify claims by what is published of them alone, NAME.json in a folder, and yield what is found of each.

    All that follows from the values by seed is computed again; the runs from which these follow are not there.

    Args:
        runs: the claims.
        folder: of the files.
    """
    for run in runs:
        path = folder / f"{run.claim.name}.json"
        undigested = [] if is_digested(path) else [path.name]
        yield verify_file(run, path, undigested, partial(find_wrong_without_runs, run))


def verify_file(
    one: ClaimRun, path: Path, undigested: list[str], find: Callable[[CheckedResult], list[str]]
) -> Verification:
    """Return what is found of a claim by a file with its result.

    Args:
        one: the claim.
        path: of the file.
        undigested: what was made before records had digests, to which `find` may add.
        find: returns what is wrong with the result, besides what contradicts itself.
    """
    try:
        checked = check_result(path)
    except ValueError as error:
        return Verification(one.claim.name, "", [str(error)])
    wrong = [f"{path} {ALTERED}"] if checked.is_altered else []
    if not checked.can_be_judged:
        return Verification(one.claim.name, "", [*wrong, *checked.faults])
    judgement = checked.result.judgement
    verdict = str(checked.result.status if judgement is None else judgement.verdict)
    changed = ""
    try:
        found = find(checked)
        changed = one.tell_changes()
    except (UsageError, OSError) as error:
        found = [str(error)]
    told = {phrase.removeprefix(BY_RUNS) for phrase in found}
    wrong += [f"by its values and its claim {fault}" for fault in checked.faults if fault not in told]
    return Verification(one.claim.name, verdict, [*wrong, *found], undigested, changed)


def find_wrong(one: ClaimRun, checked: CheckedResult, undigested: list[str]) -> list[str]:
    """Return what is wrong with the result of a claim; empty where it follows from the runs.

    The runs are measured and judged again by what had measured and judged them, and all that comes out is compared.

    Args:
        one: the claim.
        checked: its result.
        undigested: to which is added what of the runs was made before records had digests.

    Raises:
        UsageError, OSError: the runs do not fit the claim, or cannot be read.
    """
    claim, result = one.claim, checked.result
    wrong = find_other_registrations(one, result)
    if result.status is not Status.COMPLETE or result.judgement is None:
        return [*wrong, f"it is {result.status}: {result.reason}"]
    if wrong:
        return wrong
    seeds = sorted(result.values)
    if seeds not in claim.looks:
        wrong.append(f"its seeds are {', '.join(map(str, seeds))}, and not the first {claim.seeds[-1]} of the claim")
        return wrong
    measured, not_ours = measure_again(one, seeds)
    undigested += measured.undigested
    again = one.gather_result(measured, seeds)
    wrong += not_ours
    wrong += measured.missing
    if again.status is Status.UNCOMMITTED:
        wrong.append(again.reason)
    machines = [describe(session) for session in measured.sessions]
    wrong += compare_results(checked.content, again, machines, list_not_compared(claim.scheme))
    wrong += check_notes(one, result)
    return wrong or check_looks(claim, result.judgement.verdict, result.values)


def compare_results(
    written: Mapping[str, Any],
    again: ClaimResult,
    machines: Sequence[Mapping[str, Any]],
    not_compared: Iterable[str],
) -> list[str]:
    """Return in what a result differs from what its runs give, field by field.

    Args:
        written: what claim.json holds.
        again: as it comes out again.
        machines: on which the runs were made, one of which the result names; empty where that was not noted.
        not_compared: paths of what no run tells.
    """
    before, now = drop_keys(to_json(written), DIGESTS), to_json(again.as_record())
    if again.judgement is None:  # a run is missing, or of uncommitted code, which is said already
        for key in ("status", "reason", "judgement"):
            before[key] = now[key] = None
    for key in LATER_FIELDS:
        if before.get(key) is None:
            before[key] = now[key] = None
    before["machine"].pop(JUDGING, None)
    others = [drop_keys(machine, JUDGING) for machine in machines]
    if others:
        now["machine"] = before["machine"] if before["machine"] in others else others[0]
    else:
        now["machine"] = before["machine"]
        now["commits"] = before["commits"]
    for path in not_compared:
        *sections, key = path.split(".")
        for content in (before, now):
            for section in sections:
                content = content[section]
            content.pop(key, None)
    return [f"{BY_RUNS}{phrase}" for phrase in find_differences(before, now)]


def find_wrong_without_runs(one: ClaimRun, checked: CheckedResult) -> list[str]:
    """Return what is wrong with the published result of a claim, besides what contradicts itself.

    It is to be of a registration of the claim; where that is the last one, it is to have its words, seeds and looks.
    """
    claim, result = one.claim, checked.result
    noted = [registration for registration in registrations_of(claim) if registration.digest == result.digest]
    if not noted:
        return [f"no registration of {claim.name} has the digest {result.digest[:12]}… of its result"]
    wrong = check_days(claim, result)
    if result.digest != claim.digest:  # of an earlier registration, and struck out
        is_whole = noted[0].scheme == WORDS_ALONE and not result.claim.get("runs_of")
        if is_whole and digest_of(result.claim, WORDS_ALONE) != result.digest:
            wrong.append(f"its claim is not what was registered on {noted[0].date}")
        return wrong
    unregistered = why_unregistered(claim)
    if unregistered:
        wrong.append(unregistered)
    before, now = covered_by(result.claim, claim.scheme), covered_by(claim.content, claim.scheme)
    wrong += [f"by the registration {phrase}" for phrase in find_differences(to_json(before), to_json(now), "claim")]
    if result.judgement is None:
        return wrong
    if sorted(result.values) not in claim.looks:
        seeds = ", ".join(map(str, sorted(result.values)))
        wrong.append(f"its seeds are {seeds}, and not the first {claim.seeds[-1]} of the claim")
    missing = [word for word in claim.words if word not in result.words]
    if missing:
        wrong.append(f"words are not those of the claim: {' '.join(missing)} is missing")
    return wrong or check_looks(claim, result.judgement.verdict, result.values)


def check_days(claim: Claim, result: ClaimResult) -> list[str]:
    """Return what is wrong with the days of a result, which is of a registration of the claim."""
    wrong = []
    days = [noted.date for noted in registrations_of(claim) if noted.digest == result.digest]
    if result.registered not in days:
        wrong.append(f"registered is {result.registered}, on which the claim was not registered as it is")
    day = read_day(result.date)
    first = read_day(min(days))
    if day is None or (first is not None and day < first - ONE_DAY) or day > date.today() + ONE_DAY:
        wrong.append(f"date is {result.date}, and not a day from its registration to today")
    return wrong


def check_notes(one: ClaimRun, result: ClaimResult) -> list[str]:
    """Return what is wrong with what of a result no run tells: its days, its minutes, its words."""
    wrong = check_days(one.claim, result)
    noted = one.read_note().minutes
    if result.minutes is None or not 0 <= result.minutes <= noted + ROUNDED:
        wrong.append(f"minutes is {result.minutes}, where {noted:.2f} are noted beside its runs")
    given = [word for word in result.words if not is_of_machine(word)]
    planned = [word for word in one.words(sorted(result.values)) if not is_of_machine(word)]
    if given != planned:
        differing = [word for word in given if word not in planned] or [word for word in planned if word not in given]
        wrong.append(f"words are not those of the claim: {' '.join(differing) or 'another order'}")
    return wrong


def find_other_registrations(one: ClaimRun, result: ClaimResult) -> list[str]:
    """Return in what a claim, its result and its runs do not belong to one registration."""
    wrong = []
    unregistered = why_unregistered(one.claim)
    if unregistered:
        wrong.append(unregistered)
    if result.digest != one.claim.digest:
        wrong.append(f"it was judged by another registration, of {result.registered}")
    if one.read_note().digest != one.owner.digest:
        wrong.append("its runs were made for another registration")
    return wrong


def read_day(text: str) -> date | None:
    """Return the day that a text such as 2026-11-28 names; None for any other."""
    with suppress(ValueError):
        return date.fromisoformat(text)
    return None


def check_looks(claim: Claim, verdict: Verdict, values: Mapping[int, float]) -> list[str]:
    """Return in what the look at which a verdict was given does not follow from the effects by seed."""
    wrong = []
    first, last = claim.seeds[0], claim.seeds[-1]
    if len(values) > first:
        first_values = {seed: values[seed] for seed in sorted(values)[:first]}
        early = judge(first_values, claim.rule).verdict
        if early is not Verdict.INCONCLUSIVE:
            wrong.append(f"it was {early} after {first} seeds, and was not to go on")
    if verdict is Verdict.INCONCLUSIVE and len(values) < last:
        wrong.append(f"it is inconclusive after {len(values)} seeds, and was to go on to {last}")
    return wrong


def measure_again(one: ClaimRun, seeds: Sequence[int]) -> tuple[Measured, list[str]]:
    """Return what the runs of a claim have measured, from what they have logged, and which are not the claim's.

    A run that was changed after it had ended is among what is missing.
    """
    kind = study_of(one.owner)
    if kind is None:
        entries = SweepFolder(one.runs_folder).read_plans()
        points = registered_points(one, plan_points(one.owner, None, [*one.owner.words, seed_word(seeds)]))
        chosen = (LEARNING_RATE,) if "sweep.lr" in settings_in(one.owner.words) else ()
        wrong = find_mislabelled(one.runs_folder, entries, points, chosen)
        wrong += find_unplanned(points, entries, seeds)
        return one.measure_sweep(entries, seeds, recompute=True), wrong
    if is_in_blocks(kind):
        missing = []
        for number in seeds:
            if not one.rows_file(one.runs_folder / block_name(number)).exists():
                missing.append(f"the rows of process {number} are missing")
        return one.measure_blocks(seeds), missing
    return one.measure_study(seeds), []


def registered_points(one: ClaimRun, points: Sequence[PlannedPoint]) -> list[PlannedPoint]:
    """Return planned runs with the settings that were registered for them, where any were."""
    registered = read_runs(one.owner, one.way.at_scale) or {}
    settled = []
    for point in points:
        settled.append(replace(point, settings=registered.get(name_run(point.varied), point.settings)))
    return settled


def find_mislabelled(
    folder: Path, entries: Sequence[Entry], points: Sequence[PlannedPoint], chosen: Sequence[str] = ()
) -> list[str]:
    """Return which runs have another seed, or other settings, than those for which they were planned.

    Args:
        folder: of the runs.
        entries: which runs there are, as the folder has it.
        points: which runs there are to be, as the words of the claim have it.
        chosen: settings that the sweep has chosen.
    """
    asked = index_points(points)
    wrong = []
    for entry in entries:
        try:
            run = read_run(RunDirectory(folder / entry.run), entry.run)
        except (ValueError, OSError):  # which is said where it is measured
            continue
        config = {**list_unwritten(run.config), **run.config}
        arm = arm_of(entry.arm)
        planned = dict[str, tuple[str, ...]]()
        for key, word in entry.arm.items():
            if key != LENGTH:
                planned[key] = (word,)
        if run.seed != entry.seed or not fits(planned, config):
            wrong.append(f"{entry.run} is not the run of {describe_arm(arm)} with seed {entry.seed}")
            continue
        point = asked.get((arm, entry.seed))
        if point is not None:
            wrong += compare_settings(entry.run, config, point.settings, chosen)
    return wrong


def compare_settings(run: str, config: Mapping[str, Any], asked: Mapping[str, Any], chosen: Sequence[str]) -> list[str]:
    """Return in which settings a run differs from what the words of a claim ask for.

    Args:
        run: its name.
        config: its settings.
        asked: those of the words.
        chosen: settings that the sweep has chosen.
    """
    wrong = []
    for key, value in asked.items():
        is_open = is_aside(key) or key in chosen or key == LENGTH or (key == STEPS and value is None)
        if key not in config or is_open:
            continue
        value_of_run = as_word(config[key])
        wanted = as_word(value)
        if canonical(value_of_run) != canonical(wanted):
            wrong.append(f"{run} has {key}={value_of_run}, where the claim has {wanted}")
    return wrong


def is_aside(key: str) -> bool:
    """Tell whether a setting changes no numbers: of the machine, of what is shown and kept."""
    return key in ASIDE or key.startswith(("probes.", "logger."))


def find_unplanned(points: Sequence[PlannedPoint], entries: Sequence[Entry], seeds: Sequence[int]) -> list[str]:
    """Return which runs the words of a claim ask for and which are not there, and which others there are.

    Args:
        points: which runs there are to be.
        entries: which runs there are.
        seeds: of the claim.
    """
    planned = set(index_points(points))
    there = set[tuple[ArmKey, int]]()
    for entry in entries:
        if entry.seed in seeds:
            there.add((arm_of(entry.arm), entry.seed))
    wrong = []
    for arm, seed in sorted(planned - there):
        wrong.append(f"the run of {describe_arm(arm)} with seed {seed} is missing")
    for arm, seed in sorted(there - planned):
        wrong.append(f"a run of {describe_arm(arm)} with seed {seed} is none of the claim's")
    return wrong


def index_points(points: Sequence[PlannedPoint]) -> dict[tuple[ArmKey, int], PlannedPoint]:
    """Return planned runs by arm and seed."""
    by_arm_and_seed = {}
    for point in points:
        by_arm_and_seed[arm_of(point.varied), point.seed] = point
    return by_arm_and_seed


def arm_of(settings: Mapping[str, str]) -> ArmKey:
    """Return the settings of an arm, without the seed, in an order of their own."""
    without_seed = drop_keys(settings, "seed")
    return tuple(sorted(without_seed.items()))


def describe_arm(arm: ArmKey) -> str:
    """Write the settings of an arm."""
    return " ".join(f"{key}={value}" for key, value in arm) or "the only arm"
