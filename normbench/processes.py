"""How the processes that a command starts for itself begin, and the cores that they have."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from normbench.stopping import THREAD

PR_SET_PDEATHSIG = 1  # prctl(2)
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of CPU in each period, or max
OLD_CPU_QUOTA = Path("/sys/fs/cgroup/cpu")  # where cgroup v1 has them, in a file each; -1: no quota
PATIENCE = 60.0  # seconds for which the other process may still be at work when its result is waited for

Result = TypeVar("Result")


def end_with_parent(parent: int) -> None:
    """Let this process be killed when the one that started it ends, in whatever way; on Linux only.

    Args:
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


def run_beside(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin work in a forked process, which has all that is in memory; return what waits for its result.

    It is done here, when it is waited for, where there is one core or another thread, and where that process dies or
    gives nothing for a minute.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2 or has_threads():
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


def share(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """Do jobs here and in a process beside, each by whoever is free; return their results, in the order of the jobs.

    Here they are taken from the first one on, and there from the last one on. What is taken by a process that dies is
    done here again.
    """
    tickets, given = os.pipe()
    os.write(given, bytes(len(jobs)))  # a byte for each job, which one of the two processes reads
    os.close(given)

    def take(in_turn: Iterable[Callable[[], Result]]) -> list[Result]:
        results = []
        for job in in_turn:
            if not os.read(tickets, 1):
                break
            results.append(job())
        return results

    wait_for_last = run_beside(lambda: take(reversed(jobs)))
    results = take(jobs)
    last = wait_for_last()
    os.close(tickets)
    for job in jobs[len(results) : len(jobs) - len(last)]:
        results.append(job())
    return [*results, *reversed(last)]


def has_threads() -> bool:
    """Tell whether other threads are at work, which may hold what a forked process waits for; ours holds nothing."""
    ours = [thread for thread in threading.enumerate() if thread.name == THREAD]
    return threading.active_count() > 1 + len(ours)


def count_cores() -> int:
    """Return the number of cores that this process may use: those it is bound to, or what its container has of them."""
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
