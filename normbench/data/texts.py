"""Labelled texts, and padded batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from normbench.data.cache import Source
from normbench.data.holdout import check_size, held_out
from normbench.data.order import EpochOrder, spread
from normbench.data.vocabulary import Tokens, Vocabulary
from normbench.errors import UsageError
from normbench.types import Batch, Data, Split, TextClassification


class TextsSource(Source, Protocol):
    """A source of `train_tokens` (texts in a row), `train_ends`, `train_labels`, the same of `val`, and `classes`."""

    def vocabulary(self, facts: Mapping[str, Any]) -> Vocabulary:
        """What the tokens stand for."""


class LabelledTexts(NamedTuple):
    """Texts: all tokens in a row, where each text starts and ends in it, and the classes."""

    tokens: Tokens
    starts: Int64[np.ndarray, " texts"]
    ends: Int64[np.ndarray, " texts"]
    labels: Int64[np.ndarray, " texts"]

    def part(self, first: int, last: int) -> LabelledTexts:
        """The texts from `first` to before `last`."""
        return LabelledTexts(self.tokens, *(array[first:last] for array in self[1:]))


class Texts(Data):
    """A text classifier's data: an epoch is a permutation of the training texts, its last incomplete batch dropped.

    A batch is as long as its longest text; the mask says where shorter ones are padded.

    Args:
        source: where the texts come from.
        context: tokens of a text that are used, from its start.
        batch_size: texts of a training batch.
        eval_batch_size: texts of an evaluation batch.
        seed: of the permutations.
        holdout: share (< 1) or number (≥ 1) of the last training texts; they become `val`, and training uses the rest.

    Raises:
        UsageError: a number is out of bounds, or a batch larger than the training set.
    """

    kind = "text_classification"
    pads = True
    task: TextClassification

    def __init__(
        self, source: TextsSource, *, context: int, batch_size: int, eval_batch_size: int, seed: int, holdout: float = 0
    ) -> None:
        self.context = check_size("data.context", context)
        self.batch_size = check_size("data.batch_size", batch_size)
        self.eval_batch_size = check_size("data.eval_batch_size", eval_batch_size)
        self.source = source
        content, self.fingerprint = source.open()
        self._vocabulary = source.vocabulary(content.facts)
        train, val = (labelled_texts(content.arrays, split) for split in ("train", "val"))
        total = len(train.labels)
        used = total - held_out(total, holdout, "texts")
        self.splits: dict[Split, LabelledTexts] = {
            "train": train.part(0, used),
            "val": train.part(used, total) if used < total else val,
        }
        if batch_size > used:
            raise UsageError(
                f"data.batch_size={batch_size:,} is more than the {used:,} training texts of {source.name}: "
                f"use at most {used:,}"
            )
        self.order = EpochOrder(used, batch_size, seed)
        self.steps_per_epoch = self.order.steps_per_epoch
        self.classes: tuple[str, ...] = tuple(content.facts["classes"])
        self.task = TextClassification(
            num_classes=len(self.classes),
            vocabulary_size=len(self._vocabulary.symbols),
            context=context,
        )

    def decode(self, tokens: Int64[Tensor, " tokens"]) -> str:
        """The text of token ids."""
        return self._vocabulary.decode(tokens.numpy())

    def train_batch(self, step: int) -> Batch:
        """The texts of this step's place in its epoch's permutation, which depends on (seed, epoch) alone."""
        return self._batch("train", self.order.batch(step))

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """The split in order, in batches whose sizes differ by at most one text.

        With `limit`: so many batches of `eval_batch_size` texts spread evenly over the split, or all if that is less.
        """
        for indices in spread(len(self.splits[split].labels), self.eval_batch_size, limit):
            yield self._batch(split, indices)

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        texts, rows = self.splits[split], indices.numpy()
        starts = texts.starts[rows]
        lengths = np.minimum(texts.ends[rows] - starts, self.context)
        places = np.arange(lengths.max())
        mask = places < lengths[:, None]
        inputs = np.where(mask, texts.tokens[np.where(mask, starts[:, None] + places, 0)], 0)
        return Batch(
            torch.from_numpy(inputs.astype(np.int64)), torch.from_numpy(texts.labels[rows]), torch.from_numpy(mask)
        )

    def describe(self) -> dict[str, Any]:
        """What the data are, for the record; `cut` counts the training texts that are longer than the context."""
        train = self.splits["train"]
        return self.source.describe() | {
            "kind": self.kind,
            "train_texts": len(train.labels),
            "val_texts": len(self.splits["val"].labels),
            "cut": int((train.ends - train.starts > self.context).sum()),
            "vocabulary_size": self.task.vocabulary_size,
            "level": self._vocabulary.level,
            "context": self.context,
            "classes": list(self.classes),
            "steps_per_epoch": self.steps_per_epoch,
            "fingerprint": self.fingerprint,
        }


def labelled_texts(arrays: Mapping[str, np.ndarray], split: str) -> LabelledTexts:
    """A split of what a source decodes to."""
    ends = arrays[f"{split}_ends"]
    starts = np.concatenate(([0], ends[:-1]))
    return LabelledTexts(arrays[f"{split}_tokens"], starts, ends, arrays[f"{split}_labels"])
