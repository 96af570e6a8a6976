"""Verifies claims: whether what a folder says of them follows from its runs, and from the claims as registered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from normbench.analysis.records import read_run
from normbench.claims.checks import is_in_blocks, plan_points, seed_word, study_of
from normbench.claims.claim import Claim, why_unregistered
from normbench.claims.conduct import ClaimRun, block_name, judge_values
from normbench.claims.measuring import Measured, effects_of, fits
from normbench.claims.results import CLAIM_FILE, ClaimResult, Status, read_result
from normbench.claims.standing import NOTE_FILE
from normbench.claims.verdicts import Verdict
from normbench.config.schema import list_unwritten
from normbench.errors import UsageError
from normbench.record.directory import RunDirectory
from normbench.record.files import read_json
from normbench.sweep.folder import Entry, SweepFolder

LENGTH = "trainer.epochs"  # of which a run keeps the steps alone
CLOSE = 1e-9  # of values that were written and read again


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
    wrong = []
    unregistered = why_unregistered(claim)
    if unregistered:
        wrong.append(unregistered)
    if result.digest != claim.digest:
        wrong.append(f"it was judged by another registration, of {result.registered}")
    noted = read_json(one.runs_folder / NOTE_FILE) or {}
    if noted.get("digest") != one.owner.digest:
        wrong.append("its runs were made for another registration")
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
    if wrong:
        return wrong
    again = judge_values(claim, values, len(claim.seeds))
    if again.verdict is not judgement.verdict:
        wrong.append(f"its verdict is {again.verdict} by its runs, and not {judgement.verdict}")
    if judgement.verdict is Verdict.INCONCLUSIVE and len(seeds) < claim.seeds[-1]:
        wrong.append(f"it is inconclusive after {len(seeds)} seeds, and was to go on to {claim.seeds[-1]}")
    return wrong


def measure_again(one: ClaimRun, seeds: Sequence[int]) -> tuple[Measured, list[str]]:
    """Return what the runs of a claim have measured, from what they have logged, and which are not the claim's.

    A run that was changed after it had ended is among what is missing.
    """
    kind = study_of(one.owner)
    if kind is None:
        entries = SweepFolder(one.runs_folder).read_plans()
        wrong = find_mislabelled(one.runs_folder, entries)
        wrong += find_unplanned(one.owner, entries, seeds)
        return one.measure_sweep(entries, seeds, recompute=True), wrong
    if is_in_blocks(kind):
        missing = []
        for number in seeds:
            if not one.rows_file(one.runs_folder / block_name(number)).exists():
                missing.append(f"the rows of process {number} are missing")
        return one.measure_blocks(seeds), missing
    return one.measure_study(seeds), []


def find_mislabelled(folder: Path, entries: Sequence[Entry]) -> list[str]:
    """Return which runs have another seed, or other settings, than those for which they were planned."""
    found = []
    for entry in entries:
        try:
            run = read_run(RunDirectory(folder / entry.run), entry.run)
        except (ValueError, OSError):  # which is said where it is measured
            continue
        config = {**list_unwritten(run.config), **run.config}
        planned = {key: (value,) for key, value in entry.arm.items() if key != LENGTH}
        if run.seed != entry.seed or not fits(planned, config):
            found.append(f"{entry.run} is not the run of {describe_arm(arm_of(entry.arm))} with seed {entry.seed}")
    return found


def find_unplanned(claim: Claim, entries: Sequence[Entry], seeds: Sequence[int]) -> list[str]:
    """Return which runs the words of a claim ask for and which are not there, and how many others there are."""
    wanted = set()
    for point in plan_points(claim, None, [*claim.words, seed_word(seeds)]):
        wanted.add((arm_of(point.varied), point.seed))
    there = {(arm_of(entry.arm), entry.seed) for entry in entries if entry.seed in seeds}
    found = []
    for arm, seed in sorted(wanted - there):
        found.append(f"the run of {describe_arm(arm)} with seed {seed} is missing")
    for arm, seed in sorted(there - wanted):
        found.append(f"a run of {describe_arm(arm)} with seed {seed} is none of the claim's")
    return found


def arm_of(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the settings of an arm, without the seed, in an order of their own."""
    return tuple(sorted((key, value) for key, value in settings.items() if key != "seed"))


def describe_arm(arm: tuple[tuple[str, str], ...]) -> str:
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
