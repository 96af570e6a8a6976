"""Decoded data on disk: NumPy files that are made once, checked at each opening and memory-mapped."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from normbench.errors import RunFailure, UsageError, is_disk_full

FORMAT = 2  # goes up whenever the same source decodes to other arrays or facts
ATTEMPTS = 3  # to make a folder and read it, while other processes may take a damaged one away
LEFTOVER_SECONDS = 24 * 3600  # older temporary folders were left by killed processes
DAMAGE = (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, TokenError)

logger = logging.getLogger("normbench")


@dataclass(frozen=True)
class Content:
    """What a source decodes to: arrays by name, and what JSON can hold about them (class names, symbols)."""

    arrays: dict[str, Any]  # NumPy arrays, or what reads like one
    facts: dict[str, Any]


class Source(Protocol):
    """Where data come from.

    name: what people call the data set. kind: first word of the cache folder's name.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...

    def key(self) -> str:
        """Identifies the source's bytes and all that decides how they are decoded; cheap.

        Raises:
            UsageError: the source is not there.
        """

    def load(self) -> Content:
        """Decodes everything.

        Raises:
            UsageError: the source is damaged, or not what it should be.
        """

    def describe(self) -> dict[str, Any]:
        """Where the data come from, for the record; without local paths."""

    def open(self) -> tuple[Content, str]:
        """The decoded content, and its fingerprint."""


class Cached:
    """A source that is decoded once, into the cache."""

    def open(self: Source) -> tuple[Content, str]:
        return open_content(self)


def cache_folder() -> Path:
    """`$NORMBENCH_CACHE`, else `normbench` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    chosen = os.environ.get("NORMBENCH_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(chosen).expanduser() if chosen else Path(base).expanduser() / "normbench"
    except RuntimeError as fault:
        raise UsageError(f"no folder for the data cache ({fault}): set NORMBENCH_CACHE to a writable folder") from fault


def open_content(source: Source) -> tuple[Content, str]:
    """The decoded source, memory-mapped copy-on-write, and its fingerprint (sha256 of the decoded arrays).

    A hit reads every byte once to check its sha256: about 0.07 s for MNIST's 55 MB, 0.25 s for CIFAR-10's 184 MB.

    Raises:
        UsageError: from the source, or the cache folder cannot be written.
        RunFailure: the disk is full, or others take the folder away again and again.
    """
    key = hashlib.sha256(json.dumps([FORMAT, source.kind, source.key()]).encode()).hexdigest()
    folder = cache_folder() / f"{source.kind}-{key[:20]}"
    for _ in range(ATTEMPTS):
        if opened := read(folder):
            return opened
        make(source, folder)
        if opened := read(folder):
            return opened
    raise RunFailure(f"the data cache {folder} changes while it is read: set NORMBENCH_CACHE to a folder of your own")


def read(folder: Path) -> tuple[Content, str] | None:
    """The content in a cache folder and its fingerprint; None where there is none, or where it was damaged: it is gone.

    Raises:
        UsageError: it is damaged and cannot be taken away.
    """
    if not folder.exists():
        return None
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        digests = dict(sorted(meta["sha256"].items()))
        arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in digests}
        damaged = [name for name, array in arrays.items() if digest(array) != digests[name]]
        if damaged:
            raise ValueError(f"{damaged[0]}.npy is not what was written")
        return Content(arrays, dict(meta["facts"])), hashlib.sha256(json.dumps(digests).encode()).hexdigest()
    except DAMAGE as fault:
        logger.warning("the data cache %s is damaged (%s): made anew", folder, fault)
        discard(folder)
        return None


def digest(array: np.ndarray) -> str:
    """sha256 of an array's type, shape and values."""
    result = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    result.update(np.ascontiguousarray(array).data)
    return result.hexdigest()


def make(source: Source, folder: Path) -> None:
    """Decodes the source into `folder`."""
    with temporary_folder() as partial:
        logger.info("decoding %s once, into %s", source.name, folder)
        content = source.load()
        with written_to(folder.parent):
            write(content, partial)
            publish(partial, folder)


def write(content: Content, folder: Path) -> None:
    """One `.npy` file an array, then `meta.json`, all on the disk when this returns."""
    for name, array in content.arrays.items():
        with open(folder / f"{name}.npy", "wb") as file:  # np.save hides what the system says about a full disk
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            file.write(np.ascontiguousarray(array).data)
            file.flush()
            os.fsync(file.fileno())
    meta = {"facts": content.facts, "sha256": {name: digest(array) for name, array in content.arrays.items()}}
    with open(folder / "meta.json", "w", encoding="utf-8") as text:
        json.dump(meta, text)
        text.flush()
        os.fsync(text.fileno())


def discard(folder: Path) -> None:
    """Takes a damaged folder away, at one stroke for other processes; what they have mapped stays theirs."""
    aside = temporary_name(folder.parent)
    with written_to(folder.parent), suppress(FileNotFoundError):
        os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)


def publish(partial: Path, folder: Path) -> None:
    """Gives a finished folder its name; where another process was faster, its folder stays."""
    try:
        os.rename(partial, folder)
    except OSError as fault:
        if fault.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def temporary_name(parent: Path) -> Path:
    """A name that nobody else takes."""
    return parent / f".partial-{uuid4().hex}"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder beside the cache's own, gone at the end."""
    parent = cache_folder()
    folder = temporary_name(parent)
    with written_to(parent):
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(".partial-*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > LEFTOVER_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def written_to(folder: Path) -> Iterator[None]:
    """Says in a sentence why the cache cannot be written."""
    try:
        yield
    except OSError as fault:
        if is_disk_full(fault):
            raise RunFailure(
                f"no space left for the data cache {folder}: free some, or set NORMBENCH_CACHE to another disk"
            ) from fault
        raise UsageError(
            f"the data cache {folder} cannot be written ({fault.strerror}): set NORMBENCH_CACHE to a writable folder"
        ) from fault
