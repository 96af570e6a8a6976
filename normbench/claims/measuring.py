"""What the runs of a claim, or the rows of its study, have measured: values by arm and seed, and the effect of them."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NotRequired, TypedDict

from normbench.claims.claim import Claim, Conditions
from normbench.claims.files import is_seed
from normbench.config.schema import list_unwritten
from normbench.errors import UsageError
from normbench.evidence.arms import Arm, canonical, name_arm
from normbench.evidence.measures import STEP_TIME, final, finite_points, metric_of
from normbench.evidence.run import RecordedRun, read_run
from normbench.evidence.study import read_choices
from normbench.record.digests import find_altered
from normbench.record.directory import RunDirectory
from normbench.record.files import read_form
from normbench.record.forms import CHOICE_FILE, DIGESTS
from normbench.results.claimed import ArmCell, Tuning
from normbench.results.effects import ArmValue, Descent, EffectError, Operation, differing_keys
from normbench.results.search import RateChoice, read_choice
from normbench.results.worth import Worth, fall_of, worth_of
from normbench.settings import drop_keys, either, show
from normbench.show.studied import STUDY_FILE
from normbench.sweep.folder import Entry
from normbench.sweep.words import settings_in

MOST_IN_CELLS = 2_000  # values of an arm, beyond which a result does not list them
ROUND = "round"  # the column of repeated measurements within a process, of which the median counts
WILDCARD = re.compile(r"\{(\w+)\}")  # in a measure: the numbers that may stand there are a key of this name


@dataclass
class Measured:
    """What was measured for a claim.

    Attributes:
        points: by arm.
        lost: how many runs of each arm diverged, and count with what a model has before training.
        unreached: at how many seeds each arm never comes down to the loss of its reference in `steps`.
        missing: what is not there, a phrase each.
        undigested: what of it was made before records had digests, so that nothing tells whether it was changed.
        sessions: of its runs, each once: the machine and versions.
        runs: those of the two arms whose losses are compared, by arm; empty for other effects.
        choices: of the learning rates of runs, by arm; None where none was chosen.
    """

    points: dict[str, list[ArmValue]] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    unreached: Counter[str] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)
    undigested: list[str] = field(default_factory=list)
    sessions: list[Mapping[str, Any]] = field(default_factory=list)
    runs: dict[str, list[RecordedRun]] = field(default_factory=dict)
    choices: dict[str, list[RateChoice]] | None = None

    @property
    def session(self) -> Mapping[str, Any]:
        """Return the session of the first of its runs, empty where none is known."""
        return self.sessions[0] if self.sessions else {}

    def add_sessions(self, sessions: Iterable[Mapping[str, Any]]) -> None:
        """Note on what machine runs were made."""
        for session in sessions:
            if session and session not in self.sessions:
                self.sessions.append(session)

    def add(self, arm: str, points: Iterable[ArmValue]) -> None:
        """Add points of an arm."""
        self.points.setdefault(arm, []).extend(points)

    def add_choices(self, arm: str, choices: Iterable[RateChoice]) -> None:
        """Note how the learning rate of a run of an arm was chosen, once for all runs that it was chosen for."""
        if self.choices is not None:
            noted = self.choices.setdefault(arm, [])
            noted += [choice for choice in choices if choice not in noted]

    @property
    def tuning(self) -> tuple[Tuning, ...] | None:
        """Return how learning rates were chosen, for each arm and each kind of its runs."""
        if self.choices is None:
            return None
        parts = []
        for arm, choices in self.choices.items():
            of_kind = defaultdict[str, list[RateChoice]](list)
            for choice in choices:
                of_kind[name_arm(choice.arm)].append(choice)
            parts += [Tuning(arm, tuple(sorted(kind, key=seed_of_choice))) for kind in of_kind.values()]
        return tuple(parts)

    def seeds_of(self, arm: str) -> set[int]:
        """Return the seeds at which an arm has a value."""
        return {point.seed for point in self.points.get(arm, ())}

    def values_by_arm(self) -> dict[str, dict[int, float]]:
        """Return the measure by arm and seed, of arms that have one value at each seed."""
        by_arm = {}
        for arm, points in self.points.items():
            by_seed = {point.seed: point.value for point in points}
            if len(by_seed) == len(points):
                by_arm[arm] = dict(sorted(by_seed.items()))
        return by_arm

    def cells(self, measured_columns: Sequence[str] = ()) -> tuple[ArmCell, ...]:
        """Return the measure of arms that have several values at a seed, by what tells these apart.

        Nothing of an arm with thousands of them, or where a place has two at one seed, or none.

        Args:
            measured_columns: columns that hold what was measured, and tell no rows apart.
        """
        cells: list[ArmCell] = []
        for arm in self.points.keys() - self.values_by_arm().keys():
            points = self.points[arm]
            if len(points) > MOST_IN_CELLS:
                continue
            telling = [key for key in differing_keys(points) if key not in measured_columns]
            values = defaultdict[tuple[str, ...], dict[int, float]](dict)
            for point in points:
                values[tuple(point.keys.get(key, "") for key in telling)][point.seed] = point.value
            seeds = self.seeds_of(arm)
            has_one_each = all(by_seed.keys() == seeds for by_seed in values.values())
            if not has_one_each or len(points) != len(values) * len(seeds):
                continue
            for place, by_seed in values.items():
                cells.append(ArmCell(arm, dict(zip(telling, place, strict=True)), dict(sorted(by_seed.items()))))
        return tuple(sorted(cells, key=lambda cell: (cell.arm, [*cell.keys.items()])))


def effects_of(claim: Claim, measured: Measured, seeds: Sequence[int]) -> dict[int, float]:
    """Return the effect at each seed; note a seed without a finite one as missing, and which arms were not fast enough.

    Raises:
        UsageError: what was measured does not fit the effect.
    """
    complete = set(seeds).intersection(*(measured.seeds_of(arm) for arm in claim.arms))
    if not complete:
        return {}
    points = {}
    for arm in claim.arms:
        points[arm] = [point for point in measured.points[arm] if point.seed in complete]
    try:
        effect = claim.effect.of(points)
    except EffectError as error:
        raise claim.blame("effect", f"effect: {error}") from error
    values = {}
    for seed in sorted(complete):
        if math.isfinite(effect.values[seed]):
            values[seed] = effect.values[seed]
        else:
            measured.missing.append(f"the effect of seed {seed} is not a number")
    for arm, unreached in effect.unreached.items():
        counted = values.keys() & unreached
        if counted:
            measured.unreached[arm] = len(counted)
    return values


def fits(conditions: Conditions, settings: Mapping[str, Any]) -> bool:
    """Tell whether settings, or a row, have one of the values of each condition."""
    for key, allowed in conditions.items():
        if key not in settings:
            return False
        actual = canonical(as_word(settings[key]))
        if all(canonical(value) != actual for value in allowed):
            return False
    return True


def as_word(value: Any) -> str:
    """Return a value as a word of a command line, which `canonical` reads."""
    if value is None or isinstance(value, bool):
        return show(value)
    return str(value)


# ---- runs


def measure_runs(claim: Claim, folder: Path, entries: Sequence[Entry], recompute: bool = False) -> Measured:
    """Return what the runs of a sweep have measured.

    Args:
        claim: whose arms they are.
        folder: of the runs.
        entries: those that were planned.
        recompute: take final values from what the runs have logged, and not from their summaries.

    Raises:
        UsageError: the measure is not what these runs log, or not what a lost run can be counted with.
    """
    choices = read_tuning(claim, folder)
    measured = Measured(choices=None if choices is None else {})
    compared = arms_of_loss(claim)
    for entry in entries:
        directory = RunDirectory(folder / entry.run)
        try:
            run = read_run(directory, entry.run)
        except (OSError, ValueError) as error:
            why = "is not there" if not directory.path.is_dir() else f"cannot be read ({error})"
            measured.missing.append(f"{entry.run} {why}")
            continue
        arms = arms_of_run(claim, run, entry)
        if not arms:
            continue
        if not run.ended:
            measured.missing.append(f"{entry.run} is {run.status}")
            continue
        measured.add_sessions([run.session, *run.sessions])
        if not run.summary.get(DIGESTS):
            measured.undigested.append(entry.run)
        points, is_lost = points_of_run(claim, run, entry, recompute)
        for arm in arms:
            measured.add(arm, points)
            measured.lost[arm] += is_lost
            measured.add_choices(arm, [choice for choice in choices or () if is_of_entry(choice, entry)])
            if arm in compared:
                measured.runs.setdefault(arm, []).append(run)
    return measured


def read_tuning(claim: Claim, folder: Path) -> list[RateChoice] | None:
    """Return how a sweep has chosen learning rates; None where it has not, or that cannot be read. folder: of its runs.

    Whether the file of choices is as the sweep has left it is told by its digest.
    """
    if "sweep.lr" not in settings_in(claim.words):
        return None
    choices = [read_choice(noted) for noted in read_choices(folder / CHOICE_FILE)]
    return [choice for choice in choices if choice is not None] or None


def is_of_entry(choice: RateChoice, entry: Entry) -> bool:
    """Tell whether the learning rate of a run was chosen so."""
    if choice.seed not in (None, entry.seed):
        return False
    return all(canonical(str(entry.arm.get(key))) == canonical(value) for key, value in choice.arm.items())


def seed_of_choice(choice: RateChoice) -> int:
    """Return the reported seed that a choice is for, −1 where it is for all."""
    return -1 if choice.seed is None else choice.seed


def arms_of_run(claim: Claim, run: RecordedRun, entry: Entry) -> list[str]:
    """Return the arms to which a run belongs."""
    config = {**list_unwritten(run.config), **run.config, **entry.arm}
    return [arm for arm, conditions in claim.arms.items() if fits(conditions, config)]


def points_of_run(claim: Claim, run: RecordedRun, entry: Entry, recompute: bool) -> tuple[list[ArmValue], bool]:
    """Return the points of a run that has ended, and whether it is lost.

    Raises:
        UsageError: the run has not logged the measure.
    """
    descent = descent_of(run)
    if run.status != "finished":
        value = value_at_start(claim, run)
        return [ArmValue(entry.seed, dict(entry.arm), value, descent)], True
    points = []
    for tag, key_of_tag in tags_measured(claim, run).items():
        value = final_value(run, tag, recompute)
        points.append(ArmValue(entry.seed, {**entry.arm, **key_of_tag}, value, descent))
    are_finite = all(math.isfinite(point.value) for point in points)
    if not points or not are_finite:
        tags = sorted(run.metrics)
        raise claim.blame("measure", f"measure: {run.name} has no {claim.measure}: it has {either(tags)}, for example")
    return points, False


def tags_measured(claim: Claim, run: RecordedRun) -> dict[str, dict[str, str]]:
    """Return the tags of a run that a measure names, each with what its wildcard stands for there, such as depth=3."""
    pattern = WILDCARD.search(claim.measure)
    if not pattern:
        return {claim.measure: {}}
    before = re.escape(claim.measure[: pattern.start()])
    after = re.escape(claim.measure[pattern.end() :])
    keys_by_tag = {}
    for tag in run.curves:
        matched = re.fullmatch(rf"{before}(\d+){after}", tag)
        if matched:
            keys_by_tag[tag] = {pattern[1]: str(int(matched[1]))}
    return keys_by_tag


def final_value(run: RecordedRun, tag: str, recompute: bool) -> float:
    """Return the final value of a run in the unit of reports; NaN where it has none."""
    if tag == STEP_TIME:
        return run.step_ms
    metric = metric_of(tag)
    logged = finite_points(run.curves.get(tag)).values
    if recompute and len(logged):
        return metric.of(float(logged[-1]))
    return final(run, metric)


def value_at_start(claim: Claim, run: RecordedRun) -> float:
    """Return what a run that diverged counts with: the loss or the score of a model before training.

    Raises:
        UsageError: the measure is of another kind.
    """
    kind = claim.measure.partition("/")[0]
    if kind in ("loss", "best"):
        return loss_at_start(run)
    if kind == "accuracy":
        constant = run.constant.get(claim.measure) or 1 / int(run.session["task"]["num_classes"])
        return 100 * constant
    if kind == "bleu":
        return 0.0
    why = f"{run.name} diverged, and there is no {claim.measure} that it could count with"
    raise claim.blame("measure", f"measure: {why}: choose words with which all runs last, or measure a loss")


def loss_at_start(run: RecordedRun) -> float:
    """Return the loss of a model before training, which holds all classes for equally likely."""
    return math.log(int(run.session["task"]["num_classes"]))


def descent_of(run: RecordedRun) -> Descent:
    """Return how the validation loss of a run fell, as far as evaluations can be compared.

    That of a run that diverged ends with the loss before training, as its final loss counts.
    """
    descent = fall_of(run)
    if run.status == "finished":
        return descent
    return Descent([*descent.steps, run.steps], [*descent.losses, loss_at_start(run)], run.steps, is_lost=True)


def arms_of_loss(claim: Claim) -> tuple[str, ...]:
    """Return the two arms whose losses a claim compares, the second less the first; nothing for another effect."""
    match claim.effect.expression:
        case Operation("-", (str(baseline), str(arm))) if claim.measure.startswith("loss/") and not claim.study:
            return arm, baseline
    return ()


def measure_worth(claim: Claim, measured: Measured) -> Worth | None:
    """Return what a difference in loss is worth in steps and time; None for another effect, and without its runs.

    Of an effect such as `ln - rms` it is that of rms, with ln as the baseline. An arm with several runs at a seed has
    none.
    """
    if not all(measured.runs.get(arm) for arm in arms_of_loss(claim)):
        return None
    sides = []
    for arm in arms_of_loss(claim):
        runs = measured.runs[arm]
        if len({run.seed for run in runs}) < len(runs):
            return None
        sides.append(Arm({}, tuple(runs), called=arm))
    return worth_of(*sides) if sides else None


# ---- studies


class StudyNote(TypedDict):
    """What of study.json is read here. session: the machine and versions, where they were noted."""

    session: NotRequired[dict[str, Any] | None]


@dataclass(frozen=True)
class StudyRows:
    """The rows of a study.

    Attributes:
        rows: of its rows.csv.
        session: the machine and versions with which they were measured; empty where that was not noted.
        undigested: the file, where it was made before studies noted digests.
    """

    rows: Sequence[Mapping[str, str]]
    session: Mapping[str, Any]
    undigested: Sequence[str] = ()

    def of_seeds(self, seeds: Sequence[int]) -> StudyRows:
        """Return those of some seeds."""
        return replace(self, rows=[row for row in self.rows if int(row["seed"]) in seeds])


def has_ended(path: Path) -> bool:
    """Tell whether a study has written all that it has found. path: of its rows."""
    return path.with_name(STUDY_FILE).exists()


def read_rows(path: Path) -> StudyRows:
    """Return the rows of a study's rows.csv, as they were when the study ended.

    Raises:
        UsageError: they are damaged, or were changed.
    """
    cure = "restore it, or remove the study's folder and run the claim again"
    note = path.with_name(STUDY_FILE)
    noted = read_form(note, StudyNote)
    if noted is None:
        raise UsageError(f"{note} is missing or damaged, so that nothing tells whether {path.name} is whole: {cure}")
    try:
        altered = find_altered(note, [path.name, note.name])
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{path} is damaged ({error}): {cure}") from error
    if altered:
        raise UsageError(f"{path.parent} has {' and '.join(altered)} changed after the study had ended: {cure}")
    for number, row in enumerate(rows, 1):
        has_all_columns = None not in row and None not in row.values()
        if not has_all_columns or not is_seed(row.get("seed", "")):
            raise UsageError(f"{path} is damaged in row {number}: {cure}")
    return StudyRows(rows, noted.get("session") or {}, () if altered is not None else (str(path),))


def measure_rows(claim: Claim, study: StudyRows) -> Measured:
    """Return what a study has measured, from its rows.

    Raises:
        UsageError: a column is missing, an arm has no row, or a value is not a number.
    """
    rows = study.rows
    check_columns(claim, rows)
    measured = Measured(undigested=list(study.undigested))
    measured.add_sessions([study.session])
    for arm, conditions in claim.arms.items():
        chosen = []
        for row in rows:
            if row[claim.measure] and fits(conditions, row) and fits(claim.where, row):
                chosen.append(row)
        if not chosen:
            values = offered(claim, arm, rows)
            raise claim.blame(f"arms.{arm}", f"arms: {arm} fits no row of study {claim.study}: {values}")
        measured.add(arm, [point_of_row(claim, row) for row in chosen])
    return measured


def check_columns(claim: Claim, rows: Sequence[Mapping[str, str]]) -> None:
    """Refuse a measure or a condition on a column that a study does not have.

    Raises:
        UsageError: with the columns that there are.
    """
    known = list(rows[0]) if rows else []
    asked = [("measure", claim.measure)]
    for column in claim.where:
        asked.append(("where", column))
    for arm, conditions in claim.arms.items():
        for column in conditions:
            asked.append((f"arms.{arm}", column))
    for key, column in asked:
        if column not in known:
            raise claim.blame(key, f"{key}: study {claim.study} has no column {column}: it has {', '.join(known)}")


def offered(claim: Claim, arm: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Say which values the columns have on which an arm has conditions."""
    phrases = []
    for key in {**claim.arms[arm], **claim.where}:
        values = sorted({row[key] for row in rows} - {""})
        phrases.append(f"{key} is {either(values[:8])}")
    return "; ".join(phrases)


def point_of_row(claim: Claim, row: Mapping[str, str]) -> ArmValue:
    """Return a row as a point, whose keys are its other columns.

    Raises:
        UsageError: the measure of the row is not a number.
    """
    try:
        value = float(row[claim.measure])
    except ValueError:
        what = f"column {claim.measure} of study {claim.study} has {row[claim.measure]:.40}, which is not a number"
        raise claim.blame("measure", f"measure: {what}") from None
    keys = drop_keys(row, claim.measure, "seed")
    return ArmValue(int(row["seed"]), keys, value)


def take_medians(claim: Claim, block: Measured, measured_columns: Iterable[str], number: int) -> Measured:
    """Return what one process has measured of each arm, as one value: the median over rounds.

    Args:
        claim: whose arms they are.
        block: all rounds of the process.
        measured_columns: columns that hold what was measured, and tell no rows apart.
        number: of the process, which takes the place of a seed.

    Raises:
        UsageError: rows of an arm differ in more than the round.
    """
    aside = {*measured_columns, ROUND, "seed"}
    medians = Measured(missing=list(block.missing), undigested=list(block.undigested), sessions=list(block.sessions))
    for arm, points in block.points.items():
        first = points[0]
        differing = set[str]()
        for point in points:
            for key, value in point.keys.items():
                if key not in aside and first.keys.get(key) != value:
                    differing.add(key)
        if differing:
            keys = " and ".join(sorted(differing))
            raise claim.blame(f"arms.{arm}", f"arms: {arm} has rows that differ in {keys}: choose one with where:")
        other_keys = drop_keys(first.keys, *aside)
        medians.add(arm, [ArmValue(number, other_keys, median(point.value for point in points))])
    return medians


def join(parts: Sequence[Measured]) -> Measured:
    """Return what was measured in several processes as one."""
    whole = Measured()
    for part in parts:
        for arm, points in part.points.items():
            whole.add(arm, points)
        whole.lost.update(part.lost)
        whole.missing += part.missing
        whole.undigested += part.undigested
        whole.add_sessions(part.sessions)
    return whole


def note_missing_seeds(claim: Claim, measured: Measured, seeds: Sequence[int]) -> None:
    """Note which arms have no value at a seed, where nothing else says so."""
    for arm in claim.arms:
        lacking = sorted({*seeds} - measured.seeds_of(arm))
        if lacking:
            numbers = ", ".join(map(str, lacking))
            measured.missing.append(f"arm {arm} has no value at seed {numbers}")
