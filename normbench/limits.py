"""What the machine refuses, disk space and memory, in one sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from normbench.errors import RunFailure, is_disk_full

# torch raises a plain RuntimeError for the CPU's memory, and on some devices.
OUT_OF_MEMORY = ("DefaultCPUAllocator", "out of memory", "bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on the CPU or a GPU."""
    if isinstance(error, RuntimeError):
        return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)
    return isinstance(error, MemoryError)


@contextmanager
def named(outputs: str) -> Iterator[None]:
    """Turn a full disk and too little memory into a sentence.

    Raises:
        RunFailure: instead of the system's error.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if is_disk_full(error):
            raise RunFailure(
                f"the disk is full (outputs={outputs}): what was checkpointed is intact; make room, then give the same "
                "command to go on"
            ) from error
        if is_out_of_memory(error):
            raise RunFailure(
                "out of memory: use a smaller data.batch_size, data.eval_batch_size, model.context, model.width or "
                "model.depth"
            ) from error
        raise
