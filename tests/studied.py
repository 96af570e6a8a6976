"""What the tests of studies measure with: points of a study's grid, made of words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
import torch

from normbench.build import make_data
from normbench.config import compose
from normbench.results.rows import ResultTable, Stated, correct_stated
from normbench.show.study_tables import write_table
from normbench.show.tables import Table
from normbench.studies.frame import Study, Subject
from normbench.tell.phrases import Said
from normbench.tell.verdicts import say_stated


def subject(*words: str, **settings: Any) -> Subject:
    """A point of a grid on the CPU; settings: what tells its arm from others, beside its norm."""
    config = compose.read(words)
    load = partial(make_data, config.recipe, config.tree["seed"])
    return Subject({"norm": config.choices.groups["norm"]} | settings, config.tree, torch.device("cpu"), load)


def subjects(*words: str, seeds: int = 1, **choices: Sequence[Any]) -> list[Subject]:
    """The points of a grid, each with some seeds; choices: by their words, what its arms choose from."""
    found = []
    for values in product(*choices.values()):
        settings = dict(zip(choices, values, strict=True))
        own = [f"{key}={value}" for key, value in settings.items()]
        found += [subject(*own, f"seed={seed}", *words, **settings) for seed in range(seeds)]
    return found


def measured(study: Study, *subjects: Subject) -> pd.DataFrame:
    """The rows of some subjects, as a study's tables and figures are given them."""
    rows = [{**one.settings, "seed": one.seed, **row} for one in subjects for row in study.measure(one)]
    return pd.DataFrame(rows)


def write(tables: Sequence[Table | ResultTable], stated: Sequence[Stated]) -> tuple[list[Table], list[Said]]:
    """The tables and the sentences of a study, as it writes them."""
    results, corrected = correct_stated(tables, stated)
    written = [write_table(table) if isinstance(table, ResultTable) else table for table in results]
    return written, say_stated(corrected)


def tables_of(study: Study, rows: pd.DataFrame) -> list[Table]:
    """The tables of a study as they are written."""
    tables, _ = write(study.tables(rows), [])
    return tables
