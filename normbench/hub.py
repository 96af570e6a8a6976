"""Whether the Hugging Face hub can be reached; where it cannot, its clients look among what is kept here alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

PATIENCE = 2.0  # seconds in which a connection to the hub must come about
LINE = 100  # letters of what is told of an error
NUMBER = re.compile(r"\[Errno -?\d+\] ")  # before what the system says
SLOW = "ReadTimeout"  # a connection has come about, and the answer takes longer: the hub is there


def ask_hub() -> int:
    """Return the status with which the Hugging Face hub, or what stands for it, answers a first request.

    Raises:
        Exception: of the network, or of a client that cannot be made.
    """
    http: Any = import_module("huggingface_hub.utils")
    status: int = http.get_session().head(load_constants().ENDPOINT, timeout=PATIENCE).status_code
    return status


def explain_silence() -> str:
    """Return why the hub does not answer a first request, of which its clients try several; empty where it answers.

    Any answer counts, a refusal too: what it means is for who asks more.
    """
    constants = load_constants()
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids asking the Hugging Face hub"
    try:
        ask_hub()
    except Exception as error:  # of any kind: the network, or a client that cannot be made
        if type(error).__name__ == SLOW:
            return ""
        return f"the Hugging Face hub ({constants.ENDPOINT}) cannot be reached ({explain_failure(error)})"
    return ""


def explain_failure(error: Exception) -> str:
    """Return what an error of the hub's client says, in a line and without the system's number."""
    lines = NUMBER.sub("", str(error)).strip().splitlines()
    said = lines[0].rstrip(".") if lines else type(error).__name__
    return said[:LINE]


def load_constants() -> Any:
    """Return the module in which the hub's client keeps its address, its folders, and whether it may ask the hub."""
    return import_module("huggingface_hub.constants")


def is_empty(folder: Path) -> bool:
    """Tell whether nothing is kept in a folder, or there is none."""
    return not folder.is_dir() or next(folder.iterdir(), None) is None


def data_sets_kept() -> Path:
    """Return the folder in which the library `datasets` keeps what it has read of the hub; to ask it takes a second."""
    folder = os.environ.get("HF_DATASETS_CACHE") or f"{load_constants().HF_HOME}/datasets"
    return Path(os.path.expanduser(folder))


def models_kept() -> Path:
    """Return the folder in which the hub's client keeps files of models."""
    return Path(load_constants().HF_HUB_CACHE)


@contextmanager
def look_here_alone(silence: str) -> Iterator[None]:
    """Let the hub's clients ask nothing of the hub inside, where it does not answer: each would try for half a minute.

    Args:
        silence: why it does not answer; empty where it does, and may be asked.
    """
    constants = load_constants()
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or bool(silence)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
