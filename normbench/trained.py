"""A trained model out of its run directory, and the data that it was trained on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from normbench import assembly
from normbench.config import Tree
from normbench.errors import UsageError
from normbench.rundir import RunDirectory, read_json
from normbench.training.checkpoint import Checkpoints, DamagedCheckpoint, State, read
from normbench.types import Data, Model, Task

Which = Literal["last", "best"]


@dataclass(frozen=True)
class Run:
    """A run directory with the configuration that made it."""

    directory: RunDirectory
    tree: Tree

    @property
    def path(self) -> Path:
        return self.directory.path

    def data(self) -> Data:
        """The data, decoded or from their cache; where their folder has gone, from the one that NORMBENCH_DATA names.

        Raises:
            UsageError: they are not there.
        """
        section = dict(self.tree["data"])
        if (root := section.get("root")) and not Path(os.path.expanduser(root)).is_dir():
            section["root"] = os.environ.get("NORMBENCH_DATA", root)
        data: Data = assembly.factory({**self.tree, "data": section}, "data")(seed=self.tree["seed"])
        return data

    def task(self) -> Task:
        """What the data ask of the model: as the run noted it, else from the data themselves."""
        sessions = (read_json(self.directory.environment) or {}).get("sessions") or [{}]
        noted: dict[str, Any] | None = sessions[-1].get("task")
        if noted is None:
            return self.data().task
        return Task.from_record(noted)


def open_run(path: str | os.PathLike[str]) -> Run:
    """The run in a directory.

    Raises:
        UsageError: the directory is not there, or holds no run.
    """
    directory = RunDirectory(Path(os.path.expanduser(path)))
    if not directory.path.is_dir():
        raise UsageError(f"{path} is not a directory: give the directory of a run, such as outputs/train/RUN")
    try:
        tree = yaml.safe_load(directory.config.read_text("utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path} holds no run (no config.yaml): give outputs/NAME/RUN, not a folder above") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{directory.config} cannot be read: give a run that is whole") from error
    if not isinstance(tree, dict) or not {"model", "norm", "placement", "data", "seed"} <= tree.keys():
        raise UsageError(f"{directory.config} is not the configuration of a run: give a run of normbench train")
    return Run(directory, tree)


def load(
    path: str | os.PathLike[str], *, which: Which = "last", ema: bool = False, device: str | torch.device = "cpu"
) -> Model:
    """`normbench.load`."""
    return load_model(open_run(path), which=which, ema=ema, device=device)


def load_model(run: Run, *, which: Which = "last", ema: bool = False, device: str | torch.device = "cpu") -> Model:
    """A run's model with its trained weights, in evaluation mode; torch's random numbers stay as they are.

    Raises:
        UsageError: the run has no such weights, or they do not fit.
    """
    weights = averaged(run, which) if ema else stored(run, which)["model"]
    model, _ = assembly.build_model(run.tree, run.task(), run.tree["seed"])
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(
            f"the weights in {run.path} do not fit this version of normbench: use the version that made the run"
        ) from error
    return model.to(torch.device(device) if not isinstance(device, str) else assembly.resolve_device(device)).eval()


def averaged(run: Run, which: Which) -> State:
    """The moving average of the weights.

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


def stored(run: Run, which: Which) -> State:
    """What a checkpoint of the run holds.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    kinds: dict[str, Callable[[Run], State]] = {"last": newest, "best": best}
    if which not in kinds:
        raise UsageError(f"which={which} is unknown: use last or best")
    return kinds[which](run)


def newest(run: Run) -> State:
    """The last checkpoint, or the one before it where that is damaged."""
    directory = run.directory
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


def best(run: Run) -> State:
    """The checkpoint of the lowest validation loss."""
    if not run.directory.best.exists():
        raise UsageError(f"{run.path} has no best checkpoint: it is kept by a run with trainer.keep_checkpoint=best")
    try:
        return read(run.directory.best)
    except DamagedCheckpoint as error:
        raise UsageError(f"{run.path}: {error}: use the last one") from error
