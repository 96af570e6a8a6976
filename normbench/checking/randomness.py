"""Whether something draws from the global random numbers, which belong to dropout."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")


def draws_of(action: Callable[[], T]) -> tuple[T, str]:
    """What an action gives, and from which global random numbers it draws, in words; empty for none."""
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state(legacy=False))
    result = action()
    moved = {
        "torch": not torch.equal(torch.get_rng_state(), before[0]),
        "random": random.getstate() != before[1],
        "numpy.random": repr(np.random.get_state(legacy=False)) != before[2],
    }
    return result, " and ".join(name for name, has_moved in moved.items() if has_moved)
