"""What all data share: what is held out, in which order the rest trains, and how an evaluation is cut into batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Int64
from torch import Tensor

from normbench.data.cache import Content, Source
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.types import Batch, Data, Split, stable_seed

SPLITS: tuple[Split, ...] = ("train", "val", "test")

Name = Annotated[str, Setting("what the records call the data set")]
Context = Annotated[int, Setting("length of a window; set model.context, it follows", "tokens", low=1, high=10**7)]
BatchSize = Annotated[int, Setting("windows, texts or images a batch", low=1, high=10**6)]
EvalBatchSize = Annotated[int, Setting("windows, texts or images an evaluation batch", low=1, high=10**6)]
Holdout = Annotated[
    float, Setting("share (< 1) or number (≥ 1) of the last training examples to judge by", low=0, high=1e12)
]


def held_out(total: int, holdout: float, unit: str) -> int:
    """Return how many of `total` training examples are held out: what chooses does not judge.

    Args:
        total: number of training examples.
        holdout: share (below 1) or number (from 1), 0 for none.
        unit: what is counted, for the error.

    Raises:
        UsageError: nothing is left to train on, or held out.
    """
    count = round(total * holdout) if holdout < 1 else int(holdout)
    if holdout and (not 0 < count < total or (holdout > 1 and holdout != count)):
        raise UsageError(
            f"data.holdout={holdout:g} cannot be taken from the {total:,} training {unit}: use a share from 0 to below "
            f"1, or a whole number below {total:,}"
        )
    return count


def spread(total: int, batch_size: int, limit: int | None = None) -> tuple[Int64[Tensor, " batch"], ...]:
    """Return all of `total` examples in order, in batches whose sizes differ by at most one: none is a lone last one.

    With `limit`: at most so many full batches, spread evenly over the examples.
    """
    count = total if limit is None else min(total, limit * batch_size)
    return (torch.arange(count) * total // count).tensor_split(-(-count // batch_size))


@dataclass(frozen=True)
class Labelled:
    """Images, or the tokens of texts, and their classes."""

    examples: Any
    labels: Int64[Any, " examples"]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> Labelled:
        return Labelled(self.examples[part], self.labels[part])


class SourceData(Data):
    """Data that a source decodes to, with its last training examples held out.

    Args:
        source: where the data come from.
        batch_size: examples of a training batch.
        eval_batch_size: examples of an evaluation batch.
        seed: of all that is random.
        holdout: share (< 1) or number (≥ 1) of the last training examples; they become `val`, and training uses the
            rest.

    Raises:
        UsageError: a number does not fit the data, such as a batch larger than the training set.
    """

    unit: ClassVar[str]  # what is held out

    def __init__(
        self, source: Source, *, batch_size: BatchSize, eval_batch_size: EvalBatchSize, seed: int, holdout: Holdout = 0
    ) -> None:
        self.source, self.batch_size, self.eval_batch_size, self.seed = source, batch_size, eval_batch_size, seed
        self.content, self.fingerprint = source.open()
        self.splits: dict[Split, Any] = self.parts(self.content)
        train = self.splits["train"]
        if held := held_out(len(train), holdout, self.unit):
            self.splits |= {"train": train[:-held], "val": train[-held:]}
        self.has_test = "test" in self.splits

    @abstractmethod
    def parts(self, content: Content) -> dict[Split, Any]:
        """Return the splits."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what is said about the data, beside what is said about all."""

    def arrange(self, total: int, what: str) -> None:
        """Set how many examples an epoch has: a permutation of them, its last incomplete batch dropped.

        Raises:
            UsageError: a batch is larger than an epoch.
        """
        if self.batch_size > total:
            raise UsageError(
                f"data.batch_size={self.batch_size:,} is more than the {total:,} training {what} {self.source.name}: "
                f"use at most {total:,}"
            )
        self.total, self.steps_per_epoch = total, total // self.batch_size
        self._epoch: int | None = None

    def generator(self, step: int, purpose: str) -> torch.Generator:
        """Return what the random numbers of a step's epoch come from, apart for each purpose."""
        return torch.Generator().manual_seed(stable_seed(self.seed, "data", purpose, step // self.steps_per_epoch))

    def indices(self, step: int) -> Int64[Tensor, " batch"]:
        """Return the examples of training step `step` (from 0): a pure function of seed and step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            dtype = torch.int32 if self.total < 2**31 else torch.int64  # half the memory, for very long texts
            self._order = torch.randperm(self.total, generator=self.generator(step, "order"), dtype=dtype)
            self._epoch = epoch
        return self._order[place * self.batch_size : (place + 1) * self.batch_size].long()

    def describe(self) -> dict[str, Any]:
        """Return what the data are, for the record; without local paths."""
        last = {"steps_per_epoch": self.steps_per_epoch, "fingerprint": self.fingerprint}
        return {"name": self.source.name, **self.source.about, "kind": self.kind, **self.facts(), **last}


class LabelledData(SourceData):
    """Labelled examples."""

    @abstractmethod
    def batch(self, split: Split, indices: Int64[Tensor, " batch"], step: int | None = None) -> Batch:
        """Return examples of a split, those of training step `step`, or of an evaluation."""

    def train_batch(self, step: int) -> Batch:
        """Return the examples of this step's place in its epoch's permutation: it depends on (seed, epoch) alone."""
        return self.batch("train", self.indices(step), step)

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Yield the split in order, in batches whose sizes differ by at most one example.

        With `limit`: so many batches of `eval_batch_size` examples spread evenly over the split, or all if that is
        less.
        """
        for indices in spread(len(self.splits[split]), self.eval_batch_size, limit):
            yield self.batch(split, indices)
