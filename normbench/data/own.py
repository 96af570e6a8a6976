"""A person's own data: images in a folder or named by a table, and a text file that is read where it lies."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from normbench.data.batches import SPLITS, Name
from normbench.data.cache import Content, Source, file_digest
from normbench.data.hub import read_tables, reason
from normbench.data.images import Images, decode, image_content
from normbench.data.sources import ImageColumn, LabelColumn, class_labels
from normbench.data.text import Text
from normbench.errors import RunFailure, UsageError
from normbench.settings import Setting
from normbench.types import Split

SPLIT = re.compile("(train|test)(?:ing)?|(val)(?:id|idation)?", re.IGNORECASE)
VAL_SHARE = 10  # one image of so many of a class validates, where nothing says which
if TYPE_CHECKING:
    import pandas as pd

WANTED = "give a folder with a sub-folder for each class, or a CSV or Parquet file (.csv, .parquet)"

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
    place = given(path, WANTED)
    columns = [image_column, label_column, split_column]
    contents: list[Any]
    if place.is_dir():
        files = sorted(glob.glob("**", root_dir=place, recursive=True))
        contents = [[file, stamp(place / file)] for file in files]
    else:
        contents = [file_digest(place), columns, [stamp(file) for file in named_files(place, image_column)]]
    key = [str(place.resolve()), size, contents]
    return Images(Source(name, "images", key, partial(load, place, size, columns), {"path": place.name}), **options)


def load(path: Path, size: int | None, columns: Sequence[Any]) -> Content:
    """Decode all images.

    Raises:
        UsageError: they cannot be read, their sizes differ, or a split or class has none.
    """
    import pandas as pd

    where, root = f"data.path={path}", path if path.is_dir() else path.parent
    images, labels, splits, declared = read_folder(path) if path.is_dir() else read_table(path, *columns)
    known = declared or sorted(set(labels))
    if not declared:
        indices = {label: index for index, label in enumerate(known)}
        labels = [indices[label] for label in labels]
    names = [image if isinstance(image, str) else f"row {row}" for row, image in enumerate(images)]
    # A place among the others that depends on an image's name alone, or on its bytes where it has no name.
    pairs = zip(names, images, strict=True)
    known_by = [image if isinstance(image, bytes) else os.fsencode(name) for name, image in pairs]
    ranks = [hashlib.sha256(identity).digest() for identity in known_by]
    classes = class_labels(labels, len(known), where)
    rows = pd.DataFrame({"name": names, "image": images, "class": classes, "split": splits, "rank": ranks})
    rows = divided(rows.sort_values("rank", kind="stable"))
    parts = {split: rows[rows["split"] == split] for split in SPLITS}
    present = set(rows["class"])
    untrained = [f" of the class {known[index]!s:.80}" for index in sorted(present - set(parts["train"]["class"]))]
    if untrained or len(present) < 2 or parts["val"].empty:
        raise UsageError(
            f"{where} has too few images{''.join(untrained[:1])}: give two classes, each with some to train on, and "
            "some to validate"
        )
    rows = pd.concat(parts.values())
    files = [root / image if isinstance(image, str) else image for image in rows["image"]]
    pixels = decode([*zip(rows["name"], files, strict=True)], where, size)
    cuts = np.cumsum([len(part) for part in parts.values()])[:2]
    arrays = zip(SPLITS, np.split(pixels, cuts), np.split(rows["class"].to_numpy(), cuts), strict=True)
    return image_content({split: both for split, *both in arrays if len(both[0])}, [str(name) for name in known])


def divided(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the images with a split each: those that they have, or a tenth of each class to validate."""
    present = set(rows["split"])
    if None not in present:
        return rows if "val" in present else rows.replace({"split": {"test": "val"}})
    members = rows.groupby("class")["class"]
    judged = members.transform("size").map(lambda size: max(1, round(size / VAL_SHARE)))
    return rows.assign(split=np.where(members.cumcount() < judged, "val", "train"))


def read_folder(path: Path) -> tuple[list[Any], list[Any], list[Any], None]:
    """Return images, labels and splits of a folder with a sub-folder a class, or with such folders `train` and `val`.

    Images count however deep they lie in their class's folder, names that begin with a dot do not.
    """
    splits = {split: folder for folder in subfolders(path) if (split := split_of(folder.name))}
    roots: dict[Any, Path] = splits if "train" in splits and len(splits) > 1 else {"images": path}
    files = {split: [f"{glob.escape(str(folder))}/**" for folder in subfolders(root)] for split, root in roots.items()}
    options = {"data_files": files, "drop_labels": False, "drop_metadata": True, "streaming": True}
    _, tables = read_tables(f"data.path={path}", WANTED, [*roots], ["image"], "imagefolder", **options)
    found = [(Path(image["path"]), split) for split in roots for image in tables[split]["image"]]
    images = [str(image.relative_to(path)) for image, _ in found]
    labels = [image.relative_to(roots[split]).parts[0] for image, split in found]
    return images, labels, [split_of(split) for _, split in found], None


def read_table(
    path: Path, image_column: str, label_column: str, split_column: str | None
) -> tuple[list[Any], list[Any], list[Any], list[str] | None]:
    """Return images, labels and splits of a table, and the names of the classes if it declares them.

    Labels of a CSV file are numbers if all are whole numbers, written as Python writes them.

    Raises:
        UsageError: a row has no label or split.
    """
    where, is_csv = f"data.path={path}", path.suffix.lower() == ".csv"
    columns = [column for column in (image_column, label_column, split_column) if column]
    options: dict[str, Any] = {"data_files": {"images": glob.escape(str(path))}, "streaming": not is_csv}
    if is_csv:
        options |= {"converters": dict.fromkeys(columns, str), "keep_default_na": False}
    kind = "csv" if is_csv else "parquet"
    features, tables = read_tables(where, WANTED, ["images"], columns, kind, **options)
    images, labels, *splits = (tables["images"][column] for column in columns)
    if is_csv and all(re.fullmatch("0|[1-9][0-9]*", str(label)) for label in labels):
        labels = [int(label) for label in labels]
    parts = [split_of(split) for split in splits[0]] if splits else [None] * len(labels)
    for row, (label, part) in enumerate(zip(labels, parts, strict=True)):
        if label in (None, "") or (splits and not part):
            raise UsageError(f"row {row} of {where} needs a label, and a split that is train, val or test")
    images = [(image["bytes"] or image["path"]) if isinstance(image, Mapping) else image for image in images]
    return images, labels, parts, getattr(features[label_column], "names", None)


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def split_of(word: Any) -> Split | None:
    """Return the split that a word names, such as `Validation`."""
    found = SPLIT.fullmatch(str(word))
    return next((split for split in SPLITS if found and split in found[0].lower()), None)


def named_files(table: Path, column: str) -> list[Path]:
    """Return the files that a table names: none where it holds the images, or is not what it should be."""
    from pyarrow import dataset

    with suppress(OSError, ValueError, KeyError):
        names = dataset.dataset(table, format=table.suffix[1:].lower()).to_table([column])[column]
        return [table.parent / name for name in names.to_pylist() if isinstance(name, str)]
    return []


def given(path: str | None, what: str) -> Path:
    """Return the file or folder that `data.path` names.

    Raises:
        UsageError: it names none.
    """
    place = Path(os.path.expanduser(path or ""))
    if not path or not os.path.exists(place):
        raise UsageError(f"data.path={path or 'null':.200} does not exist: {what}")
    return place


def stamp(path: Path) -> list[int]:
    """Return what changes when a file does: length, time of the last change, inode; nothing where it is not there."""
    with suppress(OSError):
        status = path.stat()
        return [status.st_size, status.st_mtime_ns, status.st_ino]
    return []


# ---- a text file

CHUNK = 1 << 20  # characters that are looked at at once
WANTED_TEXT = "give a text file in UTF-8, such as data.path=my.txt"
MOST_VAL = 1_000_000  # more bytes of validation cost time and tell nothing more


def text_file(*, name: Name = "text", path: OwnPath, **options: Any) -> Text:
    """Return a person's own text file of any size, by bytes; `options` are Text's.

    Its last tenth validates, but no more than its last 1,000,000 bytes. It is read where it lies, not cached.

    Raises:
        UsageError: it is no text.
    """
    place = given(path, WANTED_TEXT)
    identity = stamp(place)
    try:
        with open(place, encoding="utf-8") as file:
            while file.read(CHUNK):
                pass
        digest = file_digest(place)
    except (OSError, UnicodeDecodeError) as fault:
        raise UsageError(f"data.path={path} cannot be read ({reason(fault)}): {WANTED_TEXT}") from fault
    size = identity[0]
    whole, cut = FileBytes(place, identity, range(size)), size - min(size // 10, MOST_VAL)
    content = Content({"train": whole[:cut], "val": whole[cut:]}, {})
    source = Source(name, "text", digest, lambda: content, {"file": place.name}, cached=False)
    return Text(source, **options)


class FileBytes:
    """Bytes of a file, as an array that is never read whole.

    It is mapped anew at each reading: pages that were once touched do not stay in the process. Each reading makes sure
    that the file is still the one that was inspected, when it had this `identity`.
    """

    def __init__(self, path: Path, identity: list[int], places: range) -> None:
        self.path, self.identity, self.places = path, identity, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the file for a slice, the bytes themselves for an array of places.

        Raises:
            RunFailure: the file is another than it was.
        """
        if isinstance(index, slice):
            return FileBytes(self.path, self.identity, self.places[index])
        if stamp(self.path) != self.identity:
            raise RunFailure(
                f"data.path={self.path} changed while the run read it: put it back as it was and give the same command "
                "to go on, or leave it as it is and give the same command for a run on the new text"
            )
        return np.asarray(np.memmap(self.path, np.uint8, "r", self.places.start, (len(self),)))[index]
