"""Repositories of the Hugging Face hub and local copies of them, which the library `datasets` reads."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from normbench.data.cache import file_digest, logger
from normbench.errors import RunFailure, UsageError, is_disk_full, lines_of
from normbench.hub import NUMBER, data_sets_kept, explain_silence, is_empty, look_here_alone

COPIES = (
    "set data.root or NORMBENCH_DATA to a folder that holds copies in the hub's layout (ROOT/owner/name/…/*.parquet), "
    "or use data=pydocs or data=digits, which need none"
)
OTHERWISE = f"name a repository with these splits and columns, {COPIES}"

HIDDEN = -1  # the label that data sets of competitions write where they keep the true one

NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Hub:
    """A repository of a data set.

    Args:
        hub_id: `owner/name`.
        revision: branch, tag or commit on the hub; says nothing about a local copy.
        root: folder with local copies in the hub's layout, relative to the current one; None or empty: the hub.
        config: which of the repository's configurations, where it has several.
        folder: the folder of the repository to read, where no configuration names the files that are wanted.
    """

    hub_id: str
    revision: str
    root: str | None
    config: str | None
    folder: str | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.hub_id):  # to `datasets` a word alone may be a format, such as pandas' pickles
            cure = "give owner/name, such as stanfordnlp/imdb"
            why = "is not owner/name, and a word alone may be a file format"
            raise UsageError(f"data.hub_id={self.hub_id} {why}: {cure}")

    def key(self) -> list[Any]:
        """Return the local copy's files with their sha256, or the hub's revision.

        The copy's README counts, as it says which split a file makes.

        Raises:
            UsageError: there is no local copy.
        """
        chosen = [self.config, self.folder] if self.folder else [self.config]
        if not self.root:
            return [f"hub:{self.hub_id}@{self.revision}", *chosen]
        folder = Path(os.path.expanduser(self.root), self.hub_id)
        files = [*sorted(folder.rglob("*.parquet")), *folder.glob("README.md")]
        if not files:
            raise UsageError(f"no copy of {self.hub_id} in data.root={self.root}: {OTHERWISE}")
        digests = []
        for file in files:
            name = str(file.relative_to(folder))
            digests.append([name, file_digest(file)])
        return [*digests, *chosen]

    def read(self, splits: Sequence[str], columns: Sequence[str], text: str = "") -> tuple[Any, dict[str, Any]]:
        """Return what each column declares itself to be, and lists of these columns' values by split and column.

        A local copy is streamed, so that it leaves no second copy in the cache of `datasets`.

        Raises:
            UsageError: as `reading` does, also where the column of `text` holds something else.
            RunFailure: the disk is full.
        """
        with self.reading() as (datasets, place, options):
            import pyarrow

            if self.root:
                options["streaming"] = True
            loaded = datasets.load_dataset(place, **options)
            features = next(iter(loaded.values())).features
            check_present(splits, loaded)
            check_present(columns, features)
            tables = {}
            each_once = list(dict.fromkeys(columns))
            for split in splits:
                rows = loaded[split].select_columns(each_once).with_format("arrow")
                pieces = list(rows.iter(batch_size=4096))
                tables[split] = pyarrow.concat_tables(pieces).to_pydict()
                if text:
                    check_text(text, tables[split][text])
            return features, tables

    def files(self, splits: Sequence[str], columns: Sequence[str]) -> tuple[Any, dict[str, list[str]]]:
        """Return what each column declares itself to be, and the paths or addresses of the files of each split.

        Raises:
            UsageError: as `reading` does.
        """
        with self.reading() as (datasets, place, options):
            builder = datasets.load_dataset_builder(place, **options)
            data_files = builder.config.data_files
            check_present(splits, data_files)
            features = builder.info.features
            if not features:
                first = data_files[splits[0]][0]
                features = datasets.Features.from_arrow_schema(open_parquet(first).schema_arrow)
            check_present(columns, features)
            files_of_splits = {}
            for split in splits:
                files_of_splits[split] = list(map(str, data_files[split]))
            return features, files_of_splits

    @cached_property
    def silence(self) -> str:
        """Why the hub does not answer; empty where it does, or need not be asked."""
        return "" if self.root else explain_silence()

    def reach(self) -> None:
        """Refuse a repository of which nothing is here where the hub cannot be reached, before anything is said of it.

        Raises:
            UsageError: with the folders in which it was looked for.
        """
        if not self.silence or self.is_kept:
            return
        where = f"NORMBENCH_DATA and data.root are not set, and {data_sets_kept()} does not have it"
        raise UsageError(f"{self.hub_id} is not here ({where}), and {self.silence}: connect to a network, {COPIES}")

    @cached_property
    def is_kept(self) -> bool:
        """Whether the library `datasets` has read this repository before, and kept it."""
        if is_empty(data_sets_kept()):  # else the library is to look, whose import takes a second
            return False
        import datasets

        try:
            with look_here_alone(self.silence):
                datasets.load_dataset_builder(self.hub_id, **self.options)
        except Exception:  # it knows many ways to have nothing
            return False
        return True

    @property
    def options(self) -> dict[str, Any]:
        """What functions of the library `datasets` take to find this repository, beside its name."""
        options: dict[str, Any] = {"name": self.config}
        if not self.root:
            options["revision"] = self.revision
        if self.folder:
            options["data_dir"] = self.folder
        return options

    @contextmanager
    def reading(self) -> Iterator[tuple[Any, str, dict[str, Any]]]:
        """Give the library `datasets`, and what its functions take to find this repository.

        It is imported here: that takes over a second, and a cache hit does not need it.

        Raises:
            UsageError: the repository cannot be reached or read, a split or column is missing.
            RunFailure: the disk is full.
        """
        self.reach()
        import datasets

        datasets.disable_progress_bars()  # the run has its own display
        for name in ("datasets", "huggingface_hub"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logger.info("reading %s", self.hub_id)
        place = os.path.join(os.path.expanduser(self.root or ""), self.hub_id)
        try:
            with look_here_alone(self.silence):
                yield datasets, place, self.options
        except (MemoryError, UsageError):
            raise
        except Exception as fault:  # YAML's, Arrow's, HTTP's and its own errors have no common class
            disk_full = any(is_disk_full(cause) for cause in causes(fault))
            error = RunFailure if disk_full else UsageError
            raise error(f"{self.hub_id} cannot be read ({reason(fault):.250}): {OTHERWISE}") from fault


def open_parquet(file: str) -> Any:
    """Open a Parquet file, of which nothing but its table of contents is read yet."""
    import fsspec
    from pyarrow import parquet

    system, path = fsspec.core.url_to_fs(file)
    return parquet.ParquetFile(system.open(path))


def check_present(wanted: Iterable[str], there: Iterable[str]) -> None:
    """Refuse splits or columns that are not there."""
    for name in wanted:
        if name not in there:
            raise LookupError(f"it has no {name}, but {', '.join(there)}")


def check_text(column: str, rows: Iterable[Any]) -> None:
    """Refuse rows that are not text."""
    if not all(isinstance(row, str) for row in rows):
        raise TypeError(f"its {column} is not always text, set data.text_column")


def classes_of(features: Any, column: str, hub_id: str) -> list[str]:
    """Return the names of the classes that a label column declares.

    Raises:
        UsageError: it declares none.
    """
    names = getattr(features[column], "names", None)
    if not names:
        cure = "set data.label_column, or declare it as class_label under dataset_info in the copy's README.md"
        raise UsageError(f"column {column} of {hub_id} declares no classes: {cure}")
    return [str(name) for name in names]


def labels_of(labels: Sequence[Any], declared: Sequence[str], where: str) -> tuple[np.ndarray, list[str]]:
    """Return the index of each row's class, and the names of the classes, which are declared.

    Raises:
        UsageError: a row has no label, or one that is not declared.
    """
    numbers = range(len(declared))
    for row, label in enumerate(labels):
        if label in numbers:
            continue
        allowed = f"each row needs one, from 0 to {len(declared) - 1}"
        if label is None or label != label:  # which is how NaN shows itself
            raise UsageError(f"row {row} of {where} has no label: {allowed}")
        if label == HIDDEN:
            what = f"has the label {label}, which stands for one that is hidden"
            raise UsageError(f"row {row} of {where} {what}: choose a split with labels; {allowed}")
        raise UsageError(f"row {row} of {where} has the label {label!r:.60}: {allowed}")
    return np.array(labels, dtype=np.int64), list(map(str, declared))


def causes(fault: BaseException) -> list[BaseException]:
    """Return an exception, what led to it, what led to that, and so on."""
    faults = [fault]
    cause = fault.__cause__ or fault.__context__
    while cause:
        faults.append(cause)
        cause = cause.__cause__ or cause.__context__
    return faults


def reason(fault: BaseException) -> str:
    """Return the first line of what an exception says at its root, without the system's number."""
    root = causes(fault)[-1]
    lines = lines_of(root)
    first = NUMBER.sub("", lines[0]) if lines else type(root).__name__
    return first.rstrip(".:")
