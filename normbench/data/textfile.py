"""A person's own text file, read where it lies, however large it is."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normbench.data.cache import Content
from normbench.data.vocabulary import Bytes
from normbench.errors import UsageError

CHUNK = 1 << 20  # bytes that are looked at at once
MOST_VAL = 1_000_000  # more bytes of validation cost time and tell nothing more


class FileBytes:
    """Bytes of a file from `start` on, as an array that is never read whole.

    It is mapped anew at each reading: pages that were once touched do not stay in the process.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, start: int, length: int) -> None:
        self.path, self.start, self.length = path, start, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        """A part of the file for a slice, the bytes themselves for an array of places."""
        if isinstance(index, slice):
            start, stop, _ = index.indices(self.length)
            return FileBytes(self.path, self.start + start, max(0, stop - start))
        return np.asarray(np.memmap(self.path, self.dtype, "r", self.start, (self.length,)))[index]


@dataclass(frozen=True)
class TextFile:
    """A text file of any size, by bytes; its last tenth validates, but no more than its last 1,000,000 bytes."""

    name: str
    path: Path
    kind = "text"

    def key(self) -> str:
        """Identifies the file; it is not cached."""
        return str(self.path)

    def load(self) -> Content:
        return self.open()[0]

    def open(self) -> tuple[Content, str]:
        """The file's two parts and its sha256.

        Raises:
            UsageError: it is not there, empty, no text, or all one byte.
        """
        size, digest = inspect(self.path)
        cut = size - min(size // 10, MOST_VAL)
        return Content(
            {"train": FileBytes(self.path, 0, cut), "val": FileBytes(self.path, cut, size - cut)}, {}
        ), digest

    def vocabulary(self, facts: Mapping[str, Any]) -> Bytes:
        """All bytes."""
        return Bytes()

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "file": self.path.name}


def inspect(path: Path) -> tuple[int, str]:
    """Size and sha256 of a text file, read once from end to end.

    Raises:
        UsageError: what it is, and what it should be.
    """
    decoder, digest = codecs.getincrementaldecoder("utf-8")(), hashlib.sha256()
    size, seen = 0, np.zeros(256, dtype=bool)
    try:
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                decoder.decode(chunk)
                seen |= np.bincount(np.frombuffer(chunk, np.uint8), minlength=256) > 0
                size += len(chunk)
            decoder.decode(b"", final=True)
    except OSError as fault:
        raise UsageError(f"data.path={path} cannot be read ({fault.strerror}): give a text file") from fault
    except UnicodeDecodeError as fault:
        place = size + fault.start
        raise UsageError(
            f"data.path={path} is no text: byte {place:,} is not UTF-8; give a text file, or convert it to UTF-8"
        ) from fault
    if seen[0]:
        raise UsageError(f"data.path={path} is no text but binary (it has zero bytes): give a text file")
    if not size:
        raise UsageError(f"data.path={path} is empty: give a text file with something in it")
    if seen.sum() < 2:
        raise UsageError(
            f"data.path={path} has a vocabulary of 1: nothing can be learned from one byte, give another text"
        )
    return size, digest.hexdigest()


def given(path: str | None) -> Path:
    """The file that `data.path` names.

    Raises:
        UsageError: it names none.
    """
    if not path:
        raise UsageError("data.path is not set: give the file, such as data.path=my.txt")
    return Path(path).expanduser()
