"""A person's table of images: paths or bytes in one column, classes in another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normbench.data.hub import file_digest, reason
from normbench.data.ownimages import SPLITS, Entry, Listing, OwnImages, stamp
from normbench.data.sources import class_labels
from normbench.errors import UsageError
from normbench.types import Split

if TYPE_CHECKING:
    import pyarrow

PARQUET = ".parquet"
ENDINGS = (".csv", PARQUET)
SHOWN = 12  # columns that an error lists

# Labels of a CSV file that are numbers if all are; 01, 1e3 and what no number of 64 bits holds are names.
WHOLE, DECIMAL = r"^(0|-?[1-9][0-9]{0,14})$", r"^-?(0|[1-9][0-9]{0,14})([.][0-9]+)?$"


@dataclass(frozen=True)
class ImageTable(OwnImages):
    """A CSV or Parquet file; an image is a path (relative to the file), bytes, or the hub's pair of both.

    Labels are names, in alphabetical order, or whole numbers from 0, in the order of their size. In a CSV file they are
    names as they are written, unless all are whole numbers. Where a Parquet file declares its classes, as `datasets`
    writes it, labels are numbers of those.

    split_column: says `train`, `val` or `test`; None: nothing does.
    """

    image_column: str
    label_column: str
    split_column: str | None

    def __post_init__(self) -> None:
        named = {
            "data.image_column": self.image_column,
            "data.label_column": self.label_column,
            "data.split_column": self.split_column,
        }
        for (one, column), (other, the_same) in combinations(named.items(), 2):
            if column is not None and column == the_same:
                raise UsageError(
                    f"{one} and {other} both name the column {column:.80} of {self.where}: name a column for each"
                )

    def contents(self) -> list[Any]:
        """The table, and the files that its paths lead to; bytes are a part of the table."""
        columns = [self.image_column, self.label_column, self.split_column]
        images = [] if self.holds_bytes() else [image for _, image in self.images(self.table(self.image_column))]
        with self.explained():
            return [file_digest(self.path), columns, [stamp(image) for image in images if isinstance(image, Path)]]

    def listing(self) -> Listing:
        columns = [self.image_column, self.label_column, self.split_column]
        table = self.table(*(column for column in columns if column))
        images = self.images(table)
        if not images:
            raise UsageError(f"{self.where} has no rows: give a table with a row for each image")
        labels, classes = self.labels(table)
        rows = zip(images, labels, self.splits(table), strict=True)
        return Listing([Entry(name, label, split, image) for (name, image), label, split in rows], classes)

    # ---- the file

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Says in a sentence why the file cannot be read."""
        import pyarrow

        try:
            yield
        except (OSError, pyarrow.ArrowException) as fault:
            raise UsageError(
                f"{self.where} cannot be read ({reason(fault):.200}): give a CSV or Parquet file"
            ) from fault

    def holds_bytes(self) -> bool:
        """Whether the images are in the table itself."""
        if self.path.suffix.lower() != PARQUET:
            return False
        from pyarrow import parquet

        with self.explained():
            schema = parquet.read_schema(self.path)
        return self.image_column in schema.names and not is_text(schema.field(self.image_column).type)

    def table(self, *columns: str) -> pyarrow.Table:
        """Columns of the table; a path is text, whatever it looks like.

        Raises:
            UsageError: the file is no such table, or has not these columns.
        """
        from pyarrow import parquet

        if self.path.suffix.lower() != PARQUET:
            return self.csv_table(*columns)
        with self.explained(), parquet.ParquetFile(self.path) as file:
            self.check_columns(file.schema_arrow.names, columns)
            return file.read(list(columns))

    def csv_table(self, *columns: str) -> pyarrow.Table:
        """Columns of a CSV file."""
        import pyarrow
        from pyarrow import csv

        text = {column: pyarrow.string() for column in (self.image_column, self.split_column) if column}
        kinds = text | {self.label_column: pyarrow.binary()}  # bytes, of which `as_written` tells what they are
        with self.explained():
            table = csv.read_csv(self.path, convert_options=csv.ConvertOptions(column_types=kinds))
        self.check_columns(table.column_names, columns)
        found = {column: table[column] for column in columns}
        if self.label_column in found:
            found[self.label_column] = as_written(found[self.label_column])
        return pyarrow.table(found)

    def check_columns(self, known: list[str], wanted: tuple[str, ...]) -> None:
        """Refuses a table without the columns, or with two of one name."""
        for column in wanted:
            if known.count(column) != 1:
                number = "no column" if column not in known else "several columns"
                listed = ", ".join(known[:SHOWN]) + (", ..." if len(known) > SHOWN else "")
                raise UsageError(
                    f"{self.where} has {number} {column} (columns: {listed:.200}): name the right ones with "
                    "data.image_column, data.label_column and data.split_column"
                )

    # ---- its columns

    def images(self, table: pyarrow.Table) -> list[tuple[str, Path | bytes | None]]:
        """The name of each row's image, and its file or its bytes."""
        from pyarrow import types

        column = plain(table[self.image_column])
        held = (types.is_binary, types.is_large_binary, types.is_struct)
        if not is_text(column.type) and not any(is_kind(column.type) for is_kind in held):
            raise UsageError(
                f"the column {self.image_column} of {self.where} holds {column.type}: set data.image_column to a "
                "column of paths or bytes"
            )
        values = [bytes_or_path(value) for value in column.to_pylist()]
        return [
            (value, self.path.parent / value) if isinstance(value, str) else (f"row {row}", value)
            for row, value in enumerate(values)
        ]

    def labels(self, table: pyarrow.Table) -> tuple[list[int], list[str]]:
        """The class of each row as an index, and the names of the classes.

        Raises:
            UsageError: a label is missing, out of range, or neither a whole number nor a name.
        """
        column = plain(table[self.label_column])
        values = column.to_pylist()
        for row, value in enumerate(values):
            self.check_label(row, value)
        if names := declared_classes(table.schema, self.label_column):
            return class_labels(column, len(names), self.where).tolist(), names
        known = {value: index for index, value in enumerate(sorted(set(values)))}
        return [known[value] for value in values], [str(value) for value in known]

    def check_label(self, row: int, value: Any) -> None:
        """Refuses a label that says no class."""
        if value is None or value == "":
            raise UsageError(
                f"row {row} of {self.where} has no label in the column {self.label_column}: fill it, or remove the row"
            )
        if not isinstance(value, int | str) or (isinstance(value, int) and value < 0):
            raise UsageError(
                f"row {row} of {self.where} has the label {value!r:.40}: a label is a whole number from 0 or a name, "
                "in the column data.label_column"
            )

    def splits(self, table: pyarrow.Table) -> list[Split | None]:
        """The split of each row; None where no column says it."""
        if self.split_column is None:
            return [None] * len(table)
        words = [str(value).casefold() for value in table[self.split_column].to_pylist()]
        for row, word in enumerate(words):
            if word not in SPLITS:
                raise UsageError(
                    f"row {row} of {self.where} has the split {word:.40}: in the column {self.split_column} use train, "
                    "val and test"
                )
        return [SPLITS[word] for word in words]


def is_text(kind: pyarrow.DataType) -> bool:
    """Whether a column of this type holds text."""
    from pyarrow import types

    return (
        types.is_string(kind) or types.is_large_string(kind) or (types.is_dictionary(kind) and is_text(kind.value_type))
    )


def plain(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Categories as their values, numbers such as 3.0 as the whole numbers that they are, and truth as words."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if types.is_boolean(column.type):
        return column.cast(pyarrow.string())
    if types.is_floating(column.type):
        try:
            return column.cast(pyarrow.int64())
        except pyarrow.ArrowInvalid:
            return column
    return column


def as_written(labels: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Labels of a CSV file, from its bytes: numbers if all that are there are, else text; bytes if they are no text."""
    import pyarrow
    from pyarrow import compute, csv

    try:
        text = labels.cast(pyarrow.string())
    except pyarrow.ArrowInvalid:
        return labels
    bare = compute.utf8_trim_whitespace(text)
    missing = compute.is_in(bare, pyarrow.array(csv.ConvertOptions().null_values))
    for pattern, kind in ((WHOLE, pyarrow.int64()), (DECIMAL, pyarrow.float64())):
        if compute.all(compute.or_(missing, compute.match_substring_regex(bare, pattern))).as_py():
            return compute.if_else(missing, pyarrow.scalar(None, pyarrow.string()), bare).cast(kind)
    return text


def bytes_or_path(value: str | bytes | Mapping[str, Any] | None) -> str | bytes | None:
    """What a value of the image column says; None where it says nothing."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    return value or None


def declared_classes(schema: pyarrow.Schema, column: str) -> list[str]:
    """The names of the classes that `datasets` wrote into a Parquet file's schema; none where there are none."""
    if b"huggingface" not in (schema.metadata or {}):
        return []
    import datasets

    return list(getattr(datasets.Features.from_arrow_schema(schema)[column], "names", None) or [])
