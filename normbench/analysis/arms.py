"""A sweep in TensorBoard: each arm as a run of its own, the mean over its seeds with a band of a standard deviation."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from normbench.analysis.records import Run, Study, read_studies, study_of
from normbench.errors import UsageError
from normbench.record.tensorboard import TensorBoard

ARMS, MARK = "arms", ".normbench"  # the folder of the arms, beside the runs, and the file that says whose it is

# Custom Scalars tab: chart -> tag, whose lines are `arm/TAG/value`, `/lower` and `/upper`
BANDS = {"gradient norm": "grad/norm", "training loss": "loss/train", "validation accuracy": "accuracy/val",
         "validation BLEU": "bleu/val", "validation loss": "loss/val"}  # fmt: skip


def write_arms(folder: Path, studies: Sequence[Study] = ()) -> bool:
    """Write the arms of each folder of runs below one; returns whether there are any, with several seeds.

    They lie in `arms`, which is ours alone where it is marked so. studies: what was read of the runs, where it was.
    """
    places, written = defaultdict[Path, list[Run]](list), False
    with suppress(UsageError):  # of something else, which TensorBoard may show, or no run has ended
        for run in (run for study in studies or read_studies([folder]) for run in study.runs):
            places[run.path.parent].append(run)
    for place, runs in places.items():
        arms, study = place / ARMS, study_of(runs)
        several = len(runs) > len(study.arms) and len({run.task for run in runs}) == 1
        with suppress(OSError):  # it cannot be written
            if several and any(run.ended for run in runs) and (not arms.exists() or (arms / MARK).exists()):
                shutil.rmtree(arms, ignore_errors=True)
                arms.mkdir()
                (arms / MARK).touch()
                write_study(study, arms)
                written = True
    return written


def folder_name(arm: str) -> str:
    """Return an arm's name as that of a folder: one, and none above it."""
    return "_" if arm in (".", "..") else arm.replace("/", "_")


def write_study(study: Study, folder: Path) -> None:
    """Write the arms of a study; the Custom Scalars tab draws their bands above all else, as `arms` is sorted first."""
    recorded = {tag for run in study.runs for tag in run.curves}
    charts = {title: {"margin": {"series": [{line: f"arm/{tag}/{line}" for line in ("value", "lower", "upper")}]}}
              for title, tag in BANDS.items() if tag in recorded}  # fmt: skip
    for arm in study.arms:
        (path := folder / folder_name(arm.name)).mkdir(exist_ok=True)
        logged: dict[int, dict[str, float]] = defaultdict(dict)
        for tag in {tag: None for run in arm.runs for tag in run.curves}:
            curves = [run.curves[tag] for run in arm.runs if tag in run.curves]
            seeds = pd.concat([pd.Series(curve.values, curve.steps) for curve in curves], axis=1, join="inner")
            mean, spread = seeds.mean(axis=1, skipna=False), seeds.std(axis=1).fillna(0)  # 0 of one seed
            band = {"value": mean, "lower": mean - spread, "upper": mean + spread} if tag in BANDS.values() else {}
            lines = {tag: mean, **{f"arm/{tag}/{line}": values for line, values in band.items()}}
            for step, values in pd.DataFrame(lines).to_dict("index").items():
                logged[step] |= values
        board = TensorBoard(path, 0)
        board.draw({"arms: mean ± standard deviation over seeds": charts})
        for step in sorted(logged):
            board.scalars(step, logged[step])
        board.close(ended="")
