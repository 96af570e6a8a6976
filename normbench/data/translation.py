"""Pairs of sentences in two languages, as token ids of one vocabulary of byte pairs, in batches of like lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from normbench.data.batches import Holdout, Name, generator, held_out
from normbench.data.cache import Content, Decoded, decoded
from normbench.data.hub import Hub
from normbench.data.sources import Config, HubId, Revision, Root
from normbench.data.text import Context, TokenData
from normbench.data.vocabulary import BytePairs
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.translation import Translation
from normbench.types import Batch, Split

POOL = 100  # batches among which sentences are sorted by length


class Translations(TokenData):
    """A translator's data. A batch is as long as its longest source and translation, and has sentences of like lengths.

    A pure function of (seed, step): an epoch's permutation is cut into pools of 100 batches, each pool is sorted by
    length, and the batches are shuffled. Validation and test sentences come from the shortest to the longest. Training
    pairs longer than the context are left out, and counted in `describe`.

    Args:
        content: of the arrays `source_tokens` and `target_tokens`, each text followed by a line's end,
            `source_ends` and `target_ends`, where those are, and of the facts `counts` (pairs by split), `lowercase`
            and `empty`.
        label_smoothing, beam, length_penalty: of the task.
        options: of TokenData.

    Raises:
        UsageError: a pair that judges is longer than the context.
    """

    kind = "translation"
    unit = "sentences"
    pads = True
    task: Translation

    def __init__(
        self,
        content: Content,
        *,
        context: Context,
        label_smoothing: Annotated[float, Setting("share of a target spread over all tokens", low=0, below=1)] = 0.1,
        beam: Annotated[int, Setting("translations that the search keeps; 1: greedy", low=1, high=1000)] = 5,
        length_penalty: Annotated[
            float, Setting("exponent of the length that scores are divided by", low=0, high=10)
        ] = 1.0,
        **options: Any,
    ) -> None:
        counts = content.facts["counts"]
        rows = torch.arange(sum(counts.values())).split([*counts.values()])
        super().__init__(content, dict(zip(counts, rows, strict=True)), {}, context=context, **options)
        size, lowercase = len(self.vocabulary.symbols) + 2, content.facts["lowercase"]
        self.task = Translation(size, context, label_smoothing, lowercase, beam, length_penalty)
        self.signature = self.task.signature  # asked for early, since it may be missing
        ends = [content.arrays[f"{side}_ends"] for side in ("source", "target")]
        self.lengths = torch.from_numpy(np.stack([np.diff(each, prepend=-1) for each in ends], axis=1))  # with the end
        total = len(self.examples["train"])
        for split, rows in self.examples.items():
            fits = self.lengths[rows].amax(dim=1) <= context
            if split != "train" and not fits.all():
                longest = int(self.lengths[rows].max())
                there = f"the longest {split} sentence of {content.name}, {longest:,} tokens with the end token"
                raise UsageError(f"model.context={context:,} is too short for {there}: set model.context={longest}")
            self.examples[split] = rows[fits] if split == "train" else rows[self.by_length(rows)]
        self.too_long = total - len(self.examples["train"])
        if not len(self.examples["train"]):
            out = f"{content.facts['empty']:,} have an empty text, {total:,} are longer than model.context={context:,}"
            raise UsageError(f"no training pair of {content.name} is left ({out}): use other data or a larger context")
        self.arrange(len(self.examples["train"]), "sentences of")

    def by_length(self, rows: Tensor) -> Int64[Tensor, " rows"]:
        """Return the places of rows from the shortest source to the longest, and by translation among equal ones."""
        return (self.lengths[rows] @ torch.tensor([self.context + 1, 1])).argsort(stable=True)

    def order(self, epoch: int) -> Tensor:
        """Return the training pairs as an epoch takes them."""
        order = super().order(epoch)[: self.steps_per_epoch * self.batch_size].long()
        pools = order.split(POOL * self.batch_size)
        batches = torch.cat([pool[self.by_length(self.examples["train"][pool])] for pool in pools])
        shuffled = torch.randperm(self.steps_per_epoch, generator=generator(self.seed, "batches", epoch))
        return batches.view(-1, self.batch_size)[shuffled].flatten()

    def sentence(self, side: str, row: int) -> Int64[Tensor, " tokens"]:
        """Return the tokens of a text; side: `source` or `target`."""
        ends = self.content.arrays[f"{side}_ends"]
        tokens = self.content.arrays[f"{side}_tokens"][ends[row - 1] + 1 if row else 0 : ends[row]]
        return torch.from_numpy(tokens.astype(np.int64))

    def batch(self, split: Split, indices: Int64[Tensor, " batch"], step: int | None = None) -> Batch:
        """Return pairs of a split."""
        rows = self.examples[split][indices].tolist()
        return self.task.batch(*([self.sentence(side, row) for row in rows] for side in ("source", "target")))

    def answers(self) -> Any:
        """Return the tokens of all validation translations, each with its end."""
        end = torch.tensor([self.task.end])
        return torch.cat(
            [part for row in self.examples["val"].tolist() for part in (self.sentence("target", row), end)]
        )

    @cached_property
    def constant(self) -> dict[str, float]:
        """Return what the best constant predictor reaches; one translation for all sources has a BLEU of about 0."""
        return {**super().constant, "bleu/val": 0.0}

    def encode(self, text: str) -> Int64[Tensor, " tokens"]:
        """Return the token ids of a text as those of the data were made."""
        return super().encode(prepared(text, self.task.lowercase))

    def decode(self, tokens: Int[Tensor, " tokens"]) -> str:
        """Return the text of token ids, where padding, begin and end are nothing."""
        return super().decode(tokens[(tokens >= 0) & (tokens < self.task.begin)])

    def describe(self) -> dict[str, Any]:
        """Return what the data are; `too_long` and `empty` count training pairs that were left out."""
        left_out = {"too_long": self.too_long, "empty": self.content.facts["empty"]}
        size, bleu = self.task.vocabulary_size, self.signature
        return {**super().describe(), "vocabulary_size": size, **left_out, "beam": self.task.beam, "bleu": bleu}


def hub_translation(
    *,
    name: Name,
    hub_id: HubId,
    revision: Revision = "main",
    root: Root = None,
    config: Config = None,
    source_column: Annotated[str, Setting("column of the text to translate")] = "de",
    target_column: Annotated[str, Setting("column of the translation")] = "en",
    pair_column: Annotated[str | None, Setting("column that holds the other two, if one does")] = None,
    vocabulary_size: Annotated[int, Setting("byte pairs of both languages, with begin and end", low=260, high=10**6)],
    lowercase: Annotated[bool, Setting("all in lower case")] = True,
    val_split: Annotated[str, Setting("split that validates")] = "validation",
    test_splits: Annotated[Sequence[str] | None, Setting("splits that judge once, at the end; null: none")] = ("test",),
    holdout: Holdout = 0,
    **options: Any,
) -> Translations:
    """Return translated sentences of the hub; `options` are Translations'.

    Blanks in a row are one blank. Training pairs are shuffled by `numpy.random.RandomState(0)`, as the last may be held
    out; byte pairs are learned from the others, of both languages. A training pair with an empty text is left out.

    Raises:
        UsageError: a row has no text, or one that judges is empty.
    """
    hub, columns = Hub(hub_id, revision, root, config), [source_column, target_column]
    splits: dict[Split, list[str]] = {"train": ["train"], "val": [val_split], "test": list(test_splits or ())}

    def load() -> Decoded:
        wanted = [each for names in splits.values() for each in names]
        _, tables = hub.read(wanted, [pair_column] if pair_column else columns)
        pairs: dict[Split, list[list[str]]] = {part: [] for part in splits if splits[part]}
        for part in pairs:
            for each in splits[part]:
                found = paired(tables[each], columns, pair_column, lowercase, f"{each} of {hub_id}")
                if part != "train" and (empty := [row for row, pair in enumerate(found) if not all(pair)]):
                    cure = "remove it from a copy that data.root names, or choose another split"
                    raise UsageError(f"row {empty[0]} of {each} of {hub_id} has an empty text: {cure}")
                pairs[part] += found
        train = [pair for pair in pairs["train"] if all(pair)]
        left_out = len(pairs["train"]) - len(train)
        pairs["train"] = [train[row] for row in np.random.RandomState(0).permutation(len(train))]
        used = pairs["train"][: len(train) - held_out(len(train), holdout, Translations.unit)]
        vocabulary = BytePairs.learn(["\n".join(map("\n".join, used))], vocabulary_size - 2)
        arrays = {}
        for side, place in (("source", 0), ("target", 1)):
            text = "".join(pair[place] + "\n" for part in pairs.values() for pair in part)
            arrays[f"{side}_tokens"] = tokens = vocabulary.encode(text)
            arrays[f"{side}_ends"] = np.flatnonzero(tokens == vocabulary.encode("\n"))
        counts = {part: len(rows) for part, rows in pairs.items()}
        return arrays, {"counts": counts, "lowercase": lowercase, "empty": left_out, **vocabulary.facts}

    key = ["hub", hub.key(), columns, pair_column, vocabulary_size, lowercase, [*splits.values()], float(holdout)]
    content = decoded(name, "pairs", key, load, hub_id=hub_id, direction=" to ".join(columns))
    return Translations(content, holdout=holdout, **options)


def prepared(text: str, lowercase: bool) -> str:
    """Return a text with single blanks, in lower case if that is wanted."""
    text = " ".join(text.split())
    return text.lower() if lowercase else text


def paired(
    table: Mapping[str, Sequence[Any]], columns: Sequence[str], both: str | None, lowercase: bool, where: str
) -> list[list[str]]:
    """Return the two texts of each row, prepared.

    Raises:
        UsageError: a row has not two texts.
    """
    if both:
        table = {each: [(row or {}).get(each) for row in table[both]] for each in columns}
    pairs = [*zip(*(table[each] for each in columns), strict=True)]
    if wrong := [row for row, pair in enumerate(pairs) if not all(isinstance(text, str) for text in pair)]:
        cure = "remove it, or set data.source_column, data.target_column and data.pair_column"
        raise UsageError(f"row {wrong[0]} of {where} has not the two texts {' and '.join(columns)}: {cure}")
    return [[prepared(text, lowercase) for text in pair] for pair in pairs]
