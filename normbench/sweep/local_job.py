"""Runs a job of submitit's as a process of this machine: `python -m normbench.sweep.local_job LOCK GPUS ... FOLDER`.

The process ends with the sweep, however that ends. It sees the GPUs that the sweep sees, of which the sweep has chosen
one for it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading

from normbench.processes import end_with_parent

ALL = "all"  # GPUs, where the sweep sees them all


def follow(lock: str) -> None:
    """Wait for the end of the sweep, which locks a file as long as it lives; then stop this run, after a checkpoint."""
    with open(lock, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the job that a folder of submitit's describes."""
    end_with_parent(os.getppid())  # submitit's own process, which starts this one
    lock, gpus, folder = sys.argv[1], sys.argv[2], sys.argv[-1]
    threading.Thread(target=follow, args=[lock], daemon=True).start()
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus  # submitit has set it for a job that asks for no GPU
    if gpus == ALL:
        del os.environ["CUDA_VISIBLE_DEVICES"]
    from submitit.core.submission import process_job

    process_job(folder)


if __name__ == "__main__":
    main()
