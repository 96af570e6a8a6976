"""What all data share: what is held out, in which order the rest trains, and how an evaluation is cut into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from normbench.data.cache import Content
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.types import Batch, Data, Split, stable_seed

Name = Annotated[str, Setting("what the records call the data set")]
Holdout = Annotated[float, Setting("share (< 1) or number (≥ 1) of training examples that judge", low=0, high=1e12)]


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
        cure = f"use a share from 0 to below 1, or a whole number below {total:,}"
        raise UsageError(f"data.holdout={holdout:g} cannot be taken from the {total:,} training {unit}: {cure}")
    return count


def generator(seed: int, purpose: str, number: int) -> torch.Generator:
    """Return what random numbers of an epoch or a step come from, apart for each purpose."""
    return torch.Generator().manual_seed(stable_seed(seed, "data", purpose, number))


class ContentData(Data):
    """Batches of decoded data, with the last training examples held out.

    Args:
        content: what was decoded.
        examples, labels: of it, by split; labels are empty where the examples are their own.
        batch_size: examples of a training batch.
        eval_batch_size: examples of an evaluation batch.
        seed: of all that is random.
        holdout: share (< 1) or number (≥ 1) of the last training examples; they become `val`, and training uses the
            rest.

    Raises:
        UsageError: a number does not fit the data, such as a batch larger than the training set.
    """

    unit: ClassVar[str]  # what is held out
    batch: Callable[..., Batch]  # of a split, indices of its examples, and the training step, if it is none to evaluate

    def __init__(
        self,
        content: Content,
        examples: dict[Split, Any],
        labels: dict[Split, Any],
        *,
        batch_size: Annotated[int, Setting("windows, texts or images a batch", low=1, high=10**6)],
        eval_batch_size: Annotated[int, Setting("windows, texts or images an evaluation batch", low=1, high=10**6)],
        seed: int,
        holdout: Holdout = 0,
    ) -> None:
        self.content, self.fingerprint, self.examples, self.labels = content, content.fingerprint, examples, labels
        self.batch_size, self.eval_batch_size, self.seed = batch_size, eval_batch_size, seed
        if held := held_out(len(examples["train"]), holdout, self.unit):
            for parts in (examples, labels) if labels else (examples,):
                parts |= {"train": parts["train"][:-held], "val": parts["train"][-held:]}
        self.has_test = "test" in examples

    def arrange(self, total: int, what: str) -> None:
        """Set how many examples an epoch has: a permutation of them, its last incomplete batch dropped.

        Raises:
            UsageError: a batch is larger than an epoch.
        """
        if self.batch_size > total:
            there = f"the {total:,} training {what} {self.content.name}"
            raise UsageError(f"data.batch_size={self.batch_size:,} is more than {there}: use at most {total:,}")
        self.total, self.steps_per_epoch = total, total // self.batch_size
        self._epoch: int | None = None

    def indices(self, step: int) -> Int64[Tensor, " batch"]:
        """Return the examples of training step `step` (from 0): a pure function of seed and step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = self.order(epoch), epoch
        return self._order[place * self.batch_size : (place + 1) * self.batch_size].long()

    def order(self, epoch: int) -> Tensor:
        """Return the examples as an epoch takes them; int32 takes half the memory, for very long texts."""
        return torch.randperm(self.total, generator=generator(self.seed, "order", epoch), dtype=torch.int32)

    def train_batch(self, step: int) -> Batch:
        """Return the examples of this step's place in its epoch's permutation: it depends on (seed, epoch) alone."""
        return self.batch("train", self.indices(step), step)

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Yield the split in order, in batches whose sizes differ by at most one example: none is a lone last one.

        With `limit`: so many batches of `eval_batch_size` examples spread evenly over the split, or all if that is
        less.
        """
        total = len(self.examples[split])
        count = total if limit is None else min(total, limit * self.eval_batch_size)
        for indices in (torch.arange(count) * total // count).tensor_split(-(-count // self.eval_batch_size)):
            yield self.batch(split, indices)

    def answers(self) -> Any:
        """Return what is to be predicted of the validation data."""
        return (self.labels or self.examples)["val"]

    @cached_property
    def constant(self) -> dict[str, float]:
        """Return what the best predictor reaches on the validation data that always says the same, whatever it reads.

        Its loss (nats) is the entropy of the classes' or tokens' frequencies, its accuracy the largest of these.
        """
        _, counts = np.unique(self.answers(), return_counts=True)
        shares = counts / counts.sum()
        return {"loss/val": float(-(shares * np.log(shares)).sum()), "accuracy/val": float(shares.max())}

    def describe(self) -> dict[str, Any]:
        """Return what the data are, for the record; without local paths."""
        return {
            "name": self.content.name,
            **self.content.about,
            "kind": self.kind,
            **{f"{split}_{self.unit}": len(part) for split, part in self.examples.items()},
            "steps_per_epoch": self.steps_per_epoch,
            "constant": self.constant,
            "fingerprint": self.fingerprint,
        }
