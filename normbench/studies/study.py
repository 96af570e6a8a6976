"""Makes a study: trains or gathers its subjects, measures them, and has what was found written.

Rows are kept as they come, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from msgspec import UNSET, Struct, UnsetType, convert
from rich.console import Console

from normbench.config import compose
from normbench.config.sections import GROUPS
from normbench.errors import UsageError
from normbench.evidence.study import read_studies
from normbench.record.console import Stages, readable
from normbench.record.digests import digest_of_content
from normbench.record.directory import RunDirectory
from normbench.record.files import inside, keep_damaged, read_bytes, write_bytes
from normbench.runs.contexts import explain_limits
from normbench.runs.load import TrainedRun
from normbench.settings import key_of, show
from normbench.stopping import stop
from normbench.studies.frame import (
    PLACES,
    LeftOut,
    Row,
    Study,
    Subject,
    device_name,
    make_study,
    split_words,
    study_class,
)
from normbench.studies.saving import save
from normbench.sweep.folder import say
from normbench.sweep.plan import PlannedRun, SweepPlan
from normbench.sweep.sweep import Sweep, plan_sweep, report_nothing
from normbench.sweep.words import AS_IT_IS, TIE
from normbench.training.devices import allow_tf32, make_current, resolve_device
from normbench.types import Data
from normbench.wording import count

JOURNAL_FILE = "rows.jsonl"
NOT_TOLD = ("code", "device", "operators")  # texts of a row that are long, or the same in all rows
KILLED = 128  # exit statuses above are this and the signal that has stopped the runs

# ---- subjects


def grid_words(kind: type[Study], name: str, words: Sequence[str]) -> list[str]:
    """Return a study's words for its grid, with a person's own, or their scheme's, in place of those for the same keys.

    Two more kinds of the study's words fall away: settings of a group of which the person chooses an option, and
    settings that vary together where the person sets one of them.
    """
    own_keys = {key_of(word) for word in words} | compose.keys_of_schemes(words)
    own_groups = own_keys & {*GROUPS}
    defaults = [f"name={name}", "sweep.extend=true", "sweep.report=false"]
    if not kind.trains:
        defaults.append("sweep.jobs=1")
    kept_words = []
    for word in (*defaults, *kind.words):
        key = key_of(word)
        is_set = not own_keys.isdisjoint([key, *tied_keys(word)])
        is_of_group = key.partition(".")[0] in own_groups
        if not is_set and not is_of_group:
            kept_words.append(word)
    return [*kept_words, *words]


def tied_keys(word: str) -> list[str]:
    """Return the keys of the settings that a word lets vary together."""
    if key_of(word) != TIE:
        return []
    value = compose.value_of(word.partition("=")[2])
    return [key_of(part) for part in value.split(";")]


def points_of(plan: SweepPlan) -> list[Subject]:
    """Return the points of a grid, whose models are as they start."""
    return [subject_of(run) for run in plan.runs]


def trained_points(plan: SweepPlan, left_out: list[LeftOut]) -> list[Subject]:
    """Return the points of a grid whose runs have finished; add the others to `left_out`, with the reason."""
    subjects = []
    for run in plan.runs:
        directory = run.prepared.directory
        summary = directory.read_result()
        status = summary["status"] if summary else "failed"
        if status == "finished":
            subjects.append(subject_of(run, directory.path))
        else:
            left_out.append(LeftOut(directory.path.name, status))
    return subjects


def subject_of(one: PlannedRun, path: Path | None = None) -> Subject:
    """Return a point of a grid as a subject. path: the directory of its run, if that has finished."""
    run = one.prepared
    settings = {"norm": run.config.choices.groups["norm"]}
    for key, word in one.arm.items():
        settings[key] = compose.value_of(word)
    return Subject(settings, run.config.tree, run.device, lambda: run.data, path)


def given_runs(folders: Sequence[Path], device: str, trust: bool, left_out: list[LeftOut]) -> list[Subject]:
    """Return the finished runs below some folders; add the others to `left_out`, with the reason.

    Raises:
        UsageError: there are none, they are of several tasks, or one has a class of somebody's and no trust.
    """
    runs, *of_other_tasks = read_studies(folders)
    resolved = resolve_device(device)
    if of_other_tasks:
        folder_names = ", ".join(map(str, folders))
        raise UsageError(f"{folder_names} hold runs of several tasks: give folders of runs of one task")
    loaded: dict[str, Data] = {}  # runs of the same data share them

    def load(trained: TrainedRun) -> Data:
        source = [trained.tree["data"], trained.session["data"]["fingerprint"]]
        key = json.dumps(source, sort_keys=True)
        if key not in loaded:
            loaded[key] = trained.data()
        return loaded[key]

    subjects = []
    for arm, run in runs.pairs:
        if run.status != "finished":
            left_out.append(LeftOut(run.name, run.status))
            continue
        trained = TrainedRun(run.path, trust)
        settings = {"norm": run.config["norm"], **arm.settings}
        subjects.append(Subject(settings, trained.tree, resolved, partial(load, trained), run.path, trust))
    return subjects


def check_subjects(study: Study, subjects: Sequence[Subject], left_out: list[LeftOut]) -> list[Subject]:
    """Return the subjects that a study takes; add the others to `left_out`, with the reason.

    Raises:
        UsageError: it takes none.
    """
    accepted = []
    refused = None
    for subject in subjects:
        try:
            study.check(subject)
            accepted.append(subject)
        except UsageError as error:
            refused = error
            norm = subject.settings["norm"]
            left_out.append(LeftOut(f"{norm} · seed {subject.seed}", str(error)))
    if refused and not accepted:
        raise refused
    return accepted


# ---- one study


def run_study(name: str, words: Sequence[str], device: str = "auto", trust: bool = False) -> Path:
    """Make a study, or go on with it; return the folder of its findings.

    Args:
        name: the word that names the study on the command line.
        words: folders of runs, settings `study.KEY=VALUE`, and those of the grid.
        device: of given runs.
        trust: as `TrainedRun` has it.

    Raises:
        UsageError: any mistake of the user's.
        Stopped: by a signal; what has been measured is kept.
    """
    kind = study_class(name)
    settings, more = split_words(words)
    folders, others = [], []
    for word in more:
        if "=" in word:
            others.append(word)
        else:
            folders.append(Path(word).expanduser())
    study = make_study(kind, settings)
    left_out = list[LeftOut]()
    if folders:
        check_folders(study, name, others)
        runs = given_runs(folders, device, trust, left_out)
        subjects = check_subjects(study, runs, left_out)
        root = folders[0]
    else:
        subjects, root = make_subjects(study, name, others, left_out)
    if not subjects:
        raise UsageError(f"study {name} has nothing to measure: none of its runs has finished")
    set_threads(study, subjects[0])
    folder = inside(root, "studies", name)
    folder.mkdir(parents=True, exist_ok=True)
    with RunDirectory(folder).hold(), explain_limits(str(root)):
        rows = measure_all(study, subjects, folder / JOURNAL_FILE, quiet="quiet=true" in words)
        command = ["normbench", name] if name == "bench" else ["normbench", "study", name]
        save(study, name, rows, folder, shlex.join([*command, *words]), left_out, gpus_of(subjects))
    return folder


def gpus_of(subjects: Sequence[Subject]) -> list[str]:
    """Return the names of the GPUs on which subjects are measured, each once."""
    names: dict[str, None] = {}
    for subject in subjects:
        if subject.device.type == "cuda":
            names[device_name(subject.device)] = None
    return list(names)


def set_threads(study: Study, subject: Subject) -> None:
    """Let torch compute with the threads of a subject's runs; trained ones may be measured with more of them."""
    threads = subject.tree["threads"]
    if not threads:
        return
    if study.trains:
        threads = max(threads, torch.get_num_threads())
    torch.set_num_threads(threads)


def check_folders(study: Study, name: str, others: Sequence[str]) -> None:
    """Refuse folders of runs for a study of models as they start, and words for a grid beside folders.

    Raises:
        UsageError: with the cure.
    """
    if not study.trains:
        raise UsageError(f"study {name} measures models as they start: give it norm=, model= and such, no folder")
    more = [word for word in others if key_of(word) != "quiet"]
    if more:
        raise UsageError(f"{more[0]} is for runs that the study trains itself: leave it out, or the folders")


def plan_training(name: str, words: Sequence[str]) -> Sweep | None:
    """Return the sweep that trains the runs of a study; None for a study of models as they start.

    Args:
        name: the word that names the study on the command line.
        words: settings `study.KEY=VALUE`, and those of the grid.

    Raises:
        UsageError: any mistake of the user's.
    """
    kind = study_class(name)
    if not kind.trains:
        return None
    settings, others = split_words(words)
    _, sweep = plan_subjects(make_study(kind, settings), name, others, [])
    return sweep


def plan_subjects(
    study: Study, name: str, words: Sequence[str], left_out: list[LeftOut]
) -> tuple[list[Subject], Sweep]:
    """Return the points of a study's grid, and their sweep; add what cannot be measured to `left_out`.

    Raises:
        UsageError: a mistake in the words, or the study takes none of the points.
    """
    sweep = plan_sweep(grid_words(type(study), name, words))
    for why, number in sweep.plan.left_out.items():
        left_out.append(LeftOut(f"{number} of the grid", why))
    points = points_of(sweep.plan)
    subjects = check_subjects(study, points, left_out)
    kept_runs = []
    for run, point in zip(sweep.plan.runs, points, strict=True):
        if point in subjects:
            kept_runs.append(run)
    sweep.plan = replace(sweep.plan, runs=kept_runs)
    return subjects, sweep


def make_subjects(study: Study, name: str, words: Sequence[str], left_out: list[LeftOut]) -> tuple[list[Subject], Path]:
    """Return the points of a study's grid, trained where it trains, and the folder of the sweep.

    What cannot be measured is added to `left_out`.

    Raises:
        Stopped: by a signal.
    """
    with explain_limits("outputs"):
        subjects, sweep = plan_subjects(study, name, words, left_out)
        sweep.plan.runs[0].prepared.directory.check_creatable()
        if not study.trains:
            return subjects, sweep.plan.folder
        status = sweep.run(report_nothing)
        if status > KILLED:
            stop(status - KILLED)
        return trained_points(sweep.plan_reported(), left_out), sweep.plan.folder


def measure_all(study: Study, subjects: Sequence[Subject], journal: Path, quiet: bool) -> pd.DataFrame:
    """Return the rows of all subjects; those of a subject are kept in the journal once it is measured."""
    console = Console(stderr=True, quiet=quiet)
    found_in_journal = read_journal(journal)
    for note in found_in_journal.notes:
        say(console, note)
    rows_by_key = found_in_journal.rows
    keys = {subject: subject.key(study) for subject in subjects}
    todo = []
    for group in groups_of(study, subjects):
        keys_of_group = {keys[subject] for subject in group}
        if not keys_of_group <= rows_by_key.keys():
            todo.append(group)
    with Stages(len(todo), quiet, is_long=True) as stages:
        for done, group in enumerate(todo):
            stages.begin(f"measuring {name_subjects(group)}", done)
            make_current(group[0].device)
            allow_tf32(group[0].tree["trainer"].get("tf32", False))
            rows_of_group: dict[str, list[Row]] = {keys[subject]: [] for subject in group}
            for subject, row in study.measure_together(group):
                rows_of_group[keys[subject]].append(row)
                stages.note(describe_row(study, subject, row))
            for key, rows in rows_of_group.items():
                write_journal(journal, key, rows)
                rows_by_key[key] = rows
    rows_of_subjects = [rows_by_key[keys[subject]] for subject in subjects]
    return join_rows(subjects, rows_of_subjects)


def name_subjects(group: Sequence[Subject]) -> str:
    """Return what is measured at once, in words."""
    first = group[0]
    return f"{name_arm(first)}, seed {first.seed}" if len(group) == 1 else f"{len(group)} side by side"


def name_arm(subject: Subject) -> str:
    """Return the settings of a subject, in words."""
    return " ".join(show(value) for value in subject.settings.values())


def describe_row(study: Study, subject: Subject, row: Row) -> str:
    """Return what was measured of a subject in a line: where, and the first number of the study's columns."""
    words = [name_arm(subject)]
    for key, value in row.items():
        if key in NOT_TOLD:
            continue
        if isinstance(value, str):
            words.append(value)
        elif key in PLACES or (isinstance(value, int) and key not in study.columns):
            words.append(f"{key} {value}")
    for key, column in study.columns.items():
        value = row.get(key)
        if isinstance(value, int | float) and key not in PLACES:
            words.append(f"{column.words} {readable(value)} {column.unit}".rstrip())
            break
    return ", ".join(words)


def join_rows(subjects: Sequence[Subject], rows_of_subjects: Sequence[Sequence[Row]]) -> pd.DataFrame:
    """Return what was measured of each subject in one table, after the settings of its arm and its seed."""
    joined = []
    for subject, settings, rows in zip(subjects, settings_of(subjects), rows_of_subjects, strict=True):
        for row in rows:
            joined.append({**settings, "seed": subject.seed, **row})
    return pd.DataFrame(joined)


def groups_of(study: Study, subjects: Sequence[Subject]) -> list[list[Subject]]:
    """Return the subjects that are measured at once: each by itself, or all on one device together."""
    if not study.together:
        return [[subject] for subject in subjects]
    groups = defaultdict(list)
    for subject in subjects:
        groups[subject.device].append(subject)
    return list(groups.values())


def settings_of(subjects: Sequence[Subject]) -> Iterator[dict[str, Any]]:
    """Yield the settings of each subject, all with the same keys, lists as words."""
    keys: dict[str, None] = {}  # each once, in their order
    for subject in subjects:
        keys.update(dict.fromkeys(subject.settings))
    for subject in subjects:
        settings = {}
        for key in keys:
            value = subject.settings.get(key, AS_IT_IS)  # an arm may be without some
            settings[key] = show(value) if isinstance(value, list) else value
        yield settings


# ---- the journal


class Line(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the journal: the rows of a subject, and the digest of its key and its rows."""

    key: str
    rows: list[dict[str, Any]]
    sha256: str | UnsetType = UNSET  # which those of before 2026-11-29 do not have


@dataclass(frozen=True)
class Journal:
    """What the journal of a study holds.

    Attributes:
        rows: of each subject that was measured, by its key.
        notes: what a person should know of it, a sentence each.
    """

    rows: dict[str, list[Row]]
    notes: list[str]


def write_journal(path: Path, key: str, rows: list[Row]) -> None:
    """Add the rows of a subject to the journal, with their digest, and wait until they are on the disk."""
    with open(inside(path.parent, path.name), "ab") as file:
        file.write(make_line(key, rows))
        file.flush()
        os.fsync(file.fileno())


def make_line(key: str, rows: list[Row]) -> bytes:
    """Return the line of a subject, with its digest."""
    as_read = json.loads(json.dumps([key, rows]))
    return json.dumps({"key": key, "rows": rows, "sha256": digest_of_content(as_read)}).encode() + b"\n"


def read_journal(path: Path) -> Journal:
    """Return the rows that have been kept. Subjects whose lines are damaged are measured again.

    A last line that a kill has torn is cut off; of other damage the file as it was is kept beside. Where no line has a
    digest yet, each gets one, so that those that are added do not make the others look changed.
    """
    lines = read_bytes(path).splitlines(keepends=True) if path.exists() else []
    entries = [read_line(line) for line in lines]
    have_digests = any(entry is not None and entry.sha256 is not UNSET for entry in entries)
    rows_by_key = dict[str, list[Row]]()
    sound_lines = list[bytes]()
    before_digests = 0
    for line, entry in zip(lines, entries, strict=True):
        if entry is None or (have_digests and entry.sha256 is UNSET):
            continue
        rows_by_key[entry.key] = entry.rows
        if have_digests:
            sound_lines.append(line)
        else:
            before_digests += 1
            sound_lines.append(make_line(entry.key, entry.rows))
    notes = list[str]()
    if before_digests:
        notes.append(f"{path}: {count(before_digests, 'line')} made before lines had digests, and taken as it stands")
    if len(sound_lines) < len(lines):
        torn = lines[-1:] if not lines[-1].endswith(b"\n") else []
        if len(sound_lines) + len(torn) < len(lines):
            notes.append(f"{keep_damaged(path)}; what is missing is measured again")
    if before_digests or len(sound_lines) < len(lines) or (sound_lines and not sound_lines[-1].endswith(b"\n")):
        write_bytes(path, b"".join(line.rstrip(b"\n") + b"\n" for line in sound_lines))
    return Journal(rows_by_key, notes)


def read_line(line: bytes) -> Line | None:
    """Return what a line of the journal holds; None where it is damaged."""
    with suppress(ValueError, RecursionError):
        entry = convert(json.loads(line), Line)
        if entry.sha256 in (UNSET, digest_of_content([entry.key, entry.rows])):
            return entry
    return None
