"""A sweep in TensorBoard: each arm as a run of its own, the mean over its seeds with a band of a standard deviation."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path

import numpy as np

from normbench.analysis.records import Curve, Run, Study, read_studies, study_of
from normbench.errors import UsageError
from normbench.recording import TensorBoard

ARMS, MARK = "arms", ".normbench"  # the folder of the arms, beside the runs, and the file that says whose it is

# Custom Scalars tab: chart -> tag, whose lines are `arm/TAG/value`, `/lower` and `/upper`
BANDS = {"gradient norm": "grad/norm", "training loss": "loss/train", "validation accuracy": "accuracy/val",
         "validation loss": "loss/val"}  # fmt: skip


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


def write_study(study: Study, folder: Path) -> None:
    """Write the arms of a study; the Custom Scalars tab draws their bands above all else, as `arms` is sorted first."""
    charts = {
        title: {"margin": {"series": [{line: f"arm/{tag}/{line}" for line in ("value", "lower", "upper")}]}}
        for title, tag in BANDS.items()
        if any(tag in run.curves for run in study.runs)
    }
    for arm in study.arms:
        (path := folder / arm.name.replace("/", "_")).mkdir(exist_ok=True)
        logged: dict[int, dict[str, float]] = defaultdict(dict)
        for tag in {tag: None for run in arm.runs for tag in run.curves}:
            steps, mean, spread = over_seeds([run.curves[tag] for run in arm.runs if tag in run.curves])
            band = {"value": mean, "lower": mean - spread, "upper": mean + spread} if tag in BANDS.values() else {}
            for name, values in {tag: mean, **{f"arm/{tag}/{line}": band[line] for line in band}}.items():
                for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                    logged[step][name] = value
        board = TensorBoard(path, 0)
        board.draw({"arms: mean ± standard deviation over seeds": charts})
        for step in sorted(logged):
            board.scalars(step, logged[step])
        board.close(ended="")


def over_seeds(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the steps that all seeds have logged, and the mean and standard deviation there; of one seed 0."""
    steps = reduce(np.intersect1d, [curve.steps for curve in curves])
    values = np.stack([curve.values[np.isin(curve.steps, steps)] for curve in curves])
    return steps, values.mean(axis=0), values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(steps))
