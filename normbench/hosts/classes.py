"""What stands in given weights or beside them: the names of the classes that they answer with, and a run's norm."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from safetensors import safe_open

from normbench.hosts.weights import CONFIG, is_pickle, load_pickle, split_part
from normbench.record.directory import RunDirectory

CLASSES = "classes"  # in a checkpoint, in what a safetensors file says of itself, and in the note of a swap
NO_NAME = re.compile(r"LABEL_\d+")  # what transformers calls a class of which it knows nothing


def read_classes(path: str) -> list[str] | None:
    """Return the names of the classes that weights answer with, in the order of their outputs; None where none stand.

    They are in the record of a run whose checkpoint it is, in a checkpoint or safetensors file of normbench, or in the
    config.json beside the weights.
    """
    place, _ = split_part(path)
    folder = folder_of(place)
    noted: list[Any] = []
    with suppress(LookupError, TypeError):
        noted.append(RunDirectory(folder).sessions()[-1]["data"][CLASSES])
    if place.is_file():
        noted.append(read_inside(place))
    with suppress(OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        noted.append(classes_in(json.loads((folder / CONFIG).read_bytes())))
    for names in noted:
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return names
    return None


def read_norm(path: str) -> str | None:
    """Return the choice `norm=` of the run whose checkpoint weights are; None where they are none."""
    place, _ = split_part(path)
    with suppress(LookupError, TypeError):
        return str(RunDirectory(folder_of(place)).sessions()[-1]["choices"]["norm"])
    return None


def folder_of(place: Path) -> Path:
    """Return the folder in which weights lie."""
    return place if place.is_dir() else place.parent


def read_inside(file: Path) -> Any:
    """Return what a file of weights says of its classes, whatever that is; None where it says nothing.

    That a file cannot be read is told where its weights are read.
    """
    with suppress(Exception):
        if is_pickle(file):
            return load_pickle(file, mmap=is_zipfile(file)).get(CLASSES)
        with safe_open(file, "pt") as opened:
            return json.loads(opened.metadata()[CLASSES])
    return None


def classes_in(about: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the classes in a config.json of transformers or timm; None where they have none.

    Raises:
        TypeError, ValueError, AttributeError, LookupError: it is something else.
    """
    by_number = about.get("id2label")
    if by_number:
        names = [str(by_number[number]) for number in sorted(by_number, key=int)]
        return None if any(map(NO_NAME.fullmatch, names)) else names
    names_of_timm = about.get("label_names") or about.get("pretrained_cfg", {}).get("label_names")
    return list(map(str, names_of_timm)) if names_of_timm else None
