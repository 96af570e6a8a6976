"""Which training examples are held out, in which order the others come, and how an evaluation is cut into batches."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Int64
from torch import Tensor

from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.types import stable_seed

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
    if holdout and not 0 < count < total:
        raise UsageError(
            f"data.holdout={holdout:g} of {total:,} training {unit} is {count:,}: hold out one at least, and leave one"
        )
    return count


class EpochOrder:
    """A permutation for each epoch, cut into batches; a pure function of (seed, epoch).

    An epoch's last incomplete batch is dropped. It remembers the epoch it was last asked for, and can be asked for any
    step.

    Args:
        total: number of examples.
        batch_size: how many of them a batch has.
        seed: of the permutations.
        what: the examples, for the error.

    Raises:
        UsageError: a batch is larger than an epoch.
    """

    def __init__(self, total: int, batch_size: int, seed: int, what: str) -> None:
        if batch_size > total:
            raise UsageError(
                f"data.batch_size={batch_size:,} is more than the {total:,} training {what}: use at most {total:,}"
            )
        self.total, self.batch_size, self.seed = total, batch_size, seed
        self.steps_per_epoch = total // batch_size
        self._epoch: int | None = None
        self._order = torch.empty(0, dtype=torch.int64)

    def generator(self, epoch: int, purpose: str) -> torch.Generator:
        """Return what an epoch's random numbers come from, apart for each purpose."""
        return torch.Generator().manual_seed(stable_seed(self.seed, "data", purpose, epoch))

    def batch(self, step: int) -> Int64[Tensor, " batch"]:
        """Return the examples of training step `step` (from 0)."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            dtype = torch.int32 if self.total < 2**31 else torch.int64  # half the memory, for very long texts
            self._order = torch.randperm(self.total, generator=self.generator(epoch, "order"), dtype=dtype)
            self._epoch = epoch
        return self._order[place * self.batch_size : (place + 1) * self.batch_size].long()


def spread(total: int, batch_size: int, limit: int | None = None) -> tuple[Int64[Tensor, " batch"], ...]:
    """Return all of `total` examples in order, in batches whose sizes differ by at most one: none is a lone last one.

    With `limit`: at most so many full batches, spread evenly over the examples.
    """
    count = total if limit is None else min(total, limit * batch_size)
    return (torch.arange(count) * total // count).tensor_split(-(-count // batch_size))
