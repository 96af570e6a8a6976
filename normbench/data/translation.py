"""Pairs of sentences in two languages, as token ids of one vocabulary of byte pairs, in batches of like lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from normbench.data.arranging import Places, add_kinds, find_kinds
from normbench.data.batches import Holdout, Name, count_held_out, generator
from normbench.data.cache import Content, Decoded, read_or_decode
from normbench.data.hub import Hub
from normbench.data.sources import Config, HubId, Revision, Root
from normbench.data.text import Context, TokenData
from normbench.data.vocabulary import BytePairs
from normbench.errors import UsageError
from normbench.settings import Setting
from normbench.translation import Translation
from normbench.types import Batch, Split

POOL = 100  # batches among which sentences are sorted by length


class Pair(NamedTuple):
    """A text and its translation."""

    source: str
    target: str

    @property
    def is_filled(self) -> bool:
        """Tell whether neither is empty."""
        return bool(self.source and self.target)


class Translations(TokenData):
    """A translator's data. A batch is as long as its longest source and translation, and has sentences of like lengths.

    A pure function of (seed, step): an epoch's permutation is cut into pools of 100 batches, each pool is sorted by
    length, and the batches are shuffled. Validation and test sentences come from the shortest to the longest. Training
    pairs longer than the context are left out, and counted in `describe`.

    Args:
        content: with the arrays `source_tokens` and `target_tokens`, each text followed by the end of a line,
            `source_ends` and `target_ends`, which say where those ends are, and the facts `counts` (pairs by split),
            `lowercase` and `empty`.
        label_smoothing, beam, length_penalty: see the task.
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
        sizes = list(counts.values())
        rows = torch.arange(sum(sizes)).split(sizes)
        rows_of_split = dict(zip(counts, rows, strict=True))
        super().__init__(content, rows_of_split, {}, context=context, **options)
        self.task = Translation(
            vocabulary_size=len(self.vocabulary.symbols) + 2,
            context=context,
            label_smoothing=label_smoothing,
            lowercase=content.facts["lowercase"],
            beam=beam,
            length_penalty=length_penalty,
        )
        self.signature = self.task.signature  # asked for early, since it may be missing
        source_lengths = np.diff(content.arrays["source_ends"], prepend=-1)  # with the end
        target_lengths = np.diff(content.arrays["target_ends"], prepend=-1)
        self.lengths = torch.from_numpy(np.stack((source_lengths, target_lengths), axis=1))
        total = len(self.examples["train"])
        for split in self.examples:
            self.keep_fitting(split)
        kept = len(self.examples["train"])
        self.too_long = total - kept
        if not kept:
            empty = content.facts["empty"]
            out = f"{empty:,} have an empty text, {total:,} are longer than model.context={context:,}"
            raise UsageError(f"no training pair of {content.name} is left ({out}): use other data or a larger context")
        self.arrange(kept, "sentences of")

    def keep_fitting(self, split: Split) -> None:
        """Leave out training pairs that are longer than the context; sort those of other splits by length.

        Raises:
            UsageError: a pair that judges is longer.
        """
        rows = self.examples[split]
        fits = self.lengths[rows].amax(dim=1) <= self.context
        if split == "train":
            self.examples[split] = rows[fits]
            return
        if not fits.all():
            longest = int(self.lengths[rows].max())
            sentence = f"the longest {split} sentence of {self.content.name}, {longest:,} tokens with the end token"
            raise UsageError(f"model.context={self.context:,} is too short for {sentence}: set model.context={longest}")
        self.examples[split] = rows[self.by_length(rows)]

    def trained_places(self) -> tuple[str, Places]:
        return "train", self.examples["train"].numpy()

    def by_length(self, rows: Tensor) -> Int64[Tensor, " rows"]:
        """Return the places of rows from the shortest source to the longest, and by translation among equal ones."""
        source_first = torch.tensor([self.context + 1, 1])
        ranks = self.lengths[rows] @ source_first
        return ranks.argsort(stable=True)

    def order(self, epoch: int) -> Tensor:
        """Return the training pairs as an epoch takes them."""
        in_whole_batches = self.steps_per_epoch * self.batch_size
        order = super().order(epoch)[:in_whole_batches].long()
        train = self.examples["train"]
        pools = []
        for pool in order.split(POOL * self.batch_size):
            pools.append(pool[self.by_length(train[pool])])
        batches = torch.cat(pools).view(-1, self.batch_size)
        shuffled = torch.randperm(self.steps_per_epoch, generator=generator(self.seed, "batches", epoch))
        return batches[shuffled].flatten()

    def sentence(self, side: str, row: int) -> Int64[Tensor, " tokens"]:
        """Return the tokens of a text; side: `source` or `target`."""
        ends = self.content.arrays[f"{side}_ends"]
        first = ends[row - 1] + 1 if row else 0
        tokens = self.content.arrays[f"{side}_tokens"][first : ends[row]]
        return torch.from_numpy(tokens.astype(np.int64))

    def batch(self, split: Split, indices: Int64[Tensor, " batch"], step: int | None = None) -> Batch:
        """Return pairs of a split."""
        rows = self.examples[split][indices].tolist()
        sources = [self.sentence("source", row) for row in rows]
        targets = [self.sentence("target", row) for row in rows]
        return self.task.batch(sources, targets)

    def answers(self) -> Any:
        """Return the tokens of all validation translations, each with its end."""
        end = torch.tensor([self.task.end])
        parts = []
        for row in self.examples["val"].tolist():
            parts += [self.sentence("target", row), end]
        return torch.cat(parts)

    @cached_property
    def constant(self) -> dict[str, float]:
        """Return what the best constant predictor reaches; one translation for all sources has a BLEU of about 0."""
        return {**super().constant, "bleu/val": 0.0}

    def encode(self, text: str) -> Int64[Tensor, " tokens"]:
        """Return the token ids of a text, made as those of the data were."""
        return super().encode(normalize_text(text, self.task.lowercase))

    def decode(self, tokens: Int[Tensor, " tokens"]) -> str:
        """Return the text of token ids, without padding, begin and end."""
        is_text = (tokens >= 0) & (tokens < self.task.begin)
        return super().decode(tokens[is_text])

    def describe(self) -> dict[str, Any]:
        """Return what the data are; `too_long` and `empty` count training pairs that were left out."""
        return {
            **super().describe(),
            "vocabulary_size": self.task.vocabulary_size,
            "too_long": self.too_long,
            "empty": self.content.facts["empty"],
            "beam": self.task.beam,
            "bleu": self.signature,
        }


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
    hub = Hub(hub_id, revision, root, config)
    columns = [source_column, target_column]
    splits: dict[Split, list[str]] = {"train": ["train"], "val": [val_split], "test": list(test_splits or ())}

    def load() -> Decoded:
        pairs = read_pairs(hub, splits, columns, pair_column, lowercase)
        filled = [pair for pair in pairs["train"] if pair.is_filled]
        empty = len(pairs["train"]) - len(filled)
        order = np.random.RandomState(0).permutation(len(filled))
        pairs["train"] = [filled[row] for row in order]
        used = len(filled) - count_held_out(len(filled), holdout, Translations.unit)
        vocabulary = learn_byte_pairs(pairs["train"][:used], vocabulary_size)
        counts = {part: len(rows) for part, rows in pairs.items()}
        facts = {"counts": counts, "lowercase": lowercase, "empty": empty, **vocabulary.facts}
        kinds = find_kinds("\n".join(pair).encode() for rows in pairs.values() for pair in rows)
        return add_kinds(encode_pairs(pairs, vocabulary), kinds, counts), facts

    key = ["hub", hub.key(), columns, pair_column, vocabulary_size, lowercase, [*splits.values()], float(holdout)]
    content = read_or_decode(name, "pairs", key, load, hub.reach, hub_id=hub_id, direction=" to ".join(columns))
    return Translations(content, holdout=holdout, **options)


def read_pairs(
    hub: Hub, splits: Mapping[Split, Sequence[str]], columns: Sequence[str], pair_column: str | None, lowercase: bool
) -> dict[Split, list[Pair]]:
    """Return the normalized pairs that train, validate and test.

    Args:
        hub: where they are.
        splits: the hub's splits of each of ours.
        columns: those of the text to translate and of the translation.
        pair_column: the column that holds these two, if one does.
        lowercase: all in lower case.

    Raises:
        UsageError: a row has no text, or one that judges is empty.
    """
    wanted: list[str] = []
    for names in splits.values():
        wanted += names
    _, tables = hub.read(wanted, [pair_column] if pair_column else columns)
    pairs: dict[Split, list[Pair]] = {}
    for part, names in splits.items():
        for split in names:
            where = f"{split} of {hub.hub_id}"
            pairs_of_split = pairs_of_table(tables[split], columns, pair_column, lowercase, where)
            if part != "train":
                check_filled(pairs_of_split, where)
            pairs.setdefault(part, []).extend(pairs_of_split)
    return pairs


def learn_byte_pairs(pairs: Sequence[Pair], size: int) -> BytePairs:
    """Learn a vocabulary of so many tokens, begin and end among them, from both languages of pairs."""
    lines: list[str] = []
    for pair in pairs:
        lines += pair
    return BytePairs.learn(["\n".join(lines)], size - 2)


def encode_pairs(pairs: Mapping[Split, Sequence[Pair]], vocabulary: BytePairs) -> dict[str, np.ndarray]:
    """Return the tokens of all sources and of all targets, each with the end of a line, and where those ends are."""
    sources: list[str] = []
    targets: list[str] = []
    for rows in pairs.values():
        for pair in rows:
            sources.append(pair.source + "\n")
            targets.append(pair.target + "\n")
    line_end = vocabulary.encode("\n")
    arrays = {}
    for side, lines in (("source", sources), ("target", targets)):
        tokens = vocabulary.encode("".join(lines))
        arrays[f"{side}_tokens"] = tokens
        arrays[f"{side}_ends"] = np.flatnonzero(tokens == line_end)
    return arrays


def check_filled(pairs: Sequence[Pair], where: str) -> None:
    """Refuse pairs that judge of which a text is empty.

    Raises:
        UsageError: there is one.
    """
    for row, pair in enumerate(pairs):
        if not pair.is_filled:
            cure = "remove it from a copy that data.root names, or choose another split"
            raise UsageError(f"row {row} of {where} has an empty text: {cure}")


def normalize_text(text: str, lowercase: bool) -> str:
    """Return a text with single blanks, in lower case if that is wanted."""
    text = " ".join(text.split())
    return text.lower() if lowercase else text


def pairs_of_table(
    table: Mapping[str, Sequence[Any]], columns: Sequence[str], pair_column: str | None, lowercase: bool, where: str
) -> list[Pair]:
    """Return the two texts of each row, normalized; the arguments are those of `read_pairs`.

    Raises:
        UsageError: a row does not have two texts.
    """
    source_column, target_column = columns
    if pair_column:
        rows = [row or {} for row in table[pair_column]]
        sources: Sequence[Any] = [row.get(source_column) for row in rows]
        targets: Sequence[Any] = [row.get(target_column) for row in rows]
    else:
        sources = table[source_column]
        targets = table[target_column]
    pairs = []
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if not (isinstance(source, str) and isinstance(target, str)):
            cure = "remove it, or set data.source_column, data.target_column and data.pair_column"
            what = f"does not have the two texts {source_column} and {target_column}"
            raise UsageError(f"row {row} of {where} {what}: {cure}")
        pairs.append(Pair(normalize_text(source, lowercase), normalize_text(target, lowercase)))
    return pairs
