"""torch.compile, with kernels that are kept apart by the CPU for which they were made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return `torch.compile(function, **options)`.

    Inductor's cache holds loops that were written for one width of vectors, under a key that does not tell which: a CPU
    with another one, that shares the cache by TORCHINDUCTOR_CACHE_DIR or a common temporary folder, compiles them to
    garbage. So the instruction set is made part of the key.
    """
    settings = torch.compiler.config
    instructions = torch.backends.cpu.get_cpu_capability()
    known = getattr(settings, "cache_key_tag", None)  # None: this torch has no such setting
    if known is not None and not known.endswith(instructions):
        settings.cache_key_tag = f"{known}{instructions}"
    return torch.compile(function, **options)
