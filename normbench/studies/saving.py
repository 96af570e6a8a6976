"""What a study leaves in its folder: rows, tables, figures, its answer and its page, and the same for TensorBoard."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from normbench.errors import UsageError
from normbench.record.files import inside, write_bytes
from normbench.record.machine import commit, cpu_name, describe_machine
from normbench.record.tensorboard import TensorBoard, event_files
from normbench.results.rows import ResultTable, StudyResult, Value, keys_of
from normbench.show.figures.figure import Figure
from normbench.show.figures.style import use_our_style
from normbench.show.safe import to_csv
from normbench.show.studied import save_study
from normbench.show.tables import Table
from normbench.show.tensorboard import folder_name
from normbench.studies.answers import answer_of
from normbench.studies.frame import LeftOut, Study, measured_numbers, place_in
from normbench.studies.writing import first_sentences, rows_table, write

ROWS_FILE = "rows.csv"
ANSWER_FILE = "answer.json"


def save(
    study: Study,
    name: str,
    rows: pd.DataFrame,
    folder: Path,
    command: str,
    left_out: Sequence[LeftOut] = (),
    gpus: Sequence[str] = (),
) -> None:
    """Write what a study has found: rows, tables, figures, its page, and the same for TensorBoard.

    Args:
        study: the study.
        name: the word that names it on the command line.
        rows: what it has measured.
        folder: where all is written.
        command: the line for a shell that makes it.
        left_out: what was not measured.
        gpus: names of those on which it was measured.
    """
    write_bytes(folder / ROWS_FILE, to_csv(rows))
    study.choose_baseline(rows)
    with use_our_style():
        figures = ask(study, "figures", rows, Figure)
    findings = ask(study, "tables", rows, Table, ResultTable)
    told = ask(study, "finding", rows, str, Value, StudyResult)
    tables, sentences = write(findings, told)
    answer = answer_of(name, command, study.baseline, findings, told, sentences)
    write_bytes(folder / ANSWER_FILE, answer.to_json().encode())
    if left_out:
        reasons = [one._asdict() for one in left_out]
        tables.append(rows_table("left-out", "Left out", reasons, 2))
    machine = " and ".join((cpu_name(), *gpus))
    about = {
        "study": name,
        "title": study.title,
        "question": inspect.getdoc(type(study)),
        "source": study.source,
        "command": command,
        "finding": first_sentences(sentences),
        "machine": {"cpu": machine, "threads": torch.get_num_threads(), "torch": torch.__version__},
        "commit": commit(),
        "session": {**describe_machine(), "accelerator": " and ".join(gpus)},
    }
    save_study(folder, about, tables, figures, [ROWS_FILE, ANSWER_FILE])
    pictures = {}
    for figure in figures:
        pictures[f"{name}/{figure.name}"] = figure.render("png", dpi=150)
    board = new_board(folder)
    board.images(pictures)
    board.close("")
    write_lines(study, name, rows, folder)


def ask(study: Study, method: str, rows: pd.DataFrame, *kinds: type) -> list[Any]:
    """Return what a study's method gives for rows: a list of such kinds.

    Raises:
        UsageError: it gives something else.
    """
    found = getattr(study, method)(rows)
    is_list = isinstance(found, Sequence) and not isinstance(found, str)
    wrong = [one for one in found if not isinstance(one, kinds)] if is_list else [found]
    if not wrong:
        return list(found)
    what = f"{type(study).__name__}.{method}"
    given = type(wrong[0]).__name__
    if is_list:
        given += " within a list"
    wanted = " or ".join(kind.__name__ for kind in kinds)
    raise UsageError(f"{what} gives {given}: let it return one flat list of {wanted}")


def write_lines(study: Study, name: str, rows: pd.DataFrame, folder: Path) -> None:
    """Write the mean over seeds of each arm's numbers for TensorBoard, by step, layer or position."""
    settings = keys_of(rows)
    place = place_in(rows)
    metrics = measured_numbers(rows, study.columns)
    known = {*settings, "seed", place, *metrics}
    kinds = [column for column in rows if column not in known]
    for values, own in rows.groupby(settings, dropna=False, sort=False):
        arm = " ".join(map(str, values))
        board = new_board(inside(folder, "arms", folder_name(arm)))
        steps = own.groupby(place) if place else [(0, own)]
        for step, at_step in steps:
            scalars = {}
            for tag, mean in means_by_tag(at_step, metrics, kinds).items():
                scalars[f"{name}/{tag}"] = mean
            board.scalars(int(step), scalars)
        board.close("")


def means_by_tag(rows: pd.DataFrame, metrics: Sequence[str], kinds: Sequence[str]) -> dict[str, float]:
    """Return the mean of each number for each kind of rows. kinds: the columns that tell these apart."""
    found = {}
    groups = rows.groupby(list(kinds), dropna=False, sort=False) if kinds else [((), rows)]
    for words, group in groups:
        suffix = "".join(f"/{word}" for word in words)
        for metric in metrics:
            values = group[metric]
            if values.notna().any():
                found[f"{metric}{suffix}"] = values.astype(float).mean()
    return found


def new_board(folder: Path) -> TensorBoard:
    """Return a writer of TensorBoard's records in a folder; those of an earlier study are deleted."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in event_files(folder):
        old.unlink()
    return TensorBoard(folder, 0)
