"""Loggers beside TensorBoard: CSV, Weights & Biases, MLflow, trackio. Their packages are imported when one is made."""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Collection, Mapping
from contextlib import redirect_stdout, suppress
from contextvars import copy_context
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from normbench.record.files import inside, write_bytes
from normbench.record.loggers import Histogram, Logger, Scalar

SEND_SECONDS = 5.0  # between two calls of MLflow's store, each of which takes some 50 ms of the training's time


class Csv(Logger):
    """Writes `metrics.csv`, a row for each logged step, from `metrics.jsonl` whenever the run stops or ends."""

    def __init__(self, directory: Path, step: int) -> None:
        self.directory = directory

    def close(self, ended: str) -> None:
        import pandas as pd

        logged = pd.read_json(self.directory / "metrics.jsonl", lines=True, precise_float=True)
        rows = pd.DataFrame(index=pd.Index([], name="step"))
        if len(logged):
            rows = logged.groupby("step").first()
        write_bytes(self.directory / "metrics.csv", rows.to_csv().encode())


class Wandb(Logger):
    """Sends to Weights & Biases, where WANDB_* variables say the rest.

    A run has the id FOLDER-RUN. One that goes on is resumed, and W&B ignores the steps that it has already, which are
    the same; one that begins again replaces it. Offline, each session is a folder of its own under `wandb` in the run's
    directory, which `wandb sync` puts together.

    Args:
        mode: by default WANDB_MODE, or online.
    """

    package = "wandb"

    def __init__(
        self,
        directory: Path,
        step: int,
        *,
        project: str = "normbench",
        entity: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        wandb: Any = import_module("wandb")
        inside(directory, "wandb")
        folder = directory.parent.name
        name = directory.name
        self.draw = wandb.Histogram
        self.run = wandb.init(
            id=f"{folder}-{name}",
            name=name,
            group=folder,
            project=project,
            entity=entity,
            mode=mode,
            dir=directory.absolute(),
            resume="allow" if step else None,
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )

    def begin(self, choices: Mapping[str, Scalar], varied: Collection[str], page: str) -> None:
        self.run.config.update(dict(choices), allow_val_change=True)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        drawn = {tag: self.draw(np_histogram=histogram) for tag, histogram in values.items()}
        self.run.log(drawn, step=step)

    def close(self, ended: str) -> None:
        self.run.finish(exit_code=0 if ended else 1)


class MLflow(Logger):
    """Sends to MLflow, every few seconds and at checkpoints; no histograms. MLFLOW_* variables say the rest.

    A run has the tag `normbench`, FOLDER/RUN. One that goes on is the same run there, where steps that are made again
    come again, with the same numbers; one that begins again replaces it.

    Args:
        tracking_uri: by default MLFLOW_TRACKING_URI, or mlflow.db in the current folder.
    """

    package = "mlflow"

    def __init__(
        self, directory: Path, step: int, *, experiment: str = "normbench", tracking_uri: str | None = None
    ) -> None:
        mlflow: Any = import_module("mlflow")
        if tracking_uri:
            mlflow.set_tracking_uri(tracking_uri)
        self.client = mlflow.MlflowClient()
        self.entities = mlflow.entities
        self.waiting: list[Any] = []
        self.sent = 0.0
        place = mlflow.set_experiment(experiment).experiment_id
        name = f"{directory.parent.name}/{directory.name}"
        known = [run.info.run_id for run in self.client.search_runs([place], f"tags.normbench = '{name}'")]
        self.resumed = bool(step and known)
        if self.resumed:
            self.id = known[0]
        else:
            if not step:
                for old in known:
                    self.client.delete_run(old)
            created = self.client.create_run(place, None, {"normbench": name}, directory.name)
            self.id = created.info.run_id
        self.client.update_run(self.id, "RUNNING")

    def begin(self, choices: Mapping[str, Scalar], varied: Collection[str], page: str) -> None:
        if not self.resumed:
            params: list[Any] = []
            for name, choice in choices.items():
                allowed = name.replace("@", " at ")  # MLflow has no @ in names
                params.append(self.entities.Param(allowed, str(choice)))
            self.client.log_batch(self.id, params=params)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1e3)  # in ms
        for tag, value in values.items():
            if math.isinf(value):
                value = math.nan  # of infinity MLflow's database makes the largest number there is
            self.waiting.append(self.entities.Metric(tag, value, now, step))
        if time.monotonic() - self.sent > SEND_SECONDS:
            self.flush()

    def flush(self) -> None:
        self.client.log_batch(self.id, self.waiting)
        self.waiting = []
        self.sent = time.monotonic()

    def close(self, ended: str) -> None:
        self.flush()
        self.client.set_terminated(self.id, "FINISHED" if ended else "KILLED")


class Trackio(Logger):
    """Sends to trackio: to its database on this machine, or to a Space of the hub; no histograms.

    TRACKIO_* variables say the rest, such as the folder of the database, TRACKIO_DIR. A run has the name FOLDER/RUN.
    One that goes on is the same run there, where steps that are made again come again, with the same numbers; on this
    machine one that begins again replaces it.

    Args:
        space_id: of the Space; None: that of TRACKIO_SPACE_ID, or this machine.
    """

    package = "trackio"

    def __init__(self, directory: Path, step: int, *, project: str = "normbench", space_id: str | None = None) -> None:
        trackio: Any = import_module("trackio")
        folder = directory.parent.name
        name = f"{folder}/{directory.name}"
        is_local = space_id is None and not os.environ.get("TRACKIO_SPACE_ID")
        if not step and is_local:
            earlier: list[Any] = []
            with suppress(ValueError):  # the project is a new one
                earlier = list(trackio.Api().runs(project))
            for run in earlier:
                if run.name == name:
                    run.delete()
        settings = {"project": project, "name": name, "group": folder, "space_id": space_id, "embed": False}
        settings |= {"auto_log_cpu": False, "auto_log_gpu": False, "resume": "allow" if step else "never"}
        # trackio ends the run that is current in a context when another begins there, as of seeds that train together
        with redirect_stdout(io.StringIO()):  # where it advertises its dashboard
            self.run = copy_context().run(trackio.init, **settings)

    def begin(self, choices: Mapping[str, Scalar], varied: Collection[str], page: str) -> None:
        self.run.config.update(choices)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self, ended: str) -> None:
        with redirect_stdout(io.StringIO()):
            self.run.finish()
