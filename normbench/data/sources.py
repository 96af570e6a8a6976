"""Data sets of the hub: what the columns of their splits decode to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from normbench.data.cache import Cached, Content
from normbench.data.holdout import held_out
from normbench.data.hub import Hub
from normbench.data.pixels import Labels, Pixels, image_content
from normbench.data.vocabulary import Vocabulary, learn, recall
from normbench.errors import UsageError

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class HubText(Cached):
    """A text; the rows of a split follow each other, and so do several splits that serve one purpose.

    In karpathy/tiny_shakespeare the split `train` is the first 90 % and `validation` with `test` the last tenth, as
    nanoGPT splits it: both validate.

    column: of the text. level: what a token is (see `vocabulary`). vocabulary_size: most tokens that may be learned;
    None: all. lines: each row is a line of its own. val, test: the splits that validate, and that judge at the end.
    holdout: share or number of the last training tokens, of which no words or byte pairs are learned (as for Text).
    """

    name: str
    hub: Hub
    column: str = "text"
    level: str = "character"
    vocabulary_size: int | None = None
    lines: bool = False
    val: tuple[str, ...] = ("validation", "test")
    test: tuple[str, ...] = ()
    holdout: float = 0
    kind = "text"

    def key(self) -> str:
        splits = [self.lines, self.val, self.test, float(self.holdout)]
        return json.dumps(["hub", self.hub.key(), self.column, self.level, self.vocabulary_size, *splits])

    def load(self) -> Content:
        parts = {"train": ("train",), "val": self.val, "test": self.test}
        tables = self.hub.read([split for splits in parts.values() for split in splits], [self.column]).splits
        rows = {split: texts_of(table[self.column], split, self.hub) for split, table in tables.items()}
        texts = {
            part: "".join(self.joined(rows[split]) for split in splits) for part, splits in parts.items() if splits
        }
        vocabulary = self.learned(*texts.values())
        return Content({part: vocabulary.encode(text) for part, text in texts.items()}, vocabulary.facts())

    def learned(self, train: str, *others: str) -> Vocabulary:
        """The vocabulary of the part that trains, cut at a blank: how long it is, in tokens, the vocabulary decides."""
        if not self.holdout:
            return learn(self.level, [train, *others], self.vocabulary_size)
        cut = len(train) - held_out(len(train), self.holdout, "characters")
        while True:
            cut = 1 + max(train.rfind(blank, 0, cut) for blank in (" ", LINE_END))
            vocabulary = learn(self.level, [train[:cut], train[cut:], *others], self.vocabulary_size)
            total, seen = len(vocabulary.encode(train)), len(vocabulary.encode(train[:cut]))
            used = total - held_out(total, self.holdout, "tokens")
            if seen <= used:
                return vocabulary
            cut = cut * used // seen

    def joined(self, rows: Sequence[str]) -> str:
        """All rows of a split, one after the other."""
        return "".join(f"{row.removesuffix(LINE_END)}{LINE_END}" for row in rows) if self.lines else "".join(rows)

    def vocabulary(self, facts: Mapping[str, Any]) -> Vocabulary:
        """What the tokens stand for."""
        return recall(facts)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "hub_id": self.hub.hub_id}


@dataclass(frozen=True)
class HubTexts(Cached):
    """Texts and their classes: the split `train` trains, the split `val` validates.

    Training texts are shuffled by `numpy.random.RandomState(0)`: often they are sorted by class, and the last
    are held out.
    level, vocabulary_size: as for HubText. holdout: share or number of the last training texts (as for Texts); the
    vocabulary is learned from the others.
    """

    name: str
    hub: Hub
    text_column: str = "text"
    label_column: str = "label"
    level: str = "lowercase_word"
    vocabulary_size: int | None = None
    val: str = "test"
    holdout: float = 0
    kind = "texts"

    def key(self) -> str:
        columns = [self.text_column, self.label_column]
        words = [self.level, self.vocabulary_size]
        return json.dumps(["hub", self.hub.key(), *columns, *words, self.val, float(self.holdout)])

    def load(self) -> Content:
        features, tables = self.hub.read(("train", self.val), [self.text_column, self.label_column])
        classes = class_names(features, self.label_column, self.hub)
        texts = {split: texts_of(table[self.text_column], split, self.hub) for split, table in tables.items()}
        shuffled = np.random.RandomState(0).permutation(len(texts["train"]))
        used = len(shuffled) - held_out(len(shuffled), self.holdout, "texts")
        trained, held = ([texts["train"][row] for row in sorted(rows)] for rows in np.split(shuffled, [used]))
        parts = [LINE_END.join(part) for part in (trained, held, texts[self.val])]
        vocabulary = learn(self.level, parts, self.vocabulary_size)
        arrays = {}
        for part, split in (("train", "train"), ("val", self.val)):
            where = f"{self.hub.hub_id} ({split})"
            order = shuffled if part == "train" else slice(None)
            encoded = (vocabulary.encode(text) for text in np.array(texts[split], dtype=object)[order])
            pieces = [tokens if len(tokens) else NO_TOKENS for tokens in encoded]
            arrays[f"{part}_tokens"] = np.concatenate(pieces)
            arrays[f"{part}_ends"] = np.cumsum([len(piece) for piece in pieces])
            arrays[f"{part}_labels"] = class_labels(tables[split][self.label_column], len(classes), where)[order]
        return Content(arrays, {"classes": classes, **vocabulary.facts()})

    def vocabulary(self, facts: Mapping[str, Any]) -> Vocabulary:
        """What the tokens stand for."""
        return recall(facts)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "hub_id": self.hub.hub_id}


@dataclass(frozen=True)
class HubImages(Cached):
    """Images and their classes: the split `train` trains, the split `test` validates."""

    name: str
    hub: Hub
    image_column: str = "image"
    label_column: str = "label"
    kind = "images"

    def key(self) -> str:
        return json.dumps(["hub", self.hub.key(), self.image_column, self.label_column])

    def load(self) -> Content:
        features, tables = self.hub.read(("train", "test"), [self.image_column, self.label_column])
        classes = class_names(features, self.label_column, self.hub)
        labels = {
            split: class_labels(table[self.label_column], len(classes), f"{self.hub.hub_id} ({split})")
            for split, table in tables.items()
        }
        images = {split: self.images(split, table[self.image_column]) for split, table in tables.items()}
        train, test = images["train"].shape[1:], images["test"].shape[1:]
        if train != test:
            raise UsageError(
                f"{self.hub.hub_id} has images of (channels, height, width) = {train} in train but {test} in test: "
                "all must have the same"
            )
        return image_content((images["train"], labels["train"]), (images["test"], labels["test"]), classes)

    def images(self, split: str, column: pyarrow.ChunkedArray) -> Pixels:
        """The pixels of each image (Pillow is imported here: a cache hit needs it not)."""
        from normbench.data.decoding import decode_images

        rows = column.to_pylist()
        if not all(row is None or (isinstance(row, dict) and "bytes" in row) for row in rows):
            raise UsageError(f"column {self.image_column} of {self.hub.hub_id} holds no images: set data.image_column")
        return decode_images([row and row["bytes"] for row in rows], f"{self.hub.hub_id} ({split})")

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "hub_id": self.hub.hub_id}


LINE_END = "\n"
NO_TOKENS = np.zeros(1, np.uint8)  # an empty text is one unknown token, since nothing cannot be averaged


def texts_of(column: pyarrow.ChunkedArray, split: str, hub: Hub) -> list[str]:
    """The rows of a column of text.

    Raises:
        UsageError: a row is no text.
    """
    rows: list[str] = column.to_pylist()
    for row, text in enumerate(rows):
        if not isinstance(text, str):
            raise UsageError(
                f"row {row} of {hub.hub_id} ({split}) is no text but {text!r:.40}: "
                "set data.text_column to a column of text"
            )
    return rows


def class_names(features: Mapping[str, Any], column: str, hub: Hub) -> list[str]:
    """The names of the classes, as the label column declares them.

    Raises:
        UsageError: it declares none.
    """
    names = getattr(features[column], "names", None)
    if not names:
        raise UsageError(
            f"column {column} of {hub.hub_id} declares no classes: set data.label_column, "
            "or declare it as class_label under dataset_info in the copy's README.md"
        )
    return list(names)


def class_labels(column: pyarrow.ChunkedArray, num_classes: int, where: str) -> Labels:
    """The class of each row.

    Raises:
        UsageError: a label is outside the range.
    """
    labels = column.fill_null(-1).to_numpy().astype(np.int64)
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise UsageError(
            f"row {wrong[0]} of {where} has the label {column[int(wrong[0])]}: labels go from 0 to {num_classes - 1}"
        )
    return labels
