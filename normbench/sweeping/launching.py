"""Runs go through one of Hydra's launchers: what it must know of Hydra is made here, as Hydra's own main would."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.utils import JobRuntime
from hydra.types import HydraContext, RunMode
from omegaconf import open_dict

from normbench.compose import initialized
from normbench.sweeping.launchers import Launching
from normbench.sweeping.settings import quoted


def launch(
    launching: Launching, task: Callable[..., Any], runs: Sequence[tuple[str, Sequence[str]]], jobs: int, notes: Path
) -> list[Any]:
    """Let a launcher call the task with the configuration of each run; returns what the task returned.

    Args:
        launching: which launcher.
        task: can be pickled; raises nothing.
        runs: the name of each, and its words.
        jobs: runs at a time.
        notes: a folder for what the launcher writes.

    Raises:
        Exception: whatever the launcher raises, as where a worker dies.
    """
    logging.getLogger("submitit").setLevel(logging.ERROR)
    JobRuntime.instance().set("name", "normbench")
    with initialized() as loader:
        shared = [word for word in runs[0][1] if word.startswith("hydra.")]
        config = loader.load_configuration(
            "train", [*shared, "hydra.sweep.dir=.", "hydra.sweep.subdir=."], RunMode.MULTIRUN
        )
        with open_dict(config):
            config.hydra.mode = RunMode.MULTIRUN
        launcher = launching.make(jobs, notes)
        launcher.setup(hydra_context=HydraContext(loader, Callbacks()), task_function=task, config=config)
        words = [
            [*(w for w in own if not w.startswith("hydra.")), f"hydra.job.name={quoted(name)}"] for name, own in runs
        ]
        return [result.return_value for result in launcher.launch(words, initial_job_idx=0)]
