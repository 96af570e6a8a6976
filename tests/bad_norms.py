"""Norms with one fault each, and unusual ones without a fault; what their checks say."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor, nn

from normbench.types import Norm, NormFacts


class Rms(nn.Module):
    """x / √(ms(x) + ε), in the input's precision: what most of these are a change of."""

    def __init__(self, num_features: int, *, channel_dim: int = -1, site: Any = None) -> None:
        super().__init__()
        self.num_features, self.channel_dim = num_features, channel_dim

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor(x)

    def factor(self, x: Tensor) -> Tensor:
        return torch.rsqrt(x.square().mean(self.channel_dim, keepdim=True) + 1e-5)


class NoDefault(Rms):
    def __init__(self, num_features: int, *, channel_dim: int, site: Any) -> None:
        super().__init__(num_features, channel_dim=channel_dim)


class Flattens(Rms):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten(0, -2) if x.ndim == 4 else super().forward(x)


class LastAxis(Rms):
    def __init__(self, num_features: int, *, channel_dim: int = -1, site: Any = None) -> None:
        super().__init__(num_features)


class Single(Rms):
    """Computes in float32 whatever it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


class Detached(Rms):
    def factor(self, x: Tensor) -> Tensor:
        return super().factor(x).detach()


class Idle(Rms):
    def __init__(self, num_features: int, *, channel_dim: int = -1, site: Any = None) -> None:
        super().__init__(num_features, channel_dim=channel_dim)
        self.weight = nn.Parameter(torch.ones(num_features))


class Drawn(Rms):
    def __init__(self, num_features: int, *, channel_dim: int = -1, site: Any = None) -> None:
        super().__init__(num_features, channel_dim=channel_dim)
        self.shift = nn.Parameter(0.1 * torch.randn(()))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shift.to(x.dtype)


class Unseeded(Rms):
    def __init__(self, num_features: int, *, channel_dim: int = -1, site: Any = None) -> None:
        super().__init__(num_features, channel_dim=channel_dim)
        self.shift = nn.Parameter(torch.tensor(random.gauss()))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shift.to(x.dtype)


class Forgetful(Rms):
    """Evaluates with a running mean square that no state_dict has."""

    running = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x / self.running**0.5
        self.running = 0.9 * self.running + 0.1 * x.detach().square().mean().item()
        return super().forward(x)


class GradMatters(Rms):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 if torch.is_grad_enabled() else 2)


class OneStatistic(Rms):
    """Over the whole batch."""

    def factor(self, x: Tensor) -> Tensor:
        return torch.rsqrt(x.square().mean() + 1e-5)


class Lying(OneStatistic, Norm):
    facts = NormFacts("features of one position", centers=True)
    eps = 1e-5


class Careless(OneStatistic, Norm):
    facts = NormFacts("the batch", centers=False, crosses_samples=True, sees_future="training")
    eps = 1e-5


class Honest(OneStatistic, Norm):
    facts = NormFacts("the batch", centers=False, crosses_samples=True, sees_future="always")
    eps = 1e-5


class Rounded(Rms):
    """Less exact than float32."""

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * 2**12).round() / 2**12 if x.dtype == torch.float32 else super().forward(x)


class Noisy(Rms):
    """In training alone."""

    def forward(self, x: Tensor) -> Tensor:
        scale = 1 + 0.1 * torch.rand((), dtype=torch.float64).item() if self.training else 1.0
        return super().forward(x) * scale


class Masked(Rms):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x)


class Centering(Rms):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(self.channel_dim, keepdim=True))


class Wide(Rms):
    """Ends in float32 where its input has 16 bits."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.ones(1)


class NoNumber(Rms):
    """NaN, in float32, for images alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (math.nan if x.ndim == 4 and x.dtype == torch.float32 else 1)


class Exploding(Rms):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1e30


class Growing(Rms):
    """Larger each time that it is called."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * 3.0**self.calls


class Raising(Rms):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("not today")


# The rows that fail, and words of what they say.
BROKEN = {
    "NoDefault": {"constructor": "must take (num_features, *, channel_dim=-1, site=None)"},
    "Flattens": {
        "keeps (batch, channels, height, width)": "returns the shape (288, 5) for an input of (4, 24, 3, 5)",
        "float64": "returns the shape",
    },
    "LastAxis": {"layouts agree at one position": "largest difference"},
    "Single": {
        "layouts agree at one position": "returns torch.float32 for an input of torch.float64",
        "float64": "as above",
    },
    "Detached": {"gradcheck": "Jacobian mismatch"},
    "Idle": {"gradient in every parameter": "none in weight for (batch, features)"},
    "Unseeded": {"the seed decides the start": "draws from random: draw from torch, whose random numbers are seeded"},
    "Forgetful": {"deepcopy and state_dict": "largest difference"},
    "GradMatters": {"torch.no_grad changes nothing": "largest difference"},
    "Lying": {
        "crosses samples in training": "yes (deviation",
        "sees later time steps": "always (deviation",
        "centers: norm(x + c) = norm(x)": "no (deviation",
    },
    "Careless": {"sees later time steps": "facts.sees_future=training"},
    "Rounded": {"float32 against float64": "of the largest output"},
    "NoNumber": {
        "float32 against float64": "inf of the largest output, inf of the largest gradient",
        "deepcopy and state_dict": "largest difference inf",
        "torch.no_grad changes nothing": "as above",
    },
}

SPREADING = ("Flattens", "Single")  # other checks fail by the same fault

SOUND = {
    "Rms": {"takes a mask": "no", "draws random numbers": "no", "evaluation differs from training": "no"},
    "Honest": {"sees later time steps": "passed", "crosses samples in evaluation": "yes"},
    "OneStatistic": {"sees later time steps": "yes", "crosses samples in training": "yes"},
    "Noisy": {"draws random numbers": "yes", "evaluation differs from training": "yes"},
    "Masked": {"takes a mask": "yes"},
    "Drawn": {"the seed decides the start": "passed"},
}
