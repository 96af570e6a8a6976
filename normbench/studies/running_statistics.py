"""The gap between the statistics that BatchNorm trains with and those that it is evaluated with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import pandas as pd
import torch
from torch import nn

from normbench.errors import UsageError
from normbench.results.rows import ResultTable, StudyResult, compare, compare_kinds
from normbench.settings import Setting
from normbench.show.figures.figure import Figure
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject
from normbench.training.evaluation import evaluate, to_device
from normbench.training.recalibration import average
from normbench.types import Batch, Model

BATCH_SIZE = "data.batch_size"


class RunningStatistics(Study):
    """Measure how a trained model's loss depends on the statistics that its norms are evaluated with.

    The same checkpoint is evaluated with the statistics of each validation batch, of the size that it was trained with
    (batch); with the exponential averages that training has left (running); with the plain average over the training
    batches of an epoch, at the weights that training has ended with (cumulative); and with the same over the training
    set in batches as large as evaluation's (recomputed). In a language model those of a batch reveal the future.
    """

    trains = True

    def __init__(self, *, batches: Annotated[int, Setting("training batches to average over", low=1)] = 1000) -> None:
        self.batches = batches

    def check(self, subject: Subject) -> None:
        self.tracked(subject)

    def tracked(self, subject: Subject) -> tuple[Model, list[nn.Module]]:
        """Return a subject's model, and its norms with running statistics.

        Raises:
            UsageError: there is none.
        """
        model, norms = subject.build()
        tracked_norms = [norm for norm in norms.values() if getattr(norm, "running_mean", None) is not None]
        if not tracked_norms:
            cure = "choose norm=batchnorm, or instancenorm with norm.track_running_stats=true"
            raise UsageError(f"norm={subject.settings['norm']} keeps no running mean and variance: {cure}")
        return model, tracked_norms

    def measure(self, subject: Subject) -> Iterator[Row]:
        running = None
        for name in ("running", "batch", "cumulative", "recomputed"):
            metrics = self.evaluate_with(name, subject)
            if running is None:
                running = metrics["loss"]
            yield {
                "statistics": name,
                "loss": metrics["loss"],
                "accuracy": 100 * metrics["accuracy"],
                "gap": metrics["loss"] - running,
            }

    def evaluate_with(self, name: str, subject: Subject) -> dict[str, float]:
        """Return the metrics of a subject whose norms have the statistics of this name."""
        model, norms = self.tracked(subject)
        data = subject.data
        batches: Iterable[Batch] = data.eval_batches("val")
        if name == "batch":
            use_batch_statistics(norms)
            batches = in_pieces(batches, int(subject.tree["data"]["batch_size"]))
        elif name == "cumulative":
            steps = min(data.steps_per_epoch or self.batches, self.batches)
            first_batches = map(data.train_batch, range(steps))
            average(model, norms, batches_on(subject.device, first_batches))
        elif name == "recomputed":
            train_batches = data.eval_batches("train", self.batches)
            average(model, norms, batches_on(subject.device, train_batches))
        return evaluate(model, batches, subject.task, subject.device)

    def finding(self, rows: pd.DataFrame) -> list[StudyResult]:
        is_batch = rows["statistics"] == "batch"
        is_running = rows["statistics"] == "running"
        kinds = ("with a batch's own statistics", "with the running ones")
        return compare_kinds(rows, is_batch, is_running, "loss", "loss", kinds, self.columns["loss"].unit)

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
        note = "The gap is taken for each checkpoint, so that its interval is that of a paired difference."
        table = compare(
            rows,
            values=["loss", "gap", "accuracy"],
            by=["statistics"],
            columns=self.columns,
            title=self.title,
            notes=[note],
        )
        return [table]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        if BATCH_SIZE not in rows:
            return []
        arms = rows[["statistics", *rows.columns.drop("statistics")]]  # a line for each of the statistics
        other_statistics = arms[arms["statistics"] != "running"]
        title_and_caption = self.captions["gap"]
        return draw_curves(
            "statistics", other_statistics, x=BATCH_SIZE, y="gap", columns=self.columns, log="x", **title_and_caption
        )


def in_pieces(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Yield the same examples in batches of about this size, and no smaller one unless there are fewer examples."""
    for batch in batches:
        count = max(1, len(batch.inputs) // size)
        pieces = []
        for part in batch:
            pieces.append([None] * count if part is None else part.tensor_split(count))  # some have no mask
        for parts in zip(*pieces, strict=True):
            yield Batch(*parts)


def use_batch_statistics(norms: Iterable[Any]) -> None:
    """Let norms take the statistics of each batch in evaluation too."""
    for norm in norms:
        norm.track_running_stats = False
        norm.running_mean = None
        norm.running_var = None


def batches_on(device: torch.device, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches on a device."""
    for batch in batches:
        yield to_device(batch, device)
