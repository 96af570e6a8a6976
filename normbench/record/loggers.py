"""What takes a run's numbers: `metrics.jsonl`, and what every other logger does."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from normbench.record.files import inside

Scalar = bool | int | float | str | None
Histogram = tuple[Sequence[float], Sequence[float]]  # counts of values, and the edges between them: one more


class Logger:
    """A place for a run's numbers; a run may have several. What a logger has no use for it leaves out.

    Attributes:
        package: what it imports that is not installed with normbench, if anything.
    """

    package = ""

    def __init__(self, directory: Path, step: int) -> None:
        """Open the record of the run in `directory`, which goes on after `step`: what was logged later comes again."""

    def expect(self, metrics: Collection[str]) -> None:
        """Take what evaluations of the run will log, such as `loss` and `accuracy`; it is called before `begin`."""

    def begin(self, choices: Mapping[str, Scalar], varied: Collection[str], page: str) -> None:
        """Take the choices that made the run, which of them vary between runs, and a page on them for people.

        It is called whenever the run starts or goes on.
        """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers of this step, by tag."""

    def histograms(self, step: int, values: Mapping[str, Histogram]) -> None:
        """Take histograms of this step, by tag."""

    def texts(self, step: int, pages: Mapping[str, str]) -> None:
        """Take pages in Markdown of this step, by tag."""

    def flush(self) -> None:
        """Return when everything so far is where it is kept."""

    def close(self, ended: str) -> None:
        """Let go of all resources.

        Args:
            ended: `finished` or `diverged` where the run will not go on, else empty.
        """


def quiet_loggers() -> None:
    """Let the packages of loggers say only what has gone wrong; a person's own settings of them stay."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


class Lines(Logger):
    """Appends to `metrics.jsonl`, which analysis reads: `{"step": 10, "loss/train": 2.31, ...}`."""

    def __init__(self, directory: Path, step: int, name: str = "metrics.jsonl") -> None:
        self.file = open(inside(directory, name), "ab")  # noqa: SIM115 (closed by close)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        line = json.dumps({"step": step, **finite(values)}, allow_nan=False)
        self.file.write(line.encode() + b"\n")
        self.file.flush()

    def flush(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self, ended: str) -> None:
        with self.file:  # which closes it also when the disk is full
            self.flush()


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return numbers as JSON has them: it has no NaN and no infinity, so one that is not finite is None."""
    return {tag: value if math.isfinite(value) else None for tag, value in values.items()}
