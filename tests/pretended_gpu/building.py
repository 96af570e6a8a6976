"""Compiles the device guard, once for each version of torch."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).parent / "guard.cpp"
CACHE = Path(tempfile.gettempdir()) / f"normbench-tests-{os.getuid()}"


def compiler() -> str | None:
    """Return the path of g++, if it is there."""
    return shutil.which("g++")


def built_guard() -> Path:
    """Return the compiled guard; what an earlier session has compiled of the same source and torch serves again."""
    version = hashlib.sha256(SOURCE.read_bytes() + str(torch.__version__).encode()).hexdigest()[:16]
    library = CACHE / f"guard-{version}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            made = Path(folder) / library.name
            includes = [f"-I{path}" for path in cpp_extension.include_paths()]
            abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
            command = [str(compiler()), "-shared", "-fPIC", "-O0", "-std=c++20", abi, *includes, str(SOURCE)]
            libraries = [f"-L{path}" for path in cpp_extension.library_paths()] + ["-lc10", "-ltorch_cpu"]
            subprocess.run([*command, *libraries, "-o", str(made)], check=True, capture_output=True, text=True)
            made.replace(library)
    return library


def environment() -> dict[str, str]:
    """Return the environment of a process that has the guard before torch asks, as it is imported, for its devices."""
    (libraries,) = cpp_extension.library_paths()
    return {**os.environ, "LD_PRELOAD": str(built_guard()), "LD_LIBRARY_PATH": libraries}
