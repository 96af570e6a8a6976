"""What went wrong in code that is neither torch's nor ours, in one line."""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from pathlib import Path

import torch

from normbench.errors import UsageError

# Whose frames do not tell where a fault is: torch's, ours, and those through which Python imports a module.
NOT_MEANT = (
    Path(torch.__file__).parent,
    Path(__file__).parent,
    Path(importlib.__file__).parent,
    Path(pkgutil.__file__),
)


def explain(error: BaseException) -> str:
    """What an exception says, in one line, and where it was raised, if that is known."""
    lines = str(error).strip().splitlines()
    if isinstance(error, UsageError):
        return " ".join(lines)
    said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    place = place_of(error)
    return f"{said} ({place})" if place else said


def place_of(error: BaseException) -> str:
    """The innermost file and line of code that is neither torch's nor ours, as `mynorms.py, line 3`; empty for none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.exists() and not any(path.is_relative_to(other) for other in NOT_MEANT):
            return f"{path.name}, line {frame.lineno}"
    return ""
