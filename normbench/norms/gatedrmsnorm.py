"""Root mean square normalization with a gate that reads what it gives."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normbench.norms.rmsnorm import RMSNorm
from normbench.settings import Setting
from normbench.types import NormFacts, Treatment

START = 0.5  # of the gate's maps: their standard deviation times √features


class GatedRMSNorm(RMSNorm):
    """Divides the features of each position by their root mean square, and weighs each by a gate that reads them all.

    y = γ·x/√(ms(x)+ε), with ms(x) = mean(x²) over the features at one position, and the output is y·σ(W↑·silu(W↓·y)),
    where W↓ maps the features to `rank` numbers and W↑ these to a gate for each feature. The maps have no biases.

    Both start as draws of the standard deviation 0.5/√features, so that all gates start near 1/2, and the norm near
    half of RMSNorm: `norm.gain0=2` starts near RMSNorm itself. They decay as matrices do, whatever
    `trainer.decay_norms` says. `impl` is of the root mean square; plain torch computes the gate, in float32 or
    wider.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: Qiu et al. 2026 (GatedNorm), who have published no code; start and a rank of 128 are those of marin
    (`experiments/grug/moe/model.py`), whose draws are cut off at three standard deviations.
    """

    facts = NormFacts(statistics_over="features of one position", centers=False)
    used_in = "its authors' language models, marin's mixtures of experts"
    recorded = ("rank", "decayed")
    decayed = "down+up"
    treated = MappingProxyType({"down": Treatment(decay=True), "up": Treatment(decay=True)})

    def __init__(
        self,
        num_features: int,
        *,
        rank: Annotated[int, Setting("numbers between the two maps of the gate", low=1, high=10**5)] = 16,
        **settings: Any,
    ) -> None:
        super().__init__(num_features, **settings)
        self.rank = rank
        std = START * num_features**-0.5
        self.down = nn.Parameter(std * torch.randn(rank, num_features))
        self.up = nn.Parameter(std * torch.randn(num_features, rank))

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        y = super().normalize(x, weight, bias, real).movedim(self.channel_dim, -1)
        with torch.autocast(x.device.type, enabled=False):  # which would round what the maps read to 16 bits
            read = F.silu(F.linear(y, self.down.to(y.dtype)))
            gate = torch.sigmoid(F.linear(read, self.up.to(y.dtype)))
        return (y * gate).movedim(-1, self.channel_dim)
