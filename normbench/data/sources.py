"""What data sets of the hub, and those that installed packages carry, decode to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Int64

from normbench.data.batches import Holdout, Name, held_out
from normbench.data.cache import Content, Source
from normbench.data.hub import Hub
from normbench.data.images import Images, decode, image_content
from normbench.data.text import Text, Texts
from normbench.data.vocabulary import Bytes, Vocabulary, learn
from normbench.errors import UsageError
from normbench.settings import Setting

LINE_END = "\n"

HubId = Annotated[str, Setting("owner/name on the Hugging Face hub")]
Revision = Annotated[str, Setting("branch, tag or commit on the hub")]
Root = Annotated[str | None, Setting("folder of local copies in the hub's layout; null: from the hub")]
Config = Annotated[str | None, Setting("which of the repository's configurations")]
TextColumn = Annotated[str, Setting("column of the text")]
ImageColumn = Annotated[str, Setting("column of the images")]
LabelColumn = Annotated[str, Setting("column of the classes")]
Level = Annotated[Literal["character", "byte", "word", "lowercase_word", "bpe"], Setting("what a token is")]
VocabularySize = Annotated[
    int | None,
    Setting("most symbols of words or byte pairs; null: all words, 8,192 pairs", "symbols", low=2, high=10**7),
]


def hub_text(
    *,
    name: Name,
    hub_id: HubId,
    revision: Revision = "main",
    root: Root = None,
    config: Config = None,
    text_column: TextColumn = "text",
    level: Level = "character",
    vocabulary_size: VocabularySize = None,
    lines: Annotated[bool, Setting("each row is a line of its own")] = False,
    val_splits: Annotated[Sequence[str], Setting("splits that validate")] = ("validation", "test"),
    test_splits: Annotated[Sequence[str] | None, Setting("splits that judge once, at the end; null: none")] = None,
    holdout: Holdout = 0,
    **options: Any,
) -> Text:
    """Return a text of the hub; `options` are Text's.

    The rows of a split follow each other, and so do several splits that serve one purpose. In
    karpathy/tiny_shakespeare the split `train` is the first 90 % and `validation` with `test` the last tenth, as
    nanoGPT splits it: both validate. No words or byte pairs are learned of the tokens that `holdout` takes away.
    """
    hub = Hub(hub_id, revision, root, config)
    parts = {"train": ["train"], "val": list(val_splits), "test": list(test_splits or ())}
    key = [text_column, level, vocabulary_size, lines, parts["val"], parts["test"], float(holdout)]

    def load() -> Content:
        _, tables = hub.read([split for splits in parts.values() for split in splits], [text_column])
        rows = {split: texts_of(table[text_column], f"{hub_id} ({split})") for split, table in tables.items()}
        if lines:
            rows = {split: [row.removesuffix(LINE_END) + LINE_END for row in found] for split, found in rows.items()}
        texts = {part: "".join(row for one in splits for row in rows[one]) for part, splits in parts.items() if splits}
        vocabulary = learned(level, vocabulary_size, holdout, *texts.values())
        return Content({part: vocabulary.encode(text) for part, text in texts.items()}, vocabulary.facts())

    source = Source(name, "text", ["hub", hub.key(), *key], load, {"hub_id": hub_id})
    return Text(source, holdout=holdout, **options)


def learned(level: str, size: int | None, holdout: float, train: str, *others: str) -> Vocabulary:
    """Learn from the part that trains, cut at a blank: how long it is, in tokens, the vocabulary decides."""
    if not holdout:
        return learn(level, [train, *others], size)
    cut = len(train) - held_out(len(train), holdout, "characters")
    while True:
        cut = 1 + max(train.rfind(blank, 0, cut) for blank in (" ", LINE_END))
        vocabulary = learn(level, [train[:cut], train[cut:], *others], size)
        total, seen = len(vocabulary.encode(train)), len(vocabulary.encode(train[:cut]))
        used = total - held_out(total, holdout, "tokens")
        if seen <= used:
            return vocabulary
        cut = cut * used // seen


def hub_texts(
    *,
    name: Name,
    hub_id: HubId,
    revision: Revision = "main",
    root: Root = None,
    config: Config = None,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    level: Level = "lowercase_word",
    vocabulary_size: VocabularySize = None,
    val_split: Annotated[str, Setting("split that validates")] = "test",
    holdout: Holdout = 0,
    **options: Any,
) -> Texts:
    """Return labelled texts of the hub; `options` are Texts'.

    Training texts are shuffled by `numpy.random.RandomState(0)`: often they are sorted by class, and the last are held
    out. The vocabulary is learned from the others.
    """
    hub = Hub(hub_id, revision, root, config)

    def load() -> Content:
        classes, tables, labels = labelled(hub, ("train", val_split), text_column, label_column)
        texts = {split: texts_of(table, f"{hub_id} ({split})") for split, table in tables.items()}
        shuffled = np.random.RandomState(0).permutation(len(texts["train"]))
        used = len(shuffled) - held_out(len(shuffled), holdout, "texts")
        trained, held = ([texts["train"][row] for row in sorted(rows)] for rows in np.split(shuffled, [used]))
        vocabulary = learn(level, [LINE_END.join(part) for part in (trained, held, texts[val_split])], vocabulary_size)
        arrays = {}
        for part, split, order in (("train", "train", shuffled), ("val", val_split, np.arange(len(texts[val_split])))):
            encoded = [vocabulary.encode(texts[split][row]) for row in order]
            # An empty text is one unknown token, since nothing cannot be averaged.
            encoded = [tokens if len(tokens) else np.zeros(1, np.uint8) for tokens in encoded]
            arrays[f"{part}_tokens"] = np.concatenate(encoded)
            arrays[f"{part}_ends"] = np.cumsum([len(tokens) for tokens in encoded])
            arrays[f"{part}_labels"] = labels[split][order]
        return Content(arrays, {"classes": classes, **vocabulary.facts()})

    key = ["hub", hub.key(), text_column, label_column, level, vocabulary_size, val_split, float(holdout)]
    return Texts(Source(name, "texts", key, load, {"hub_id": hub_id}), holdout=holdout, **options)


def hub_images(
    *,
    name: Name,
    hub_id: HubId,
    revision: Revision = "main",
    root: Root = None,
    config: Config = None,
    image_column: ImageColumn = "image",
    label_column: LabelColumn = "label",
    **options: Any,
) -> Images:
    """Return labelled images of the hub; the split `test` validates; `options` are Images'."""
    hub = Hub(hub_id, revision, root, config)

    def load() -> Content:
        classes, columns, labels = labelled(hub, ("train", "test"), image_column, label_column)
        images = [
            (f"row {row} of {split}", image) for split, column in columns.items() for row, image in enumerate(column)
        ]
        train, val = np.split(decode(images, hub_id), [len(labels["train"])])
        return image_content({"train": (train, labels["train"]), "val": (val, labels["test"])}, classes)

    key = ["hub", hub.key(), image_column, label_column]
    return Images(Source(name, "images", key, load, {"hub_id": hub_id}), **options)


def labelled(hub: Hub, splits: Sequence[str], column: str, label_column: str) -> tuple[list[str], Any, Any]:
    """Return the names of the classes, and a column and the classes of its rows by split.

    Raises:
        UsageError: the label column declares no classes, or a label is none of them.
    """
    features, tables = hub.read(splits, [column, label_column])
    names = getattr(features[label_column], "names", None)
    if not names:
        raise UsageError(
            f"column {label_column} of {hub.hub_id} declares no classes: set data.label_column, "
            "or declare it as class_label under dataset_info in the copy's README.md"
        )
    labels = {split: class_labels(table[label_column], len(names), hub.hub_id) for split, table in tables.items()}
    return list(names), {split: table[column] for split, table in tables.items()}, labels


def class_labels(labels: Sequence[Any], classes: int, where: str) -> Int64[np.ndarray, " rows"]:
    """Return the class of each row.

    Raises:
        UsageError: a label is outside the range.
    """
    if wrong := set(labels) - set(range(classes)):
        raise UsageError(f"{where} has the label {wrong.pop()}: labels go from 0 to {classes - 1}")
    return np.array(labels, dtype=np.int64)


def texts_of(rows: Sequence[Any], where: str) -> list[str]:
    """Return the rows of a column of text.

    Raises:
        UsageError: a row is no text.
    """
    if not all(isinstance(row, str) for row in rows):
        raise UsageError(f"{where} has rows that are no text: set data.text_column to a column of text")
    return list(rows)


# ---- data that installed packages carry: no network, no copies


def pydocs(*, name: Name = "pydocs", **options: Any) -> Text:
    """Return Python's language reference, about 0.5 MB, by bytes; `options` are Text's.

    These are `pydoc_data.topics` in alphabetical order. The first 90 % trains, the last tenth validates. The text, and
    so the fingerprint, differs between Python versions.
    """
    from pydoc_data.topics import topics

    text = "\n".join(topics[topic] for topic in sorted(topics))

    def load() -> Content:
        tokens = Bytes().encode(text)
        cut = len(tokens) * 9 // 10
        return Content({"train": tokens[:cut], "val": tokens[cut:]}, {})

    return Text(Source(name, "text", ["pydocs", hashlib.sha256(text.encode()).hexdigest()], load), **options)


def digits(*, name: Name = "digits", **options: Any) -> Images:
    """Return scikit-learn's 1,797 scanned digits of 8 × 8 pixels, 0 to 16 scaled to 0 to 255; `options` are Images'.

    They are shuffled by `numpy.random.RandomState(0)`, as neighbours have the same writer; then the first 1,500 train
    and the other 297 validate. A cache hit does not import scikit-learn, which takes over a second.
    """

    def load() -> Content:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.RandomState(0).permutation(len(digits.target))
        images = np.split(np.rint(digits.images[order, None] * 255 / 16).astype(np.uint8), [1500])
        labels = np.split(digits.target[order].astype(np.int64), [1500])
        train, val = zip(images, labels, strict=True)
        return image_content({"train": train, "val": val}, [str(name) for name in digits.target_names])

    return Images(Source(name, "images", ["digits", version("scikit-learn")], load), **options)
