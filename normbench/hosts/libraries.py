"""Libraries of models, imported only where they are asked for."""

from __future__ import annotations

import importlib
from types import ModuleType

from normbench.errors import UsageError, explain, explain_torchvision

# The extra of normbench that installs each library, and what a person calls it.
EXTRAS = {"timm": "timm", "torchvision": "torchvision", "transformers": "hf"}


def import_library(name: str) -> ModuleType:
    """Import a library of models: `timm`, `torchvision` or `transformers`.

    Raises:
        UsageError: it is not installed, or what it needs does not fit; with the command that mends it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        what = f"{name} is not installed" if missing == name else f"{name} needs {missing}, which is not installed"
        raise UsageError(f"{what}: pip install 'normbench[{EXTRAS[name]}]'") from error
    except (ImportError, RuntimeError) as error:
        if "torchvision" in str(error):
            raise UsageError(explain_torchvision(name)) from error
        raise UsageError(f"{name} cannot be imported ({explain(error)}): install a version that fits") from error
