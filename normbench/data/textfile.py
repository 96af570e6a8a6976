"""A person's own text file, read where it lies, however large it is."""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from normbench.data.cache import Content
from normbench.data.vocabulary import Bytes
from normbench.errors import RunFailure, UsageError

CHUNK = 1 << 20  # bytes that are looked at at once
MOST_VAL = 1_000_000  # more bytes of validation cost time and tell nothing more


class Stamp(NamedTuple):
    """What changes when a file does: length in bytes, time of the last change in nanoseconds, inode."""

    size: int
    changed: int
    inode: int

    @classmethod
    def of(cls, file: IO[bytes]) -> Stamp:
        """An open file's."""
        status = os.fstat(file.fileno())
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class FileBytes:
    """Bytes of a file from `start` on, as an array that is never read whole.

    It is mapped anew at each reading: pages that were once touched do not stay in the process. Each reading makes sure
    that the file is still the one that was inspected, when it had this `stamp`.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, stamp: Stamp, start: int, length: int) -> None:
        self.path, self.stamp, self.start, self.length = path, stamp, start, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        """A part of the file for a slice, the bytes themselves for an array of places.

        Raises:
            RunFailure: the file is another than it was.
        """
        if isinstance(index, slice):
            start, stop, _ = index.indices(self.length)
            return FileBytes(self.path, self.stamp, self.start + start, max(0, stop - start))
        try:
            with open(self.path, "rb") as file:
                if Stamp.of(file) == self.stamp:
                    return np.asarray(np.memmap(file, self.dtype, "r", self.start, (self.length,)))[index]
        except OSError as fault:
            raise self.lost(f"went out of reach ({fault.strerror})") from fault
        raise self.lost("changed")

    def lost(self, how: str) -> RunFailure:
        """The sentence for a file that is no longer what was inspected."""
        return RunFailure(
            f"data.path={self.path} {how} while the run read it: put it back as it was and give the same command to go "
            "on, or leave it as it is and give the same command for a run on the new text"
        )


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
        stamp, digest = inspect(self.path)
        whole = FileBytes(self.path, stamp, 0, stamp.size)
        cut = stamp.size - min(stamp.size // 10, MOST_VAL)
        return Content({"train": whole[:cut], "val": whole[cut:]}, {}), digest

    def vocabulary(self, facts: Mapping[str, Any]) -> Bytes:
        """All bytes."""
        return Bytes()

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "file": self.path.name}


def inspect(path: Path) -> tuple[Stamp, str]:
    """Stamp and sha256 of a text file, read once from end to end.

    Raises:
        UsageError: what it is, and what it should be.
    """
    decoder, digest = codecs.getincrementaldecoder("utf-8")(), hashlib.sha256()
    size, seen = 0, np.zeros(256, dtype=bool)
    try:
        with open(path, "rb") as file:
            stamp = Stamp.of(file)
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
    if size != stamp.size:  # somebody writes to it, or it is a pipe
        raise UsageError(f"data.path={path} does not keep its size: give a text file that stays as it is")
    if seen[0]:
        raise UsageError(f"data.path={path} is no text but binary (it has zero bytes): give a text file")
    if not size:
        raise UsageError(f"data.path={path} is empty: give a text file with something in it")
    if seen.sum() < 2:
        raise UsageError(
            f"data.path={path} has a vocabulary of 1: nothing can be learned from one byte, give another text"
        )
    return stamp, digest.hexdigest()


def given(path: str | None) -> Path:
    """The file that `data.path` names.

    Raises:
        UsageError: it names none, or one in the home folder of somebody unknown.
    """
    if not path:
        raise UsageError("data.path is not set: give the file, such as data.path=my.txt")
    try:
        return Path(path).expanduser()
    except RuntimeError as fault:
        reason = str(fault).rstrip(".")
        raise UsageError(f"data.path={path:.100} cannot be read ({reason}): give a text file") from fault
