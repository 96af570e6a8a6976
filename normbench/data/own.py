"""A person's own data: images in a folder or named by a table, and a text file that is read where it lies."""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from normbench.data.batches import Name
from normbench.data.cache import Content, Source, file_digest
from normbench.data.hub import reason
from normbench.data.images import Images, decode, image_content
from normbench.data.sources import ImageColumn, LabelColumn, class_labels
from normbench.data.text import Text
from normbench.errors import RunFailure, UsageError
from normbench.settings import Setting
from normbench.types import Split

if TYPE_CHECKING:
    import pyarrow

ORDER: tuple[Split, ...] = ("train", "val", "test")
SPLIT = re.compile("(train|test)(?:ing)?|(val)(?:id|idation)?", re.IGNORECASE)
VAL_SHARE = 10  # one image of so many of a class validates, where nothing says which

# Labels of a CSV file are numbers if all are; 01, 1e3 and what no number of 64 bits holds are names.
NUMBER = re.compile(r"\s*-?(0|[1-9][0-9]{0,14})([.][0-9]+)?\s*")

OwnPath = Annotated[str | None, Setting("your own file or folder")]


def own_images(
    *,
    name: Name = "images",
    path: OwnPath,
    size: Annotated[
        int | None, Setting("side that images are brought to; null: they have one size", "pixels", low=1, high=10**4)
    ] = None,
    image_column: ImageColumn = "image",
    label_column: LabelColumn = "label",
    split_column: Annotated[
        str | None, Setting("column that says train, val or test; null: a tenth of each class is val")
    ] = None,
    **options: Any,
) -> Images:
    """Return a person's own images, in a folder or in the rows of a CSV or Parquet file; `options` are Images'.

    Classes are in alphabetical order, or by size if they are whole numbers. Without splits a tenth of each class
    validates, chosen by a hash of the names; with `train` and `test` alone the images of `test` validate. The images of
    a split stand in the order of that hash, so that the last ones are of all classes.

    Raises:
        UsageError: there is neither at `path`, or it is not what it should be.
    """
    what = "give a folder with a sub-folder for each class, or a CSV or Parquet file (.csv, .parquet)"
    place = given(path, what, "my_images")
    columns = [image_column, label_column, split_column]
    contents: list[Any]
    if place.is_dir():
        kind, contents = "ImageFolder", [[row.name, stamp(row.image)] for row in folder_rows(place)]
    else:
        table = read_table(place, [image_column], paths_only=True)
        stamps = [
            stamp(place.parent / file)
            for column in table.columns
            for file in column.to_pylist()
            if isinstance(file, str)
        ]
        kind, contents = "ImageTable", [file_digest(place), columns, stamps]
    key = [kind, str(place.resolve()), size, contents]
    return Images(Source(name, "images", key, partial(load, place, size, columns), {"path": place.name}), **options)


class Row(NamedTuple):
    """One image.

    name: what messages call it. image: its file, or what a table holds. label: the class, a name or a number.
    split: None where nothing says it.
    """

    name: str
    image: Any
    label: Any
    split: Split | None

    @property
    def rank(self) -> bytes:
        """A place among other images that depends on its name alone, or on its bytes where it has no name."""
        return hashlib.sha256(self.image if isinstance(self.image, bytes) else os.fsencode(self.name)).digest()


def load(path: Path, size: int | None, columns: Sequence[Any]) -> Content:
    """Decode all images.

    Raises:
        UsageError: they cannot be read, their sizes differ, or a split or class has none.
    """
    where = f"data.path={path}"
    rows, names = (list(folder_rows(path)), None) if path.is_dir() else table_rows(path, *columns)
    rows = sorted(divided(rows), key=lambda row: (ORDER.index(row.split or "train"), row.rank))
    counts = {split: sum(row.split == split for row in rows) for split in ORDER}
    classes = sorted({row.label for row in rows})
    untrained = [*set(classes) - {row.label for row in rows[: counts["train"]]}]
    if untrained or len(classes) < 2 or not counts["val"]:
        which = f" of the class {untrained[0]!s:.80}" if untrained else ""
        raise UsageError(
            f"{where} has too few images{which}: give two classes, each with some to train on, and some to validate"
        )
    pixels = decode([(row.name, row.image) for row in rows], where, size)
    indices = {label: index for index, label in enumerate(classes)}
    labels = [row.label if names else indices[row.label] for row in rows]
    known = class_labels(labels, len(names or classes), where)
    cuts = np.cumsum([*counts.values()])[:2]
    split_up = zip(ORDER, np.split(pixels, cuts), np.split(known, cuts), strict=True)
    parts = {split: (images, of_them) for split, images, of_them in split_up if len(images)}
    return image_content(parts, names or [str(label) for label in classes])


def divided(rows: Sequence[Row]) -> list[Row]:
    """Return the images with a split each: those that they have, or a tenth of each class to validate."""
    present = {row.split for row in rows}
    if None not in present:
        judges = "test" if "val" not in present else None
        return [row._replace(split="val") if row.split == judges else row for row in rows]
    members: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.rank):
        members.setdefault(row.label, []).append(row)
    return [
        row._replace(split="val" if place < max(1, round(len(images) / VAL_SHARE)) else "train")
        for images in members.values()
        for place, row in enumerate(images)
    ]


def folder_rows(path: Path) -> Iterator[Row]:
    """Yield the images of a folder with a sub-folder a class, or with such folders named `train` and `val` or `test`.

    An image is a file, however deep in its class's folder, whose name ends as Pillow's formats do. Names that begin
    with a dot are passed over.

    Raises:
        UsageError: it has no classes, or one without images.
    """
    from PIL import Image

    endings = {ending for ending, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    splits = {folder: split for folder in subfolders(path) if (split := split_of(folder.name))}
    present = set(splits.values())
    roots: Mapping[Path, Split | None] = splits if "train" in present and len(present) > 1 else {path: None}
    classes = [(folder, split) for root, split in roots.items() for folder in subfolders(root)]
    if not classes:
        raise UsageError(f"data.path={path} has no sub-folders: give a folder with a sub-folder for each class")
    for folder, split in classes:
        files: list[Path] = []
        for parent, below, names in os.walk(folder):
            below[:] = sorted(name for name in below if not name.startswith("."))
            images = (name for name in names if os.path.splitext(name)[1].lower() in endings)
            files += [Path(parent, name) for name in sorted(images) if not name.startswith(".")]
        if not files:
            raise UsageError(
                f"data.path={path} has no images in {folder.relative_to(path)}: put some there, with names that end in "
                ".jpg, .png or the like, or remove the folder"
            )
        yield from (Row(str(file.relative_to(path)), file, folder.name, split) for file in files)


def split_of(word: Any) -> Split | None:
    """Return the split that a word names, such as `Validation`."""
    found = SPLIT.fullmatch(str(word))
    return next((split for split in ORDER if found and split in found[0].lower()), None)


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, in alphabetical order."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def table_rows(
    path: Path, image_column: str, label_column: str, split_column: str | None
) -> tuple[list[Row], list[str] | None]:
    """Return the rows of a table, and the names of the classes if it declares them, as `datasets` writes them.

    Raises:
        UsageError: a row has no image, label or split.
    """
    table = read_table(path, [image_column, label_column, *([split_column] if split_column else [])])
    labels = table[label_column].to_pylist()
    if path.suffix.lower() == ".csv" and all(map(NUMBER.fullmatch, labels)):
        labels = [float(label) for label in labels]
    splits = table[split_column].to_pylist() if split_column else [None] * len(labels)
    rows = []
    for place, (image, label, split) in enumerate(zip(table[image_column].to_pylist(), labels, splits, strict=True)):
        if isinstance(image, Mapping):
            image = image["bytes"] or image["path"]
        name, file = (image, path.parent / image) if isinstance(image, str) else (f"row {place}", image)
        is_number = isinstance(label, float | int)
        if not label >= 0 or label % 1 if is_number else not label:
            raise UsageError(
                f"row {place} of data.path={path} has the label {label!r:.40}: use names, or whole numbers from 0"
            )
        if split_column and not split_of(split):
            raise UsageError(f"row {place} of data.path={path} has the split {split!r:.40}: use train, val and test")
        rows.append(Row(name, file, int(label) if is_number else label, split_of(split)))
    if b"huggingface" not in (table.schema.metadata or {}):
        return rows, None
    from datasets import Features

    return rows, getattr(Features.from_arrow_schema(table.schema)[label_column], "names", None)


def read_table(path: Path, columns: Sequence[str], paths_only: bool = False) -> pyarrow.Table:
    """Return columns of a CSV or Parquet file; those of a CSV file are text.

    paths_only: without columns that hold the images themselves.

    Raises:
        UsageError: the file is no such table, or has not these columns.
    """
    import pyarrow
    from pyarrow import csv, dataset

    as_text = csv.ConvertOptions(column_types=dict.fromkeys(columns, pyarrow.string()))
    kind = dataset.CsvFileFormat(convert_options=as_text) if path.suffix.lower() == ".csv" else "parquet"
    try:
        table = dataset.dataset(path, format=kind)
        types = {name: str(table.schema.field(name).type) for name in table.schema.names}
        read = [column for column in columns if column in types and not (paths_only and "binary" in types[column])]
        found = table.to_table(read).replace_schema_metadata(table.schema.metadata)
    except (OSError, ValueError) as fault:
        raise UsageError(
            f"data.path={path} cannot be read ({reason(fault):.200}): give a CSV or Parquet file"
        ) from fault
    for column in columns:
        if column not in types:
            raise UsageError(
                f"data.path={path} has no column {column} (columns: {', '.join(types):.200}): name the right ones with "
                "data.image_column, data.label_column and data.split_column"
            )
    return found


def given(path: str | None, what: str, example: str) -> Path:
    """Return the file or folder that `data.path` names.

    Raises:
        UsageError: it names none.
    """
    if not path:
        raise UsageError(f"data.path is not set: {what}, such as data.path={example}")
    place = os.path.expanduser(path)
    if not os.path.exists(place):
        raise UsageError(f"data.path={path:.200} does not exist: {what}")
    return Path(place)


def stamp(path: Path) -> list[int] | None:
    """Return size and times of a file, which change when it does; None where it is not there."""
    with suppress(OSError):
        status = path.stat()
        return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return None


# ---- a text file

CHUNK = 1 << 20  # bytes that are looked at at once
MOST_VAL = 1_000_000  # more bytes of validation cost time and tell nothing more


def text_file(*, name: Name = "text", path: OwnPath, **options: Any) -> Text:
    """Return a person's own text file of any size, by bytes; `options` are Text's.

    Its last tenth validates, but no more than its last 1,000,000 bytes. It is read where it lies, not cached.
    """
    place = given(path, "give a text file", "my.txt")
    identity, digest = inspect(place)
    size = identity[0]
    whole, cut = FileBytes(place, identity, 0, size), size - min(size // 10, MOST_VAL)
    content = Content({"train": whole[:cut], "val": whole[cut:]}, {})
    source = Source(name, "text", digest, lambda: content, {"file": place.name}, cached=False)
    return Text(source, **options)


class FileBytes:
    """Bytes of a file from `start` on, as an array that is never read whole.

    It is mapped anew at each reading: pages that were once touched do not stay in the process. Each reading makes sure
    that the file is still the one that was inspected, when it had this `identity`.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, identity: tuple[int, ...], start: int, length: int) -> None:
        self.path, self.identity, self.start, self.length = path, identity, start, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the file for a slice, the bytes themselves for an array of places.

        Raises:
            RunFailure: the file is another than it was.
        """
        if isinstance(index, slice):
            start, stop, _ = index.indices(self.length)
            return FileBytes(self.path, self.identity, self.start + start, max(0, stop - start))
        with suppress(OSError), open(self.path, "rb") as file:
            if identity_of(file) == self.identity:
                return np.asarray(np.memmap(file, self.dtype, "r", self.start, (self.length,)))[index]
        raise RunFailure(
            f"data.path={self.path} changed while the run read it: put it back as it was and give the same command to "
            "go on, or leave it as it is and give the same command for a run on the new text"
        )


def identity_of(file: IO[bytes]) -> tuple[int, ...]:
    """Return what changes when an open file does: length, time of the last change, inode."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns, status.st_ino


def inspect(path: Path) -> tuple[tuple[int, ...], str]:
    """Return identity and sha256 of a text file, read once from end to end.

    Raises:
        UsageError: what it is, and what it should be.
    """
    decoder, digest, place = codecs.getincrementaldecoder("utf-8")(), hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            identity = identity_of(file)
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                decoder.decode(chunk)
                place += len(chunk)
            decoder.decode(b"", final=True)
    except OSError as fault:
        raise UsageError(f"data.path={path} cannot be read ({fault.strerror}): give a text file") from fault
    except UnicodeDecodeError as fault:
        raise UsageError(
            f"data.path={path} is no text: byte {place + fault.start:,} is not UTF-8; give a text file in UTF-8"
        ) from fault
    return identity, digest.hexdigest()
