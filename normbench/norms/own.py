"""The norms that a model of another library has by itself."""

from __future__ import annotations

from normbench.norms.none import NoNorm
from normbench.types import NormFacts, Site


class Own(NoNorm):
    """Leaves the norm that a model of another library has at a place: what a replacement is compared with.

    y is what that norm makes of x, with the parameters, the ε and the implementation that it has.

    Shapes: any.
    """

    facts = NormFacts(statistics_over="as the model has it", centers=False, of_host=True)
    used_in = ""
    cast_order = "as its class has it"
    is_identity = False

    def __init__(self, num_features: int, *, channel_dim: int = -1, site: Site | None = None) -> None:
        super().__init__(num_features, channel_dim=channel_dim, site=site)
