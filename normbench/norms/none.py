"""No normalization."""

from __future__ import annotations

from jaxtyping import Num
from torch import Tensor

from normbench.norms.common import Impl, refuse
from normbench.types import Norm, NormFacts, Site


class NoNorm(Norm):
    """Leaves its input as it is: what the norms are compared with.

    y = x.

    Shapes: any.
    """

    facts = NormFacts(statistics_over="none", centers=False)
    used_in = "AlexNet (but for its local response norm), VGG of 2014, NFNet"
    cast_order = "none"
    eps = None
    is_identity = True

    def __init__(
        self, num_features: int, *, channel_dim: int = -1, site: Site | None = None, impl: Impl = "auto"
    ) -> None:
        super().__init__()
        if impl not in ("auto", "eager"):
            refuse(impl)
        self.channel_dim = channel_dim

    def forward(self, x: Num[Tensor, "..."]) -> Num[Tensor, "..."]:
        return x
