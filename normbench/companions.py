"""transformers beside a torchvision that cannot be loaded, which it imports for models of texts too."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from normbench.errors import explain

TORCHVISION = "torchvision"
TRANSFORMERS = "transformers"


def import_module_beside(name: str) -> ModuleType:
    """Import a module; if it is of transformers, as if a torchvision that cannot be loaded were not installed.

    Each release of torchvision is built for one of torch's. transformers asks only whether it is installed, and then
    imports it with the base of all models, so that one that does not fit takes those of texts away as well.
    """
    is_first = name.partition(".")[0] == TRANSFORMERS and TRANSFORMERS not in sys.modules
    if is_first and reason_against_torchvision():
        leave_out_torchvision()
    return import_module(name)


def reason_against_torchvision() -> str:
    """Say why torchvision cannot be imported; empty where it can, or is not installed."""
    try:
        import_module(TORCHVISION)
    except ModuleNotFoundError as error:
        return "" if error.name == TORCHVISION else explain(error)
    except Exception as error:  # of its operators, or of whatever it needs
        return explain(error)
    return ""


def leave_out_torchvision() -> None:
    """Let transformers find that torchvision is not installed, and keep that answer; others can still try it."""
    sys.modules[TORCHVISION] = None  # type: ignore[assignment]  # so Python marks what cannot be found
    try:
        known = import_module(f"{TRANSFORMERS}.utils.import_utils")
        known.is_torchvision_available()
    finally:
        del sys.modules[TORCHVISION]
