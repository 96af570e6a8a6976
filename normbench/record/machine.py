"""The machine, the versions of packages and the commit of the code, which a run's record names."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parent.parent.parent
OUR_CODE = ("normbench", "conf")  # of the checkout: what decides about numbers
CHANGES = "+changes"  # after a commit, where that code differs from it
GIT_SECONDS = 30  # that it may take on a busy machine
PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "datasets", "tensorboard")


def describe_machine() -> dict[str, Any]:
    """Return what decides about a run's bits besides its configuration: code, processor, system and versions."""
    return {
        "commit": commit(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def commit() -> str | None:
    """Return the commit of the code; None of an installed package.

    It ends in `+changes` where a file of normbench's code or of conf/ differs from it, or is not in it.
    """
    if not (CHECKOUT / ".git").exists():
        return None
    try:
        head = ask_git("rev-parse", "HEAD")
        changed = ask_git("status", "--porcelain", "--untracked-files=all", "--", *OUR_CODE)
    except (OSError, subprocess.SubprocessError):
        return None
    return head + CHANGES if changed else head


def ask_git(*words: str) -> str:
    """Return what git says of the checkout; it takes no lock, as several runs may ask at once.

    Raises:
        OSError, subprocess.SubprocessError: there is no git, or it knows of no such thing.
    """
    command = ["git", "--no-optional-locks", "-C", str(CHECKOUT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_SECONDS).stdout.strip()


def is_changed(commit: str | None) -> bool:
    """Tell whether the code was not that of the commit which a record names."""
    return str(commit or "").endswith(CHANGES)


def cpu_name() -> str:
    """Return the processor's model name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
