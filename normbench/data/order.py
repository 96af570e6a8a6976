"""In which order training examples come: a permutation for each epoch, a pure function of (seed, epoch)."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from normbench.types import stable_seed


class EpochOrder:
    """Permutations of `total` examples, cut into batches; an epoch's last incomplete batch is dropped.

    It remembers the epoch it was last asked for, and can be asked for any step.
    """

    def __init__(self, total: int, batch_size: int, seed: int) -> None:
        self.total, self.batch_size, self.seed = total, batch_size, seed
        self.steps_per_epoch = total // batch_size
        self._epoch: int | None = None
        self._order = torch.empty(0, dtype=torch.int64)

    def generator(self, epoch: int, purpose: str) -> torch.Generator:
        """What an epoch's random numbers come from, apart for each purpose."""
        return torch.Generator().manual_seed(stable_seed(self.seed, "data", purpose, epoch))

    def batch(self, step: int) -> Int64[Tensor, " batch"]:
        """The examples of training step `step` (from 0)."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            dtype = torch.int32 if self.total < 2**31 else torch.int64  # half the memory, for very long texts
            self._order = torch.randperm(self.total, generator=self.generator(epoch, "order"), dtype=dtype)
            self._epoch = epoch
        return self._order[place * self.batch_size : (place + 1) * self.batch_size].long()


def spread(total: int, batch_size: int, limit: int | None = None) -> tuple[Int64[Tensor, " batch"], ...]:
    """All of `total` examples in order, in batches whose sizes differ by at most one: none is a lone last example.

    With `limit`: at most so many full batches, spread evenly over the examples.
    """
    count = total if limit is None else min(total, limit * batch_size)
    return (torch.arange(count) * total // count).tensor_split(-(-count // batch_size))
