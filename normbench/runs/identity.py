"""What decides a run beside its configuration: code of a person's own, and files of weights."""

from __future__ import annotations

import hashlib
import inspect
from functools import cache
from pathlib import Path
from typing import Any

from normbench.config.recipe import Part, Recipe
from normbench.errors import ContractError
from normbench.record.digests import digest_of


def own_code(recipe: Recipe) -> dict[str, str]:
    """Return a digest of the source file of each class that is neither ours nor torch's, by section."""
    digests = dict[str, str]()
    for part in recipe.all_parts():
        if not str(part.maker.__module__).startswith(("normbench.", "torch.")):
            digests[part.section] = source_digest(part.maker)
    return digests


@cache
def source_digest(made: Any) -> str:
    """Return a digest of a class's source file as it is when first asked: one that is edited later changes no class.

    Raises:
        UsageError: it has none, such as a class that is made by `type`.
    """
    try:
        return hashlib.sha256(Path(inspect.getfile(made)).read_bytes()).hexdigest()
    except (AttributeError, OSError, TypeError) as error:
        raise ContractError(f"{made} has no source file, by which its runs are told apart: define it in one") from error


def digest_weights(model: Part) -> list[str]:
    """Return a digest of each file of weights with which the model starts.

    Raises:
        UsageError: one is not there.
    """
    digests: list[str] = []
    for path in model.made.files_read(model.settings):
        status = path.stat()
        digests.append(digest_file(path, status.st_size, status.st_mtime_ns))
    return digests


@cache
def digest_file(path: Path, size: int, changed: int) -> str:
    """Return the sha256 of a file, read once as long as its size and the time of its last change stay."""
    return digest_of(path)
