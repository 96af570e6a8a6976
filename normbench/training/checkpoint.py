"""Checkpoints that are whole, checked on reading, and load without running code."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from normbench.record.directory import RunDirectory
from normbench.record.files import write_atomically

State = dict[str, Any]

DIGEST_SIZE = hashlib.sha256().digest_size  # bytes, at the end of the file: the digest of all before them


def write(state: State, file: IO[bytes]) -> None:
    """Write a state as torch.save does, and a digest at the end, which torch.load does not mind.

    Raises:
        OSError: the disk is full.
    """
    try:
        torch.save(state, file)
    except RuntimeError as error:
        raise error.__context__ or error from None  # where a write failed, torch tells that it did, not why
    file.flush()
    with open(file.name, "rb") as written:
        file.write(hashlib.file_digest(written, "sha256").digest())


def is_whole(path: Path) -> bool:
    """Tell whether a file ends with the digest of the rest of it.

    torch looks at no checksum when it reads, and the archive's own do not cover all of it.
    """
    if path.stat().st_size <= DIGEST_SIZE:
        return False
    content = np.memmap(path, mode="r").data
    state = content[:-DIGEST_SIZE]
    written = content[-DIGEST_SIZE:].tobytes()
    return hashlib.sha256(state).digest() == written


def read(path: Path) -> State:
    """Return the state in a file; only tensors and plain containers are loaded, no code is run.

    Raises:
        ValueError: the file is not as it was written, or it holds anything else.
    """
    if not is_whole(path):
        raise ValueError(f"{path.name} is damaged (its checksum does not match)")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path.name} is not a checkpoint of normbench") from error


class Checkpoints:
    """The last checkpoint of a run, the one before it, and the weights of the lowest validation loss."""

    def __init__(self, directory: RunDirectory) -> None:
        self.current = directory.checkpoint
        self.previous = directory.previous
        self.best = directory.best
        self.writes = directory.writes
        self.current_is_good = True

    def save(self, state: State) -> None:
        """Write the state as the current checkpoint; the old current one, unless damaged, becomes the previous one.

        Raises:
            OSError: the disk is full; both older files stay as they were.
        """
        if self.writes:
            keep = self.previous if self.current_is_good else None
            write_atomically(self.current, partial(write, state), keep=keep)
            self.current_is_good = True

    def save_best(self, state: State) -> None:
        """Keep the state of the lowest validation loss."""
        if self.writes:
            write_atomically(self.best, partial(write, state))

    def steps(self) -> list[int]:
        """Return the steps at which a run may go on: those of whole checkpoints, and 0 where there are not two."""
        steps = []
        for path in (self.current, self.previous):
            with suppress(OSError, ValueError):
                steps.append(read(path)["step"])
        return steps if len(steps) == 2 else [*steps, 0]

    def go_back(self, step: int) -> None:
        """Remove the checkpoints of later steps than one of `steps`."""
        for path in (self.current, self.previous):
            with suppress(OSError, ValueError):
                if read(path)["step"] > step:
                    path.unlink()

    def load(self, say: Callable[[str], None], best: bool = False) -> State | None:
        """Return the newest state that is whole, or the best, or None; what is damaged is named through `say`."""
        wanted = [self.best] if best else [self.current, self.previous]
        existing = [path for path in wanted if path.exists()]
        for path in existing:
            try:
                return read(path)
            except ValueError as error:
                if path == self.current:
                    self.current_is_good = False
                if path != existing[-1]:
                    say(f"{error}: the one before it is used")
                else:
                    say(f"{error}: no other is left, the run starts from the beginning")
        return None
