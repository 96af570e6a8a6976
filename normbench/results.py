"""What runs have left: trained models, and tables of all runs below a folder. torch is imported for models alone."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from normbench.config.groups import GROUPS
from normbench.errors import UsageError
from normbench.rundir import RunDirectory, read_json
from normbench.settings import Tree, flat

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from normbench.training.checkpoint import State
    from normbench.types import Data, Model, Task

Which = Literal["last", "best"]

# What a summary tells beside its metrics, its data (whose keys are the configuration's) and what else has its place.
DETAILS = (
    "message",
    "leak",
    "padding",
    "peak_memory_bytes",
    "skipped_steps",
    "compile_seconds",
    "extends",
    "step_time",
    "norm_facts",
    "ledger",
)


# ---- one run's model and data


@dataclass(frozen=True)
class TrainedRun:
    """A run directory with the configuration that made it."""

    directory: RunDirectory
    tree: Tree

    @property
    def path(self) -> Path:
        return self.directory.path

    def data(self) -> Data:
        """Return the data, decoded or from their cache; where their folder has gone, from that of NORMBENCH_DATA.

        Raises:
            UsageError: they are not there.
        """
        from normbench import build

        section = dict(self.tree["data"])
        if (root := section.get("root")) and not Path(os.path.expanduser(root)).is_dir():
            section["root"] = os.environ.get("NORMBENCH_DATA", root)
        return build.make_data({**self.tree, "data": section}, self.tree["seed"])

    def task(self) -> Task:
        """Return what the data ask of the model: as the run noted it, else from the data themselves."""
        from normbench.types import Task

        noted = ((read_json(self.directory.environment) or {}).get("sessions") or [{}])[-1].get("task")
        return self.data().task if noted is None else Task.from_record(noted)


def open_run(path: str | os.PathLike[str]) -> TrainedRun:
    """Return the run in a directory.

    Raises:
        UsageError: the directory is not there, or holds no run.
    """
    directory = RunDirectory(Path(os.path.expanduser(path)))
    if not directory.path.is_dir():
        raise UsageError(f"{path} is not a directory: give the directory of a run, such as outputs/train/RUN")
    if not directory.config.exists():
        raise UsageError(f"{path} holds no run (no config.yaml): give outputs/NAME/RUN, not a folder above")
    tree = configuration(directory)
    if not {"model", "norm", "placement", "data", "seed"} <= tree.keys():
        raise UsageError(f"{directory.config} is not the configuration of a run: give a run of normbench train")
    return TrainedRun(directory, tree)


def load_model(
    run: TrainedRun, *, which: Which = "last", ema: bool = False, device: str | torch.device = "cpu"
) -> Model:
    """Return a run's model with its trained weights, in evaluation mode; torch's random numbers stay as they are.

    Raises:
        UsageError: the run has no such weights, or they do not fit.
    """
    import torch

    from normbench import build

    weights = averaged(run, which) if ema else stored(run, which)["model"]
    model, _ = build.build_model(run.tree, run.task(), run.tree["seed"])
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(
            f"the weights in {run.path} do not fit this version of normbench: use the version that made the run"
        ) from error
    return model.to(torch.device(device) if not isinstance(device, str) else build.resolve_device(device)).eval()


def averaged(run: TrainedRun, which: Which) -> State:
    """Return the moving average of the weights.

    Raises:
        UsageError: none was kept.
    """
    if which == "best":
        raise UsageError("the best weights have no average beside them: give ema or which=best, not both")
    average = stored(run, which).get("average")
    if average is None:
        raise UsageError(f"{run.path} has no averaged weights: they are kept by a run with trainer.ema=0.999")
    weights: State = average["model"]
    return weights


def stored(run: TrainedRun, which: Which) -> State:
    """Return what a checkpoint of the run holds: the last one, where it is damaged the one before it, or the best.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    from normbench.training.checkpoint import Checkpoints, DamagedCheckpoint, read

    directory = run.directory
    if which == "best":
        if not directory.best.exists():
            raise UsageError(
                f"{run.path} has no best checkpoint: it is kept by a run with trainer.keep_checkpoint=best"
            )
        try:
            return read(directory.best)
        except DamagedCheckpoint as error:
            raise UsageError(f"{run.path}: {error}: use the last one") from error
    if which != "last":
        raise UsageError(f"which={which} is unknown: use last or best")
    checkpoints = Checkpoints(directory.checkpoint, directory.previous, directory.best)
    state = checkpoints.load(lambda line: warnings.warn(line, stacklevel=2))
    if state is None:
        if run.tree["trainer"]["keep_checkpoint"] == "none":
            why = "it was made with trainer.keep_checkpoint=none; make it anew with keep_checkpoint=last"
        elif (summary := directory.ended()) and summary["status"] == "diverged":
            why = (
                f"it diverged at step {summary['step']} before its first; make it anew with a smaller "
                "trainer.checkpoint_every and rerun=true"
            )
        else:
            why = "none was written yet, or all are damaged; train it further with its own command"
        raise UsageError(f"{run.path} has no checkpoint: {why}")
    return state


# ---- tables of runs


def load_runs(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return a row for each run below a folder; see `normbench.load_runs`.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    import pandas as pd

    base = Path(os.path.expanduser(folder))
    return pd.DataFrame([row(directory, base) for directory in run_directories(base)])


def load_metrics(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return what the runs below a folder have logged, in long form: `run`, `step`, `tag`, `value`.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    import pandas as pd

    base = Path(os.path.expanduser(folder))
    found = [entry for directory in run_directories(base) for entry in logged(directory, name_of(directory, base))]
    frame = pd.DataFrame(found, columns=["run", "step", "tag", "value"])
    return frame.astype({"run": "category", "step": "int64", "tag": "category", "value": "float64"})


def run_directories(folder: Path) -> list[RunDirectory]:
    """Return the runs below a folder, or the one that it is, by path.

    Left out are those that `rerun=true` has set aside (`RUN.old1`), and those in hidden folders.

    Raises:
        UsageError: the folder is not there, or holds no runs.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give the folder of your runs, such as outputs")
    paths = sorted(path.parent.relative_to(folder) for path in folder.rglob("config.yaml"))
    kept = [path for path in paths if not re.search(r"\.old\d+$|(^|/)\.[^/]", str(path))]
    found = [
        run for run in (RunDirectory(folder / path) for path in kept) if run.status.exists() or run.summary.exists()
    ]
    if not found:
        raise UsageError(f"{folder} holds no runs: train something first, or give the folder of your runs")
    return found


def name_of(directory: RunDirectory, folder: Path) -> str:
    """Return a run's path from the folder on, which tells the runs apart; its own name for the folder itself."""
    return directory.path.name if directory.path == folder else str(directory.path.relative_to(folder))


def row(directory: RunDirectory, folder: Path) -> dict[str, Any]:
    """Return where a run is and how it stands, its choices, its configuration, and its results where it has ended."""
    summary, status, environment = (
        read_json(path) or {} for path in (directory.summary, directory.status, directory.environment)
    )
    stands, latest = summary or status, (environment.get("sessions") or [{}])[-1]
    chosen = latest.get("choices", summary.get("choices", {}))
    heartbeat = status.get("heartbeat")
    return {
        "run": name_of(directory, folder),
        "path": str(directory.path),
        "status": stands.get("status"),
        "step": stands.get("step"),
        "steps": stands.get("steps"),
        "heartbeat": None if heartbeat is None else datetime.fromtimestamp(heartbeat, UTC),
        **{group: None if chosen[group] == "None" else chosen[group] for group in GROUPS if group in chosen},
        **flat_columns(configuration(directory)),
        **summary.get("metrics", {}),
        **flat_columns({name: summary[name] for name in DETAILS if name in summary}),
    }


def configuration(directory: RunDirectory) -> Mapping[str, Any]:
    """Return a run's resolved configuration; empty where it cannot be read."""
    try:
        tree = yaml.load(directory.config.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def flat_columns(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested tree by dotted paths, without Hydra's marks."""
    return {path: value for path, value in flat(tree).items() if not path.endswith("_partial_")}


def logged(directory: RunDirectory, name: str) -> Iterator[tuple[str, int, str, float | None]]:
    """Yield every number in metrics.jsonl; what was not finite is null there, and a last line may be torn."""
    try:
        lines = directory.metrics.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
            step = int(entry.pop("step"))
        except (ValueError, KeyError, TypeError):
            return
        yield from ((name, step, tag, value) for tag, value in entry.items())
