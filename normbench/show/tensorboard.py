"""A sweep in TensorBoard: each arm as a run of its own, the mean over its seeds with a band of a standard deviation."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from normbench.errors import UsageError
from normbench.evidence.arms import Arm
from normbench.evidence.run import RecordedRun
from normbench.evidence.study import RecordedStudy, read_studies, study_of
from normbench.record.directory import BLOCKS
from normbench.record.tensorboard import TensorBoard, in_fixed_width

ARMS = "arms"  # the folder, beside the runs
MARK = ".normbench"  # the file in it that says whose it is

# Custom Scalars tab: chart -> tag, whose lines are `arm/TAG/value`, `/lower` and `/upper`
BANDS = {
    "gradient norm": "grad/norm",
    "training loss": "loss/train",
    "validation accuracy": "accuracy/val",
    "validation BLEU": "bleu/val",
    "validation loss": "loss/val",
}


def write_arms(folder: Path, studies: Sequence[RecordedStudy] = ()) -> bool:
    """Write the arms of each folder of runs below one; return whether any has several seeds and was written.

    They are written to `arms`, beside the runs, unless that folder is there and not marked as ours. studies: the runs,
    where they have been read already.
    """
    places = defaultdict[Path, list[RecordedRun]](list)
    with suppress(UsageError):  # the folder has no runs that ended, but perhaps logs of something else
        studies = studies or read_studies([folder])
    for study in studies:
        for run in study.runs:
            places[run.path.parent].append(run)
    written = False
    for place, runs in places.items():
        study = study_of(runs)
        if have_several_seeds(study):
            with suppress(OSError):  # it cannot be written
                written |= replace_arms(study, place / ARMS)
    return written


def have_several_seeds(study: RecordedStudy) -> bool:
    """Tell whether runs of one task have ended, and some arm has several of them."""
    runs = study.runs
    tasks = {run.task for run in runs}
    has_ended = any(run.ended for run in runs)
    return len(tasks) == 1 and has_ended and len(runs) > len(study.arms)


def replace_arms(study: RecordedStudy, arms: Path) -> bool:
    """Write the arms of a study in place of older ones; return whether the folder is ours to write."""
    if arms.exists() and not (arms / MARK).exists():
        return False
    shutil.rmtree(arms, ignore_errors=True)
    arms.mkdir()
    (arms / MARK).touch()
    write_study(study, arms)
    return True


def folder_name(arm: str) -> str:
    """Return an arm's name as that of one folder, never of a path."""
    return "_" if arm in (".", "..") else arm.replace("/", "_")


def write_study(study: RecordedStudy, folder: Path) -> None:
    """Write the arms of a study; the Custom Scalars tab draws their bands above all else, as `arms` is sorted first."""
    recorded = set[str]()
    for run in study.runs:
        recorded.update(run.curves)
    charts = {}
    for title, tag in BANDS.items():
        if tag in recorded:
            charts[title] = chart_of(tag)
    for arm in study.arms:
        path = folder / folder_name(arm.name)
        path.mkdir(exist_ok=True)
        logged = means_by_step(arm)
        board = TensorBoard(path, 0)
        board.draw({"arms: mean ± standard deviation over seeds": charts})
        blocks = arm.runs[0].drawing
        if blocks:
            board.texts(0, {BLOCKS: in_fixed_width(blocks)})
        for step in sorted(logged):
            board.scalars(step, logged[step])
        board.close(ended="")


def chart_of(tag: str) -> dict[str, Any]:
    """Return the band of a tag for the Custom Scalars tab."""
    band = {line: f"arm/{tag}/{line}" for line in ("value", "lower", "upper")}
    return {"margin": {"series": [band]}}


def means_by_step(arm: Arm) -> Mapping[int, dict[str, float]]:
    """Return the means over an arm's seeds by step and tag, with bands around those of some tags."""
    logged = defaultdict[int, dict[str, float]](dict)
    by_tag = defaultdict[str, list[pd.Series]](list)
    for run in arm.runs:
        for tag, curve in run.curves.items():
            by_tag[tag].append(pd.Series(curve.values, curve.steps))
    for tag, curves in by_tag.items():
        seeds = pd.concat(curves, axis=1, join="inner")
        mean = seeds.mean(axis=1, skipna=False)
        lines = {tag: mean}
        if tag in BANDS.values():
            spread = seeds.std(axis=1).fillna(0)  # 0 of one seed
            lines[f"arm/{tag}/value"] = mean
            lines[f"arm/{tag}/lower"] = mean - spread
            lines[f"arm/{tag}/upper"] = mean + spread
        for step, values in pd.DataFrame(lines).to_dict("index").items():
            logged[step] |= values
    return logged
