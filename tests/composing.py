"""What Hydra composes of a run's options, once for all processes of the tests."""

from __future__ import annotations

import os
import pickle
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from normbench.config import compose


def share_compositions(folder: Path) -> None:
    """Let this process, and what it forks, read what another one has composed and left in a folder, and leave its own.

    To compose the options of a run takes a tenth of a second, and of the many that tests compose most are the same.
    """
    folder.mkdir(exist_ok=True)
    compose_once = compose.compose_once

    @cache
    def compose_or_read(words: tuple[str, ...], own_files: tuple[tuple[Path, int], ...]) -> bytes:
        file = folder / sha256(repr((words, own_files)).encode()).hexdigest()
        if not file.exists():
            written = file.with_suffix(f".{os.getpid()}")
            written.write_bytes(compose_once(words, own_files))
            os.rename(written, file)  # the process may be killed at any time
        return file.read_bytes()

    compose.compose_once = compose_or_read
    read_yaml_once()


def read_yaml_once() -> None:
    """Let OmegaConf parse each YAML once in a process: Hydra does anew each time, for a quarter of its time."""
    load = OmegaConf.load
    parsed: dict[str, bytes] = {}

    def load_or_copy(file: Any) -> Any:
        if not hasattr(file, "read"):
            return load(file)
        text = file.read()
        if text not in parsed:
            file.seek(0)  # what is wrong with it is told by the name of the file
            parsed[text] = pickle.dumps(load(file))
        return pickle.loads(parsed[text])

    OmegaConf.load = staticmethod(load_or_copy)
