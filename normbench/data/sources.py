"""What data sets of the hub, and those that installed packages carry, decode to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np

from normbench.data.arranging import Kinds, add_kinds, find_kinds
from normbench.data.batches import Holdout, Name, count_held_out
from normbench.data.cache import SPLITS, Decoded, read_or_decode
from normbench.data.hub import Hub, classes_of, labels_of
from normbench.data.images import Images, decode, image_arrays
from normbench.data.streaming import Stream, stream_images, stream_text
from normbench.data.text import Text, Texts, join_rows
from normbench.data.vocabulary import Bytes, FromFile, Vocabulary, identity_of, key_of_file, learn
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
Level = Annotated[Literal["character", "byte", "word", "lowercase_word", "bpe", "hf"], Setting("what a token is")]
BytesOrFile = Annotated[Literal["byte", "hf"], Setting("what a token is")]
Tokenizer = Annotated[str | None, Setting("tokenizer.json whose tokens data.level=hf takes, or its folder")]
Streaming = Annotated[bool, Setting("read the rows while a run trains, as of data that do not fit in memory")]
Buffer = Annotated[int, Setting("rows of a stream that are shuffled together", "rows", low=1, high=10**8)]
KeptRows = Annotated[int, Setting("rows of a stream that judge, in memory", "rows", low=1, high=10**8)]
VocabularySize = Annotated[
    int | None,
    Setting("most symbols, with level=hf all; null: all words, 8,192 byte pairs, the file's", low=2, high=10**7),
]


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
    tokenizer: Tokenizer = None,
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
        return stream_text(name, stream, level, vocabulary_size, lines, tokenizer, **options)
    parts = {"train": ["train"], "val": list(val_splits or ()), "test": list(test_splits or ())}

    def load() -> Decoded:
        wanted = [*parts["train"], *parts["val"], *parts["test"]]
        _, tables = hub.read(wanted, [text_column], text_column)
        texts = {}
        for part, splits in parts.items():
            rows: list[str] = []
            for split in splits:
                rows += tables[split][text_column]
            if splits:
                texts[part] = join_rows(rows, lines)
        if not parts["val"]:
            texts = cut_by_twentieths(texts["train"])
        vocabulary = learn_vocabulary(level, vocabulary_size, tokenizer, holdout, *texts.values())
        tokens = {part: vocabulary.encode(text) for part, text in texts.items()}
        return tokens, vocabulary.facts

    key = ["hub", hub.key(), text_column, level, vocabulary_size, lines, parts["val"], parts["test"], float(holdout)]
    key += key_of_file(level, tokenizer)
    return Text(read_or_decode(name, "text", key, load, hub.reach, hub_id=hub_id), holdout=holdout, **options)


def cut_by_twentieths(text: str) -> dict[str, str]:
    """Return the first 18 twentieths of a text's bytes, the next and the last; a divided character is left out."""
    whole = text.encode()
    ends = [len(whole) * twentieth // 20 for twentieth in (0, 18, 19, 20)]
    texts = {}
    for part, (first, end) in zip(SPLITS, pairwise(ends), strict=True):
        texts[str(part)] = whole[first:end].decode(errors="ignore")
    return texts


def learn_vocabulary(
    level: str, size: int | None, tokenizer: str | None, holdout: float, train: str, *others: str
) -> Vocabulary:
    """Return a vocabulary that knows nothing of the tokens that `holdout` takes from the end of the training text.

    How many characters these tokens are depends on the vocabulary itself: it is learned from shorter and shorter
    beginnings of the text, each of which ends after a blank, until one has no more tokens than train.
    """
    if not holdout or level == FromFile.level:
        return learn(level, [train, *others], size, tokenizer)
    end = len(train) - count_held_out(len(train), holdout, "characters")
    while True:
        end = 1 + max(train.rfind(" ", 0, end), train.rfind("\n", 0, end))
        learned = learn(level, [train[:end], train[end:], *others], size, tokenizer)
        total = len(learned.encode(train))
        learned_on = len(learned.encode(train[:end]))
        used = total - count_held_out(total, holdout, "tokens")
        if learned_on <= used:
            return learned
        end = end * used // learned_on


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
    tokenizer: Tokenizer = None,
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
        texts, trained, labels, classes = read_labelled(hub, val_split, text_column, label_column, text_column)
        shuffled = np.random.RandomState(0).permutation(trained)
        parts = {"train": shuffled, "val": np.arange(trained, len(texts))}
        kinds = find_kinds(map(identity_of(level, tokenizer), texts))
        return encode_texts(texts, labels, classes, parts, level, vocabulary_size, tokenizer, holdout, kinds)

    key = ["hub", hub.key(), text_column, label_column, level, vocabulary_size, val_split, float(holdout)]
    key += key_of_file(level, tokenizer)
    return Texts(read_or_decode(name, "texts", key, load, hub.reach, hub_id=hub_id), holdout=holdout, **options)


def encode_texts(
    texts: Sequence[str],
    labels: np.ndarray,
    classes: Sequence[str],
    parts: Mapping[str, np.ndarray],
    level: str,
    vocabulary_size: int | None,
    tokenizer: str | None,
    holdout: float,
    kinds: Kinds,
    equal: np.ndarray | None = None,
) -> Decoded:
    """Return the tokens of labelled texts, whose vocabulary is learned from those that train and are not held out.

    Args:
        texts: of all rows.
        labels: the class of each row, by its number.
        classes: their names.
        parts: the rows of each split in their order, those that train first.
        level, vocabulary_size, tokenizer, holdout: the settings of these names.
        kinds: which of all rows are equal.
        equal: which training texts are equal to the one before them, where these are to stay together.
    """
    train, *others = parts.values()
    used = len(train) - count_held_out(len(train), holdout, "texts", equal)
    pieces = []
    for rows in (train[:used], train[used:], *others):
        some = [texts[row] for row in sorted(rows)]
        pieces.append("\n".join(some))
    vocabulary = learn(level, pieces, vocabulary_size, tokenizer)
    arrays = {}
    empty = 0
    for split, rows in parts.items():
        tokens = []
        for row in rows:
            encoded = vocabulary.encode_example(texts[row])
            if not len(encoded):  # an empty text is one unknown token, since nothing cannot be averaged
                encoded = np.zeros(1, np.uint8)
                empty += 1
            tokens.append(encoded)
        arrays[f"{split}_tokens"] = np.concatenate(tokens)
        arrays[f"{split}_ends"] = np.cumsum([len(example) for example in tokens])
        arrays[f"{split}_labels"] = labels[rows]
    facts = {"classes": classes, "empty": empty, **vocabulary.facts}
    in_order = np.concatenate([*parts.values()])
    return add_kinds(arrays, kinds[in_order], {split: len(rows) for split, rows in parts.items()}), facts


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
        return stream_images(name, stream, size, **options)

    def load() -> Decoded:
        images, trained, labels, classes = read_labelled(hub, val_split, image_column, label_column)
        named = [(f"row {row} of train", image) for row, image in enumerate(images[:trained])]
        named += [(f"row {row} of val", image) for row, image in enumerate(images[trained:])]
        counts = {"train": trained, "val": len(images) - trained}
        pixels = decode(named, hub_id, size)
        return image_arrays(pixels, labels, counts, classes, find_kinds(pixels))

    key: list[Any] = ["hub", hub.key(), image_column, label_column]
    if size or val_split != "test":  # else the key is that of caches made before there were these settings
        key += [val_split, size]
    return Images(read_or_decode(name, "images", key, load, hub.reach, hub_id=hub_id), holdout=holdout, **options)


def read_labelled(
    hub: Hub, val_split: str, column: str, label_column: str, text: str = ""
) -> tuple[list[Any], int, np.ndarray, list[str]]:
    """Return the rows of a column, those that train first, how many these are, the rows' labels, and the classes.

    Args:
        hub: where they are.
        val_split: the split that validates.
        column: what is read.
        label_column: where the labels are.
        text: the column that must hold text, if one must.

    Raises:
        UsageError: the label column declares no classes, or a row has none of them.
    """
    features, tables = hub.read(["train", val_split], [column, label_column], text)
    train, val = tables["train"], tables[val_split]
    rows = [*train[column], *val[column]]
    declared = classes_of(features, label_column, hub.hub_id)
    labels = []
    for split, table in (("train", train), (val_split, val)):
        numbers, classes = labels_of(table[label_column], declared, f"{split} of {hub.hub_id}")
        labels.append(numbers)
    return rows, len(train[column]), np.concatenate(labels), classes


# ---- data that installed packages carry: no network, no copies


def pydocs(
    *,
    name: Name = "pydocs",
    level: BytesOrFile = "byte",
    vocabulary_size: VocabularySize = None,
    tokenizer: Tokenizer = None,
    **options: Any,
) -> Text:
    """Return Python's language reference, about 0.5 MB, by bytes or by the tokens of a file; `options` are Text's.

    These are the pages of `pydoc_data.topics` in alphabetical order. Whole pages, about the last tenth of the text,
    validate, except those that repeat 200 bytes of the others word for word: these train too. The text, and so the
    fingerprint, differs between Python versions.
    """
    from pydoc_data.topics import topics

    pages = [topics[topic].encode() for topic in sorted(topics)]

    def load() -> Decoded:
        ends = np.cumsum([len(page) for page in pages])
        cut = 1 + int(np.abs(ends - 0.9 * ends[-1]).argmin())
        text = b"\n".join(pages[:cut])
        repeating = [page for page in pages[cut:] if repeats(page, text)]
        train = pages[:cut] + repeating
        val = [page for page in pages if page not in train]
        joined = {"train": b"\n".join(train), "val": b"\n".join(val)}
        return encode_bytes(joined, level, vocabulary_size, tokenizer)

    key: list[Any] = ["pydocs", "whole pages", hashlib.sha256(b"\n".join(pages)).hexdigest()]
    key_of_tokenizer = key_of_file(level, tokenizer)
    if key_of_tokenizer:
        key += [*key_of_tokenizer, vocabulary_size]
    return Text(read_or_decode(name, "text", key, load), **options)


def encode_bytes(texts: Mapping[str, bytes], level: str, size: int | None, tokenizer: str | None) -> Decoded:
    """Return texts, given as bytes by split, as tokens: the bytes themselves, or what a tokenizer's file makes of them.

    Args:
        texts: in UTF-8; a character of which only a part is there is left out.
        level, size, tokenizer: the settings `level`, `vocabulary_size` and `tokenizer`.
    """
    if level == Bytes.level:
        arrays = {split: np.frombuffer(text, np.uint8) for split, text in texts.items()}
        return arrays, {}
    decoded = {split: text.decode(errors="ignore") for split, text in texts.items()}
    vocabulary = learn(level, [*decoded.values()], size, tokenizer)
    tokens = {split: vocabulary.encode(text) for split, text in decoded.items()}
    return tokens, vocabulary.facts


def repeats(page: bytes, text: bytes) -> bool:
    """Tell whether a text has 100 bytes of a page, at one of its hundreds; any 200 bytes of the page hold such ones."""
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
        shades = digits.images[order, None] * 255 / 16
        pixels = np.rint(shades).astype(np.uint8)
        labels = digits.target[order].astype(np.int64)
        counts = {"train": 1500, "val": len(order) - 1500}
        classes = list(map(str, digits.target_names))
        return image_arrays(pixels, labels, counts, classes)

    key = ["digits", version("scikit-learn")]
    return Images(read_or_decode(name, "images", key, load), **options)
