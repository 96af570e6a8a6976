"""A person's own data: images in a folder or named by a table, labelled texts in tables, and a text file in place."""

from __future__ import annotations

import glob
import hashlib
import mmap
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from normbench.data.arranging import (
    add_equal,
    check_labels,
    find_alike,
    find_kinds,
    has_equal,
    keep_together,
    mark_equal,
    note_earlier,
    number_rows,
    tell_apart,
)
from normbench.data.batches import Holdout, Name
from normbench.data.cache import (
    SPLITS,
    Content,
    Decoded,
    file_digest,
    logger,
    read_or_decode,
)
from normbench.data.hub import HIDDEN, reason
from normbench.data.images import Images, decode, image_arrays
from normbench.data.sources import (
    BytesOrFile,
    ImageColumn,
    LabelColumn,
    Level,
    Size,
    TextColumn,
    Tokenizer,
    VocabularySize,
    encode_bytes,
    encode_texts,
)
from normbench.data.tables import ENDINGS, declared_classes, labels_as_written, read_columns
from normbench.data.text import Text, Texts
from normbench.data.vocabulary import identity_of, key_of_file
from normbench.errors import RunFailure, UsageError
from normbench.settings import Setting, printable

# How people call the splits, in lower case.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "development": "val",
    "test": "test",
    "testing": "test",
}
WANTED = "give a folder with a sub-folder for each class, or a CSV or Parquet file (.csv, .parquet)"


ENOUGH = "give two classes, each with some to train on, and some to validate"
HIDDEN_NAMES = (str(HIDDEN), str(float(HIDDEN)))  # as a table of whole numbers has it, or of others
# In keys of the cache: how rows are divided, and classes numbered, in this version.
ARRANGED = "rows of equal tokens together, dev validates"


class Columns(NamedTuple):
    """The columns of a table: what holds the images or texts, their labels, and the splits, if there is one."""

    content: str
    label: str
    split: str | None


OwnPath = Annotated[str | None, Setting("your own file or folder")]
SplitColumn = Annotated[str | None, Setting("column of the splits; null: a tenth of each class is val")]


def own_images(
    *,
    name: Name = "images",
    path: OwnPath,
    size: Size = None,
    image_column: ImageColumn = "image",
    label_column: LabelColumn = "label",
    split_column: SplitColumn = None,
    **options: Any,
) -> Images:
    """Return a person's own images, in a folder or in the rows of a table; `options` are Images'.

    Classes are in alphabetical order, or by size if all are numbers. Without splits a tenth of each class validates,
    chosen by a hash of the names; with `train` and `test` alone the images of `test` validate. The images of a split
    stand in the order of that hash, so that the last ones are of all classes; but equal ones stand together, and all
    or none of them validate.

    Raises:
        UsageError: `path` is neither a folder nor a table, or it is not what it should be.
    """
    place = find_path(path, WANTED)
    columns = Columns(image_column, label_column, split_column)
    if place.is_dir():
        files = sorted(glob.glob("**", root_dir=place, recursive=True))
        contents: list[Any] = [[file, stamp(place / file)] for file in files]
    else:
        images = read_columns(place, {"data.image_column": image_column}, WANTED)[image_column]
        named = [image for image in map(open_object, images) if isinstance(image, str)]
        stamps = [stamp(place.parent / image) for image in named]
        contents = [file_digest(place), columns, stamps]
    key = [str(place.resolve()), size, contents]

    def make(earlier: bool = False) -> Images:
        load = partial(load_images, place, size, columns, earlier)
        content = read_or_decode(name, "images", key if earlier else [*key, ARRANGED], load, path=place.name)
        return Images(content, **options)

    data = make()
    data.remake = partial(make, earlier=True)
    return data


def load_images(path: Path, size: int | None, columns: Columns, earlier: bool) -> Decoded:
    """Decode all images.

    Args:
        earlier: number the classes and divide the images as earlier versions did.

    Raises:
        UsageError: they cannot be read, their sizes differ, or a split or class has none.
    """
    where = f"data.path={path}"
    declared = None
    try:
        if path.is_dir():
            root = path
            rows = read_folder(path)
        else:
            root = path.parent
            rows, declared = read_table(path, columns)
        rows, labels, old_labels = number_rows(rows, declared, where)
    except UnicodeError as fault:  # names that are not UTF-8
        raise UsageError(f"{where} cannot be read ({reason(fault)}): {WANTED}") from fault
    identities: list[bytes] = []
    for image in rows["image"]:
        if isinstance(image, bytes):
            identities.append(image)
        else:
            identities.append(os.fsencode(str(image)))
    cuts = rows["split"].isna().any()
    rows, counts = arrange_rows(rows, identities, labels.classes, where, "images")
    files: list[tuple[str, Any]] = []
    for row, image in rows["image"].items():
        if isinstance(image, str):
            files.append((image, root / image))
        else:
            files.append((f"row {row}", image))
    pixels = decode(files, where, size)
    kinds = find_kinds(pixels)
    before = None
    if old_labels is not None and (earlier or has_equal(kinds) or old_labels.classes != labels.classes):
        before = image_arrays(pixels, rows["old_class"].to_numpy(), counts, old_labels.classes, kinds)
    if earlier and before is not None:
        return before
    if has_equal(kinds):
        rows["decoded"] = np.arange(len(rows))
        rows = keep_together(rows, kinds, cuts)
        counts = count_splits(rows, where, "images that differ")
        order = rows["decoded"].to_numpy()
        pixels = pixels[order]
        kinds = kinds[order]
    arrays, facts = image_arrays(pixels, rows["class"].to_numpy(), counts, labels.classes, kinds)
    return note_earlier(add_equal(arrays, kinds, counts), facts, before)


def arrange_rows(
    rows: Any, identities: Sequence[bytes], classes: Sequence[str], where: str, what: str
) -> tuple[Any, dict[str, int]]:
    """Return rows split by split, and how many each split has; without splits a tenth of each class validates.

    Within a split they stand in an order that depends on nothing but the rows themselves.

    Args:
        rows: with the columns `class` and `split`.
        identities: what decides the place of each row: an image's name, or its bytes where it has no name; a text.
        classes: their names.
        where, what: `data.path`, and what the rows hold, for the error.

    Raises:
        UsageError: a split or class has too few.
    """
    import pandas as pd

    rows["rank"] = [hashlib.sha256(identity).digest() for identity in identities]
    rows = rows.sort_values("rank", kind="stable")
    if rows["split"].isna().any():
        members = rows.groupby("class")["class"]
        tenth = members.transform("size").map(lambda size: max(1, round(size / 10)))
        is_val = members.cumcount() < tenth
        rows["split"] = np.where(is_val, "val", "train")
    elif "val" not in set(rows["split"]):
        rows["split"] = rows["split"].replace("test", "val")
    rows["split"] = pd.Categorical(rows["split"], SPLITS)
    rows = rows.sort_values("split", kind="stable")
    counts = count_splits(rows, where, what)
    present = set(rows["class"])
    trained = set(rows["class"][: counts.get("train", 0)])
    untrained = sorted(present - trained)
    if untrained or len(trained) < 2:
        name = classes[untrained[0] if untrained else 0]
        which = "none of them trains" if untrained else "there is no other label"
        if name in HIDDEN_NAMES:
            which = f"rows with the label {name}, and {which}, so their labels seem to be hidden"
            raise UsageError(f"{where} has {which}: leave these rows out, or give their labels")
        if not untrained:
            raise UsageError(f"all {what} of {where} have one class, {printable(name):.80}: {ENOUGH}")
        alike = [classes[number] for number in trained if find_alike([name, classes[number]])]
        if alike:
            which = f"the class {tell_apart(name)} to judge and {tell_apart(alike[0])} to train on"
            raise UsageError(f"{where} has {which}, which differ only in how they are written: write them in one way")
        raise UsageError(f"{where} has too few {what} of the class {printable(name):.80}: {ENOUGH}")
    return rows, counts


def count_splits(rows: Any, where: str, what: str) -> dict[str, int]:
    """Return how many rows each split has.

    Raises:
        UsageError: none validates.
    """
    counts = rows["split"].value_counts(sort=False)
    if not counts["val"]:
        raise UsageError(f"{where} has too few {what}: {ENOUGH}")
    counts_of_splits: dict[str, int] = counts[counts > 0].to_dict()
    return counts_of_splits


def read_folder(path: Path) -> Any:
    """Return images, labels and splits of a folder with a sub-folder a class, or with such folders `train` and `val`.

    Where `train` is alone, its folders are the classes, without splits. Images count however deep they are in the
    folder of their class; names that begin with a dot do not.

    Raises:
        UsageError: there are none; with the tables that are there.
    """
    import pandas as pd
    from PIL import Image

    endings = []
    for ending, form in Image.registered_extensions().items():
        if form in Image.OPEN:
            endings.append(ending)
    names = glob.glob("**", root_dir=path, recursive=True)
    files = [Path(name) for name in names if name.lower().endswith(tuple(endings))]
    if not files:
        tables = sorted(name for name in names if name.lower().endswith(ENDINGS))
        held = f"no images, but tables such as {tables[0]}" if tables else "no images"
        cure = "give one of the tables, which may have a column of splits (data.split_column)" if tables else WANTED
        raise UsageError(f"data.path={path} holds {held}: {cure}")
    splits = [SPLIT_NAMES.get(file.parts[0].lower()) for file in files]
    kinds = set(splits) - {None}
    has_splits = "train" in kinds and len(kinds) > 1
    in_folders = [file for file in files if len(file.parts) > 1]
    classes_are_below = all(len(file.parts) > 2 for file in in_folders)
    tops = {file.parts[0] for file in in_folders}
    is_train_alone = len(tops) == 1 and kinds == {"train"} and classes_are_below  # as one class it would train nothing
    rows: list[tuple[str, str, str | None]] = []
    for file, split in zip(files, splits, strict=True):
        above = file.parts[:-1]  # the folders around it
        if is_train_alone and above:
            rows.append((str(file), above[1], None))
        elif not has_splits and above:
            rows.append((str(file), above[0], None))
        elif has_splits and split and len(above) > 1:
            rows.append((str(file), above[1], split))
    return pd.DataFrame(rows, columns=["image", "label", "split"])


def read_table(path: Path, columns: Columns) -> tuple[Any, list[str] | None]:
    """Return images, labels and splits of a table, and the names of the classes if it declares them.

    Raises:
        UsageError: a row has no split.
    """
    import pandas as pd

    by_setting = {"data.image_column": columns.content, "data.label_column": columns.label}
    if columns.split:
        by_setting["data.split_column"] = columns.split
    table = read_columns(path, by_setting, WANTED)
    images = [open_object(image) or None for image in table[columns.content]]
    labels = labels_as_written(path, table[columns.label])
    check_labels(labels, f"data.path={path}", columns.label)
    splits = None
    if columns.split:
        splits = splits_of(table[columns.split], f"data.path={path}")
    rows = pd.DataFrame({"image": images, "label": labels, "split": splits}, dtype=object)  # 1 beside 2.5 stays 1
    return rows, declared_classes(path, columns.label)


def open_object(image: Any) -> Any:
    """Return the bytes or the path of an image that a table has as an object with either; others as they are."""
    return image.get("bytes") or image.get("path") if isinstance(image, dict) else image


def splits_of(words: Sequence[Any], where: str) -> list[str]:
    """Return the splits that words mean.

    Raises:
        UsageError: one means none.
    """
    splits = []
    for row, word in enumerate(words):
        split = SPLIT_NAMES.get(str(word).strip().lower())
        if split is None:
            what = "no split" if word is None or word == "" else f"no split but {word!r:.80}"
            raise UsageError(f"row {row} of {where} has {what}: write train, val or test")
        splits.append(split)
    return splits


def find_path(path: str | None, what: str) -> Path:
    """Return the file or folder that `data.path` names.

    Args:
        path: what the setting holds.
        what: says what it may be, for the error.

    Raises:
        UsageError: it names none.
    """
    if not path:
        raise UsageError(f"data.path is not set: {what}")
    place = Path(os.path.expanduser(path))
    if not (place.is_file() or place.is_dir()):
        raise UsageError(f"data.path={path:.200} is neither a file nor a folder: {what}")
    return place


def stamp(path: Path) -> list[int]:
    """Return what changes when a file does: length, time of the last change, inode; nothing if it is not there."""
    if not path.exists():
        return []
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


# ---- labelled texts

WANTED_TEXTS = (
    "give a CSV, TSV, Parquet or JSON lines file in UTF-8 (.csv, .tsv, .parquet, .jsonl), or a folder with two, train "
    "and test"
)


def own_texts(
    *,
    name: Name = "texts",
    path: OwnPath,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    split_column: SplitColumn = None,
    level: Level = "lowercase_word",
    vocabulary_size: VocabularySize = None,
    tokenizer: Tokenizer = None,
    holdout: Holdout = 0,
    **options: Any,
) -> Texts:
    """Return a person's own labelled texts, in the rows of a table or of those in a folder; `options` are Texts'.

    Classes, splits and the order of the texts are as those of images; a text's own hash decides where it stands. The
    vocabulary is learned from what trains.

    Raises:
        UsageError: there is no table at `path`, or it is not what it should be.
    """
    place = find_path(path, WANTED_TEXTS)
    files = tables_in(place) if place.is_dir() else [(place, None)]
    columns = Columns(text_column, label_column, split_column)

    contents = []
    for file, split in files:
        contents.append([file_digest(file), file.suffix.lower(), split])
    key = ["own", contents, columns, level, vocabulary_size, float(holdout), *key_of_file(level, tokenizer)]
    encode = partial(
        encode_texts, level=level, vocabulary_size=vocabulary_size, tokenizer=tokenizer, holdout=float(holdout)
    )

    def make(earlier: bool = False) -> Texts:
        load = partial(load_texts, place, files, columns, level, tokenizer, encode, earlier)
        content = read_or_decode(name, "texts", key if earlier else [*key, ARRANGED], load, path=place.name)
        return Texts(content, holdout=holdout, **options)

    texts = make()
    texts.remake = partial(make, earlier=True)
    return texts


def tables_in(folder: Path) -> list[tuple[Path, str | None]]:
    """Return the tables in a folder that are named as splits, such as train.csv or test-00000-of-00002.parquet.

    Raises:
        UsageError: none is named train, or they are of several kinds.
    """
    tables: list[tuple[Path, str]] = []
    splits, kinds = set[str](), set[str]()
    for file in sorted(folder.iterdir()):
        first_word = re.split(r"[\W_]", file.stem.lower())[0]
        split = SPLIT_NAMES.get(first_word)
        ending = file.suffix.lower()
        if split and ending in ENDINGS and file.is_file():
            tables.append((file, split))
            splits.add(split)
            kinds.add(ending)
    if "train" not in splits:
        raise UsageError(f"data.path={folder} holds no table named train, such as train.csv: {WANTED_TEXTS}")
    if len(kinds) > 1:
        raise UsageError(f"data.path={folder} holds tables in {' and '.join(sorted(kinds))}: keep those of one kind")
    if splits == {"train"}:  # so a tenth of it validates
        return [(file, None) for file, _ in tables]
    return [*tables]


def load_texts(
    place: Path,
    files: Sequence[tuple[Path, str | None]],
    columns: Columns,
    level: str,
    tokenizer: str | None,
    encode: Callable[..., Decoded],
    earlier: bool,
) -> Decoded:
    """Encode all texts.

    Args:
        place: what `data.path` names.
        files: the tables there, each with its split, if its name is one.
        columns: those that are read.
        level, tokenizer: the settings of these names.
        encode: `encode_texts` with the settings of the vocabulary.
        earlier: number the classes and divide the texts as earlier versions did.

    Raises:
        UsageError: they cannot be read, a row lacks its text, label or split, or a split or class has too few.
    """
    import pandas as pd

    where = f"data.path={place}"
    tables = []
    for file, split in files:
        table = read_texts(file, columns)
        if split:
            table["split"] = split
        tables.append(table)
    rows = pd.concat(tables, ignore_index=True)
    first, _ = files[0]
    rows["label"] = pd.Series(labels_as_written(first, rows["label"].tolist()), dtype=object)
    try:
        rows, labels, old_labels = number_rows(rows, classes_of_tables(files, columns.label), where)
    except UnicodeError as fault:  # half of a character
        raise UsageError(f"{where} cannot be read ({reason(fault)}): {WANTED_TEXTS}") from fault
    identities = [text.encode() for text in rows["text"]]
    cuts = rows["split"].isna().any()
    rows, counts = arrange_rows(rows, identities, labels.classes, where, "texts")
    kinds = find_kinds(map(identity_of(level, tokenizer), rows["text"]))
    are_equal = has_equal(kinds)
    before = None
    if old_labels is not None and (earlier or are_equal or old_labels.classes != labels.classes):
        numbers = rows["old_class"].to_numpy()
        before = encode(rows["text"].tolist(), numbers, old_labels.classes, divide(counts), kinds=kinds)
    if earlier and before is not None:
        return before
    if are_equal:
        rows["arranged"] = np.arange(len(rows))
        rows = keep_together(rows, kinds, cuts)
        counts = count_splits(rows, where, "texts that differ")
        kinds = kinds[rows["arranged"].to_numpy()]
    marks = mark_equal(kinds[: counts["train"]]) if are_equal else None
    numbers = rows["class"].to_numpy()
    arrays, facts = encode(rows["text"].tolist(), numbers, labels.classes, divide(counts), kinds=kinds, equal=marks)
    return note_earlier(add_equal(arrays, kinds, counts), facts, before)


def classes_of_tables(files: Sequence[tuple[Path, str | None]], column: str) -> list[str] | None:
    """Return the names of the classes that tables declare; None where they declare none.

    Raises:
        UsageError: one declares others than the first, so that the same number stands for two classes.
    """
    first, *others = [file for file, _ in files]
    declared = declared_classes(first, column)
    for other in others:
        names = declared_classes(other, column)
        if names != declared:
            what = f"{first.name} declares the classes {declared!r:.80}, and {other.name} {names!r:.80}"
            raise UsageError(f"data.path={first.parent} has tables of other classes: {what}; write both with the same")
    return declared


def divide(counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return the rows of each split, where they stand split by split. counts: how many each has."""
    parts: dict[str, np.ndarray] = {}
    start = 0
    for split, count in counts.items():
        parts[split] = np.arange(start, start + count)
        start += count
    return parts


def read_texts(path: Path, columns: Columns) -> Any:
    """Return texts, labels and splits of a table.

    Raises:
        UsageError: a row has no text, or no split.
    """
    import pandas as pd

    where = f"data.path={path}"
    by_setting = {"data.text_column": columns.content, "data.label_column": columns.label}
    if columns.split:
        by_setting["data.split_column"] = columns.split
    table = read_columns(path, by_setting, WANTED_TEXTS)
    texts = table[columns.content]
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            what = "no text" if text is None or text == "" else f"no text but {text!r:.80}"
            cure = f"leave the row out, or set data.text_column to another than {columns.content}"
            raise UsageError(f"row {row} of {where} has {what}: {cure}")
        if not text.isascii() and not is_encodable(text):
            cure = "write the character itself, or leave the row out"
            raise UsageError(f"row {row} of {where} has half of a surrogate pair, such as \\ud83d alone: {cure}")
    check_labels([None if label == "" else label for label in table[columns.label]], where, columns.label)
    splits = splits_of(table[columns.split], where) if columns.split else None
    return pd.DataFrame({"text": texts, "label": table[columns.label], "split": splits}, dtype=object)


def is_encodable(text: str) -> bool:
    """Tell whether a text can be written in UTF-8; one of JSON may have half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- a text file

WANTED_TEXT = "give a text file in UTF-8, such as data.path=my.txt; data=texts takes a table of labelled texts"


def text_file(
    *,
    name: Name = "text",
    path: OwnPath,
    level: BytesOrFile = "byte",
    vocabulary_size: VocabularySize = None,
    tokenizer: Tokenizer = None,
    **options: Any,
) -> Text:
    """Return a person's own text file of any size, by bytes or by the tokens of a file; `options` are Text's.

    Its last tenth validates, but no more than its last 1,000,000 bytes. Bytes are mapped in place, not cached.

    Raises:
        UsageError: it is not text.
    """
    place = find_path(path, WANTED_TEXT)
    if place.suffix.lower() in ENDINGS:
        what = "the bytes of a table as they are, separators and labels too"
        logger.info(f"warning: data=text learns {what}; data=texts learns the classes of its texts")
    identity = stamp(place)
    try:
        with open(place, encoding="utf-8") as file:
            while file.read(1 << 20):  # characters
                pass
        digest = file_digest(place)
        mapped = np.memmap(place, np.uint8, "r")
    except (OSError, ValueError) as fault:
        raise UsageError(f"data.path={path} cannot be read ({reason(fault)}): {WANTED_TEXT}") from fault

    def check() -> None:
        # Pages that were once touched do not stay in the process.
        mapped.base.madvise(mmap.MADV_DONTNEED)  # type: ignore[union-attr]  # it is an mmap.mmap
        if stamp(place) != identity:
            raise RunFailure(f"data.path={path} changed while the run read it: put it back, or train on the new text")

    cut = len(mapped) - min(len(mapped) // 10, 1_000_000)  # more of validation costs time and tells nothing more
    arrays = {"train": mapped[:cut], "val": mapped[cut:]}
    key_of_tokenizer = key_of_file(level, tokenizer)
    if key_of_tokenizer:

        def load() -> Decoded:
            whole = {split: text.tobytes() for split, text in arrays.items()}
            return encode_bytes(whole, level, vocabulary_size, tokenizer)

        key = ["file", digest, *key_of_tokenizer, vocabulary_size]
        return Text(read_or_decode(name, "text", key, load, file=place.name), **options)
    return Text(Content(name, {"file": place.name}, arrays, {}, digest, check), **options)
