"""Contexts in which a run is made: they tell signals from faults, explain limits, and show notes to the person."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from normbench.errors import RunFailure, is_disk_full, is_out_of_memory
from normbench.stopping import hear_stops, stop_asked


@contextmanager
def blame_interrupts() -> Iterator[None]:
    """Let no KeyboardInterrupt of another origin inside the `with` pass for a signal; signals are heard there.

    Raises:
        RunFailure: a class raises KeyboardInterrupt, and nobody has stopped the run.
    """
    with hear_stops():
        try:
            yield
        except KeyboardInterrupt as error:
            if stop_asked():
                raise
            raise RunFailure("a class of the run raised KeyboardInterrupt, and nobody stopped it") from error


@contextmanager
def explain_limits(outputs: str, sizes: str = "model.context, model.width or model.depth") -> Iterator[None]:
    """Turn the system's errors about a full disk and too little memory into a sentence.

    Args:
        outputs: the folder of all results.
        sizes: the settings that make the model smaller, in words.

    Raises:
        RunFailure: instead of the system's error.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if is_disk_full(error):
            cure = "what was checkpointed is intact; make room, then give the same command to go on"
            raise RunFailure(f"the disk is full (outputs={outputs}): {cure}") from error
        if is_out_of_memory(error):
            raise RunFailure(f"out of memory: use a smaller data.batch_size, data.eval_batch_size, {sizes}") from error
        raise


@contextmanager
def show_notes(quiet: bool) -> Iterator[None]:
    """Show the person what the data part notes: that it fetches, decodes or repairs something, which takes time."""
    logger = logging.getLogger("normbench")
    handler = logging.StreamHandler(sys.stdout)
    if not quiet:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
