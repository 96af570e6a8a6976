"""SiameseNorm."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from normbench.placements import mask_of
from normbench.placements.streams import Parts, SeveralStreams


class Siamese(SeveralStreams):
    """A stream as under post-norm and one as under pre-norm, which share the branches.

    z = f(N(N(x) + N(y))), x ← N(x) + αz with α = 1/√(2l), y ← y + z; the output is N(N(x) + N(y)). N(x) is one norm
    (slot `post`), N(y) a second (`pre`), and what f reads comes from a third (`in`). l is the block's place in its
    stack, from 1; both streams start as the embedding. The norms of the output that read x and y are made at the last
    block (`norm@closing`); the one around their sum is the final norm.
    Li et al. 2026 (SiameseNorm); compared with the authors' code for DeiT.
    """

    slots = ("post", "pre", "in")
    needs_final_norm = True
    streams = 2
    names = ("x", "y")
    closing = ("post", "pre")

    def pass_branch(self, parts: Parts, role: str, context: dict[str, Any]) -> Parts:
        f: Any = self.branches[role]
        norms: Any = self.norms[role]
        x, y = parts
        mask = mask_of(context)
        x = norms["post"](x, **mask)
        z = norms["in"](x + norms["pre"](y, **mask), **mask)
        z = f(z, **context)
        scale = 1 / math.sqrt(2 * self.place)
        return f.shortcut(x) + scale * z, f.shortcut(y) + z

    def leave(self, x: Tensor, **context: Any) -> Tensor:
        x, y = self.take_apart(x)
        return self.close("post", x, context) + self.close("pre", y, context)
