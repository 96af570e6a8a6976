"""What data sets of the hub, and those that installed packages carry, decode to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np

from normbench.data.batches import Holdout, Name, held_out
from normbench.data.cache import SPLITS, Decoded, decoded
from normbench.data.hub import Hub, classes_of, labels_of
from normbench.data.images import Images, decode, image_arrays
from normbench.data.streaming import Stream, streamed_images, streamed_text
from normbench.data.text import Text, Texts, joined
from normbench.data.vocabulary import LEVELS, Vocabulary
from normbench.settings import Setting

HubId = Annotated[str, Setting("owner/name on the Hugging Face hub")]
Revision = Annotated[str, Setting("branch, tag or commit on the hub")]
Root = Annotated[str | None, Setting("folder of local copies in the hub's layout; null: from the hub")]
Config = Annotated[str | None, Setting("which of the repository's configurations")]
Folder = Annotated[str | None, Setting("folder of the repository with the files, where no configuration names them")]
TextColumn = Annotated[str, Setting("column of the text")]
ImageColumn = Annotated[str, Setting("column of the images")]
Size = Annotated[int | None, Setting("side of all images; null: as they are", "pixels", low=1, high=10**4)]
LabelColumn = Annotated[str, Setting("column of the classes")]
ValSplit = Annotated[str, Setting("split that validates")]
Level = Annotated[Literal["character", "byte", "word", "lowercase_word", "bpe"], Setting("what a token is")]
Streaming = Annotated[bool, Setting("read the rows while a run trains, as of data that do not fit in memory")]
Buffer = Annotated[int, Setting("rows of a stream that are shuffled together", "rows", low=1, high=10**8)]
KeptRows = Annotated[int, Setting("rows of a stream that judge, in memory", "rows", low=1, high=10**8)]
VocabularySize = Annotated[int | None, Setting("most symbols; null: all words, 8,192 byte pairs", low=2, high=10**7)]


def hub_text(
    *,
    name: Name,
    hub_id: HubId,
    revision: Revision = "main",
    root: Root = None,
    config: Config = None,
    folder: Folder = None,
    text_column: TextColumn = "text",
    level: Level = "character",
    vocabulary_size: VocabularySize = None,
    lines: Annotated[bool, Setting("each row is a line of its own")] = False,
    val_splits: Annotated[Sequence[str] | None, Setting("that validate; null: train is cut")] = ("validation", "test"),
    test_splits: Annotated[Sequence[str] | None, Setting("splits that judge once, at the end; null: none")] = None,
    holdout: Holdout = 0,
    streaming: Streaming = False,
    buffer: Buffer = 10_000,
    kept: KeptRows = 1_000,
    **options: Any,
) -> Text:
    """Return a text of the hub; `options` are Text's.

    The rows of a split follow each other, and so do several splits that serve one purpose. In
    karpathy/tiny_shakespeare the split `train` is the first 90 % and `validation` with `test` the last tenth, as
    nanoGPT splits it: both validate. Where no split validates, nine tenths of the bytes of `train` train, a twentieth
    validates, and the last twentieth judges at the end, as is usual with enwik8.
    No words or byte pairs are learned of the tokens that `holdout` takes away.
    """
    hub = Hub(hub_id, revision, root, config, folder)
    if streaming:
        stream = Stream(hub, [text_column], val_splits or (), kept, holdout, buffer)
        return streamed_text(name, stream, level, vocabulary_size, lines, **options)
    parts = {"train": ["train"], "val": list(val_splits or ()), "test": list(test_splits or ())}

    def load() -> Decoded:
        _, tables = hub.read([split for splits in parts.values() for split in splits], [text_column], text_column)
        texts = {}
        for part, splits in parts.items():
            if splits:
                texts[part] = joined([row for split in splits for row in tables[split][text_column]], lines)
        if not parts["val"]:
            whole = texts["train"].encode()
            cuts = pairwise(len(whole) * twentieth // 20 for twentieth in (0, 18, 19, 20))
            # A character that a cut divides is left out.
            texts = {part: whole[slice(*cut)].decode(errors="ignore") for part, cut in zip(SPLITS, cuts, strict=True)}
        vocabulary = learned(level, vocabulary_size, holdout, *texts.values())
        return {part: vocabulary.encode(text) for part, text in texts.items()}, vocabulary.facts

    key = ["hub", hub.key(), text_column, level, vocabulary_size, lines, parts["val"], parts["test"], float(holdout)]
    return Text(decoded(name, "text", key, load, hub_id=hub_id), holdout=holdout, **options)


def learned(level: str, size: int | None, holdout: float, train: str, *others: str) -> Vocabulary:
    """Learn from the part that trains, cut at a blank: how long it is, in tokens, the vocabulary decides."""
    if not holdout:
        return LEVELS[level].learn([train, *others], size)
    cut = len(train) - held_out(len(train), holdout, "characters")
    while True:
        cut = 1 + max(train.rfind(blank, 0, cut) for blank in (" ", "\n"))
        vocabulary = LEVELS[level].learn([train[:cut], train[cut:], *others], size)
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
    val_split: ValSplit = "test",
    holdout: Holdout = 0,
    **options: Any,
) -> Texts:
    """Return labelled texts of the hub; `options` are Texts'.

    Training texts are shuffled by `numpy.random.RandomState(0)`: often they are sorted by class, and the last are held
    out. The vocabulary is learned from the others.
    """
    hub = Hub(hub_id, revision, root, config)

    def load() -> Decoded:
        texts, trained, labels, classes = labelled(hub, val_split, text_column, label_column, text_column)
        train, val = np.random.RandomState(0).permutation(trained), np.arange(trained, len(texts))
        return encoded(texts, labels, classes, {"train": train, "val": val}, level, vocabulary_size, holdout)

    key = ["hub", hub.key(), text_column, label_column, level, vocabulary_size, val_split, float(holdout)]
    return Texts(decoded(name, "texts", key, load, hub_id=hub_id), holdout=holdout, **options)


def encoded(
    texts: Sequence[str],
    labels: np.ndarray,
    classes: Sequence[str],
    parts: Mapping[str, np.ndarray],
    level: str,
    vocabulary_size: int | None,
    holdout: float,
) -> Decoded:
    """Return the tokens of labelled texts, whose vocabulary is learned from those that train and are not held out.

    parts: the rows of each split in their order, those that train first.
    """
    train, *others = parts.values()
    used = len(train) - held_out(len(train), holdout, "texts")
    pieces = ["\n".join(texts[row] for row in sorted(piece)) for piece in (train[:used], train[used:], *others)]
    vocabulary = LEVELS[level].learn(pieces, vocabulary_size)
    arrays, empty = {}, 0
    for split, rows in parts.items():
        tokens = [vocabulary.encode(texts[row]) for row in rows]
        # An empty text is one unknown token, since nothing cannot be averaged.
        empty += sum(not len(each) for each in tokens)
        tokens = [each if len(each) else np.zeros(1, np.uint8) for each in tokens]
        arrays[f"{split}_tokens"] = np.concatenate(tokens)
        arrays[f"{split}_ends"] = np.cumsum([len(each) for each in tokens])
        arrays[f"{split}_labels"] = labels[rows]
    return arrays, {"classes": classes, "empty": empty, **vocabulary.facts}


def hub_images(
    *,
    name: Name,
    hub_id: HubId,
    revision: Revision = "main",
    root: Root = None,
    config: Config = None,
    image_column: ImageColumn = "image",
    label_column: LabelColumn = "label",
    val_split: ValSplit = "test",
    size: Size = None,
    holdout: Holdout = 0,
    streaming: Streaming = False,
    buffer: Buffer = 1_000,
    kept: KeptRows = 5_000,
    **options: Any,
) -> Images:
    """Return labelled images of the hub; `options` are Images'."""
    hub = Hub(hub_id, revision, root, config)
    if streaming:
        stream = Stream(hub, [image_column, label_column], [val_split], kept, holdout, buffer)
        return streamed_images(name, stream, size, **options)

    def load() -> Decoded:
        images, trained, labels, classes = labelled(hub, val_split, image_column, label_column)
        counts = {"train": trained, "val": len(images) - trained}
        names = [f"row {row} of {split}" for split, count in counts.items() for row in range(count)]
        return image_arrays(decode([*zip(names, images, strict=True)], hub_id, size), labels, counts, classes)

    key = ["hub", hub.key(), image_column, label_column, *([val_split, size] if size or val_split != "test" else [])]
    return Images(decoded(name, "images", key, load, hub_id=hub_id), holdout=holdout, **options)


def labelled(
    hub: Hub, val_split: str, column: str, label_column: str, text: str = ""
) -> tuple[list[Any], int, np.ndarray, list[str]]:
    """Return the rows of a column, of the split `train` and then of another, how many train, their labels and classes.

    text: the column that must hold text, if one must.

    Raises:
        UsageError: the label column declares no classes, or a row has none of them.
    """
    features, tables = hub.read(["train", val_split], [column, label_column], text)
    names = classes_of(features, label_column, hub.hub_id)
    rows, labels = ([*tables["train"][each], *tables[val_split][each]] for each in (column, label_column))
    return rows, len(tables["train"][column]), *labels_of(labels, names, hub.hub_id)


# ---- data that installed packages carry: no network, no copies


def pydocs(*, name: Name = "pydocs", **options: Any) -> Text:
    """Return Python's language reference, about 0.5 MB, by bytes; `options` are Text's.

    These are the pages of `pydoc_data.topics` in alphabetical order. Whole pages, about the last tenth of the text,
    validate, less those that repeat 200 bytes of the others word by word: these train too. The text, and so the
    fingerprint, differs between Python versions.
    """
    from pydoc_data.topics import topics

    pages = [topics[topic].encode() for topic in sorted(topics)]

    def load() -> Decoded:
        ends = np.cumsum([len(page) for page in pages])
        cut = 1 + int(np.abs(ends - 0.9 * ends[-1]).argmin())
        text = b"\n".join(pages[:cut])
        train = pages[:cut] + [page for page in pages[cut:] if repeats(page, text)]
        parts = {"train": train, "val": [page for page in pages if page not in train]}
        return {split: np.frombuffer(b"\n".join(part), np.uint8) for split, part in parts.items()}, {}

    key = ["pydocs", "whole pages", hashlib.sha256(b"\n".join(pages)).hexdigest()]
    return Text(decoded(name, "text", key, load), **options)


def repeats(page: bytes, text: bytes) -> bool:
    """Tell whether a page repeats a text: whatever 200 bytes of it do, one of these pieces is among them."""
    return any(page[start : start + 100] in text for start in range(0, len(page) - 99, 100))


def digits(*, name: Name = "digits", **options: Any) -> Images:
    """Return scikit-learn's 1,797 scanned digits of 8 × 8 pixels, 0 to 16 scaled to 0 to 255; `options` are Images'.

    They are shuffled by `numpy.random.RandomState(0)`, as neighbours have the same writer; then the first 1,500 train
    and the other 297 validate. A cache hit does not import scikit-learn, which takes over a second.
    """

    def load() -> Decoded:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.RandomState(0).permutation(len(digits.target))
        pixels = np.rint(digits.images[order, None] * 255 / 16).astype(np.uint8)
        labels, counts = digits.target[order].astype(np.int64), {"train": 1500, "val": len(order) - 1500}
        return image_arrays(pixels, labels, counts, [str(name) for name in digits.target_names])

    return Images(decoded(name, "images", ["digits", version("scikit-learn")], load), **options)
