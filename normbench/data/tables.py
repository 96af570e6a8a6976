"""A person's own tables: columns of CSV, TSV, Parquet and JSON files, each value as it stands there.

`datasets` and pandas are not asked: in a CSV file they take `NA` for nothing and `007` for 7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normbench.data.hub import reason
from normbench.errors import UsageError

DELIMITED = {".csv": ",", ".tsv": "\t"}
JSON = (".jsonl", ".ndjson", ".json")
ENDINGS = (*DELIMITED, ".parquet", *JSON)


def read_columns(path: Path, columns: Mapping[str, str], wanted: str) -> dict[str, list[Any]]:
    """Return the values of some columns, each once; a file without one of `ENDINGS` is read as Parquet.

    What a CSV or TSV file holds is text. Of several columns of one name the first counts.

    Args:
        columns: by the settings that name them.
        wanted: what `data.path` may be.

    Raises:
        UsageError: it cannot be read, or lacks a column.
    """
    import pyarrow as pa

    where, ending = f"data.path={path}", path.suffix.lower()
    read = read_delimited if ending in DELIMITED else read_json if ending in JSON else read_parquet
    try:
        known, values = read(path, [*dict.fromkeys(columns.values())])
    except (OSError, ValueError, pa.ArrowException) as fault:
        as_what = "" if ending in ENDINGS else " as Parquet"
        raise UsageError(f"{where} cannot be read{as_what} ({reason(fault):.200}): {wanted}") from fault
    if missing := {setting: column for setting, column in columns.items() if column not in values}:
        between = {".csv": "commas", ".tsv": "tabs"}.get(ending)
        first = f" (the first line names the columns, with {between} between them)" if between else ""
        cure = f"set {' and '.join(missing)} to one of {', '.join(known):.200}{first}"
        raise UsageError(f"{where} has no column {' and no column '.join(missing.values()):.160}: {cure}")
    return values


def read_delimited(path: Path, columns: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the names of all columns of a CSV or TSV file, and those wanted that are there.

    In a CSV file a value in quotes may have line breaks. In a TSV file quotes are signs like others, and a line is a
    row: texts that begin with a quote are usual there, and would swallow the rows up to the next quote.
    """
    import pyarrow as pa
    from pyarrow import csv

    is_csv = path.suffix.lower() == ".csv"
    size = max(1, min(path.stat().st_size, 1 << 30))  # a row must fit into a block
    options = {
        "read_options": csv.ReadOptions(block_size=size),
        "parse_options": csv.ParseOptions(
            delimiter=DELIMITED[path.suffix.lower()],
            quote_char='"' if is_csv else False,
            newlines_in_values=is_csv,
        ),
    }
    with csv.open_csv(path, **options) as reader:
        known = reader.schema.names
    types = {column: pa.string() for column in columns if column in known}
    if not types:
        return known, {}
    convert = csv.ConvertOptions(include_columns=[*types], column_types=types)
    return known, csv.read_csv(path, **options, convert_options=convert).to_pydict()


def read_parquet(path: Path, columns: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the names of all columns of a Parquet file, and those wanted that are there."""
    from pyarrow import parquet

    known = parquet.read_schema(path).names
    there = [column for column in columns if column in known]
    return known, parquet.read_table(path, columns=there).to_pydict()


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
        rows = [json_line(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("not all of its rows are objects")
    known = [*dict.fromkeys(name for row in rows for name in row)]
    return known, {column: [row.get(column) for row in rows] for column in columns if column in known}


def json_line(number: int, line: str) -> Any:
    """Return what a line of a file holds.

    Raises:
        ValueError: with the number of the line.
    """
    said = ""
    try:
        return json.loads(line)
    except json.JSONDecodeError as fault:
        said = fault.msg
    raise ValueError(f"line {number}: {said}")  # outside, for it is what the reader must know, not its cause


def labels_as_written(path: Path, labels: Sequence[Any]) -> list[Any]:
    """Return labels as words or numbers, None where there is none.

    Those of a CSV or TSV file are numbers if all are whole numbers, written as Python writes them.
    """
    if path.suffix.lower() in DELIMITED and all(re.fullmatch("0|[1-9][0-9]*", label) for label in labels):
        return [int(label) for label in labels]
    return [None if label == "" else label for label in labels]


def declared_classes(path: Path, column: str) -> list[str] | None:
    """Return the names of the classes that a column of a Parquet file declares, as `datasets` writes it."""
    if path.suffix.lower() in (*DELIMITED, *JSON):
        return None
    from pyarrow import parquet

    metadata = parquet.read_schema(path).metadata or {}
    features = json.loads(metadata.get(b"huggingface", "{}")).get("info", {}).get("features", {})
    names: list[str] | None = features.get(column, {}).get("names")
    return names
