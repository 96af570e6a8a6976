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
LAST, AVERAGE = "last", "average"

# Statistics that weights are evaluated with; the gap is over the loss with the first of them.
STATISTICS = {
    LAST: ("running", "batch", "cumulative", "recomputed"),
    AVERAGE: ("averaged", "copied", "batch", "cumulative", "recomputed"),
}

# Statistics whose loss is compared with that of the first ones, and what both are in words.
FINDINGS = (
    (LAST, "batch", ("with a batch's own statistics", "with the running ones")),
    (AVERAGE, "copied", ("of the averaged weights with the last weights' statistics", "with averaged ones")),
    (AVERAGE, "recomputed", ("of the averaged weights with recomputed statistics", "with averaged ones")),
)


class RunningStatistics(Study):
    """Measure how a trained model's loss depends on the statistics that its norms are evaluated with.

    The same checkpoint is evaluated with the statistics of each validation batch, of the size that it was trained with
    (batch); with the exponential averages that training has left (running); with the plain average over the training
    batches of an epoch, at the weights that training has ended with (cumulative); and with the same over the training
    set in batches as large as evaluation's (recomputed). In a language model those of a batch reveal the future.

    Where a run has averaged its weights, the average is evaluated as well: with running statistics that were averaged
    as the weights were (averaged), with those of the last weights (copied), and with the last three kinds above.
    """

    trains = True

    def __init__(self, *, batches: Annotated[int, Setting("training batches to average over", low=1)] = 1000) -> None:
        self.batches = batches

    def check(self, subject: Subject) -> None:
        self.tracked(subject)

    def tracked(self, subject: Subject, averaged: bool = False) -> tuple[Model, list[nn.Module]]:
        """Return a subject's model, and its norms with running statistics. averaged: with its averaged weights.

        Raises:
            UsageError: there is none.
        """
        model, norms = subject.build(averaged)
        tracked_norms = [norm for norm in norms.values() if getattr(norm, "running_mean", None) is not None]
        if not tracked_norms:
            cure = "choose norm=batchnorm, or instancenorm with norm.track_running_stats=true"
            raise UsageError(f"norm={subject.settings['norm']} keeps no running mean and variance: {cure}")
        return model, tracked_norms

    def measure(self, subject: Subject) -> Iterator[Row]:
        yield from self.measure_weights(subject, LAST)
        if subject.has_average:
            yield from self.measure_weights(subject, AVERAGE)

    def measure_weights(self, subject: Subject, weights: str) -> Iterator[Row]:
        """Yield the loss of a subject's last or averaged weights with each of the statistics that they may have."""
        first_loss = None
        for name in STATISTICS[weights]:
            metrics = self.evaluate_with(name, subject, averaged=weights == AVERAGE)
            if first_loss is None:
                first_loss = metrics["loss"]
            yield {
                "weights": weights,
                "statistics": name,
                "loss": metrics["loss"],
                "accuracy": 100 * metrics["accuracy"],
                "gap": metrics["loss"] - first_loss,
            }

    def evaluate_with(self, name: str, subject: Subject, averaged: bool) -> dict[str, float]:
        """Return the metrics of a subject whose norms have the statistics of this name.

        Args:
            name: one of STATISTICS.
            subject: that is evaluated.
            averaged: whether with its averaged weights.
        """
        model, norms = self.tracked(subject, averaged)
        data = subject.data
        batches: Iterable[Batch] = data.eval_batches("val")
        if name == "copied":
            _, last_norms = self.tracked(subject)
            copy_statistics(last_norms, norms)
        elif name == "batch":
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
        findings = list[StudyResult]()
        for weights, name, kinds in FINDINGS:
            is_of_weights = rows["weights"] == weights
            is_named = is_of_weights & (rows["statistics"] == name)
            is_first = is_of_weights & (rows["statistics"] == STATISTICS[weights][0])
            findings += compare_kinds(rows, is_named, is_first, "loss", "loss", kinds, self.columns["loss"].unit)
        return findings

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
        note = "The gap is taken for each checkpoint, so that its interval is that of a paired difference."
        notes = [note]
        by = ["statistics"]
        if AVERAGE in {*rows["weights"]}:
            notes.append("That of averaged weights is over their loss with statistics that were averaged as they were.")
            by = ["weights", "statistics"]
        table = compare(
            rows,
            values=["loss", "gap", "accuracy"],
            by=by,
            columns=self.columns,
            title=self.title,
            notes=notes,
        )
        return [table]

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        if BATCH_SIZE not in rows:
            return []
        lines = ["weights", "statistics"]  # there is a line for each of these
        arms = rows[[*lines, *rows.columns.drop(lines)]]
        is_first = arms["statistics"].isin([names[0] for names in STATISTICS.values()])
        title_and_caption = self.captions["gap"]
        return draw_curves(
            "statistics", arms[~is_first], x=BATCH_SIZE, y="gap", columns=self.columns, log="x", **title_and_caption
        )


def copy_statistics(source: Iterable[nn.Module], target: Iterable[nn.Module]) -> None:
    """Give norms the running statistics of others."""
    for of_source, of_target in zip(source, target, strict=True):
        buffers = dict(of_source.named_buffers())
        for name, buffer in of_target.named_buffers():
            buffer.copy_(buffers[name])


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
