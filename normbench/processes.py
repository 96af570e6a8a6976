"""How the processes that a command starts for itself begin, and the cores that they have."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1  # prctl(2)
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of CPU in each period, or max
OLD_CPU_QUOTA = Path("/sys/fs/cgroup/cpu")  # where cgroup v1 has them, in a file each; -1: no quota


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


def cores() -> int:
    """Return the number of cores that this process may use: those it is bound to, or its container's share of them."""
    if sys.platform == "linux":
        bound = len(os.sched_getaffinity(0))
    else:
        bound = os.cpu_count() or 1
    quota, period = cpu_quota()
    if quota <= 0:
        return bound
    return min(bound, math.ceil(quota / period))


def cpu_quota() -> tuple[int, int]:
    """Return what a container has of each period, and the period, in microseconds of CPU; without a quota -1 and 1."""
    if CPU_QUOTA.is_file():
        quota, _, period = CPU_QUOTA.read_text("ascii").partition(" ")
        return (-1, 1) if quota == "max" else (int(quota), int(period))
    old_quota = OLD_CPU_QUOTA / "cpu.cfs_quota_us"
    old_period = OLD_CPU_QUOTA / "cpu.cfs_period_us"
    if old_quota.is_file():
        return int(old_quota.read_text("ascii")), int(old_period.read_text("ascii"))
    return -1, 1
