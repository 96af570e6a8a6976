"""Text as token ids: windows of it for a language model, and padded batches of labelled texts for a classifier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from normbench.data.arranging import digest_row
from normbench.data.batches import ContentData, generator
from normbench.data.cache import SPLITS, Content
from normbench.data.vocabulary import Tokens, recall
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.types import Batch, LanguageModeling, Split, TextClassification

Context = Annotated[int, Setting("length of a window; set model.context, it follows", "tokens", low=1, high=10**7)]


def join_rows(rows: Iterable[str], lines: bool) -> str:
    """Return the text of rows; with `lines` each is a line of its own."""
    if not lines:
        return "".join(rows)
    return "".join(row.removesuffix("\n") + "\n" for row in rows)


class TokenData(ContentData):
    """Data of tokens; the content's facts say what these stand for."""

    def __init__(self, content: Content, *parts: dict[Split, Any], context: Context, **options: Any) -> None:
        super().__init__(content, *parts, **options)
        self.context = context
        self.vocabulary = recall(content.facts)

    def encode(self, text: str) -> Int64[Tensor, " tokens"]:
        """Return the token ids of a text.

        Raises:
            UsageError: it has a character that the vocabulary does not.
        """
        return torch.from_numpy(self.vocabulary.encode(text).astype(np.int64))

    def decode(self, tokens: Int[Tensor, " tokens"]) -> str:
        """Return the text of token ids."""
        return self.vocabulary.decode(np.asarray(tokens))

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "vocabulary_size": len(self.vocabulary.symbols),
            "level": self.vocabulary.level,
            "vocabulary": self.vocabulary.digest,
            "context": self.context,
        }


class Text(TokenData):
    """A language model's data: windows of `context` tokens; the targets are the inputs one token later.

    In training an epoch cuts the text into windows side by side, from a random first token on, and takes them in random
    order: every token but those at the ends once. Evaluation covers every target exactly once.

    Args:
        content: with the arrays `train`, `val` and perhaps `test` of token ids.
        options: of TokenData.

    Raises:
        UsageError: a part of the text is too short for a window or a batch.
    """

    kind = "language_model"
    unit = "tokens"

    def __init__(self, content: Content, **options: Any) -> None:
        tokens = {split: content.arrays[split] for split in SPLITS if split in content.arrays}
        super().__init__(content, tokens, {}, **options)
        lengths = {split: len(part) for split, part in self.examples.items()}
        shortest = min(lengths, key=lengths.__getitem__)
        if lengths[shortest] <= self.context:
            available = f"the {lengths[shortest]:,} tokens of {content.name} ({shortest})"
            cure = "use a shorter context or a longer text, or hold out other amounts"
            raise UsageError(f"data.context={self.context:,} is too long for {available}: {cure}")
        self.task = LanguageModeling(vocabulary_size=len(self.vocabulary.symbols), context=self.context)
        # A window's length is left over, so that each epoch can cut elsewhere.
        fitting = (lengths["train"] - 1) // self.context
        count = max(1, fitting - 1)
        self.arrange(count, f"windows of {self.context:,} tokens in")

    def draw(self, total: int, count: int) -> slice | Tensor:
        """Return one stretch of the training text, `count` tokens that follow each other."""
        first = int(torch.randint(total - count + 1, (), generator=generator(self.seed, "share", 0)))
        return slice(first, first + count)

    def train_batch(self, step: int) -> Batch:
        """Return the windows of this step's place in its epoch, whose cut and order depend on (seed, epoch) alone."""
        tokens = self.examples["train"]
        epoch = step // self.steps_per_epoch
        spare = len(tokens) - self.total * self.context
        first = torch.randint(spare, (), generator=generator(self.seed, "cut", epoch))
        starts = first + self.indices(step) * self.context
        return self.windows(tokens, starts.numpy(), self.context)

    def eval_batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Yield every target of the split once, the remainder as a last batch of one shorter window.

        With `limit`: so many batches of `eval_batch_size` windows, their starts spread evenly over the split, or as
        many windows as all targets take if that is less. The size of a training batch changes nothing here.
        """
        tokens = self.examples[split]
        size = self.eval_batch_size
        count, remainder = divmod(len(tokens) - 1, self.context)
        if limit is None:
            starts = np.arange(count) * self.context
        else:
            count = min(count, limit * size)
            last = len(tokens) - self.context - 1
            starts = np.arange(count) * last // max(1, count - 1)
        for place in range(0, count, size):
            yield self.windows(tokens, starts[place : place + size], self.context)
        if remainder and limit is None:
            rest = np.array([count * self.context])
            yield self.windows(tokens, rest, remainder)

    def windows(self, tokens: Tokens, starts: Int64[np.ndarray, " batch"], length: int) -> Batch:
        """Return the windows at `starts`, and the same one token later."""
        self.content.check()
        places = starts[:, None] + np.arange(length + 1)
        picked = torch.from_numpy(tokens[places].astype(np.int64))
        inputs, targets = picked[:, :-1], picked[:, 1:]
        return Batch(inputs.contiguous(), targets.contiguous())


class Texts(TokenData):
    """A text classifier's data. A batch is as long as its longest text; the mask says where shorter ones are padded.

    Args:
        content: with the arrays `train_tokens` (one text after the other), `train_ends`, `train_labels`, the same of
            `val`, and the fact `classes`. Of a text the first `context` tokens are used.
        train_length: tokens to which texts are cut in training.
        pad_to: tokens to which training batches are padded, if their texts are shorter.
        options: of TokenData.

    Raises:
        UsageError: `pad_to` is more than the context.
    """

    kind = "text_classification"
    unit = "texts"
    pads = True
    task: TextClassification

    def __init__(
        self,
        content: Content,
        *,
        train_length: Annotated[int | None, Setting("most of a training text", "tokens", low=1, high=10**7)] = None,
        pad_to: Annotated[int | None, Setting("shortest training batch", "tokens", low=1, high=10**7)] = None,
        **options: Any,
    ) -> None:
        ends = content.by_split("ends")
        texts: dict[Split, Any] = {}
        for split, tokens in content.by_split("tokens").items():
            texts[split] = tokens.tensor_split(ends[split][:-1])
        super().__init__(content, texts, content.by_split("labels"), **options)
        self.classes = tuple(content.facts["classes"])
        self.task = TextClassification(
            num_classes=len(self.classes), vocabulary_size=len(self.vocabulary.symbols), context=self.context
        )
        if pad_to and pad_to > self.context:
            cure = f"set model.context={pad_to} or more"
            raise UsageError(f"data.pad_to={pad_to} is more than model.context={self.context}: {cure}")
        self.train_length = train_length or self.context
        self.pad_to = pad_to or 0
        self.arrange(len(self.examples["train"]), "texts of")

    def batch(self, split: Split, indices: Int64[Tensor, " batch"], step: int | None = None) -> Batch:
        """Return texts of a split, and where they are padded."""
        longest = self.context
        shortest = 0
        if step is not None:
            longest = min(self.context, self.train_length)
            shortest = self.pad_to
        texts = self.examples[split]
        rows = [texts[index][:longest].long() for index in indices]
        inputs = pad_sequence(rows, batch_first=True)
        inputs = F.pad(inputs, (0, max(0, shortest - inputs.shape[1])))
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(inputs.shape[1]) < lengths[:, None]
        return Batch(inputs, self.labels[split][indices], mask)

    def smallest_batch(self, batches: int) -> Batch | None:
        if self.batch_size > 1:
            return super().smallest_batch(batches)
        texts = self.examples["train"]
        reached = self.order(0)[:batches].tolist()
        shortest = min(reached, key=lambda place: len(texts[place]))
        return self.batch("train", torch.tensor([shortest]), 0)

    def find_seen(self, split: Split) -> Bool[np.ndarray, " examples"]:
        """Return which texts of a split are to the model one that it is trained on: in whole, or in what it reads."""
        return super().find_seen(split) | self.find_read(split)

    def find_read(self, split: Split) -> Bool[np.ndarray, " examples"]:
        """Return which texts of a split have the tokens of one that is trained on, as far as the model reads both."""
        is_read = [self.digest_read(text) in self.trained_digests for text in self.examples[split]]
        return np.array(is_read, dtype=bool)

    @cached_property
    def trained_digests(self) -> set[bytes]:
        """What `digest_read` gives for the texts that train, as they are cut there."""
        return {self.digest_read(text[: self.train_length]) for text in self.examples["train"]}

    def digest_read(self, text: Any) -> bytes:
        """Return what is the same for texts alone that are equal as far as the model reads them."""
        return digest_row(text[: self.context].long().numpy())

    def notes(self) -> list[str]:
        lines = super().notes()
        for split, count in self.seen.items():
            added = count - int(super().find_seen(split).sum())
            if added:
                where = f"behind the first {self.context:,} tokens (model.context), or in words out of the vocabulary"
                lines.append(
                    f"note: {added:,} of these {count:,} texts of {split} differ from those that train {where}"
                )
        return lines

    def describe(self) -> dict[str, Any]:
        """Return what the data are; `cut` counts texts longer than the context, `empty` those without a token."""
        cut = 0
        for texts in self.examples.values():
            for text in texts:
                if len(text) > self.context:
                    cut += 1
        empty = self.content.facts.get("empty")
        return {**super().describe(), "cut": cut, "empty": empty, "classes": list(self.classes)}
