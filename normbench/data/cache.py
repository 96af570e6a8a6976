"""What data are decoded to: NumPy files that are made once, checked each time they are opened, and memory-mapped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normbench.errors import RunFailure, UsageError, is_disk_full
from normbench.folders import cache_folder
from normbench.types import Split

# Go up whenever the same source decodes to other arrays or facts; by kind, so that other kinds are not decoded again.
FORMATS = {"images": 4, "texts": 4, "pairs": 4, "text": 2, "stream": 2}
KINDS = "kinds"  # arrays that say which rows are equal, as `train_kinds`: they follow from the others
PERIOD = 10.0  # seconds between two lines on data that take long to decode
SPLITS: tuple[Split, ...] = ("train", "val", "test")
Decoded = tuple[Mapping[str, Any], Mapping[str, Any]]  # arrays by name, and what JSON can hold about them

logger = logging.getLogger("normbench")


@dataclass(frozen=True)
class Content:
    """Decoded data.

    Attributes:
        name: what people call the data set.
        about: where the data come from, for the record; without local paths.
        arrays: NumPy arrays by name, or what reads like one.
        facts: what JSON can hold about them (class names, symbols).
        fingerprint: a sha256 of what was decoded.
        check: raises if the data have changed; called before each reading.
    """

    name: str
    about: Mapping[str, Any]
    arrays: Mapping[str, Any]
    facts: Mapping[str, Any]
    fingerprint: str
    check: Callable[[], object] = lambda: None

    def by_split(self, of: str) -> dict[Split, Tensor]:
        """Return the arrays of this name by split, such as `train_labels` and `val_labels` of `labels`."""
        tensors: dict[Split, Tensor] = {}
        for split in SPLITS:
            name = f"{split}_{of}"
            if name in self.arrays:
                tensors[split] = torch.from_numpy(self.arrays[name])
        return tensors


def read_or_decode(
    name: str,
    kind: str,
    key: Any,
    load: Callable[[], Decoded],
    reach: Callable[[], object] = lambda: None,
    **about: Any,
) -> Content:
    """Return decoded data from the cache, memory-mapped copy-on-write; what is not there is decoded first.

    All bytes are read once to check their sha256: about 0.07 s for MNIST's 55 MB, 0.25 s for CIFAR-10's 184 MB.

    Args:
        name, about: of the content.
        kind: first word of the cache folder's name.
        key: identifies the source's bytes and all that decides how they are decoded, as JSON can hold it.
        load: decodes everything.
        reach: raises where the source cannot be reached; called before anything is said of decoding it.

    Raises:
        UsageError: from `load` or `reach`, or the cache folder cannot be written.
        RunFailure: the disk is full, or the cache is damaged.
    """
    whole_key = json.dumps([FORMATS[kind], kind, json.dumps(key)])
    identity = hashlib.sha256(whole_key.encode()).hexdigest()
    folder = cache_folder() / f"{kind}-{identity[:20]}"
    if not folder.exists():
        reach()
        logger.info("decoding %s once, into %s", name, folder)
        with tell_the_time(f"decoding {name}"):
            publish(*load(), folder)
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        digests = dict(sorted(meta["sha256"].items()))
        arrays: dict[str, np.ndarray] = {}
        for array in digests:
            arrays[array] = np.asarray(np.load(folder / f"{array}.npy", mmap_mode="c"))
            if digest(arrays[array]) != digests[array]:
                raise ValueError("its bytes are not those that were written")
        return Content(name, about, arrays, meta["facts"], fingerprint_of(digests))
    except Exception as fault:  # on damaged files NumPy's and JSON's readers raise nearly anything
        cure = "remove it, and it will be made again"
        raise RunFailure(f"the data cache {folder} is damaged ({fault}): {cure}") from fault


@contextmanager
def tell_the_time(what: str) -> Iterator[None]:
    """Say every few seconds that something still goes on, and for how long: it fetches, learns words or decodes."""
    begun = time.monotonic()
    ended = Event()

    def tell() -> None:
        while not ended.wait(PERIOD):
            logger.info("still %s, after %.0f s", what, time.monotonic() - begun)

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def publish(arrays: Mapping[str, Any], facts: Mapping[str, Any], folder: Path) -> None:
    """Write a cache folder: under its name it is complete, or not there. A folder of a faster process stays.

    What a power cut loses is noticed when the folder is opened.

    Raises:
        UsageError: it cannot be written.
        RunFailure: the disk is full.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".partial-", dir=folder.parent) as partial:
            complete = Path(partial, folder.name)  # a folder with the usual permissions, unlike the temporary one
            complete.mkdir()
            for name, array in arrays.items():
                write_array(complete / f"{name}.npy", array)
            digests = {name: digest(array) for name, array in arrays.items()}
            (complete / "meta.json").write_text(json.dumps({"facts": facts, "sha256": digests}))
            os.rename(complete, folder)
    except OSError as fault:
        if folder.exists():
            return
        error = RunFailure if is_disk_full(fault) else UsageError
        cure = "set NORMBENCH_CACHE to a folder on a disk with enough space"
        raise error(f"the data cache {folder} cannot be written ({fault.strerror}): {cure}") from fault


def write_array(path: Path, array: np.ndarray) -> None:
    """Write an array as np.save does, which would hide what the system says of a full disk."""
    header = np.lib.format.header_data_from_array_1_0(array)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(array).data)


def fingerprint_of(digests: Mapping[str, str]) -> str:
    """Return the fingerprint of data, from the sha256 of each array but those that say which rows are equal."""
    counted = {name: of_array for name, of_array in digests.items() if not name.endswith(f"_{KINDS}")}
    of_arrays = json.dumps(dict(sorted(counted.items())))
    return hashlib.sha256(of_arrays.encode()).hexdigest()


def fingerprint_arrays(arrays: Mapping[str, Any]) -> str:
    """Return the fingerprint that data have of which these are the arrays."""
    return fingerprint_of({name: digest(array) for name, array in arrays.items()})


def digest(array: np.ndarray) -> str:
    """Return the sha256 of an array's type, shape and values."""
    form = f"{array.dtype.str} {array.shape}"
    result = hashlib.sha256(form.encode())
    result.update(np.ascontiguousarray(array).data)
    return result.hexdigest()


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
