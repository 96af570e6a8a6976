"""No normalization."""

from __future__ import annotations

from jaxtyping import Num
from torch import Tensor

from normbench.norms.common import Impl, refuse
from normbench.types import Norm, NormFacts, Site


class NoNorm(Norm):
    """Leaves its input as it is: what the norms are compared with.

    y = x. In a model of another library y is a copy, since what comes next there may change it in place, as many
    activations do, and x may be read again.

    Shapes: any.
    """

    facts = NormFacts(statistics_over="none", centers=False)
    used_in = "AlexNet (but for its local response norm), VGG of 2014, NFNet"
    cast_order = "none"
    eps = None
    is_identity = True
    copies = False  # its input; in models of other libraries

    def __init__(
        self, num_features: int, *, channel_dim: int = -1, site: Site | None = None, impl: Impl = "auto"
    ) -> None:
        super().__init__()
        if impl not in ("auto", "eager"):
            refuse(impl)
        self.channel_dim = channel_dim

    def forward(self, x: Num[Tensor, "..."]) -> Num[Tensor, "..."]:
        return x.clone() if self.copies else x
