"""Text as token ids in memory, and windows of it as batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from normbench.data.cache import Source
from normbench.data.holdout import check_size, held_out
from normbench.data.order import EpochOrder
from normbench.data.vocabulary import Tokens, Vocabulary
from normbench.errors import UsageError
from normbench.types import Batch, Data, LanguageModeling, Split


class TextSource(Source, Protocol):
    """A source of the arrays `train`, `val` and perhaps `test`: token ids."""

    def vocabulary(self, facts: Mapping[str, Any]) -> Vocabulary:
        """What the tokens stand for."""


class Text(Data):
    """A language model's data: windows of `context` tokens; the targets are the inputs one token later.

    In training an epoch cuts the text into windows side by side, from a random first token on, and takes them in random
    order: every token but those at the ends once. Evaluation covers every target exactly once.

    Args:
        source: where the tokens come from.
        context: length of a window, in tokens.
        batch_size: windows of a training batch.
        eval_batch_size: windows of an evaluation batch.
        seed: of where the windows start and of their order.
        holdout: share (< 1) or number (≥ 1) of the last training tokens; they become `val`, and training uses the rest.

    Raises:
        UsageError: a number is out of bounds, or a part of the text is too short for a window or a batch.
    """

    kind = "language_model"

    def __init__(
        self, source: TextSource, *, context: int, batch_size: int, eval_batch_size: int, seed: int, holdout: float = 0
    ) -> None:
        self.context = check_size("data.context", context)
        self.batch_size = check_size("data.batch_size", batch_size)
        self.eval_batch_size = check_size("data.eval_batch_size", eval_batch_size)
        self.seed = seed
        self.source = source
        content, self.fingerprint = source.open()
        self._vocabulary = source.vocabulary(content.facts)
        train, val = content.arrays["train"], content.arrays["val"]
        held = held_out(len(train), holdout, "tokens")
        used = len(train) - held
        self.splits: dict[Split, Tokens] = {"train": train[:used], "val": train[used:] if held else val}
        if "test" in content.arrays:
            self.splits["test"] = content.arrays["test"]
        self.has_test = "test" in self.splits
        self._check_lengths()
        size = len(self.vocabulary)
        self.task = LanguageModeling(vocabulary_size=size, context=context)
        self.order = self._windows_in_order()
        self.steps_per_epoch = self.order.steps_per_epoch

    def _check_lengths(self) -> None:
        """Every split must have a window and the token behind it."""
        split, tokens = min(self.splits.items(), key=lambda item: len(item[1]))
        if len(tokens) <= self.context:
            cure = f"use at most {len(tokens) - 1:,}" if len(tokens) > 1 else "give a longer text"
            raise UsageError(
                f"data.context={self.context:,} is too long for the {len(tokens):,} tokens of {self.source.name} "
                f"({split}): {cure}, or hold out other amounts"
            )

    def _windows_in_order(self) -> EpochOrder:
        """At least one window's length is left over, so that each epoch can cut elsewhere."""
        count = max(1, (len(self.splits["train"]) - 1) // self.context - 1)
        if self.batch_size > count:
            raise UsageError(
                f"data.batch_size={self.batch_size:,} is more than the {count:,} training windows of {self.context:,} "
                f"tokens in {self.source.name}: use at most {count:,}"
            )
        return EpochOrder(count, self.batch_size, self.seed)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The symbol of each token; bytes that are no printable ASCII as `\\x0a`."""
        return self._vocabulary.symbols

    def encode(self, text: str) -> Int64[Tensor, " tokens"]:
        """The token ids of a text.

        Raises:
            UsageError: it has a character that the vocabulary does not.
        """
        return torch.from_numpy(self._vocabulary.encode(text).astype(np.int64))

    def decode(self, tokens: Int[Tensor, " tokens"]) -> str:
        """The text of token ids."""
        return self._vocabulary.decode(np.asarray(tokens))

    def train_batch(self, step: int) -> Batch:
        """The windows of this step's place in its epoch, whose cut and order depend on (seed, epoch) alone."""
        tokens = self.splits["train"]
        leeway = len(tokens) - self.order.total * self.context
        first = torch.randint(leeway, (), generator=self.order.generator(step // self.steps_per_epoch, "cut"))
        return windows(tokens, (first + self.order.batch(step) * self.context).numpy(), self.context)

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Every target of the split once, the remainder as a last batch of one shorter window.

        With `limit`: so many batches of `batch_size` windows, their starts spread evenly over the split.
        """
        tokens = self.splits[split]
        if limit is None:
            yield from self._all_windows(tokens)
            return
        last = len(tokens) - self.context - 1
        starts = np.arange(limit * self.batch_size) * last // max(1, limit * self.batch_size - 1)
        for rows in starts.reshape(limit, self.batch_size):
            yield windows(tokens, rows, self.context)

    def _all_windows(self, tokens: Tokens) -> Iterator[Batch]:
        count, remainder = divmod(len(tokens) - 1, self.context)
        starts = np.arange(count) * self.context
        for first in range(0, count, self.eval_batch_size):
            yield windows(tokens, starts[first : first + self.eval_batch_size], self.context)
        if remainder:
            yield windows(tokens, np.array([count * self.context]), remainder)

    def describe(self) -> dict[str, Any]:
        """What the data are, for the record."""
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
    """The windows at `starts`, and the same one token later."""
    picked = torch.from_numpy(tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64))
    return Batch(picked[:, :-1].contiguous(), picked[:, 1:].contiguous())
