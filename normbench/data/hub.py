"""Repositories of the Hugging Face hub: read from the hub itself, or from local copies in its layout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from normbench.data.cache import file_digest, logger
from normbench.errors import RunFailure, UsageError, is_disk_full

if TYPE_CHECKING:
    import datasets
    import pyarrow

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

    def files(self) -> list[Path]:
        """Return the local copy's Parquet files.

        Raises:
            UsageError: there is no local copy.
        """
        assert self.folder is not None
        files = sorted(self.folder.rglob("*.parquet"))
        if not files:
            missing = "has no Parquet file" if self.folder.is_dir() else "does not exist"
            raise UsageError(
                f"no copy of {self.hub_id} in data.root={self.root} ({self.folder} {missing}): {OTHERWISE}"
            )
        return files

    def key(self) -> list[Any]:
        """Return the local copy's files with their sha256, or the hub's revision.

        The copy's README counts, as it says which split a file makes.
        """
        if self.folder is None:
            return [f"hub:{self.hub_id}@{self.revision}", self.config]
        readme = self.folder / "README.md"
        files = [*self.files(), *([readme] if readme.exists() else [])]
        return [*([str(path.relative_to(self.folder)), file_digest(path)] for path in files), self.config]

    def read(self, splits: Sequence[str], columns: Sequence[str]) -> tuple[Mapping[str, Any], dict[str, pyarrow.Table]]:
        """Return what each column declares itself to be, and these columns of the splits, as they are stored.

        `datasets` is imported here: that takes over a second, and a cache hit needs it not. A local copy is streamed,
        which leaves no second copy in the cache of `datasets`.

        Raises:
            UsageError: the repository cannot be reached or read, or a split or column is missing.
            RunFailure: the disk is full.
        """
        import datasets

        silence()
        with self.explained(), TemporaryDirectory() as scratch:  # `datasets` leaves a lock file there
            if self.folder is None:
                self.reach()
                loaded = datasets.load_dataset(self.hub_id, self.config, revision=self.revision)
            else:
                loaded = datasets.load_dataset(str(self.folder), self.config, streaming=True, cache_dir=scratch)
            tables = {split: self.table(loaded, split, columns) for split in splits}
        return loaded[splits[0]].features, tables

    def table(self, loaded: datasets.DatasetDict, split: str, columns: Sequence[str]) -> pyarrow.Table:
        """Return columns of a split.

        Raises:
            UsageError: one of them or the split is not there.
        """
        import pyarrow

        if split not in loaded:
            known = ", ".join(loaded)
            raise UsageError(
                f"{self.hub_id} has no split {split} (splits: {known}): choose another, or complete the copy"
            )
        known = loaded[split].column_names
        for column in columns:
            if column not in known:
                raise UsageError(
                    f"{self.hub_id} has no column {column} in the split {split} (columns: {', '.join(known)}): "
                    "name the right ones (data.text_column, or data.image_column and data.label_column)"
                )
        rows = loaded[split].select_columns(list(dict.fromkeys(columns))).with_format("arrow")
        return pyarrow.concat_tables(list(rows.iter(batch_size=READ_ROWS)))

    def reach(self) -> None:
        """Send one request, so that a machine without a network hears at once, not after half a minute of retries."""
        import huggingface_hub
        from huggingface_hub.errors import OfflineModeIsEnabled

        logger.info("fetching %s from the hub", self.hub_id)
        try:
            huggingface_hub.HfApi().dataset_info(self.hub_id, revision=self.revision, timeout=10)
        except OfflineModeIsEnabled:
            return  # load_dataset then looks into its own cache
        except Exception as fault:  # the HTTP library's errors are not to be relied on
            raise UsageError(f"{self.hub_id} cannot be fetched from the hub ({reason(fault)}): {OTHERWISE}") from fault

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say in a sentence what stopped `datasets`; YAML's, Arrow's, HTTP's and its errors have no common class."""
        try:
            yield
        except (UsageError, MemoryError):
            raise
        except Exception as fault:  # no common class, see above
            if any(map(is_disk_full, causes(fault))):
                raise RunFailure(
                    f"no space left to fetch {self.hub_id}: free some, or set HF_HOME to another disk"
                ) from fault
            damaged = [file for file in self.files() if is_damaged(file)] if self.folder else []
            if damaged:
                raise UsageError(
                    f"{damaged[0]} is not a whole Parquet file ({reason(fault)}): fetch it again"
                ) from fault
            where = self.folder or f"{self.hub_id} on the hub"
            raise UsageError(f"{where} cannot be loaded ({reason(fault)}): {OTHERWISE}") from fault


def is_damaged(path: Path) -> bool:
    """Tell whether a Parquet file cannot be read to its end."""
    import pyarrow.parquet

    try:
        pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException):
        return True
    return False


def silence() -> None:
    """Switch off progress bars and retries on the console: the run has its own display."""
    import datasets
    import huggingface_hub

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    huggingface_hub.utils.disable_progress_bars()
    huggingface_hub.logging.set_verbosity_error()


def causes(fault: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and what led to it."""
    while fault is not None:
        yield fault
        fault = fault.__cause__ or fault.__context__


def reason(fault: BaseException) -> str:
    """Return the first line of what an exception says at its root."""
    root = list(causes(fault))[-1]
    return (str(root).strip().splitlines() or [type(root).__name__])[0].rstrip(".:")
