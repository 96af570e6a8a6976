"""Two early steps, which no timing counts, tell how many operators a step has, and whether a GPU waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operators that start nothing, beside views: they allocate, or look at what the host knows.
NO_LAUNCH = frozenset({"detach", "alias", "lift_fresh", "_unsafe_view", "_reshape_alias", "is_same_size", "is_pinned",
                       "resize_", "set_", "sym_size", "sym_stride", "empty", "empty_like", "new_empty",
                       "empty_strided", "new_empty_strided"})  # fmt: skip

# How many steps of a run come before the one that is counted: by then the optimizer's state is there. It is the same
# step of the run however often that is stopped, since how many operators a step has depends on its batch and on whether
# its gradients are clipped. Where probes look at it, the next one is counted.
COUNTED = 4

WATCHED = 4  # untimed steps that are still to come when one is watched; without a count none is

# CUDA lets the host be some 1,000 launches ahead, and then has it wait for the GPU: a fifth of so many.
MOST_WATCHED = 5_000


class Launches(TorchDispatchMode):
    """Counts the operators of torch that start work on a device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler here, for two seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if not func.is_view and name not in NO_LAUNCH:
            leaves = tree_leaves((output, args, kwargs))
            if any(isinstance(leaf, Tensor) and leaf.device.type == self.device.type for leaf in leaves):
                self.count += 1
        return output


def count_operators(call: Callable[[], object], device: torch.device) -> int:
    """Return how many operators a call gives to a device, forward and backward."""
    with Launches(device) as launches:
        call()
    return launches.count


class EarlySteps:
    """Looks at an early step of a run, and at one of a process.

    Attributes:
        operators: that a step gives to its device, but for views; None where none was counted. A checkpoint has them.
        host_share: the share of a step's time for which the host of a GPU was at work on it; None where it was not
            taken. The host's part ends before the GPU's does, unless the GPU has waited for it: near 1 the step lasts
            as long as the host takes to start its operators.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.operators: int | None = None
        self.host_share: float | None = None

    def found(self) -> dict[str, float]:
        """Return what was found, for the ledger."""
        entries = dict[str, float]()
        if self.operators is not None:
            entries["operators_a_step"] = self.operators
        if self.host_share is not None:
            entries["host_share_of_step"] = round(self.host_share, 3)
        return entries

    def is_to_count(self, step: int) -> bool:
        """Tell whether the operators of a step are to be counted. step: how many steps of the run come before it."""
        return self.operators is None and step >= COUNTED

    def look(self, step: int, untimed: int) -> AbstractContextManager[None]:
        """Look at a step that nothing times, if it is its turn.

        Args:
            step: how many steps of the run come before it.
            untimed: how many steps are still to come, with this one, that nothing times.
        """
        if self.is_to_count(step):
            return self.count()
        if self.operators is None:
            return nullcontext()
        if untimed == WATCHED and self.device.type == "cuda" and self.operators <= MOST_WATCHED:
            return self.watch()
        return nullcontext()

    @contextmanager
    def count(self) -> Iterator[None]:
        """Count the operators of what is done inside."""
        with Launches(self.device) as launches:
            yield
        self.operators = launches.count

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Take the time of what is done inside: of the host, and until the GPU has done it."""
        torch.cuda.synchronize(self.device)
        begun = time.perf_counter()
        yield
        issued = time.perf_counter()
        torch.cuda.synchronize(self.device)
        self.host_share = (issued - begun) / (time.perf_counter() - begun)
