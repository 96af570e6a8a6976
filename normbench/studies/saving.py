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
from normbench.results.rows import ResultTable, StudyResult, Value, correct_stated, keys_of
from normbench.results.study_answer import answer_of
from normbench.show.figures.figure import Figure
from normbench.show.figures.style import use_our_style
from normbench.show.safe import to_csv
from normbench.show.studied import save_study
from normbench.show.study_tables import rows_table, write_table
from normbench.show.tables import Table
from normbench.show.tensorboard import folder_name
from normbench.studies.frame import LeftOut, Study, measured_numbers, place_in
from normbench.tell.verdicts import first_of_study, say_stated

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
    results = ask(study, "tables", rows, Table, ResultTable)
    stated = ask(study, "finding", rows, str, Value, StudyResult)
    results, stated = correct_stated(results, stated)
    sentences = say_stated(stated)
    answer = answer_of(name, command, study.baseline, results, stated, [sentence.text for sentence in sentences])
    write_bytes(folder / ANSWER_FILE, answer.to_json().encode())
    tables = [write_table(table) if isinstance(table, ResultTable) else table for table in results]
    shown_sentences = first_of_study(sentences)
    if left_out:
        reasons = [left._asdict() for left in left_out]
        tables.append(rows_table("left-out", "Left out", reasons, 2))
    machine = " and ".join((cpu_name(), *gpus))
    about = {
        "study": name,
        "title": study.title,
        "question": inspect.getdoc(type(study)),
        "source": study.source,
        "command": command,
        "finding": [sentence.text for sentence in shown_sentences],
        "details": [sentence.detail for sentence in shown_sentences if sentence.detail],
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
    returned = getattr(study, method)(rows)
    is_list = isinstance(returned, Sequence) and not isinstance(returned, str)
    wrong_items = [item for item in returned if not isinstance(item, kinds)] if is_list else [returned]
    if not wrong_items:
        return list(returned)
    what = f"{type(study).__name__}.{method}"
    kind_given = type(wrong_items[0]).__name__
    if is_list:
        kind_given += " within a list"
    allowed = " or ".join(kind.__name__ for kind in kinds)
    raise UsageError(f"{what} gives {kind_given}: let it return one flat list of {allowed}")


def write_lines(study: Study, name: str, rows: pd.DataFrame, folder: Path) -> None:
    """Write the mean over seeds of each arm's numbers for TensorBoard, by step, layer or position."""
    settings = keys_of(rows)
    place = place_in(rows)
    metrics = measured_numbers(rows, study.columns)
    named_columns = {*settings, "seed", place, *metrics}
    kinds = [column for column in rows if column not in named_columns]
    for values, rows_of_arm in rows.groupby(settings, dropna=False, sort=False):
        arm = " ".join(map(str, values))
        board = new_board(inside(folder, "arms", folder_name(arm)))
        steps = rows_of_arm.groupby(place) if place else [(0, rows_of_arm)]
        for step, at_step in steps:
            scalars = {}
            for tag, mean in means_by_tag(at_step, metrics, kinds).items():
                scalars[f"{name}/{tag}"] = mean
            board.scalars(int(step), scalars)
        board.close("")


def means_by_tag(rows: pd.DataFrame, metrics: Sequence[str], kinds: Sequence[str]) -> dict[str, float]:
    """Return the mean of each number for each kind of rows. kinds: the columns that tell these apart."""
    means = {}
    groups = rows.groupby(list(kinds), dropna=False, sort=False) if kinds else [((), rows)]
    for words, group in groups:
        suffix = "".join(f"/{word}" for word in words)
        for metric in metrics:
            values = group[metric]
            if values.notna().any():
                means[f"{metric}{suffix}"] = values.astype(float).mean()
    return means


def new_board(folder: Path) -> TensorBoard:
    """Return a writer of TensorBoard's records in a folder; those of an earlier study are deleted."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in event_files(folder):
        old.unlink()
    return TensorBoard(folder, 0)
