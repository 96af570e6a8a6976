"""A gain, and perhaps a bias, where a norm would stand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from normbench.errors import UsageError
from normbench.norms.common import AffineNorm, scale_and_shift
from normbench.settings import Setting
from normbench.types import NormFacts, Site


class Scale(AffineNorm):
    """Multiplies by a learned gain, and takes no statistics: the affine part of a norm by itself.

    y = γ·x, or γ·x+β with `bias=True`, with one γ for each feature, or with `shape="scalar"` one number for all. γ
    starts at `gain0`, and stays there with `affine=False`. With `shared=True` the norms that one rule puts into a
    block have one γ and one β together.

    After a branch it is LayerScale (`placement=sandwich norm@out=scale norm@out.gain0=1e-5`), SkipInit (`norm=none
    placement=post_inside norm@out=scale norm@out.shape=scalar norm@out.gain0=0`) or, with `norm@out.shared=true` beside
    these, ReZero.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Source: Touvron et al. 2021b (LayerScale); Bachlechner et al. 2021 (ReZero); De & Smith 2020 (SkipInit).
    """

    facts = NormFacts(statistics_over="none", centers=False)
    used_in = "CaiT, ReZero and SkipInit after a branch, NormFormer for each head"
    recorded = ("shape", "shared")

    def __init__(
        self,
        num_features: int,
        *,
        affine: Annotated[bool, Setting("learned γ")] = True,
        bias: Annotated[bool, Setting("learned β, where there is a γ")] = False,
        shape: Annotated[Literal["channel", "scalar"], Setting("a γ for each feature, or one for all")] = "channel",
        gain0: Annotated[
            float | Literal["inverse_root_width"],
            Setting("start of scale's γ; inverse_root_width: 1/√width of the stream", low=0, high=1e6),
        ] = 1.0,
        shared: Annotated[bool, Setting("one γ for all norms of the same rule in a block")] = False,
        site: Site | None = None,
        **place: Any,
    ) -> None:
        start = inverse_root_width(site) if isinstance(gain0, str) else gain0
        size = 1 if shape == "scalar" else num_features
        super().__init__(num_features, None, affine, bias, gain0=start, site=site, **place)
        self.shape = shape
        self.shared = shared
        if self.weight is not None:
            self.weight = nn.Parameter(torch.full((size,), self.gain0 - self.offset))
        if self.bias is not None:
            self.bias = nn.Parameter(torch.zeros(size))

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        if weight is None and bias is None:
            return x.clone()  # which what comes next may change in place, and x may be read again
        return scale_and_shift(x, weight, bias, self.channel_dim)


def inverse_root_width(site: Site | None) -> float:
    """Return 1/√features of the stream at a site.

    Raises:
        UsageError: they are not known there.
    """
    if site is None or site.width is None:
        where = f" at {site.name}" if site else ""
        cure = "give a number, or use it at norm@logits of a Transformer"
        raise UsageError(f"gain0=inverse_root_width finds no width of a stream{where}: {cure}")
    return site.width**-0.5
