"""A sweep in TensorBoard: each arm as a run of its own, the mean over its seeds with a band of a standard deviation."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path

import numpy as np

from normbench.analysis.curves import Curve
from normbench.analysis.records import Study, read_study
from normbench.errors import UsageError
from normbench.recording import TensorBoard
from normbench.results import run_directories
from normbench.rundir import fingerprint, read_json, write_json

ARMS = "arms"  # the folder of the arms, beside the runs

# Custom Scalars tab: chart -> tag, under `arm/` with `/lower` and `/upper` beside it
BANDS = {"gradient norm": "grad/norm", "training loss": "loss/train", "validation accuracy": "accuracy/val",
         "validation loss": "loss/val"}  # fmt: skip


def write_arms(folder: Path) -> bool:
    """Write the arms of each folder of runs below one, where they have not been written of these runs as they are.

    Returns whether there are any. They lie in `arms`, which is ours alone where it holds `made.json`.

    Raises:
        UsageError: the folder holds no runs.
    """
    places = {run.path.parent for run in run_directories(folder).values()}
    for place in places:
        arms, runs = place / ARMS, sorted(place.glob("*/metrics.jsonl"))
        made = fingerprint({str(path): path.stat().st_size for path in runs})
        if (arms.exists() and not (arms / "made.json").exists()) or (read_json(arms / "made.json") or {}).get(
            "of"
        ) == made:
            continue
        with suppress(UsageError, OSError):  # no run has ended, or it is somebody else's folder
            study = read_study([place])
            shutil.rmtree(arms, ignore_errors=True)
            if len(study.runs) > len(study.arms) > 0:
                arms.mkdir()
                write_json(arms / "made.json", {})
                write_study(study, arms)
                write_json(arms / "made.json", {"of": made})
    return any((place / ARMS / "made.json").exists() for place in places)


def write_study(study: Study, folder: Path) -> None:
    """Write the arms of a study; the Custom Scalars tab draws their bands above all else, as `arms` is sorted first."""
    charts = {
        name: {
            "margin": {"series": [{"value": f"arm/{tag}", "lower": f"arm/{tag}/lower", "upper": f"arm/{tag}/upper"}]}
        }
        for name, tag in BANDS.items()
        if any(tag in run.curves for run in study.runs)
    }
    for arm in study.arms:
        (path := folder / arm.name.replace("/", "_")).mkdir(exist_ok=True)
        logged: dict[int, dict[str, float]] = defaultdict(dict)
        for tag in {tag: None for run in arm.runs for tag in run.curves}:
            steps, mean, spread = over_seeds([run.curves[tag] for run in arm.runs if tag in run.curves])
            band = {f"arm/{tag}": mean, f"arm/{tag}/lower": mean - spread, f"arm/{tag}/upper": mean + spread}
            for name, values in {tag: mean, **(band if tag in BANDS.values() else {})}.items():
                for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                    logged[step][name] = value
        board = TensorBoard(path, 0)
        board.draw({"arms: mean ± standard deviation over seeds": charts})
        for step in sorted(logged):
            board.scalars(step, logged[step])
        board.close(ended=False)


def over_seeds(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the steps that all seeds have logged, and the mean and standard deviation there; of one seed 0."""
    steps = reduce(np.intersect1d, [curve.steps for curve in curves])
    values = np.stack([curve.values[np.isin(curve.steps, steps)] for curve in curves])
    return steps, values.mean(axis=0), values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(steps))
