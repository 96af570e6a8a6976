"""Text as token ids: windows of it for a language model, and padded batches of labelled texts for a classifier."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from normbench.data.batches import SPLITS, Context, Labelled, LabelledData, SourceData
from normbench.data.cache import Content, Source
from normbench.data.vocabulary import Tokens, recall
from normbench.errors import UsageError
from normbench.types import Batch, LanguageModeling, Split, TextClassification


class Text(SourceData):
    """A language model's data: windows of `context` tokens; the targets are the inputs one token later.

    In training an epoch cuts the text into windows side by side, from a random first token on, and takes them in random
    order: every token but those at the ends once. Evaluation covers every target exactly once.

    Args:
        source: of the arrays `train`, `val` and perhaps `test`: token ids; its facts say what the tokens stand for.
        context: length of a window, in tokens.
        options: of SourceData.

    Raises:
        UsageError: a part of the text is too short for a window or a batch.
    """

    kind = "language_model"
    unit = "tokens"

    def __init__(self, source: Source, *, context: Context, **options: Any) -> None:
        super().__init__(source, **options)
        self.context, self._vocabulary = context, recall(self.content.facts)
        split, tokens = min(self.splits.items(), key=lambda item: len(item[1]))
        if len(tokens) <= context:
            raise UsageError(
                f"data.context={context:,} is too long for the {len(tokens):,} tokens of {source.name} ({split}): "
                "use a shorter context or a longer text, or hold out other amounts"
            )
        self.task = LanguageModeling(vocabulary_size=len(self.vocabulary), context=context)
        # A window's length is left over, so that each epoch can cut elsewhere.
        count = max(1, (len(self.splits["train"]) - 1) // context - 1)
        self.arrange(count, f"windows of {context:,} tokens in")

    def parts(self, content: Content) -> dict[Split, Tokens]:
        """Return the tokens of each split."""
        return dict(content.arrays)  # type: ignore[return-value]  # a source names them so

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
        leeway = len(tokens) - self.total * self.context
        first = torch.randint(leeway, (), generator=self.generator(step, "cut"))
        return windows(tokens, (first + self.indices(step) * self.context).numpy(), self.context)

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

    def facts(self) -> dict[str, Any]:
        """Return what is said about a text."""
        return {
            **{f"{split}_tokens": len(tokens) for split, tokens in self.splits.items()},
            "vocabulary_size": len(self.vocabulary),
            "level": self._vocabulary.level,
            "context": self.context,
        }


def windows(tokens: Tokens, starts: Int64[np.ndarray, " batch"], length: int) -> Batch:
    """Return the windows at `starts`, and the same one token later."""
    picked = torch.from_numpy(tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64))
    return Batch(picked[:, :-1].contiguous(), picked[:, 1:].contiguous())


class Texts(LabelledData):
    """A text classifier's data. A batch is as long as its longest text; the mask says where shorter ones are padded.

    Args:
        source: of the arrays `train_tokens` (texts in a row), `train_ends`, `train_labels`, the same of `val`, and of
            the fact `classes`, beside what the tokens stand for.
        context: tokens of a text that are used, from its start.
        options: of SourceData.
    """

    kind = "text_classification"
    unit = "texts"
    pads = True
    task: TextClassification

    def __init__(self, source: Source, *, context: Context, **options: Any) -> None:
        super().__init__(source, **options)
        self.context, self._vocabulary = context, recall(self.content.facts)
        self.classes, size = tuple(self.content.facts["classes"]), len(self._vocabulary.symbols)
        self.task = TextClassification(num_classes=len(self.classes), vocabulary_size=size, context=context)
        self.arrange(len(self.splits["train"]), "texts of")

    def parts(self, content: Content) -> dict[Split, Labelled]:
        """Return the texts and labels of each split."""
        found: dict[Split, Labelled] = {}
        for split in SPLITS[:2]:
            tokens, ends, labels = (content.arrays[f"{split}_{of}"] for of in ("tokens", "ends", "labels"))
            found[split] = Labelled(np.split(tokens, ends[:-1]), torch.from_numpy(labels))
        return found

    def decode(self, tokens: Int64[Tensor, " tokens"]) -> str:
        """Return the text of token ids."""
        return self._vocabulary.decode(tokens.numpy())

    def batch(self, split: Split, indices: Int64[Tensor, " batch"], step: int | None = None) -> Batch:
        """Return texts of a split, and where they are padded."""
        texts, labels = self.splits[split].examples, self.splits[split].labels
        rows = [torch.from_numpy(texts[index][: self.context].astype(np.int64)) for index in indices]
        inputs = pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        return Batch(inputs, labels[indices], torch.arange(inputs.shape[1]) < lengths[:, None])

    def facts(self) -> dict[str, Any]:
        """Return what is said about labelled texts; `cut` counts training texts that are longer than the context."""
        return {
            **{f"{split}_texts": len(part) for split, part in self.splits.items()},
            "cut": sum(len(text) > self.context for text in self.splits["train"].examples),
            "vocabulary_size": self.task.vocabulary_size,
            "level": self._vocabulary.level,
            "context": self.context,
            "classes": list(self.classes),
        }
