"""Loads trained runs again: their models, with the data that they were trained on."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from normbench.config.recipe import Recipe
from normbench.config.rules import RULES
from normbench.config.schema import blame_file, check_rules, check_section
from normbench.config.sections import BY_NAME
from normbench.errors import UsageError, explain
from normbench.record.directory import RunDirectory
from normbench.runs.finding import find_run
from normbench.runs.reading import DamagedRun, read_record

if TYPE_CHECKING:
    import torch

    from normbench.types import Data, Model, Task

Which = Literal["last", "best"]

LOADED = ("norm", "placement", "weights", "model", "data")  # sections of the configuration that decide what is loaded

MEANINGS = ("classes", "vocabulary")  # keys in a description of data that say what predictions stand for


class TrainedRun(RunDirectory):
    """A run directory with the configuration that made it, every value checked.

    Args:
        path: the directory, or what `find_run` takes for it.
        trust: whether it may have classes that are neither normbench's nor torch's, whose code runs.

    Attributes:
        tree: the configuration.
        session: the newest one of its record.

    Raises:
        UsageError: the directory is not there, holds no run, a damaged one, one that was changed after its end, or one
            with such classes and no trust.
    """

    def __init__(self, path: str | os.PathLike[str], trust: bool = False) -> None:
        super().__init__(find_run(path))
        self.trust = trust
        if not self.config.exists():
            raise UsageError(f"{path} holds no run: give the directory of one, such as those that normbench runs lists")
        record = read_record(self, trust)
        self.tree = record.configuration
        self.session = record.sessions[-1]
        with blame_file(self.config):
            for section in LOADED:
                if section in self.tree or not BY_NAME[section].absent:
                    self.tree[section] = check_section(section, self.tree[section])
            if RULES in self.tree:
                self.tree[RULES] = check_rules(self.tree)

    def data(self) -> Data:
        """Return the data, decoded or from their cache; if their folder is gone, from that of NORMBENCH_DATA.

        Raises:
            UsageError: they are not there, or their classes or tokens are not those that the model was trained on.
        """
        from normbench import build

        section = dict(self.tree["data"])
        root = section.get("root")
        if root and not Path(os.path.expanduser(root)).is_dir():
            section["root"] = os.environ.get("NORMBENCH_DATA", root)
        recipe = Recipe({**self.tree, "data": section})
        data = build.make_data(recipe, self.tree["seed"])
        data = data.as_of(self.session["data"].get("fingerprint", ""))
        if self.task() != data.task or not self.means_the_same(data):
            what = f"{self.path} was trained on other data or another vocabulary than are there now"
            raise UsageError(f"{what}: bring those back, or train again with rerun=true")
        return data

    def means_the_same(self, data: Data) -> bool:
        """Tell whether predictions stand for the same classes or tokens as when the model was trained."""
        before = self.session["data"]
        now = data.describe()
        noted = [key for key in MEANINGS if key in before]
        return all(before[key] == now.get(key) for key in noted)

    def task(self) -> Task:
        """Return what the data ask of the model: as the run noted it.

        Raises:
            UsageError: it noted something else.
        """
        from normbench.types import Task

        try:
            return Task.from_record(self.session["task"])
        except (LookupError, TypeError, ValueError) as error:
            reason = f"{self.environment.name} names no task ({explain(error)})"
            raise DamagedRun(self.path, reason) from error


def load_model(run: TrainedRun, which: Which = "last", ema: bool = False, device: str | torch.device = "cpu") -> Model:
    """Return a run's model with its trained weights, in evaluation mode; torch's random numbers stay as they are.

    Raises:
        UsageError: the run has no such weights, or they do not fit.
    """
    from normbench import build
    from normbench.training.checkpoint import Checkpoints
    from normbench.training.devices import make_current, resolve_device

    if which not in ("last", "best"):
        raise UsageError(f"which={which} is unknown: use last or best")
    state = Checkpoints(run).load(lambda line: warnings.warn(line, stacklevel=2), best=which == "best")
    if state is None:
        cure = "it must be written and whole; train the run further with its own command, or again with rerun=true"
        raise UsageError(f"{run.path} has no {which} checkpoint: trainer.keep_checkpoint={which} keeps it, and {cure}")
    if ema and state.get("average") is None:
        cure = "the last ones of a run with trainer.ema=0.999 or trainer.swa=0.5 have them"
        raise UsageError(f"{run.path} has no averaged weights: {cure}")
    target = resolve_device(str(device))
    try:
        model, _ = build.build_model(Recipe(run.tree), run.task(), run.tree["seed"])
        weights = state["average"]["model"] if ema else state["model"]
        model.load_state_dict(weights)
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        if isinstance(error, UsageError) or run.trust:  # whose author needs the line
            raise
        raise UsageError(f"{run.path} cannot be loaded ({explain(error)}): its files do not fit each other") from error
    make_current(target)
    return model.to(target).eval()
