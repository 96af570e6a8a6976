"""From run directories to statistics, figures and a report; nothing here knows a model."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from normbench.processes import end_with_parent

PATIENCE = 60.0  # seconds for which the other process may still be at work when its result is waited for


def beside(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin work in a forked process, which has all that is in memory; return what waits for its result.

    It is done here, when it is waited for, where there is one core or another thread, and where that process dies or
    gives nothing for a minute.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
        return work
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    waiting = os.getpid()

    def send() -> None:
        os.setsid()  # Ctrl-C is for the one that waits
        end_with_parent(waiting)
        here.close()  # else nobody tells this process that nobody reads
        there.send(work())

    process = fork.Process(target=send, daemon=True)

    def result() -> Any:
        with suppress(EOFError, OSError):  # nothing has come, or a part
            if here.poll(PATIENCE):
                return here.recv()
            process.kill()
        return work()

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of a library's threads, not used here
        process.start()
    there.close()
    return result
