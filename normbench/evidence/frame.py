"""Tables of runs: what they are, what they have logged and what is measured of them, a row for each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pandas as pd

from normbench.config.rules import is_rule
from normbench.config.schema import list_unwritten
from normbench.config.sections import GROUPS
from normbench.evidence.arms import Arm
from normbench.evidence.measures import (
    IN_BLOCKS,
    NAN,
    TRAINING_LOSS,
    best_during_training,
    finite_points,
    gap,
    implementation,
    last_in_blocks,
    recorded_final,
    seconds_at,
    shown_metrics,
    step_at_target,
    value_at,
)
from normbench.evidence.scores import count_spikes
from normbench.evidence.study import RecordedStudy
from normbench.evidence.yardstick import Yardstick
from normbench.record.directory import RECORD, RunDirectory
from normbench.record.files import read_json
from normbench.record.forms import DIGESTS
from normbench.record.metrics import UNREADABLE, LoggedLine, logged_lines
from normbench.runs.finding import run_directories
from normbench.settings import drop_keys, flat

LOGGED = "metrics.jsonl"  # which `load_metrics` alone reads
MOST = 3  # files that a warning names

# Keys of a summary that make no column: they are among the first columns already, or say nothing in a table.
PLACED = {"status", "step", "steps", "seed", "choices", "metrics", "data", DIGESTS}


# ---- of a study


def runs_frame(study: RecordedStudy, yardstick: Yardstick) -> pd.DataFrame:
    """Return a row for each run: what it is, and all that is measured of it; NaN where it has none.

    trained: whether it is clearly better than a predictor that always says the same. best: the best validation loss,
    accuracy (%) or BLEU of the evaluations that `comparable` keeps, chosen on the validation data. gap: last validation
    loss less last training loss (nats), the latter in eval mode where it was recorded.
    """
    rows = []
    for arm, run in study.pairs:
        logged = shown_metrics(run)
        times = run.summary.get("step_time", {})
        primary = recorded_final(run, yardstick.primary)
        target = yardstick.targets.get(arm.name, NAN)
        reached = step_at_target(run, target)
        at_equal_time = value_at(run, yardstick.timed, yardstick.seconds) if run.status == "finished" else NAN
        best, best_step = best_during_training(run, yardstick.during_training)
        spikes, judged = count_spikes(finite_points(run.curves.get(TRAINING_LOSS)).values)
        row = {
            "run": run.name,
            "arm": arm.name,
            **arm.settings,
            "seed": run.seed,
            "status": run.status,
            "trained": run.trained,
            "step": run.step,
            "steps": run.steps,
            **logged,
            yardstick.primary.tag: NAN if primary is None else primary,
            "best": best,
            "best_step": best_step,
            "gap": gap(run),
            "training_seconds": float(seconds_at(run, run.step)),
            "target": target,
            "target_seconds": float(seconds_at(run, reached)) if reached else NAN,
            f"{yardstick.timed}_at_equal_time": at_equal_time,
            "implementation": implementation(run),
            "step_median_ms": run.step_ms,
            "operators_a_step": run.operators,
            "processes": run.session.get("processes", 1),
            "step_p90_ms": times.get("p90_ms") or NAN,
            "steps_timed": times.get("n", NAN),
            "peak_memory_bytes": float(run.summary.get("peak_memory_bytes") or NAN),
            "spikes": spikes / judged if judged else NAN,
            "message": run.message,
            "path": str(run.path),
        }
        rows.append(row)
    frame = pd.DataFrame(rows)
    mixed = [key for key in study.varied if frame[key].dtype == object]  # a number here and a word there
    return frame.assign(**frame[mixed].map(str, na_action="ignore"))


def activations_frame(arms: Sequence[Arm]) -> pd.DataFrame:
    """Return what probes measured last in each block of each arm: the mean over the seeds that finished."""
    rows = []
    for arm in arms:
        for run in arm.finished:
            for block, measured in last_in_blocks(run).items():
                rows.append({"arm": arm.name, "block": block, **measured})
    runs = pd.DataFrame(rows, columns=["arm", "block", *IN_BLOCKS])
    blocks = runs.groupby(["arm", "block"], sort=False)
    means = blocks.mean()
    means.insert(0, "seeds", blocks.size())
    return means.reset_index()


# ---- of all runs below a folder, damaged ones too


def load_runs(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return a row for each run below a folder; see `normbench.load_runs`.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    rows: list[dict[str, Any]] = []
    altered: list[str] = []
    for name, run in run_directories(folder).items():
        summary = read_json(run.summary) or {}
        if summary:
            files = [file for file in RECORD if file != LOGGED]
            altered += altered_files(name, run, files)
        rows.append(row_of(name, run, summary))
    warn_of(altered)
    columns: dict[str, None] = {}  # each once, in their order
    for row in rows:
        columns.update(dict.fromkeys(row))
    for row in rows:
        for column, value in list_unwritten(row).items():
            if column in columns:
                row[column] = value
    frame = pd.DataFrame(rows, columns=[*columns])
    return frame.assign(heartbeat=pd.to_datetime(frame["heartbeat"], unit="s", utc=True))


def row_of(name: str, run: RunDirectory, summary: dict[str, Any]) -> dict[str, Any]:
    """Return a run's row of the table: how it stands, what was chosen, its configuration, and its results."""
    status = read_json(run.status) or {}
    stands = summary or status
    row = {
        "run": name,
        "path": str(run.path),
        "status": stands.get("status"),
        "step": stands.get("step"),
        "steps": stands.get("steps"),
        "heartbeat": status.get("heartbeat"),
    }
    sessions = run.sessions()
    chosen = sessions[-1].get("choices", {}) if sessions else {}
    for group in (*GROUPS, *filter(is_rule, chosen)):
        if group in chosen:
            row[group] = None if chosen[group] == "None" else chosen[group]
    for key, value in flat(run.configuration()).items():
        if not key.endswith("_partial_"):  # which is Hydra's
            row[key] = value
    row |= summary.get("metrics", {})
    others = drop_keys(summary, *PLACED)
    row |= flat(others)
    return row


def load_metrics(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return what the runs below a folder have logged, in long form: `run`, `step`, `tag`, `value`.

    What was not finite is null in metrics.jsonl; its last line may be half written.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    rows: list[tuple[str, float, str, float]] = []
    altered: list[str] = []
    for name, run in run_directories(folder).items():
        if read_json(run.summary):
            altered += altered_files(name, run, [LOGGED])
        lines: list[LoggedLine] = []
        with suppress(OSError):
            lines = logged_lines(run.metrics)
        for line in lines:
            if line.step == UNREADABLE:
                break
            for tag, value in line.numbers.items():
                rows.append((name, line.step, tag, value))
    warn_of(altered)
    frame = pd.DataFrame(rows, columns=["run", "step", "tag", "value"])
    return frame.astype({"run": "category", "step": "int64", "tag": "category", "value": "float64"})


def altered_files(name: str, run: RunDirectory, files: Sequence[str]) -> list[str]:
    """Return which files of a run that has ended are not as it left them, by their paths from `name` on."""
    with suppress(OSError, ValueError):  # what cannot be read is missing in the table
        return [f"{name}/{file}" for file in run.find_altered(files)]
    return []


def warn_of(altered: Sequence[str]) -> None:
    """Warn of files that were changed after their run; the table has their numbers as they are now."""
    if altered:
        files = ", ".join(altered[:MOST])
        if len(altered) > MOST:
            files += f" and {len(altered) - MOST} more"
        what = f"{files}: changed after the run had ended, so numbers may not be what was measured"
        warnings.warn(f"{what}; make such a run again with rerun=true", stacklevel=4)
