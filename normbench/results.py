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
from typing import TYPE_CHECKING, Any, Literal, get_args

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

# What a summary tells that has its place among the columns already: the rest of it follows behind them.
PLACED = {"status", "step", "steps", "seed", "choices", "metrics", "data"}


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
        """Return what the data ask of the model: as the run noted it."""
        from normbench.types import Task

        return Task.from_record(self.directory.sessions()[-1]["task"])


def open_run(path: str | os.PathLike[str]) -> TrainedRun:
    """Return the run in a directory.

    Raises:
        UsageError: the directory is not there, or holds no run.
    """
    directory = RunDirectory(Path(os.path.expanduser(path)))
    tree = configuration(directory)
    if not {"model", "norm", "placement", "data", "seed"} <= tree.keys():
        raise UsageError(f"{path} holds no run: give the directory of one, outputs/NAME/RUN, not a folder above")
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

    state = stored(run, which)
    if ema and state.get("average") is None:
        raise UsageError(f"{run.path} has no averaged weights: the last ones of a run with trainer.ema=0.999 have them")
    model, _ = build.build_model(run.tree, run.task(), run.tree["seed"])
    model.load_state_dict(state["average"]["model"] if ema else state["model"])
    return model.to(torch.device(device) if not isinstance(device, str) else build.resolve_device(device)).eval()


def stored(run: TrainedRun, which: Which) -> State:
    """Return what a checkpoint of the run holds: the last one, where it is damaged the one before it, or the best.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    from normbench.training.checkpoint import Checkpoints

    directory = run.directory
    if which not in get_args(Which):
        raise UsageError(f"which={which} is unknown: use last or best")
    last, before = (directory.best, directory.best) if which == "best" else (directory.checkpoint, directory.previous)
    state = Checkpoints(last, before, directory.best).load(lambda line: warnings.warn(line, stacklevel=2))
    if state is None:
        raise UsageError(
            f"{run.path} has no {which} checkpoint: trainer.keep_checkpoint={which} keeps it, and it must be written "
            "and whole; train the run further with its own command, or anew with rerun=true"
        )
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
    summary, status = (read_json(path) or {} for path in (directory.summary, directory.status))
    stands, chosen = summary or status, [{}, *directory.sessions()][-1].get("choices", {})
    heartbeat = status.get("heartbeat")
    return {
        "run": name_of(directory, folder),
        "path": str(directory.path),
        **{name: stands.get(name) for name in ("status", "step", "steps")},
        "heartbeat": None if heartbeat is None else datetime.fromtimestamp(heartbeat, UTC),
        **{group: None if chosen[group] == "None" else chosen[group] for group in GROUPS if group in chosen},
        **flat_columns(configuration(directory)),
        **summary.get("metrics", {}),
        **flat_columns({name: value for name, value in summary.items() if name not in PLACED}),
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
    lines = directory.metrics.read_text("utf-8").splitlines() if directory.metrics.exists() else []
    for line in lines:
        try:
            entry = json.loads(line)
            step = int(entry.pop("step"))
        except (ValueError, KeyError, TypeError):
            return
        yield from ((name, step, tag, value) for tag, value in entry.items())
