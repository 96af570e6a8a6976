"""GPUs are handed out one a run: a lock for each, which the system gives back when its holder ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

WAIT_SECONDS = 0.5


def devices_to_hand_out(device: str, gpus: int, jobs: int | None = None) -> tuple[str, ...]:
    """The devices that runs take turns on; none where each run takes the one that is set.

    A single GPU is shared by as many runs as are asked for, and by default has one at a time.

    Args:
        device: that a run takes: cpu, cuda, cuda:N or mps.
        gpus: CUDA devices of this machine.
        jobs: runs at a time, as they were asked for.
    """
    if device == "cpu":
        return ()
    found = tuple(f"cuda:{number}" for number in range(gpus)) if device == "cuda" else (device,)
    return found if len(found) > 1 or jobs in (None, 1) else ()


@contextmanager
def handed_out(devices: Sequence[str], folder: Path | None = None) -> Iterator[str | None]:
    """Hold one of the devices, the first that is free; None where there are none to hand out.

    Args:
        devices: such as cuda:0, cuda:1.
        folder: where the locks are; by default one that all sweeps of this user on this machine share.
    """
    if not devices:
        yield None
        return
    folder = folder or Path(tempfile.gettempdir()) / f"normbench-devices-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        files = {device: stack.enter_context(open(folder / device.replace(":", "-"), "w")) for device in devices}
        yield first_free({device: file.fileno() for device, file in files.items()})


def first_free(descriptors: dict[str, int]) -> str:
    """Lock the first device that nobody else holds; waits for one."""
    while True:
        for device, descriptor in descriptors.items():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return device
            except BlockingIOError:
                continue
        time.sleep(WAIT_SECONDS)
