"""What all data share: what is held out, the order of the training examples, and the batches of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from normbench.data.arranging import Kinds, Places, count_contradicted, count_repeats, find_alike, find_seen, tell_apart
from normbench.data.cache import KINDS, Content
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.types import Batch, Data, Split, stable_seed

Name = Annotated[str, Setting("what the records call the data set")]
Holdout = Annotated[float, Setting("share (< 1) or number (≥ 1) of training examples that judge", low=0, high=1e12)]

MOST_ALIKE = 4  # classes that look equal, of which a note gives the names

TrainShare = Annotated[
    float, Setting("share of the training examples that are used, drawn by the seed", above=0, high=1)
]


def count_held_out(total: int, holdout: float, unit: str, equal: Any = None) -> int:
    """Return how many of `total` training examples are held out: what chooses does not judge.

    Args:
        total: number of training examples.
        holdout: share (below 1) or number (from 1), 0 for none.
        unit: what is counted, for the error.
        equal: which examples are equal to the one before them, if any are: these are held out together, or not.

    Raises:
        UsageError: nothing is left to train on, or held out.
    """
    if not holdout:
        return 0
    count = round(total * holdout) if holdout < 1 else int(holdout)
    is_whole = holdout < 1 or holdout == count
    if not is_whole or not 0 < count < total:
        cure = f"use a share from 0 to below 1, or a whole number below {total:,}"
        raise UsageError(f"data.holdout={holdout:g} cannot be taken from the {total:,} training {unit}: {cure}")
    return count if equal is None else total - find_cut(total - count, equal)


def find_cut(wanted: int, equal: Any) -> int:
    """Return the place nearest before a wanted one at which no equal examples are divided; if there is none, behind.

    equal: which examples are equal to the one before them.
    """
    for place in chain(range(wanted, 0, -1), range(wanted + 1, len(equal))):
        if not equal[place]:
            return place
    return wanted


def generator(seed: int, purpose: str, number: int) -> torch.Generator:
    """Return the generator of random numbers for a purpose in an epoch or a step, independent of all others."""
    return torch.Generator().manual_seed(stable_seed(seed, "data", purpose, number))


def hold_out(parts: dict[Split, Any], count: int) -> None:
    """Make the last `count` training examples, or their labels, the validation data."""
    train = parts["train"]
    parts["train"] = train[:-count]
    parts["val"] = train[-count:]


def pick_examples(examples: Any, places: slice | Tensor) -> Any:
    """Return the examples at some places; of texts in a tuple or list these, of an array its rows."""
    if isinstance(places, Tensor) and isinstance(examples, tuple | list):
        return [examples[place] for place in places.tolist()]
    return examples[places]


class ContentData(Data):
    """Batches of decoded data, with the last training examples held out.

    Args:
        content: what was decoded.
        examples, labels: its examples and their labels, by split; no labels where the examples are their own.
        batch_size: examples in a training batch.
        eval_batch_size: examples in an evaluation batch.
        seed: of all that is random.
        holdout: share (< 1) or number (≥ 1) of the last training examples; they become `val`, and training uses the
            rest.
        train_share: training uses this share of what is left, drawn by the seed.

    Raises:
        UsageError: a number does not fit the data, such as a batch larger than the training set.
    """

    unit: ClassVar[str]  # what is held out
    remake: Callable[[], Data] | None = None  # makes the data as earlier versions had them, where that differs
    remade: Data | None = None  # what that has made
    batch: Callable[..., Batch]  # from a split, indices of its examples, and the step if it is a training batch

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
        train_share: TrainShare = 1.0,
    ) -> None:
        self.content = content
        self.fingerprint = content.fingerprint
        self.earlier = content.facts.get("earlier", "")
        self.examples = examples
        self.labels = labels
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.seed = seed
        equal = content.arrays.get("train_equal")
        self.knows_equal = f"train_{KINDS}" in content.arrays
        self.decoded = len(examples["train"])  # training examples of the content
        self.held = count_held_out(self.decoded, holdout, self.unit, equal)
        if self.held:
            hold_out(examples, self.held)
            if labels:
                hold_out(labels, self.held)
        self.has_test = "test" in examples
        self.train_share = train_share
        self.used: slice | Tensor = slice(len(examples["train"]))  # of the training examples
        if train_share < 1:
            self.take_share(train_share)

    def take_share(self, share: float) -> None:
        """Leave out all training examples but a share of them, which the seed draws."""
        total = len(self.examples["train"])
        self.used = self.draw(total, max(1, round(total * share)))
        self.examples["train"] = pick_examples(self.examples["train"], self.used)
        if self.labels:
            self.labels["train"] = pick_examples(self.labels["train"], self.used)

    def draw(self, total: int, count: int) -> slice | Tensor:
        """Return the places of `count` training examples of `total`, in their own order."""
        order = torch.randperm(total, generator=generator(self.seed, "share", 0))
        return order[:count].sort().values

    def arrange(self, total: int, what: str) -> None:
        """Set how many examples an epoch has: a permutation of them, its last incomplete batch dropped.

        Raises:
            UsageError: a batch is larger than an epoch.
        """
        if self.batch_size > total:
            there = f"the {total:,} training {what} {self.content.name}"
            raise UsageError(f"data.batch_size={self.batch_size:,} is more than {there}: use at most {total:,}")
        self.total = total
        self.steps_per_epoch = total // self.batch_size
        self._epoch: int | None = None  # whose order is in _order

    def indices(self, step: int) -> Int64[Tensor, " batch"]:
        """Return the examples of training step `step` (from 0): a pure function of seed and step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = self.order(epoch)
            self._epoch = epoch
        first = place * self.batch_size
        return self._order[first : first + self.batch_size].long()

    def order(self, epoch: int) -> Tensor:
        """Return the examples as an epoch takes them; int32 takes half the memory, for very long texts."""
        return torch.randperm(self.total, generator=generator(self.seed, "order", epoch), dtype=torch.int32)

    def train_batch(self, step: int) -> Batch:
        """Return the examples of this step's place in its epoch's permutation: it depends on (seed, epoch) alone."""
        return self.batch("train", self.indices(step), step)

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Yield the split in order, in batches whose sizes differ by at most one example, so that no last one is tiny.

        With `limit`: so many batches of `eval_batch_size` examples spread evenly over the split, or all if that is
        less.
        """
        total = len(self.examples[split])
        count = total if limit is None else min(total, limit * self.eval_batch_size)
        spread = torch.arange(count) * total // count
        for indices in spread.tensor_split(math.ceil(count / self.eval_batch_size)):
            yield self.batch(split, indices)

    def answers(self) -> Any:
        """Return what is to be predicted of the validation data."""
        return self.labels["val"] if self.labels else self.examples["val"]

    @cached_property
    def constant(self) -> dict[str, float]:
        """Return what the best predictor that always gives the same answer reaches on the validation data.

        Its loss (nats) is the entropy of the classes' or tokens' frequencies, its accuracy the largest of these.
        """
        _, counts = np.unique(self.answers(), return_counts=True)
        shares = counts / counts.sum()
        entropy = -(shares * np.log(shares)).sum()
        return {"loss/val": float(entropy), "accuracy/val": float(shares.max())}

    def as_of(self, fingerprint: str) -> Data:
        if self.remake is None or fingerprint != self.earlier:
            return self
        if self.remade is None:
            self.remade = self.remake()
        return self.remade

    @cached_property
    def seen(self) -> dict[Split, int]:
        """How many examples of a split are equal to one that is trained on, for each split that has such ones."""
        counts = dict[Split, int]()
        for split in self.examples:
            if split != "train":
                count = int(self.find_seen(split).sum())
                if count:
                    counts[split] = count
        return counts

    def find_seen(self, split: Split) -> Bool[np.ndarray, " examples"]:
        """Return which examples of a split are equal to one that is trained on."""
        if not self.knows_equal:
            return np.zeros(len(self.examples[split]), dtype=bool)
        return find_seen(self.kinds_at(*self.trained_places()), self.kinds_at(*self.judging_places(split)))

    def trained_places(self) -> tuple[str, Places]:
        """Return the split of the content that holds the examples that train, and their places in it."""
        return "train", np.arange(self.decoded - self.held)[self.used]

    def judging_places(self, split: Split) -> tuple[str, Places]:
        """Return the split of the content that holds the examples of one that judges, and their places in it."""
        count = len(self.examples[split])
        if split == "val" and self.held:
            return "train", np.arange(self.decoded - count, self.decoded)
        return split, np.arange(count)

    def kinds_at(self, split: str, places: Places) -> Kinds:
        """Return the kinds of rows of a split of the content."""
        kinds: Kinds = self.content.arrays[f"{split}_{KINDS}"][places]
        return kinds

    def notes(self) -> list[str]:
        """Return what a person is to know of rows that are equal to others, and of classes that look equal."""
        lines = []
        for names in find_alike(self.content.facts.get("classes", ())):
            written = " and ".join(map(tell_apart, names[:MOST_ALIKE]))
            what = f"{written} are {len(names)} classes of {self.content.name}, and differ only in how they are written"
            lines.append(f"warning: {what}: write them in one way if one class is meant")
        for split, count in self.seen.items():
            whole = f"{count:,} of the {len(self.examples[split]):,} {self.unit} of {split}"
            lines.append(f"warning: {whole} are equal to some that train, so {split} judges what the model has seen")
        if self.repeats:
            total = sum(map(len, self.examples.values()))
            what = f"{self.repeats:,} of the {total:,} {self.unit} of {self.content.name} repeat another"
            lines.append(f"note: {what}; equal ones are never divided where normbench divides the data")
        if self.contradicted:
            whole = f"{self.contradicted:,} of the {sum(map(len, self.examples.values())):,} {self.unit}"
            what = f"{whole} of {self.content.name} are equal to one with another label"
            lines.append(f"warning: {what}, so that no model can be right on all of them: check these labels")
        return lines

    @cached_property
    def repeats(self) -> int:
        """How many examples are equal to another before them, in data of which equal ones stand together; else 0."""
        if "train_equal" not in self.content.arrays or not self.knows_equal:
            return 0
        judging = [self.judging_places(split) for split in self.examples if split != "train"]
        return count_repeats([self.kinds_at(*places) for places in (self.trained_places(), *judging)])

    @cached_property
    def contradicted(self) -> int:
        """How many examples are equal to one with another label."""
        if not self.labels or not self.knows_equal:
            return 0
        parts = [self.trained_places(), *(self.judging_places(split) for split in self.examples if split != "train")]
        labels = [self.labels["train"], *(self.labels[split] for split in self.examples if split != "train")]
        return count_contradicted([self.kinds_at(*places) for places in parts], labels)

    def describe(self) -> dict[str, Any]:
        """Return what the data are, for the record; without local paths."""
        sizes = {}
        for split, part in self.examples.items():
            sizes[f"{split}_{self.unit}"] = len(part)
        share = {} if self.train_share == 1 else {"train_share": self.train_share}
        seen = {}
        for split, count in self.seen.items():
            seen[f"{split}_{self.unit}_seen_in_training"] = count
        if self.repeats:
            seen[f"repeated_{self.unit}"] = self.repeats
        if self.contradicted:
            seen[f"{self.unit}_with_other_labels"] = self.contradicted
        return {
            "name": self.content.name,
            **self.content.about,
            "kind": self.kind,
            **sizes,
            **seen,
            **share,
            "steps_per_epoch": self.steps_per_epoch,
            "constant": self.constant,
            "fingerprint": self.fingerprint,
        }
