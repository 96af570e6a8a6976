"""ResiDual."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from normbench.placements import mask_of
from normbench.placements.streams import Parts, SeveralStreams


class ResiDual(SeveralStreams):
    """Post-norm with a second stream that is never normalized: x ← N(x + f(x)), r ← r + f(x); the output is x + N(r).

    Both streams start as the embedding, and branches read x. The last norm is made at the last block of the stack
    (`norm@closing`), and no other stands after it.
    Xie et al. 2023; compared with the authors' code, whose last LayerNorm has an ε of 1e-7 and whose factors on r and
    on the last x are 1 by default and left out here.
    """

    slots = ("out",)
    streams = 2
    names = ("x", "r")
    closing = ("out",)

    def pass_branch(self, parts: Parts, role: str, context: dict[str, Any]) -> Parts:
        f: Any = self.branches[role]
        norms: Any = self.norms[role]
        x, r = parts
        z = f(x, **context)
        y = f.shortcut(x) + z
        return norms["out"](y, **mask_of(context)), f.shortcut(r) + z

    def leave(self, x: Tensor, **context: Any) -> Tensor:
        x, r = self.take_apart(x)
        return x + self.close("out", r, context)
