"""The gap between the statistics that BatchNorm trains with and those that it is evaluated with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import pandas as pd
from torch import nn

from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.studies.findings import change_in_arms, compared, curves
from normbench.studies.frame import Difference, Row, Study, Subject
from normbench.training.evaluation import evaluate, to_device
from normbench.training.recalibration import average
from normbench.types import Batch, Model

SIZE = "data.batch_size"


def in_pieces(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Yield the same examples in batches of about this size, and no smaller one unless there are fewer examples."""
    for batch in batches:
        parts = max(1, len(batch.inputs) // size)
        split = [None if one is None else one.tensor_split(parts) for one in batch]  # the last two may be None
        yield from (Batch(*(one and one[place] for one in split)) for place in range(parts))  # type: ignore[arg-type]


def use_batch(norms: Iterable[Any]) -> None:
    """Let norms take the statistics of each batch in evaluation too."""
    for norm in norms:
        norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None


class Statistics(Study):
    """Measure what a trained model's loss depends on the statistics that its norms are evaluated with.

    The same checkpoint is evaluated with the statistics of each validation batch, of the size that it was trained with
    (batch); with the exponential averages that training has left (running); with the plain average over the training
    batches of an epoch, at the weights that training has ended with (cumulative); and with the same over the training
    set in batches as large as evaluation's (recomputed). In a language model those of a batch tell of the future.
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
        found = [norm for norm in norms.values() if getattr(norm, "running_mean", None) is not None]
        if not found:
            cure = "choose norm=batchnorm, or instancenorm with norm.track_running_stats=true"
            raise UsageError(f"norm={subject.settings['norm']} keeps no running statistics: {cure}")
        return model, found

    def measure(self, subject: Subject) -> Iterator[Row]:
        data, size, rows = subject.data, int(subject.tree["data"]["batch_size"]), list[Row]()
        steps = range(min(data.steps_per_epoch or self.batches, self.batches))
        for name in ("running", "batch", "cumulative", "recomputed"):
            model, norms = self.tracked(subject)
            judged: Iterable[Batch] = data.eval_batches("val")
            if name == "batch":
                use_batch(norms)
                judged = in_pieces(judged, size)
            elif name != "running":
                own = map(data.train_batch, steps) if name == "cumulative" else data.eval_batches("train", self.batches)
                average(model, norms, (to_device(batch, subject.device) for batch in own))
            found = evaluate(model, judged, subject.task, subject.device)
            rows.append({"statistics": name, "loss": found["loss"], "accuracy": 100 * found["accuracy"]})
        yield from (row | {"gap": row["loss"] - rows[0]["loss"]} for row in rows)

    def finding(self, rows: pd.DataFrame) -> Sequence[str | Difference]:
        what = "Loss with a batch's own statistics, less that with the running ones"
        own, running = rows["statistics"] == "batch", rows["statistics"] == "running"
        return change_in_arms(rows, own, running, "loss", what, self.columns["loss"].unit)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        note = "The gap is taken for each checkpoint, so that its interval is that of a paired difference."
        return [compared(rows, values=["loss", "gap", "accuracy"], by=["statistics"], columns=self.columns,
                         title=self.title, notes=[note])]  # fmt: skip

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        if SIZE not in rows:
            return []
        arms = rows[["statistics", *rows.columns.drop("statistics")]]  # a line for each of the statistics
        return curves("statistics", arms[arms["statistics"] != "running"], x=SIZE, y="gap", columns=self.columns,
                       log="x", **self.captions["gap"])  # fmt: skip
