"""Where data and what is made of them lie, as the environment says."""

from __future__ import annotations

import os
from pathlib import Path

DATA = "NORMBENCH_DATA"  # the folder with copies of the hub's data sets; without it they come from the hub
CACHE = "NORMBENCH_CACHE"


def cache_folder() -> Path:
    """Return `$NORMBENCH_CACHE`, else `normbench` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    folder = os.environ.get(CACHE)
    if folder:
        return Path(os.path.expanduser(folder))
    return user_cache() / "normbench"


def user_cache() -> Path:
    """Return `$XDG_CACHE_HOME`, else `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base))
