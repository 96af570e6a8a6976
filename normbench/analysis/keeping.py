"""Files that are written again and again, beside what a person may have changed in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from normbench.rundir import read_json, write_bytes, write_json

MANIFEST = "manifest.json"
EDITED = ".edited"


def write_files(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """Write files below a folder, each atomically; returns a line on each that a person has changed and is kept.

    files: content by path below the folder. The manifest has the digests of what was written here: a file that differs
    from them is somebody's own, and gets the ending `.edited`; one that is not written any more is deleted. A kill at
    any moment leaves a manifest that knows both the old and the new content.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    known = written_before(folder)
    digests = {name: digest(content) for name, content in files.items()}
    folder.mkdir(parents=True, exist_ok=True)
    both = {name: sorted({*known.get(name, ()), *([digests[name]] if name in digests else [])}) for name in
            {**known, **digests}}  # fmt: skip
    write_json(folder / MANIFEST, {"files": both})
    notes = []
    for name, content in files.items():
        path = folder / name
        if path.exists() and digest(path.read_bytes()) not in both[name]:
            kept = free_name(path)
            path.rename(kept)
            notes.append(f"{path} has been edited and is kept as {kept.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    for name in known.keys() - files.keys():
        remove_unchanged(folder / name, known[name])
    write_json(folder / MANIFEST, {"files": {name: [digest] for name, digest in sorted(digests.items())}})
    return notes


def written_before(folder: Path) -> dict[str, list[str]]:
    """The digests of what was written here."""
    files = (read_json(folder / MANIFEST) or {}).get("files")
    return {str(name): list(digests) for name, digests in files.items()} if isinstance(files, dict) else {}


def digest(content: bytes) -> str:
    """What tells contents apart."""
    return hashlib.sha256(content).hexdigest()


def free_name(path: Path) -> Path:
    """Where a changed file goes: NAME.edited, or NAME.edited2, ..., the first that is free."""
    number = 1
    while (kept := path.with_name(f"{path.name}{EDITED}{number if number > 1 else ''}")).exists():
        number += 1
    return kept


def remove_unchanged(path: Path, digests: list[str]) -> None:
    """Delete a file that was written here, unless a person has changed it."""
    if path.is_file() and digest(path.read_bytes()) in digests:
        path.unlink()
