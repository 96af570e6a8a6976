"""Repositories of the Hugging Face hub and local copies of them, which the library `datasets` reads."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normbench.data.cache import file_digest, logger
from normbench.errors import RunFailure, UsageError, is_disk_full

OTHERWISE = (
    "name a repository with these splits and columns, set data.root or NORMBENCH_DATA to a folder that holds copies in "
    "the hub's layout (ROOT/owner/name/…/*.parquet), or use data=pydocs or data=digits, which need none"
)


@dataclass(frozen=True)
class Hub:
    """A repository of a data set.

    hub_id: `owner/name`.
    revision: branch, tag or commit on the hub; says nothing about a local copy.
    root: folder with local copies in the hub's layout, relative to the current one; None or empty: the hub.
    config: which of the repository's configurations, where it has several.
    folder: of the repository, to which it is narrowed where no configuration names the files that are wanted.
    """

    hub_id: str
    revision: str
    root: str | None
    config: str | None
    folder: str | None = None

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
        return [*([str(file.relative_to(folder)), file_digest(file)] for file in files), *chosen]

    def read(self, splits: Sequence[str], columns: Sequence[str], text: str = "") -> tuple[Any, dict[str, Any]]:
        """Return what each column declares itself to be, and lists of these columns' values by split and column.

        `datasets` is imported here: that takes over a second, and a cache hit needs it not. A local copy is streamed,
        so that it leaves no second copy in the cache of `datasets`.

        Raises:
            UsageError: the repository cannot be reached or read, a split or column is missing, or that of `text` holds
                something else.
            RunFailure: the disk is full.
        """
        import datasets
        import pyarrow

        datasets.disable_progress_bars()  # the run has its own display
        for name in ("datasets", "huggingface_hub"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logger.info("reading %s", self.hub_id)
        place = os.path.join(os.path.expanduser(self.root or ""), self.hub_id)
        options: dict[str, Any] = {"streaming": True} if self.root else {"revision": self.revision}
        options |= {"data_dir": self.folder} if self.folder else {}
        try:
            loaded = datasets.load_dataset(place, name=self.config, **options)
            features = next(iter(loaded.values())).features
            for wanted, known in ((splits, loaded), (columns, features)):
                if missing := [each for each in wanted if each not in known]:
                    raise LookupError(f"it has no {missing[0]}, but {', '.join(known)}")
            tables = {}
            for split in splits:
                rows = loaded[split].select_columns(list(dict.fromkeys(columns))).with_format("arrow")
                tables[split] = pyarrow.concat_tables(list(rows.iter(batch_size=4096))).to_pydict()
                if not all(isinstance(row, str) for row in tables[split].get(text, ())):
                    raise TypeError(f"its {text} is not always text, set data.text_column")
            return features, tables
        except MemoryError:
            raise
        except Exception as fault:  # YAML's, Arrow's, HTTP's and its own errors have no common class
            error = RunFailure if any(map(is_disk_full, causes(fault))) else UsageError
            raise error(f"{self.hub_id} cannot be read ({reason(fault):.250}): {OTHERWISE}") from fault


def causes(fault: BaseException) -> list[BaseException]:
    """Return an exception, and one after another what led to it."""
    return [fault, *(causes(cause) if (cause := fault.__cause__ or fault.__context__) else ())]


def reason(fault: BaseException) -> str:
    """Return the first line of what an exception says at its root."""
    root = causes(fault)[-1]
    return (str(root).strip().splitlines() or [type(root).__name__])[0].rstrip(".:")
