"""Digests of files, by which a record tells whether it still is as it was left: a note holds those of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from normbench.record.files import open_regular, read_bytes, write_json
from normbench.record.forms import DIGESTS
from normbench.settings import drop_keys


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, which may be too large for memory.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_content(content: Any) -> str:
    """Return the SHA-256 of what a JSON holds; of a mapping, of all but the digests that it holds."""
    digested = drop_keys(content, DIGESTS) if isinstance(content, dict) else content
    return hashlib.sha256(json.dumps(digested, sort_keys=True).encode()).hexdigest()


def write_with_digests(path: Path, content: Mapping[str, Any], names: Iterable[str]) -> None:
    """Write a note as JSON (atomically), when its files are as they are to stay, with a digest of each.

    Args:
        path: of the note.
        content: of it, without the digests.
        names: of the files, which lie beside the note; its own may be among them.

    Raises:
        OSError: a file cannot be read, or the note not be written.
    """
    as_read = json.loads(json.dumps(content))
    digests = {}
    for name in names:
        digests[name] = digest_of_content(as_read) if name == path.name else digest_of(path.with_name(name))
    write_json(path, {**content, DIGESTS: digests})


def find_altered(path: Path, names: Iterable[str] | None = None) -> list[str] | None:
    """Return which files are not as they were when their note was written; None of a note without digests.

    Args:
        path: of the note.
        names: of the files that are looked at; by default all that the note has digests of, and the note itself.

    Raises:
        OSError, ValueError: the note cannot be read.
    """
    note = json.loads(read_bytes(path))
    if not isinstance(note, dict):
        raise ValueError(f"{path.name} is damaged")
    noted = note.get(DIGESTS)
    if not noted:
        return None
    if not isinstance(noted, dict):
        return [path.name]
    altered = []
    for name in dict.fromkeys([*noted, path.name]) if names is None else names:
        digest = ""  # of a file that cannot be read
        with suppress(OSError, ValueError):  # of a name with a null byte, say
            digest = digest_of_content(note) if name == path.name else digest_of(path.with_name(name))
        if noted.get(name) != digest:
            altered.append(name)
    return altered
