"""What machine, versions and code made a run."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "datasets", "tensorboard")

# What must be the same for a continuation to give the same bits.
DECISIVE = ("commit", "cpu", "accelerator", "python", "machine")


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def git(*arguments: str) -> str | None:
    """What git says of the code's own checkout; None outside one or without git."""
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def commit() -> str | None:
    """The commit of the code, with `+changes` where the checkout differs from it; None for an installed package."""
    if (Path(__file__).parent.parent / ".git").exists() and (head := git("rev-parse", "HEAD")):
        return head + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    return None


def cpu_name() -> str:
    """The processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def describe(device: str, accelerator: str | None, threads: int, data: dict[str, Any]) -> dict[str, Any]:
    """Everything about here and now that may change a run's numbers or times."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["normbench", *sys.argv[1:]]),
        "commit": commit(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "device": device,
        "accelerator": accelerator,
        "threads": threads,
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "data": data,
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What decides about bits and differs between two descriptions, in words."""
    before, now = decisive(before), decisive(now)
    return [f"{key} was {before.get(key)}, is {now.get(key)}" for key in now if before.get(key) != now.get(key)]


def decisive(description: dict[str, Any]) -> dict[str, Any]:
    """What decides about bits, each package by its name."""
    return {key: description.get(key) for key in DECISIVE} | dict(description.get("packages") or {})
