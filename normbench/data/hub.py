"""What the library `datasets` reads: repositories of the Hugging Face hub, local copies of them, and own tables."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from normbench.data.cache import file_digest, logger
from normbench.errors import RunFailure, UsageError, is_disk_full

Tables = dict[str, dict[str, list[Any]]]  # by split and column

READ_ROWS = 4096  # rows that are read at once
OTHERWISE = (
    "set data.root or NORMBENCH_DATA to a folder that holds copies in the hub's layout (ROOT/owner/name/…/*.parquet), "
    "or use data=pydocs or data=digits, which need none"
)


@dataclass(frozen=True)
class Hub:
    """A repository of a data set.

    hub_id: `owner/name`.
    revision: branch, tag or commit on the hub; says nothing about a local copy.
    root: folder with local copies in the hub's layout, relative to the current one; None or empty: the hub.
    config: which of the repository's configurations, where it has several.
    """

    hub_id: str
    revision: str = "main"
    root: str | None = None
    config: str | None = None

    @property
    def folder(self) -> Path | None:
        """The local copy's folder."""
        return Path(os.path.expanduser(self.root)) / self.hub_id if self.root else None

    def key(self) -> list[Any]:
        """Return the local copy's files with their sha256, or the hub's revision.

        The copy's README counts, as it says which split a file makes.

        Raises:
            UsageError: there is no local copy.
        """
        if self.folder is None:
            return [f"hub:{self.hub_id}@{self.revision}", self.config]
        files = sorted(self.folder.rglob("*.parquet"))
        if not files:
            raise UsageError(f"no copy of {self.hub_id} in data.root={self.root}: {OTHERWISE}")
        files += [file for file in [self.folder / "README.md"] if file.exists()]
        return [*([str(file.relative_to(self.folder)), file_digest(file)] for file in files), self.config]

    def read(self, splits: Sequence[str], columns: Sequence[str]) -> tuple[Mapping[str, Any], Tables]:
        """Return what each column declares itself to be, and these columns of the splits, as they are stored.

        Raises:
            UsageError: the repository cannot be reached or read, or a split or column is missing.
            RunFailure: the disk is full.
        """
        options = {"streaming": True} if self.folder else {"revision": self.revision}
        repository = str(self.folder or self.hub_id)
        return read_tables(self.hub_id, OTHERWISE, splits, columns, repository, name=self.config, **options)


def read_tables(
    where: str, cure: str, splits: Sequence[str], columns: Sequence[str], kind: str, **options: Any
) -> tuple[Mapping[str, Any], Tables]:
    """Return what each column declares itself to be, and these columns of the splits, as they are stored.

    `datasets` is imported here: that takes over a second, and a cache hit needs it not. What lies on this machine is
    streamed, or copied into a temporary folder: it leaves no second copy in the cache of `datasets`.

    Args:
        where, cure: what to call the data in an error, and what else could be used.
        splits, columns: what is read.
        kind, options: of `datasets.load_dataset`.

    Raises:
        UsageError: the data cannot be read, or a split or column is missing.
        RunFailure: the disk is full.
    """
    import datasets
    import pyarrow

    datasets.disable_progress_bars()  # the run has its own display
    for name in ("datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logger.info("reading %s", where)
    try:
        with TemporaryDirectory() as scratch:
            cache = {} if "revision" in options else {"cache_dir": scratch}
            loaded = datasets.load_dataset(kind, **options, **cache)
            features = next(iter(loaded.values())).features
            for name, known in (("split", loaded), ("column", features)):
                missing = [each for each in (splits if name == "split" else columns) if each not in known]
                if missing:
                    raise UsageError(
                        f"{where} has no {name} {missing[0]} ({name}s: {', '.join(known):.200}): name the right ones "
                        "with data.text_column, data.image_column, data.label_column and the like"
                    )
            tables = {}
            for split in splits:
                rows = loaded[split].select_columns(list(dict.fromkeys(columns))).with_format("arrow")
                tables[split] = pyarrow.concat_tables(list(rows.iter(batch_size=READ_ROWS))).to_pydict()
            return features, tables
    except (UsageError, MemoryError):
        raise
    except Exception as fault:  # YAML's, Arrow's, HTTP's and its own errors have no common class
        error = RunFailure if any(map(is_disk_full, causes(fault))) else UsageError
        raise error(f"{where} cannot be read ({reason(fault):.200}): {cure}") from fault


def causes(fault: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and what led to it."""
    while fault is not None:
        yield fault
        fault = fault.__cause__ or fault.__context__


def reason(fault: BaseException) -> str:
    """Return the first line of what an exception says at its root."""
    root = list(causes(fault))[-1]
    return (str(root).strip().splitlines() or [type(root).__name__])[0].rstrip(".:")
