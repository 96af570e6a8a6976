"""What Hydra composes of a run's options, once for all processes of the tests."""

from __future__ import annotations

import os
import pickle
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from hydra._internal import defaults_list
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
    hasten()


def hasten() -> None:
    """Let Hydra compose the same in half of the time."""
    read_yaml_once()
    map_choices_where_asked_for()


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


def map_choices_where_asked_for() -> None:
    """Let Hydra map what is chosen only for a list of defaults that refers to it, rather than for each option."""
    make_map = defaults_list._create_interpolation_map

    def make_where_asked_for(overrides: Any, defaults: Any, self_added: bool) -> Any:
        refers = any(default.is_interpolation() for default in defaults)
        return make_map(overrides, defaults, self_added) if refers else None

    defaults_list._create_interpolation_map = make_where_asked_for
