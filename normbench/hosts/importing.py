"""Libraries of models, imported only where they are asked for."""

from __future__ import annotations

from types import ModuleType

from normbench.companions import import_module_beside
from normbench.errors import UsageError, comes_from_torchvision, explain, explain_torchvision

# The extra of normbench that installs each library, and what a person calls it.
EXTRAS = {"timm": "timm", "torchvision": "torchvision", "transformers": "hf"}


def import_library(name: str) -> ModuleType:
    """Import a library of models: `timm`, `torchvision` or `transformers`.

    Raises:
        UsageError: it is not installed, or what it needs does not fit; with the command that fixes it.
    """
    try:
        return import_module_beside(name)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        what = f"{name} is not installed" if missing == name else f"{name} needs {missing}, which is not installed"
        raise UsageError(f"{what}: pip install 'normbench[{EXTRAS[name]}]'") from error
    except Exception as error:  # a broken one may raise anything
        refuse_other_torchvision(name, error)
        raise UsageError(f"{name} cannot be imported ({explain(error)}): install a version that fits") from error


def refuse_other_torchvision(name: str, error: BaseException) -> None:
    """Refuse a torchvision that does not fit torch, where that is what an error of a library comes from.

    Raises:
        UsageError: that is it; with the way to fix it.
    """
    if comes_from_torchvision(error):
        raise UsageError(explain_torchvision(name, error)) from error
