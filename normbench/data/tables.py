"""A person's own tables: columns of CSV, TSV, Parquet and JSON files, each value as it stands there.

`datasets` and pandas are not used for it: in a CSV file they take `NA` for nothing and `007` for 7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from normbench.data.hub import reason
from normbench.errors import UsageError

DELIMITED = {".csv": ",", ".tsv": "\t"}
JSON = (".jsonl", ".ndjson", ".json")
ENDINGS = (*DELIMITED, ".parquet", *JSON)


def read_columns(path: Path, columns: Mapping[str, str], wanted: str) -> dict[str, list[Any]]:
    """Return the values of some columns, each once; a file without one of `ENDINGS` is read as Parquet.

    What a CSV or TSV file holds is text. Of several columns with the same name the first counts.

    Args:
        columns: by the settings that name them.
        wanted: what `data.path` may be.

    Raises:
        UsageError: it cannot be read, or lacks a column.
    """
    import pyarrow as pa

    where = f"data.path={path}"
    ending = path.suffix.lower()
    read = read_parquet
    if ending in DELIMITED:
        read = read_delimited
    elif ending in JSON:
        read = read_json
    try:
        known, values = read(path, [*dict.fromkeys(columns.values())])
    except (OSError, ValueError, pa.ArrowException) as fault:
        as_what = "" if ending in ENDINGS else " as Parquet"
        raise UsageError(f"{where} cannot be read{as_what} ({reason(fault):.200}): {wanted}") from fault
    missing = {setting: column for setting, column in columns.items() if column not in values}
    if missing:
        hint = ""
        if ending in DELIMITED:
            signs = "commas" if ending == ".csv" else "tabs"
            hint = f" (the first line names the columns, with {signs} between them)"
        settings = " and ".join(missing)
        names = " and no column ".join(missing.values())
        cure = f"set {settings} to one of {', '.join(known):.200}{hint}"
        raise UsageError(f"{where} has no column {names:.160}: {cure}")
    return values


def read_delimited(path: Path, columns: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the names of all columns of a CSV or TSV file, and those wanted that are there.

    In a CSV file a value in quotes may have line breaks. In a TSV file quotes are signs like others, and a line is a
    row: texts that begin with a quote are usual there, and would swallow the rows up to the next quote.
    """
    import pyarrow as pa
    from pyarrow import csv

    ending = path.suffix.lower()
    is_csv = ending == ".csv"
    size = max(1, min(path.stat().st_size, 1 << 30))  # a row must fit into a block
    reading = csv.ReadOptions(block_size=size)
    parsing = csv.ParseOptions(
        delimiter=DELIMITED[ending], quote_char='"' if is_csv else False, newlines_in_values=is_csv
    )
    with csv.open_csv(path, read_options=reading, parse_options=parsing) as reader:
        known = reader.schema.names
    types = {column: pa.string() for column in columns if column in known}
    if not types:
        return known, {}
    converting = csv.ConvertOptions(include_columns=[*types], column_types=types)
    table = csv.read_csv(path, read_options=reading, parse_options=parsing, convert_options=converting)
    return known, table.to_pydict()


def read_parquet(path: Path, columns: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the names of all columns of a Parquet file, and those wanted that are there."""
    from pyarrow import parquet

    known = parquet.read_schema(path).names
    present = [column for column in columns if column in known]
    return known, parquet.read_table(path, columns=present).to_pydict()


def read_json(path: Path, columns: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the names of all columns of a JSON file, and those wanted that are there; what a row lacks is None.

    The file has an object a line, or is one list of objects.

    Raises:
        ValueError: it is something else.
    """
    text = path.read_text("utf-8-sig")
    if text.lstrip().startswith("["):
        rows = json.loads(text)
    else:
        rows = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                rows.append(read_line(number, line))
    if not rows:
        raise ValueError("it has no rows")
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("not all of its rows are objects")
    known: dict[str, None] = {}
    for row in rows:
        known |= dict.fromkeys(row)
    values = {}
    for column in columns:
        if column in known:
            values[column] = [row.get(column) for row in rows]
    return [*known], values


def read_line(number: int, line: str) -> Any:
    """Return what a line of a JSON file holds.

    Raises:
        ValueError: with the number of the line.
    """
    try:
        return json.loads(line)
    except json.JSONDecodeError as fault:
        what = fault.msg
    raise ValueError(f"line {number}: {what}")  # outside, so that this, and not its cause, is what a reader is told


def labels_as_written(path: Path, labels: Sequence[Any]) -> list[Any]:
    """Return labels as words or numbers, None where there is none.

    Those of a CSV or TSV file are numbers if all are whole numbers, written as Python writes them.
    """
    if path.suffix.lower() in DELIMITED:
        are_numbers = all(re.fullmatch("0|[1-9][0-9]*", label) for label in labels)
        if are_numbers:
            return list(map(int, labels))
    return [None if label == "" else label for label in labels]


def declared_classes(path: Path, column: str) -> list[str] | None:
    """Return the names of the classes that a column of a Parquet file declares, as `datasets` writes it."""
    if path.suffix.lower() in (*DELIMITED, *JSON):
        return None
    from pyarrow import parquet

    metadata = parquet.read_schema(path).metadata or {}
    about: Any = None
    with suppress(ValueError):  # of what another program has written under this key
        about = json.loads(metadata.get(b"huggingface", "{}"))
    for key in ("info", "features", column, "names"):
        about = about.get(key) if isinstance(about, Mapping) else None
    return about if isinstance(about, list) and all(isinstance(name, str) for name in about) else None
