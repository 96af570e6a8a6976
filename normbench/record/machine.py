"""The code's commit and the processor, which a run's record names."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from pathlib import Path


def commit() -> str | None:
    """Return the commit of the code, `+changes` behind it where the checkout differs; None for an installed package."""
    checkout = Path(__file__).parent.parent.parent
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
        return said if (checkout / ".git").exists() else None
    return None


def cpu_name() -> str:
    """Return the processor's model name."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
