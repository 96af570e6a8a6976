"""A run's TensorBoard event file: which one it is, and cutting it back for a continuation."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tensorboard.compat.proto.event_pb2 import Event

from normbench.recording.events import is_header, version_event
from normbench.recording.records import frame, read_records
from normbench.rundir import sync_directory, write_atomically

PREFIX = "events.out.tfevents."


def event_files(directory: Path) -> list[Path]:
    """The directory's event files, oldest first."""
    return sorted(directory.glob(f"{PREFIX}*"))


def new_event_file(directory: Path) -> Path:
    """A name that sorts behind those of the directory, as TensorBoard reads files in this order."""
    seconds = [int(path.name.removeprefix(PREFIX).split(".")[0]) for path in event_files(directory)]
    now = max([int(time.time()), *(second + 1 for second in seconds)])
    return directory / f"{PREFIX}{now:010d}.{socket.gethostname()}.{os.getpid()}"


def truncate_events(directory: Path, last_step: int) -> None:
    """Make the directory's event files one, with the steps up to `last_step` and no step twice (atomically).

    A last record torn by a kill is dropped. So are layout, texts and hyperparameters: whoever goes on writes them
    anew, as at a first start, and they are then those of the run as it is now. The file gets a new name, from
    which a TensorBoard already open (with its default data server) sees that it has to read anew. Without event files
    nothing happens.

    Raises:
        OSError: the disk is full; the files are as before.
    """
    for stale in directory.glob(f".{PREFIX}*"):  # left by a kill in here; TensorBoard would read it
        stale.unlink()
    old = event_files(directory)
    if not old:
        return

    def write(file: IO[bytes]) -> None:
        file.write(frame(version_event().SerializeToString()))
        file.writelines(map(frame, _records_until(old, last_step)))

    write_atomically(new_event_file(directory), write)
    for path in old:
        path.unlink()
    sync_directory(directory)


def _records_until(files: list[Path], last_step: int) -> Iterator[bytes]:
    """Serialized events with steps; where two files hold the same steps, the later file's."""
    ends = [last_step + 1]
    for path in reversed(files[1:]):
        ends.append(min(ends[-1], _first_step(path, ends[-1])))
    for path, end in zip(files, reversed(ends), strict=True):
        for record in read_records(path):
            event = Event.FromString(record)
            if event.HasField("summary") and event.step < end and not is_header(event):
                yield record


def _first_step(path: Path, default: int) -> int:
    """The step of the file's first numbers."""
    for record in read_records(path):
        event = Event.FromString(record)
        if event.HasField("summary") and not is_header(event):
            return event.step
    return default
