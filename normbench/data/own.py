"""A person's own data: images in a folder or named by a table, and a text file that is read where it lies."""

from __future__ import annotations

import glob
import hashlib
import json
import mmap
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from normbench.data.batches import Name
from normbench.data.cache import SPLITS, Content, Decoded, decoded, file_digest
from normbench.data.hub import labels_of, reason
from normbench.data.images import Images, decode, image_arrays
from normbench.data.sources import ImageColumn, LabelColumn, Size
from normbench.data.text import Text
from normbench.errors import RunFailure, UsageError
from normbench.settings import Setting

# How people call the splits, in lower case.
SPLIT_NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLIT_NAMES |= dict.fromkeys(("val", "valid", "validation"), "val")
WANTED = "give a folder with a sub-folder for each class, or a CSV or Parquet file (.csv, .parquet)"

OwnPath = Annotated[str | None, Setting("your own file or folder")]


def own_images(
    *,
    name: Name = "images",
    path: OwnPath,
    size: Size = None,
    image_column: ImageColumn = "image",
    label_column: LabelColumn = "label",
    split_column: Annotated[str | None, Setting("column of the splits; null: a tenth of each class is val")] = None,
    **options: Any,
) -> Images:
    """Return a person's own images, in a folder or in the rows of a CSV or Parquet file; `options` are Images'.

    Classes are in alphabetical order, or by size if they are whole numbers. Without splits a tenth of each class
    validates, chosen by a hash of the names; with `train` and `test` alone the images of `test` validate. The images of
    a split stand in the order of that hash, so that the last ones are of all classes.

    Raises:
        UsageError: there is neither at `path`, or it is not what it should be.
    """
    place = given(path, WANTED)
    columns = [image_column, label_column, split_column]
    if place.is_dir():
        files = sorted(glob.glob("**", root_dir=place, recursive=True))
        contents: list[Any] = [[file, stamp(place / file)] for file in files]
    else:
        named = [image for image in table_of(place, [image_column])[image_column].to_pylist() if isinstance(image, str)]
        contents = [file_digest(place), columns, [stamp(place.parent / image) for image in named]]
    key = [str(place.resolve()), size, contents]
    return Images(decoded(name, "images", key, partial(load, place, size, columns), path=place.name), **options)


def load(path: Path, size: int | None, columns: Sequence[Any]) -> Decoded:
    """Decode all images.

    Raises:
        UsageError: they cannot be read, their sizes differ, or a split or class has none.
    """
    import pandas as pd

    where, root = f"data.path={path}", path if path.is_dir() else path.parent
    try:
        rows, declared = (read_folder(path), None) if path.is_dir() else read_table(path, *columns)
        rows["class"], known = labels_of(rows["label"].tolist(), declared, where)
    except (TypeError, UnicodeError) as fault:  # labels that are neither words nor numbers, names that are no UTF-8
        raise UsageError(f"{where} cannot be read ({reason(fault)}): {WANTED}") from fault
    # A place among the others that depends on an image's name alone, or on its bytes where it has no name.
    known_by = (image if isinstance(image, bytes) else os.fsencode(str(image)) for image in rows["image"])
    rows["rank"] = [hashlib.sha256(identity).digest() for identity in known_by]
    rows = rows.sort_values("rank", kind="stable")
    if rows["split"].isna().any():
        members = rows.groupby("class")["class"]
        judged = members.transform("size").map(lambda size: max(1, round(size / 10)))
        rows["split"] = np.where(members.cumcount() < judged, "val", "train")
    elif "val" not in set(rows["split"]):
        rows["split"] = rows["split"].replace("test", "val")
    rows["split"] = pd.Categorical(rows["split"], SPLITS)
    rows = rows.sort_values("split", kind="stable")
    counts = rows["split"].value_counts(sort=False)
    present, trained = set(rows["class"]), set(rows["class"][: counts["train"]])
    if present != trained or len(trained) < 2 or not counts["val"]:
        untrained = "".join(f" of the class {known[index]:.80}" for index in sorted(present - trained)[:1])
        cure = "give two classes, each with some to train on, and some to validate"
        raise UsageError(f"{where} has too few images{untrained}: {cure}")
    images = rows["image"].items()
    files = [(image, root / image) if isinstance(image, str) else (f"row {row}", image) for row, image in images]
    return image_arrays(decode(files, where, size), rows["class"].to_numpy(), counts[counts > 0].to_dict(), known)


def read_folder(path: Path) -> Any:
    """Return images, labels and splits of a folder with a sub-folder a class, or with such folders `train` and `val`.

    Images count however deep they lie in their class's folder, names that begin with a dot do not.
    """
    import pandas as pd
    from PIL import Image

    endings = tuple(ending for ending, form in Image.registered_extensions().items() if form in Image.OPEN)
    files = [Path(file) for file in glob.glob("**", root_dir=path, recursive=True) if file.lower().endswith(endings)]
    names = [SPLIT_NAMES.get(file.parts[0].lower()) for file in files]
    inside = int("train" in names and len({*names} - {None}) > 1)  # how many folders are around those of the classes
    rows = [
        (str(file), file.parts[inside], split if inside else None)
        for file, split in zip(files, names, strict=True)
        if len(file.parts) > inside + 1 and (split or not inside)
    ]
    return pd.DataFrame(rows, columns=["image", "label", "split"])


def read_table(path: Path, image_column: str, label_column: str, split_column: str | None) -> tuple[Any, Any]:
    """Return images, labels and splits of a table, and the names of the classes if it declares them.

    Labels of a CSV file are numbers if all are whole numbers, written as Python writes them.

    Raises:
        UsageError: a row has no split.
    """
    import pandas as pd

    columns = [column for column in (image_column, label_column, split_column) if column]
    table = table_of(path, columns)
    images, labels, *splits = (table[column].to_pylist() for column in columns)
    images = [(image["bytes"] or image["path"]) if isinstance(image, dict) else image or None for image in images]
    labels = [None if label == "" else label for label in labels]
    if path.suffix.lower() == ".csv" and all(re.fullmatch("0|[1-9][0-9]*", str(label)) for label in labels):
        labels = [int(label) for label in labels]
    parts = [SPLIT_NAMES.get(str(split).lower()) for split in splits[0]] if splits else None
    if parts and None in parts:
        raise UsageError(f"row {parts.index(None)} of data.path={path} has no split: write train, val or test")
    # as `datasets` writes it
    features = json.loads((table.schema.metadata or {}).get(b"huggingface", "{}")).get("info", {}).get("features", {})
    rows = pd.DataFrame({"image": images, "label": labels, "split": parts})
    return rows, features.get(label_column, {}).get("names")


def table_of(path: Path, columns: Sequence[str]) -> Any:
    """Return these columns of a CSV or Parquet file; those of a CSV file as text, of several of one name the first.

    Raises:
        UsageError: it cannot be read, or lacks a column.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    where, is_csv, wanted = f"data.path={path}", path.suffix.lower() == ".csv", dict.fromkeys(columns, pa.string())
    try:
        known = csv.open_csv(path).schema.names if is_csv else parquet.read_schema(path).names
        if missing := [column for column in columns if column not in known]:
            cure = f"set data.image_column and the like to {', '.join(known):.200}"
            raise UsageError(f"{where} has no column {missing[0]}: {cure}")
        if is_csv:
            options = csv.ConvertOptions(include_columns=[*wanted], column_types=wanted)
            return csv.read_csv(path, convert_options=options)
        return parquet.read_table(path, columns=[*wanted])
    except (OSError, pa.ArrowException) as fault:
        raise UsageError(f"{where} cannot be read ({reason(fault)}): {WANTED}") from fault


def given(path: str | None, what: str) -> Path:
    """Return the file or folder that `data.path` names.

    Raises:
        UsageError: it names none.
    """
    place = Path(os.path.expanduser(path or ""))
    if not path or not (place.is_file() or place.is_dir()):
        raise UsageError(f"data.path={path or 'null':.200} is no file or folder: {what}")
    return place


def stamp(path: Path) -> list[int]:
    """Return what changes when a file does: length, time of the last change, inode; nothing where it is not there."""
    status = path.stat() if path.exists() else None
    return [status.st_size, status.st_mtime_ns, status.st_ino] if status else []


# ---- a text file

WANTED_TEXT = "give a text file in UTF-8, such as data.path=my.txt"


def text_file(*, name: Name = "text", path: OwnPath, **options: Any) -> Text:
    """Return a person's own text file of any size, by bytes; `options` are Text's.

    Its last tenth validates, but no more than its last 1,000,000 bytes. It is mapped where it lies, not cached.

    Raises:
        UsageError: it is no text.
    """
    place = given(path, WANTED_TEXT)
    identity = stamp(place)
    try:
        with open(place, encoding="utf-8") as file:
            while file.read(1 << 20):  # characters
                pass
        digest, mapped = file_digest(place), np.memmap(place, np.uint8, "r")
    except (OSError, ValueError) as fault:
        raise UsageError(f"data.path={path} cannot be read ({reason(fault)}): {WANTED_TEXT}") from fault

    def check() -> None:
        # Pages that were once touched do not stay in the process.
        mapped.base.madvise(mmap.MADV_DONTNEED)  # type: ignore[union-attr]  # it is an mmap.mmap
        if stamp(place) != identity:
            raise RunFailure(f"data.path={path} changed while the run read it: put it back, or train on the new text")

    cut = len(mapped) - min(len(mapped) // 10, 1_000_000)  # more of validation costs time and tells nothing more
    arrays = {"train": mapped[:cut], "val": mapped[cut:]}
    return Text(Content(name, {"file": place.name}, arrays, {}, digest, check), **options)
