"""Text as token ids: windows of it for a language model, and padded batches of labelled texts for a classifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from normbench.data.batches import BatchSize, Context, EpochOrder, EvalBatchSize, Holdout, held_out, spread
from normbench.data.cache import Source
from normbench.data.vocabulary import Tokens, recall
from normbench.errors import UsageError
from normbench.types import Batch, Data, LanguageModeling, Split, TextClassification


class Text(Data):
    """A language model's data: windows of `context` tokens; the targets are the inputs one token later.

    In training an epoch cuts the text into windows side by side, from a random first token on, and takes them in random
    order: every token but those at the ends once. Evaluation covers every target exactly once.

    Args:
        source: of the arrays `train`, `val` and perhaps `test`: token ids; its facts say what the tokens stand for.
        context: length of a window, in tokens.
        batch_size: windows of a training batch.
        eval_batch_size: windows of an evaluation batch.
        seed: of where the windows start and of their order.
        holdout: share (< 1) or number (≥ 1) of the last training tokens; they become `val`, and training uses the rest.

    Raises:
        UsageError: a part of the text is too short for a window or a batch.
    """

    kind = "language_model"

    def __init__(
        self,
        source: Source,
        *,
        context: Context,
        batch_size: BatchSize,
        eval_batch_size: EvalBatchSize,
        seed: int,
        holdout: Holdout = 0,
    ) -> None:
        self.context, self.batch_size, self.eval_batch_size = context, batch_size, eval_batch_size
        self.source = source
        content, self.fingerprint = source.open()
        self._vocabulary = recall(content.facts)
        self.splits: dict[Split, Tokens] = dict(content.arrays)  # type: ignore[assignment]  # a source names them so
        train = self.splits["train"]
        used = len(train) - held_out(len(train), holdout, "tokens")
        self.splits["train"] = train[:used]
        if used < len(train):
            self.splits["val"] = train[used:]
        self.has_test = "test" in self.splits
        self._check_lengths()
        size = len(self.vocabulary)
        self.task = LanguageModeling(vocabulary_size=size, context=context)
        count = max(
            1, (used - 1) // context - 1
        )  # a window's length is left over, so that each epoch can cut elsewhere
        self.order = EpochOrder(count, batch_size, seed, f"windows of {context:,} tokens in {source.name}")
        self.steps_per_epoch = self.order.steps_per_epoch

    def _check_lengths(self) -> None:
        """Refuse a split without a window and the token behind it."""
        split, tokens = min(self.splits.items(), key=lambda item: len(item[1]))
        if len(tokens) <= self.context:
            cure = f"use at most {len(tokens) - 1:,}" if len(tokens) > 1 else "give a longer text"
            raise UsageError(
                f"data.context={self.context:,} is too long for the {len(tokens):,} tokens of {self.source.name} "
                f"({split}): {cure}, or hold out other amounts"
            )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The symbol of each token; bytes that are no printable ASCII as `\\x0a`."""
        return self._vocabulary.symbols

    def encode(self, text: str) -> Int64[Tensor, " tokens"]:
        """Return the token ids of a text.

        Raises:
            UsageError: it has a character that the vocabulary does not.
        """
        return torch.from_numpy(self._vocabulary.encode(text).astype(np.int64))

    def decode(self, tokens: Int[Tensor, " tokens"]) -> str:
        """Return the text of token ids."""
        return self._vocabulary.decode(np.asarray(tokens))

    def train_batch(self, step: int) -> Batch:
        """Return the windows of this step's place in its epoch, whose cut and order depend on (seed, epoch) alone."""
        tokens = self.splits["train"]
        leeway = len(tokens) - self.order.total * self.context
        first = torch.randint(leeway, (), generator=self.order.generator(step // self.steps_per_epoch, "cut"))
        return windows(tokens, (first + self.order.batch(step) * self.context).numpy(), self.context)

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Yield every target of the split once, the remainder as a last batch of one shorter window.

        With `limit`: so many batches of `batch_size` windows, their starts spread evenly over the split.
        """
        tokens = self.splits[split]
        if limit is not None:
            last = len(tokens) - self.context - 1
            starts = np.arange(limit * self.batch_size) * last // max(1, limit * self.batch_size - 1)
            for rows in starts.reshape(limit, self.batch_size):
                yield windows(tokens, rows, self.context)
            return
        count, remainder = divmod(len(tokens) - 1, self.context)
        starts = np.arange(count) * self.context
        for place in range(0, count, self.eval_batch_size):
            yield windows(tokens, starts[place : place + self.eval_batch_size], self.context)
        if remainder:
            yield windows(tokens, np.array([count * self.context]), remainder)

    def describe(self) -> dict[str, Any]:
        """Return what the data are, for the record."""
        return self.source.describe() | {
            "kind": self.kind,
            **{f"{split}_tokens": len(tokens) for split, tokens in self.splits.items()},
            "vocabulary_size": len(self.vocabulary),
            "level": self._vocabulary.level,
            "context": self.context,
            "steps_per_epoch": self.steps_per_epoch,
            "fingerprint": self.fingerprint,
        }


def windows(tokens: Tokens, starts: Int64[np.ndarray, " batch"], length: int) -> Batch:
    """Return the windows at `starts`, and the same one token later."""
    picked = torch.from_numpy(tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64))
    return Batch(picked[:, :-1].contiguous(), picked[:, 1:].contiguous())


class LabelledTexts(NamedTuple):
    """Texts: all tokens in a row, where each text starts and ends in it, and the classes."""

    tokens: Tokens
    starts: Int64[np.ndarray, " texts"]
    ends: Int64[np.ndarray, " texts"]
    labels: Int64[np.ndarray, " texts"]

    def part(self, first: int, last: int) -> LabelledTexts:
        """Return the texts from `first` to before `last`."""
        return LabelledTexts(self.tokens, *(array[first:last] for array in self[1:]))


class Texts(Data):
    """A text classifier's data: an epoch is a permutation of the training texts, its last incomplete batch dropped.

    A batch is as long as its longest text; the mask says where shorter ones are padded.

    Args:
        source: of the arrays `train_tokens` (texts in a row), `train_ends`, `train_labels`, the same of `val`, and of
            the fact `classes`, beside what the tokens stand for.
        context: tokens of a text that are used, from its start.
        batch_size: texts of a training batch.
        eval_batch_size: texts of an evaluation batch.
        seed: of the permutations.
        holdout: share (< 1) or number (≥ 1) of the last training texts; they become `val`, and training uses the rest.

    Raises:
        UsageError: a batch is larger than the training set.
    """

    kind = "text_classification"
    pads = True
    task: TextClassification

    def __init__(
        self,
        source: Source,
        *,
        context: Context,
        batch_size: BatchSize,
        eval_batch_size: EvalBatchSize,
        seed: int,
        holdout: Holdout = 0,
    ) -> None:
        self.context, self.eval_batch_size, self.source = context, eval_batch_size, source
        content, self.fingerprint = source.open()
        self.classes: tuple[str, ...] = tuple(content.facts["classes"])
        self._vocabulary = recall(content.facts)
        train, val = (labelled_texts(content.arrays, split) for split in ("train", "val"))
        total = len(train.labels)
        used = total - held_out(total, holdout, "texts")
        self.splits: dict[Split, LabelledTexts] = {
            "train": train.part(0, used),
            "val": train.part(used, total) if used < total else val,
        }
        self.order = EpochOrder(used, batch_size, seed, f"texts of {source.name}")
        self.steps_per_epoch = self.order.steps_per_epoch
        size = len(self._vocabulary.symbols)
        self.task = TextClassification(num_classes=len(self.classes), vocabulary_size=size, context=context)

    def decode(self, tokens: Int64[Tensor, " tokens"]) -> str:
        """Return the text of token ids."""
        return self._vocabulary.decode(tokens.numpy())

    def train_batch(self, step: int) -> Batch:
        """Return the texts of this step's place in its epoch's permutation, which depends on (seed, epoch) alone."""
        return self._batch("train", self.order.batch(step))

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Yield the split in order, in batches whose sizes differ by at most one text.

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
        """Return what the data are, for the record; `cut` counts training texts that are longer than the context."""
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
    """Return a split of what a source decodes to."""
    ends = arrays[f"{split}_ends"]
    starts = np.concatenate(([0], ends[:-1]))
    return LabelledTexts(arrays[f"{split}_tokens"], starts, ends, arrays[f"{split}_labels"])
