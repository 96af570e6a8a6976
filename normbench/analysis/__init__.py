"""From run directories to statistics, figures and a report; nothing here knows a model."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any


def beside(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin work in a forked process, which has all that is in memory; return what waits for its result.

    It is done here where there is one core or another thread, and done again where that process dies or the work raises.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
        return work
    here, there = os.pipe()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of other threads: they are not used
        child = os.fork()
    if not child:
        try:
            with open(there, "wb") as pipe:
                pickle.dump(work(), pipe, pickle.HIGHEST_PROTOCOL)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(there)
    answer = open(here, "rb")  # noqa: SIM115 (closed by result; or with it, where nobody asks)

    def result() -> Any:
        with answer:
            content = answer.read()
        return work() if os.waitpid(child, 0)[1] else pickle.loads(content)

    return result
