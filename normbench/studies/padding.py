"""What padding, and texts longer than those of training, do to a trained classifier of texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.config.recipe import resolve
from normbench.errors import UsageError
from normbench.results.rows import ResultTable, StudyResult, at_largest, compare, compare_kinds
from normbench.settings import Setting
from normbench.show.figures.figure import Figure
from normbench.studies.figures import draw_curves
from normbench.studies.frame import Row, Study, Subject
from normbench.sweep.words import AS_IT_IS
from normbench.training.evaluation import evaluate, to_device
from normbench.types import Batch
from normbench.wording import short

BATCH = 256  # texts of a length that are judged at once
MASKED = "norm.masked"


class Labelled(NamedTuple):
    """Texts of one length, without padding, and their classes."""

    tokens: Tensor
    classes: Tensor


Texts = dict[int, Labelled]  # by the number of tokens of each


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
        data = resolve("data", subject.tree["data"])
        if getattr(data.made, "kind", "") != "text_classification":
            raise UsageError("study padding is about labelled texts: choose data=banking77, sst2, imdb or texts")
        texts = self.texts(subject)
        if not texts["padding"] or not texts["length"]:
            room = self.room(subject)
            what = f"no test text has at most {room} tokens, or none has at least {self.longest}"
            raise UsageError(f"{what}: change study.shares, study.lengths or model.context")

    @property
    def longest(self) -> int:
        """Return the largest of the lengths to which texts are cut."""
        return int(max(self.levels["length"]))

    def room(self, subject: Subject) -> int:
        """Return how long a text may be with the largest share of padding."""
        context = subject.tree["data"]["context"]
        return int(context * (1 - max(self.levels["padding"])))

    # ---- what is measured

    def texts(self, subject: Subject) -> dict[str, Texts]:
        """Return the short texts, which are padded, and the long ones, which are cut."""
        batches = list(subject.data.eval_batches("val"))
        short = range(2, self.room(subject) + 1)
        long = range(self.longest, subject.tree["data"]["context"] + 1)
        return {"padding": of_length(batches, short), "length": of_length(batches, long)}

    def batches(self, kind: str, level: float, texts: Texts) -> Iterator[Batch]:
        """Yield texts padded to a share, or cut to a length."""
        for length, labelled in texts.items():
            new_length = round(length / (1 - level)) if kind == "padding" else int(level)
            yield from pad(labelled.tokens[:, :new_length], labelled.classes, new_length)

    def measure(self, subject: Subject) -> Iterator[Row]:
        model, _ = subject.build()
        for kind, texts in self.texts(subject).items():
            first = None
            for level in self.levels[kind]:
                batches = (to_device(batch, subject.device) for batch in self.batches(kind, level, texts))
                metrics = evaluate(model, batches, subject.task, subject.device)
                accuracy = 100 * metrics["accuracy"]
                if first is None:
                    first = accuracy
                yield {
                    "kind": kind,
                    "level": float(level),
                    "loss": metrics["loss"],
                    "accuracy": accuracy,
                    "change": accuracy - first,
                }

    # ---- what was found

    def finding(self, rows: pd.DataFrame) -> list[StudyResult]:
        padded = rows[rows["kind"] == "padding"]
        most = padded["level"].max()
        least = padded["level"].min()
        kinds = (f"with a share of {short(most)} of padding", f"with {short(least)}")
        unit = self.columns["change"].unit
        return compare_kinds(
            padded, padded["level"] == most, padded["level"] == least, "accuracy", "accuracy", kinds, unit
        )

    def tables(self, rows: pd.DataFrame) -> list[ResultTable]:
        results = []
        for kind, rows_of_kind in at_largest(rows, "level", by="kind").groupby("kind", sort=False):
            what = self.captions[str(kind)]["title"]
            level = rows_of_kind["level"].iloc[0]
            title = f"{what}, at {short(level)}"
            values = ["accuracy", "change"]
            results.append(compare(rows_of_kind, values=values, columns=self.columns, key=str(kind), title=title))
        return results

    def figures(self, rows: pd.DataFrame) -> list[Figure]:
        drawings = list[Figure]()
        for kind, rows_of_kind in by_what_counts(rows).groupby("kind", sort=False):
            columns = {**self.columns, "level": self.columns[kind]}
            title_and_caption = self.captions[kind]
            drawings += draw_curves(
                kind, rows_of_kind, x="level", y="accuracy", panel="counted", columns=columns, **title_and_caption
            )
        return drawings


def of_length(batches: Iterable[Batch], lengths: range) -> Texts:
    """Return the texts of some lengths, without padding, and their classes, by length."""
    tokens = defaultdict[int, list[Tensor]](list)
    classes = defaultdict[int, list[Tensor]](list)
    for batch in batches:
        mask = torch.ones(batch.inputs.shape, dtype=torch.bool) if batch.mask is None else batch.mask
        own_lengths = mask.sum(dim=1)
        for length in sorted(set(own_lengths.tolist()) & set(lengths)):
            is_of_length = own_lengths == length
            tokens[length].append(batch.inputs[is_of_length, :length])
            classes[length].append(batch.targets[is_of_length])
    texts = {}
    for length, parts in tokens.items():
        texts[length] = Labelled(torch.cat(parts), torch.cat(classes[length]))
    return texts


def pad(tokens: Tensor, classes: Tensor, length: int) -> Iterator[Batch]:
    """Yield texts of one length in batches that are padded to another."""
    count, own_length = tokens.shape
    is_real = torch.arange(length) < own_length
    mask = is_real.expand(count, -1)
    inputs = F.pad(tokens, (0, length - own_length))
    for parts in zip(inputs.split(BATCH), classes.split(BATCH), mask.split(BATCH), strict=True):
        yield Batch(*parts)


def by_what_counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with what their norms count (`counted`); arms without `norm.masked` appear once for each answer."""
    masked = rows.get(MASKED, pd.Series(AS_IT_IS, rows.index))
    without_masked = rows.drop(columns=MASKED, errors="ignore")
    real = without_masked[masked.ne(False)].assign(counted="real tokens alone")
    padding = without_masked[masked.ne(True)].assign(counted="padding too")
    return pd.concat([real, padding])
