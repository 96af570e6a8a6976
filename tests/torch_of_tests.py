"""torch as tests and the processes that they fork have it; conftest imports this before it collects them."""

from __future__ import annotations

import os
import tempfile
from functools import wraps
from pathlib import Path
from typing import Any

import torch

# Compiled kernels are the tests' own, and those of one instruction set apart from those of another: `avx2` may be asked
# for on a CPU that has more, and what torch.compile writes for vectors of one width is garbage for another.
CACHE = Path(tempfile.gettempdir()) / f"normbench-tests-{os.getuid()}" / torch.backends.cpu.get_cpu_capability()
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE))

# Else inductor compiles a program for each instruction set that the CPU has, to see whether the compiler can.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def bear_lacking_operators() -> None:
    """Let torchvision be imported where its operators are not there; no test calls one of them.

    So it is where its build is for CUDA and torch's for the CPU, as two package indices may give them. Its import then
    fails where it describes its operators to torch, and with it that of timm and of transformers.
    """
    register = torch.library.register_fake

    @wraps(register)
    def register_if_there(op: Any, func: Any = None, /, **how: Any) -> Any:
        namespace, _, name = str(op).partition("::")
        if namespace == "torchvision" and not hasattr(torch.ops.torchvision, name):
            return lambda function: function
        return register(op, func, **how)

    torch.library.register_fake = register_if_there


bear_lacking_operators()
