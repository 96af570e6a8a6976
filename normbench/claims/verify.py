"""Verifies claims: whether what a folder says of them follows from its runs, and from the claims as registered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench.analysis.records import ASIDE, LEARNING_RATE, canonical, read_run
from normbench.claims.checks import PlannedPoint, is_in_blocks, plan_points, seed_word, study_of
from normbench.claims.claim import Claim, why_unregistered
from normbench.claims.conduct import ClaimRun, block_name, judge_values
from normbench.claims.measuring import Measured, as_word, effects_of, fits
from normbench.claims.results import CLAIM_FILE, ClaimResult, Status, read_result
from normbench.claims.verdicts import Verdict
from normbench.config.schema import list_unwritten
from normbench.errors import UsageError
from normbench.record.directory import RunDirectory
from normbench.settings import drop_keys
from normbench.sweep.folder import Entry, SweepFolder
from normbench.sweep.words import settings_in

LENGTH, STEPS = "trainer.epochs", "trainer.steps"  # of epochs a run keeps the steps alone
CLOSE = 1e-9  # of values that were written and read again
ArmKey = tuple[tuple[str, str], ...]  # the settings of an arm and their values, sorted


@dataclass(frozen=True)
class Finding:
    """What verification has found of one claim. wrong: a phrase for each thing; empty where all is right."""

    name: str
    verdict: str
    wrong: Sequence[str]


def verify(runs: Sequence[ClaimRun]) -> list[Finding]:
    """Verify claims, each by its claim.json and its runs.

    Args:
        runs: the claims, whose folders are those that are verified.
    """
    found = []
    for one in runs:
        result = read_result(one.folder / CLAIM_FILE)
        if result is None:
            found.append(Finding(one.claim.name, "", [f"{one.folder / CLAIM_FILE} is missing or damaged"]))
            continue
        verdict = "" if result.judgement is None else str(result.judgement.verdict)
        try:
            wrong = list(find_wrong(one, result))
        except (UsageError, OSError) as error:
            wrong = [str(error)]
        found.append(Finding(one.claim.name, verdict, wrong))
    return found


def find_wrong(one: ClaimRun, result: ClaimResult) -> list[str]:
    """Return what is wrong with the result of a claim; empty where it follows from the runs.

    Raises:
        UsageError, OSError: the runs do not fit the claim, or cannot be read.
    """
    claim = one.claim
    wrong = find_other_registrations(one, result)
    judgement = result.judgement
    if result.status is not Status.COMPLETE or judgement is None:
        return [*wrong, f"it is {result.status}: {result.reason}"]
    if wrong:
        return wrong
    seeds = sorted(result.values)
    if len(seeds) not in claim.seeds or seeds != list(range(len(seeds))):
        wrong.append(f"its seeds are {', '.join(map(str, seeds))}, and not the first {claim.seeds[-1]}")
        return wrong
    measured, not_ours = measure_again(one, seeds)
    wrong += not_ours
    wrong += measured.missing
    values = effects_of(claim, measured, seeds)
    wrong += compare_values(result.values, values)
    wrong += compare_counts("has {} of its runs lost", result.lost, measured.lost)
    unreached = result.unreached or {}
    wrong += compare_counts("misses the loss of its reference at {} of the seeds", unreached, measured.unreached)
    return wrong or compare_verdicts(claim, judgement.verdict, values)


def find_other_registrations(one: ClaimRun, result: ClaimResult) -> list[str]:
    """Return in what a claim, its result and its runs do not belong to one registration."""
    wrong = []
    unregistered = why_unregistered(one.claim)
    if unregistered:
        wrong.append(unregistered)
    if result.digest != one.claim.digest:
        wrong.append(f"it was judged by another registration, of {result.registered}")
    if one.read_note().get("digest") != one.owner.digest:
        wrong.append("its runs were made for another registration")
    return wrong


def compare_verdicts(claim: Claim, verdict: Verdict, values: dict[int, float]) -> list[str]:
    """Return in what a verdict, and the look at which it was given, do not follow from the effects by seed."""
    wrong = []
    looks = len(claim.seeds)
    first, last = claim.seeds[0], claim.seeds[-1]
    if len(values) > first:
        first_values = {seed: values[seed] for seed in sorted(values)[:first]}
        early = judge_values(claim, first_values, looks).verdict
        if early is not Verdict.INCONCLUSIVE:
            wrong.append(f"it was {early} after {first} seeds, and was not to go on")
    again = judge_values(claim, values, looks).verdict
    if again is not verdict:
        wrong.append(f"its verdict is {again} by its runs, and not {verdict}")
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
        points = plan_points(one.owner, None, [*one.owner.words, seed_word(seeds)])
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
    found = []
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
            found.append(f"{entry.run} is not the run of {describe_arm(arm)} with seed {entry.seed}")
            continue
        point = asked.get((arm, entry.seed))
        if point is not None:
            found += compare_settings(entry.run, config, point.settings, chosen)
    return found


def compare_settings(run: str, config: Mapping[str, Any], asked: Mapping[str, Any], chosen: Sequence[str]) -> list[str]:
    """Return in which settings a run differs from what the words of a claim ask for.

    Args:
        run: its name.
        config: its settings.
        asked: those of the words.
        chosen: settings that the sweep has chosen.
    """
    found = []
    for key, value in asked.items():
        is_open = is_aside(key) or key in chosen or key == LENGTH or (key == STEPS and value is None)
        if key not in config or is_open:
            continue
        own = as_word(config[key])
        wanted = as_word(value)
        if canonical(own) != canonical(wanted):
            found.append(f"{run} has {key}={own}, where the claim has {wanted}")
    return found


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
    wanted = set(index_points(points))
    there = set[tuple[ArmKey, int]]()
    for entry in entries:
        if entry.seed in seeds:
            there.add((arm_of(entry.arm), entry.seed))
    found = []
    for arm, seed in sorted(wanted - there):
        found.append(f"the run of {describe_arm(arm)} with seed {seed} is missing")
    for arm, seed in sorted(there - wanted):
        found.append(f"a run of {describe_arm(arm)} with seed {seed} is none of the claim's")
    return found


def index_points(points: Sequence[PlannedPoint]) -> dict[tuple[ArmKey, int], PlannedPoint]:
    """Return planned runs by arm and seed."""
    found = {}
    for point in points:
        found[arm_of(point.varied), point.seed] = point
    return found


def arm_of(settings: Mapping[str, str]) -> ArmKey:
    """Return the settings of an arm, without the seed, in an order of their own."""
    own = drop_keys(settings, "seed")
    return tuple(sorted(own.items()))


def describe_arm(arm: ArmKey) -> str:
    """Write the settings of an arm."""
    return " ".join(f"{key}={value}" for key, value in arm) or "the only arm"


def compare_values(before: Mapping[int, float], again: Mapping[int, float]) -> list[str]:
    """Return at which seeds an effect is not what claim.json says."""
    found = []
    for seed, value in before.items():
        if seed not in again:
            found.append(f"the effect of seed {seed} cannot be computed again")
        elif not math.isclose(value, again[seed], rel_tol=CLOSE, abs_tol=CLOSE * CLOSE):
            found.append(f"the effect of seed {seed} is {again[seed]:.6g} by its runs, and not {value:.6g}")
    return found


def compare_counts(sentence: str, before: Mapping[str, int], again: Mapping[str, int]) -> list[str]:
    """Return of which arms claim.json has another number than the runs.

    Args:
        sentence: what is counted of an arm, with {} for the number.
        before: the numbers of claim.json, by arm.
        again: those of the runs.
    """
    found = []
    for arm in sorted({*before, *again}):
        noted, counted = before.get(arm, 0), again.get(arm, 0)
        if noted != counted:
            found.append(f"arm {arm} {sentence.format(counted)}, where {CLAIM_FILE} says {noted}")
    return found
