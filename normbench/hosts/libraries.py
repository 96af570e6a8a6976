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
        refuse_other_torchvision(name, error)
        raise UsageError(f"{name} cannot be imported ({explain(error)}): install a version that fits") from error


def refuse_other_torchvision(name: str, error: BaseException) -> None:
    """Refuse a torchvision that does not fit torch, where that is what an error of a library comes from.

    transformers imports its models one by one, and then says only which one it could not import.

    Raises:
        UsageError: that is it; with the way to mend it.
    """
    cause: BaseException | None = error
    while cause is not None:
        if "torchvision::" in str(cause) or (type(cause) is ImportError and "torchvision" in str(cause)):
            raise UsageError(explain_torchvision(name)) from error
        cause = cause.__cause__
