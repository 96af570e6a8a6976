"""Makes a study: trains or gathers its subjects, measures them, and writes what was found.

Rows are kept as they come, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from rich.progress import track

from normbench import build
from normbench.analysis.arms import folder_name
from normbench.analysis.figures.style import Figure, our_style
from normbench.analysis.records import read_studies
from normbench.analysis.safe import to_csv
from normbench.analysis.studied import save_study
from normbench.analysis.tables import Table
from normbench.config import compose
from normbench.config.sections import GROUPS
from normbench.errors import UsageError
from normbench.record.directory import RunDirectory
from normbench.record.files import inside, write_bytes
from normbench.record.machine import commit, cpu_name
from normbench.record.tensorboard import TensorBoard, event_files
from normbench.runs.contexts import limits_named
from normbench.runs.load import TrainedRun
from normbench.settings import show
from normbench.studies.findings import plain_table, shortened_finding, written
from normbench.studies.frame import Difference, Row, Study, Subject, device_name, make_study, study_class
from normbench.sweep.conduct import understand
from normbench.sweep.plan import SweepPlan
from normbench.sweep.words import AS_IT_IS, TIE, key_of
from normbench.training.devices import allow_tf32, make_current
from normbench.types import Data

# Coordinates that TensorBoard takes for steps, the first that is there.
PLACES = ("step", "layer", "position", "depth", "round")


# ---- subjects


def grid_words(kind: type[Study], name: str, words: Sequence[str]) -> list[str]:
    """Return a study's words with a person's own in place of those for the same keys.

    Where they choose another option of a group, the study's settings for the group's own fall away; and settings that
    vary together, where they set one of them.
    """
    keys = {key_of(word) for word in words}
    defaults = [f"name={name}", "sweep.extend=true", "sweep.report=false", *(() if kind.trains else ["sweep.jobs=1"])]
    kept = [
        word
        for word in (*defaults, *kind.words)
        if not keys & {key_of(word), *tied(word)} and key_of(word).partition(".")[0] not in keys & {*GROUPS}
    ]
    return [*kept, *words]


def tied(word: str) -> list[str]:
    """Return the keys of the settings that a word lets vary together."""
    _, _, value = word.partition("=")
    return [key_of(part) for part in compose.value_of(value).split(";")] if key_of(word) == TIE else []


def planned(plan: SweepPlan, trained: bool, left_out: list[Row]) -> list[Subject]:
    """Return the points of a grid; trained: with the runs that have finished, once the sweep is over."""
    found = []
    for one in plan.runs:
        run, settings = one.prepared, {key: compose.value_of(value) for key, value in one.arm.items()}
        norm, status = (
            {"norm": run.config.choices.groups["norm"]},
            (run.directory.ended() or {}).get("status", "failed"),
        )
        if trained and status != "finished":
            left_out.append({"what": run.directory.path.name, "why": status})
            continue
        path, load = run.directory.path if trained else None, partial(getattr, run, "data")
        found.append(Subject(norm | settings, run.config.tree, run.device, load, path))
    return found


def given(folders: Sequence[Path], device: str, trust: bool, left_out: list[Row]) -> list[Subject]:
    """Return the finished runs below some folders.

    Raises:
        UsageError: there are none, they are of several tasks, or one has classes of somebody's.
    """
    (study, *others), loaded, found = read_studies(folders), dict[str, Data](), []

    def load(trained: TrainedRun) -> Data:
        key = json.dumps([trained.tree["data"], trained.sessions()[-1]["data"]["fingerprint"]], sort_keys=True)
        return loaded[key] if key in loaded else loaded.setdefault(key, trained.data())

    where = build.resolve_device(device)
    if others:
        raise UsageError(f"{', '.join(map(str, folders))} hold runs of several tasks: give folders of runs of one task")
    for arm, run in study.pairs:
        if run.status != "finished":
            left_out.append({"what": run.name, "why": run.status})
            continue
        trained, settings = TrainedRun(run.path, trust), {"norm": run.config["norm"], **arm.settings}
        found.append(Subject(settings, trained.tree, where, partial(load, trained), run.path, trust))
    return found


def taken(study: Study, subjects: Sequence[Subject], left_out: list[Row]) -> list[Subject]:
    """Return the subjects that a study takes; others are left out with the reason.

    Raises:
        UsageError: it takes none.
    """
    found, refused = [], None
    for subject in subjects:
        try:
            study.check(subject)
            found.append(subject)
        except UsageError as error:
            refused = error
            left_out.append({"what": f"{subject.settings['norm']} · seed {subject.seed}", "why": str(error)})
    if refused and not found:
        raise refused
    return found


# ---- one study


def conduct(name: str, words: Sequence[str], device: str = "auto", trust: bool = False) -> Path | None:
    """Make a study, or go on with it; return the folder of its findings, or None where runs were stopped.

    words: folders of runs, settings `study.KEY=VALUE`, and those of the grid.

    Raises:
        UsageError: any mistake of the user's.
        KeyboardInterrupt: it was stopped; what has been measured is kept.
    """
    kind = study_class(name)
    folders = [Path(word).expanduser() for word in words if "=" not in word]
    settings = [word for word in words if key_of(word).startswith("study.")]
    others = [word for word in words if "=" in word and word not in settings]
    study = make_study(kind, settings)
    left_out: list[Row] = []
    if folders:
        if not kind.trains:
            raise UsageError(f"study {name} measures models as they start: give it norm=, model= and such, no folder")
        if more := [word for word in others if key_of(word) != "quiet"]:
            raise UsageError(f"{more[0]} is for runs that the study trains itself: leave it out, or the folders")
        subjects, place = taken(study, given(folders, device, trust, left_out), left_out), folders[0]
    else:
        with limits_named("outputs"):
            sweep = understand(grid_words(kind, name, others))
            left_out += [{"what": f"{number} of the grid", "why": why} for why, number in sweep.plan.left_out.items()]
            points = planned(sweep.plan, False, left_out)
            subjects, place = taken(study, points, left_out), sweep.plan.folder
            sweep.plan = replace(sweep.plan, runs=[run for run, point in zip(sweep.plan.runs, points, strict=True)
                                                   if point in subjects])  # fmt: skip
            sweep.plan.runs[0].prepared.directory.check_creatable()
            if kind.trains:
                if sweep.run(lambda *_: None) >= 128:
                    return None
                subjects = planned([*sweep.plans()][-1], True, left_out)
    if not subjects:
        raise UsageError(f"study {name} has nothing to measure: none of its runs has finished")
    if threads := subjects[0].tree["threads"]:
        torch.set_num_threads(threads if not kind.trains else max(threads, torch.get_num_threads()))
    folder = inside(place, "studies", name)
    folder.mkdir(parents=True, exist_ok=True)
    with RunDirectory(folder).held(), limits_named(str(place)):
        rows = measured(study, subjects, folder / "rows.jsonl", quiet="quiet=true" in words)
        command = shlex.join(["normbench", *(["study"] * (name != "bench")), name, *words])
        gpus = dict.fromkeys(device_name(one.device) for one in subjects if one.device.type == "cuda")
        save(study, name, rows, folder, command, left_out, [*gpus])
    return folder


def measured(study: Study, subjects: Sequence[Subject], journal: Path, quiet: bool) -> pd.DataFrame:
    """Return the rows of all subjects; those of a subject are kept in the journal once it is measured."""
    kept = read_journal(journal)
    keys = {id(subject): subject.key(study) for subject in subjects}
    console = Console(stderr=True, quiet=quiet)

    def keep(key: str, rows: list[Row]) -> None:
        with open(inside(journal.parent, journal.name), "ab") as file:
            file.write(json.dumps({"key": key, "rows": rows}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        kept[key] = rows

    groups = [[one] for one in subjects]
    if study.together:  # on one device
        devices = dict.fromkeys(one.device for one in subjects)
        groups = [[one for one in subjects if one.device == device] for device in devices]
    todo = [group for group in groups if any(keys[id(one)] not in kept for one in group)]
    for group in track(todo, "measuring", console=console, disable=not todo):
        make_current(group[0].device)
        allow_tf32(group[0].tree["trainer"].get("tf32", False))
        found: dict[str, list[Row]] = {keys[id(one)]: [] for one in group}
        for one, row in study.measure_together(group):
            found[keys[id(one)]].append(row)
        for key, rows in found.items():
            keep(key, rows)
    settings = dict.fromkeys((key for one in subjects for key in one.settings), AS_IT_IS)  # an arm may be without some
    named = [({key: show(value) if isinstance(value, list) else value
               for key, value in (settings | {**one.settings}).items()}, one) for one in subjects]  # fmt: skip
    return pd.DataFrame([{**words, "seed": one.seed, **row} for words, one in named for row in kept[keys[id(one)]]])


def read_journal(path: Path) -> dict[str, list[Row]]:
    """Return the rows that have been kept, by key; a line that a kill has torn is cut off."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    kept, whole = dict[str, list[Row]](), list[bytes]()
    for line in lines:
        with suppress(ValueError, KeyError):
            entry = json.loads(line)
            kept[entry["key"]] = entry["rows"]
            whole.append(line)
    if len(whole) < len(lines):
        write_bytes(path, b"".join(whole))
    return kept


def save(
    study: Study,
    name: str,
    rows: pd.DataFrame,
    folder: Path,
    command: str,
    left_out: Sequence[Row] = (),
    gpus: Sequence[str] = (),
) -> None:
    """Write what a study has found: rows, tables, figures, its page, and the same for TensorBoard.

    gpus: names of those on which it was measured.
    """
    machine = " and ".join((cpu_name(), *gpus))
    write_bytes(folder / "rows.csv", to_csv(rows))
    with our_style():
        figures = given_by(study, "figures", rows, Figure)
    tables, finding = written(given_by(study, "tables", rows, Table), given_by(study, "finding", rows, str, Difference))
    if left_out:
        tables.append(plain_table("left-out", "Left out", left_out, 2))
    about = {
        "study": name,
        "title": study.title,
        "question": inspect.getdoc(type(study)),
        "source": study.source,
        "command": command,
        "finding": shortened_finding(finding),
        "machine": {"cpu": machine, "threads": torch.get_num_threads(), "torch": torch.__version__},
        "commit": commit(),
    }
    save_study(folder, about, tables, figures)
    board = new_board(folder)
    board.images({f"{name}/{figure.name}": figure.drawn("png", dpi=150) for figure in figures})
    board.close("")
    write_lines(study, name, rows, folder)


def given_by(study: Study, method: str, rows: pd.DataFrame, *kinds: type) -> list[Any]:
    """Return what a study's method gives for rows: a list of such kinds.

    Raises:
        UsageError: it gives something else.
    """
    found = getattr(study, method)(rows)
    is_list = isinstance(found, Sequence) and not isinstance(found, str)
    wrong = [one for one in found if not isinstance(one, kinds)] if is_list else [found]
    if not wrong:
        return [*found]
    what, given = f"{type(study).__name__}.{method}", type(wrong[0]).__name__
    wanted = " or ".join(kind.__name__ for kind in kinds)
    raise UsageError(f"{what} gives {given}{' within a list' * is_list}: let it return one flat list of {wanted}")


def write_lines(study: Study, name: str, rows: pd.DataFrame, folder: Path) -> None:
    """Write the mean over seeds of each arm's numbers for TensorBoard: steps are steps, layers or positions."""
    front = [*rows.columns[: rows.columns.get_loc("seed")]]
    place = next((word for word in PLACES if word in rows), None)
    values = [column for column in study.columns if column in rows and column != place
              and pd.api.types.is_numeric_dtype(rows[column])]  # fmt: skip
    others = [column for column in rows if column not in (*front, "seed", place, *values)]
    for settings, own in rows.groupby(front, dropna=False, sort=False):
        board = new_board(inside(folder, "arms", folder_name(" ".join(map(str, settings)))))
        for step, at in own.groupby(place) if place else [(0, own)]:
            groups = at.groupby(others, dropna=False, sort=False) if others else [((), at)]
            tags = {f"{name}/{value}" + "".join(f"/{word}" for word in words): group[value].astype(float).mean()
                    for words, group in groups for value in values if group[value].notna().any()}  # fmt: skip
            board.scalars(int(step), tags)
        board.close("")


def new_board(folder: Path) -> TensorBoard:
    """Return a place for TensorBoard's records in a folder, in place of those of an earlier study."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in event_files(folder):
        old.unlink()
    return TensorBoard(folder, 0)
