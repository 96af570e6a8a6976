"""What padding, and texts longer than those of training, do to a trained classifier of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.analysis.figures.style import Figure
from normbench.analysis.tables import Table
from normbench.build import target
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.studies.findings import change_in_arms, compared, curves
from normbench.studies.frame import Difference, Row, Study, Subject
from normbench.sweep.words import AS_IT_IS
from normbench.training.loop import evaluate, to_device
from normbench.types import Batch

BATCH = 256  # texts of a length that are judged at once


def of_length(batches: Iterable[Batch], lengths: range) -> dict[int, tuple[Tensor, Tensor]]:
    """Return the texts of some lengths, without padding, and their classes, by length."""
    found: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for batch in batches:
        own = torch.full(batch.inputs.shape[:1], batch.inputs.shape[1]) if batch.mask is None else batch.mask.sum(1)
        for length in sorted({*own.tolist()} & {*lengths}):
            found.setdefault(length, []).append((batch.inputs[own == length, :length], batch.targets[own == length]))
    return {length: tuple(map(torch.cat, zip(*parts, strict=True))) for length, parts in found.items()}  # type: ignore[misc]  # two


def padded(texts: Tensor, classes: Tensor, length: int) -> Iterator[Batch]:
    """Yield texts of one length in batches that are padded to another."""
    mask = (torch.arange(length) < texts.shape[1]).expand(len(texts), -1)
    whole = F.pad(texts, (0, length - texts.shape[1])), classes, mask
    for inputs, targets, real in zip(*(part.split(BATCH) for part in whole), strict=True):
        yield Batch(inputs, targets, real)


class Padding(Study):
    """Measure what padding, and texts longer than those of training, cost a classifier of texts, by norm.

    A trained model judges the same test texts padded more and more: a share of 0.75 is three tokens of padding for each
    real one. All texts count that fit into the context with the largest share. Then it judges texts that are long
    enough cut to some lengths, without padding; training has seen `data.train_length` tokens at most. The change is
    that from the first share, or length.
    """

    trains = True

    def __init__(
        self,
        *,
        shares: Annotated[Sequence[float], Setting("shares of padding", low=0, below=1)] = (0.0, 0.5, 0.75, 0.9),
        lengths: Annotated[Sequence[int], Setting("of texts", "tokens", low=2, high=10**6)] = (16, 24, 32),
    ) -> None:
        self.levels: dict[str, Sequence[float]] = {"padding": shares, "length": lengths}

    def check(self, subject: Subject) -> None:
        if getattr(target(subject.tree, "data")[1], "kind", "") != "text_classification":
            raise UsageError("study padding is about labelled texts: choose data=banking77, sst2, imdb or texts")
        if not all(map(self.texts(subject).get, self.levels)):
            room, longest = self.room(subject), max(self.levels["length"])
            what = f"no test text has at most {room} tokens, or none {longest} at least"
            raise UsageError(f"{what}: change study.shares, study.lengths or model.context")

    def room(self, subject: Subject) -> int:
        """Return how long a text may be with the largest share of padding."""
        return int(subject.tree["data"]["context"] * (1 - max(self.levels["padding"])))

    def texts(self, subject: Subject) -> dict[str, dict[int, tuple[Tensor, Tensor]]]:
        """Return the short texts, which are padded, and the long ones, which are cut."""
        batches, longest = [*subject.data.eval_batches("val")], int(max(self.levels["length"]))
        lengths = range(2, self.room(subject) + 1), range(longest, subject.tree["data"]["context"] + 1)
        return {kind: of_length(batches, own) for kind, own in zip(self.levels, lengths, strict=True)}

    def batches(self, kind: str, level: float, texts: dict[int, tuple[Tensor, Tensor]]) -> Iterator[Batch]:
        """Yield texts padded to a share, or cut to a length."""
        for length, (inputs, classes) in texts.items():
            to = round(length / (1 - level)) if kind == "padding" else int(level)
            yield from padded(inputs[:, :to], classes, to)

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, _ = subject.build()
        for kind, texts in self.texts(subject).items():
            first = None
            for level in self.levels[kind]:
                batches = (to_device(batch, subject.device) for batch in self.batches(kind, level, texts))
                found = evaluate(model, batches, subject.task, subject.device)
                accuracy = 100 * found["accuracy"]
                first = accuracy if first is None else first
                values = {"loss": found["loss"], "accuracy": accuracy, "change": accuracy - first}
                yield {"kind": kind, "level": float(level), **values}

    def finding(self, rows: pd.DataFrame) -> Sequence[str | Difference]:
        own = rows[rows["kind"] == "padding"]
        most, least = own["level"].max(), own["level"].min()
        what = f"Accuracy with a share of {most:g} of padding, less that with {least:g}"
        unit = self.columns["change"].unit
        return change_in_arms(own, own["level"] == most, own["level"] == least, "accuracy", what, unit)

    def tables(self, rows: pd.DataFrame) -> list[Table]:
        most = rows[rows["level"] == rows.groupby("kind")["level"].transform("max")]
        return [compared(own, values=["accuracy", "change"], columns=self.columns, key=kind,
                         title=f"{self.captions[kind]['title']}, at {own['level'].iloc[0]:g}")
                for kind, own in most.groupby("kind", sort=False)]  # fmt: skip

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        masked, parts = rows.get("norm.masked", pd.Series(AS_IT_IS, rows.index)), list[pd.DataFrame]()
        for other, words in ((False, "real tokens alone"), (True, "padding too")):  # others are in both panels
            parts.append(rows[masked != other].drop(columns="norm.masked", errors="ignore").assign(counted=words))
        drawn = [curves(kind, own, x="level", y="accuracy", panel="counted",
                       columns={**self.columns, "level": self.columns[kind]}, **self.captions[kind])
                for kind, own in pd.concat(parts).groupby("kind", sort=False)]  # fmt: skip
        return [figure for figures in drawn for figure in figures]
