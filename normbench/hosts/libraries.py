"""The libraries of models, by their words; each is imported when a model of it is asked for."""

from __future__ import annotations

from normbench.errors import UsageError
from normbench.hosts.building import Host, Library, Options
from normbench.hosts.image_libraries import Timm, Torchvision
from normbench.hosts.text_library import Transformers
from normbench.hosts.weights import RANDOM
from normbench.settings import either, nearest
from normbench.types import Task

LIBRARIES: dict[str, Library] = {library.word: library for library in (Timm(), Torchvision(), Transformers())}


def build_host(
    library: str,
    name: str,
    options: Options,
    task: Task,
    image_size: int | str | None = "auto",
    weights: str = RANDOM,
) -> Host:
    """Return a model of another library for a task: `Library.build` of the library with this word.

    It draws from torch's random numbers, so that whoever wants the same start again seeds these before.

    Raises:
        UsageError: there is no such library or model, or it cannot be built.
    """
    if library not in LIBRARIES:
        cure = f"{nearest(library, LIBRARIES)}use {either(LIBRARIES)}"
        raise UsageError(f"{library} is not a library of models: {cure}")
    return LIBRARIES[library].build(name, options, task, image_size, weights)
