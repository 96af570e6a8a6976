"""A norm outside the repository: normbench train norm._target_=mypkg.MyNorm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normbench.types import Site


class MyNorm(nn.Module):
    """Divides the features of each position by their mean absolute value: y = γ·x/(mean|x|+ε)."""

    def __init__(
        self, num_features: int, *, channel_dim: int = -1, site: Site | None = None, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.channel_dim, self.eps = channel_dim, eps
        self.weight = nn.Parameter(torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # no statistics in 16 bits
        y = wide / (wide.abs().mean(self.channel_dim, keepdim=True) + self.eps)
        return (y.movedim(self.channel_dim, -1) * self.weight).movedim(-1, self.channel_dim).to(x.dtype)
