"""`normbench tensorboard`."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path

from normbench.errors import UsageError


def port(flags: list[str]) -> str:
    """Where TensorBoard will serve: its own default, or what the flags say."""
    for flag, following in pairwise([*flags, ""]):
        if flag.startswith("--port"):
            return flag.partition("=")[2] or following
    return "6006"


def run(words: list[str]) -> int:
    """Become the real TensorBoard on a folder of runs (by default `outputs`); further flags are its own."""
    folder = Path(words[0]) if words and not words[0].startswith("-") else Path("outputs")
    flags = words[1:] if words and not words[0].startswith("-") else words
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: train something first, or give the folder of your runs")
    if not any(folder.rglob("events.out.tfevents.*")):
        raise UsageError(f"{folder} holds no runs: train something first, or give the folder of your runs")
    from normbench.recording import start_page

    print(f"once it serves, the losses are at {start_page(f'http://localhost:{port(flags)}/')}")
    # -P: no file in the current directory hides a module that TensorBoard imports
    command = [sys.executable, "-P", "-m", "tensorboard.main", f"--logdir={folder}", *flags]
    sys.stdout.flush()
    os.execv(command[0], command)
