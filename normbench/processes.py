"""How the processes that a command starts for itself begin."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent(parent: int) -> None:
    """Let this process be killed when the one that started it ends, in whatever way; on Linux only.

    parent: that process, which may have ended already. Its thread that started this one must not end before.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def begin_trial(parent: int) -> None:
    """Let this process, which may well crash, leave no core file, and end with the one that waits for it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    end_with_parent(parent)
