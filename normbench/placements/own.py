"""The blocks that a model of another library has by itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from normbench.types import Placement


class Own(Placement):
    """Leaves the norms of a model of another library where its `forward` has them, and the skips beside them too.

    No block is made of it: the anatomy of such a model tells which of its modules are blocks.
    """

    slots = ()
    min_branches = 0
    of_host = True

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        raise NotImplementedError("a model of another library runs its own blocks")
