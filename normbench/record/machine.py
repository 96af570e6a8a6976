"""The machine, the versions of packages and the commit of the code, which a run's record names."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
    """Return the commit of the code, ending in `+changes` where the checkout differs; None of an installed package."""
    checkout = Path(__file__).parent.parent.parent
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    if not (checkout / ".git").exists():
        return None
    return described.stdout.strip()


def cpu_name() -> str:
    """Return the processor's model name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
