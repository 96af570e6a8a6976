"""Batch renormalization."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor

from normbench.errors import UsageError
from normbench.norms.common import Momentum, RunningNorm, moments, scale_and_shift
from normbench.settings import Setting
from normbench.types import NormFacts


class BatchRenorm(RunningNorm):
    """Standardizes each feature over the batch, and corrects that towards what evaluation will do.

    y = γ·((x−μ)/σ·r+d)+β, with the batch's mean μ and (biased) standard deviation σ as BatchNorm has them, ε included.
    With μ' and σ' of the running statistics, before this batch, r = σ/σ' within [1/r_max, r_max] and d = (μ−μ')/σ'
    within [−d_max, d_max]; both are constants in the backward pass. Without bounds y is what evaluation gives. In the
    first `renorm_after` training batches the bounds are 1 and 0, which is BatchNorm; they then grow evenly to r_max at
    batch `r_max_at` and to d_max at `d_max_at`: a run that is shorter than the paper's needs smaller numbers.

    σ' is the root of the running variance, as BatchNorm keeps it: unbiased, of σ². The paper keeps an average of σ, and
    so does Keras (`BatchNormalization(renorm=True)`, in evaluation too), which is smaller: of batches of n independent
    values by a share of 3/(4n), 4.7 % at 16 and 1.2 % at 64. All else is as there. Padding counts in no statistic and
    is 0 in the output; with `masked=False` it counts as if it were text.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where the batch has a single value for each feature (with a mask or the like on the CPU alone).
    Source: Ioffe 2017, algorithm 1; its bounds and momentum are the defaults, as other implementations give them.
    """

    facts = NormFacts(
        statistics_over="batch and time or space, for each feature",
        centers=True,
        crosses_samples=True,
        sees_future="training",
    )
    used_in = "Inception v3 of its author, with small batches and with classes that come together"
    exact_gradient = False
    later = MappingProxyType({"renorm_after": 0, "r_max_at": 1, "d_max_at": 1})
    recorded = (*RunningNorm.recorded, "r_max", "d_max", "renorm_after", "r_max_at", "d_max_at")

    def __init__(
        self,
        num_features: int,
        *,
        momentum: Momentum = 0.01,
        r_max: Annotated[float, Setting("largest factor of a correction", low=1, high=1e3)] = 3.0,
        d_max: Annotated[float, Setting("largest shift of a correction", low=0, high=1e3)] = 5.0,
        renorm_after: Annotated[int, Setting("batches without a correction", low=0, high=10**9)] = 5000,
        r_max_at: Annotated[int, Setting("batch from which on r_max is the bound", low=1, high=10**9)] = 40000,
        d_max_at: Annotated[int, Setting("batch from which on d_max is the bound", low=1, high=10**9)] = 25000,
        **settings: Any,
    ) -> None:
        super().__init__(num_features, momentum=momentum, **settings)
        if not self.track_running_stats or self.freeze_after:
            what = "norm.freeze_after" if self.freeze_after else "norm.track_running_stats=false"
            raise UsageError(f"{what}: batchrenorm needs running statistics that move, leave it out")
        if self.recalibrate:
            raise UsageError(
                "norm.recalibrate averages running statistics, which batchrenorm computes with: leave it out"
            )
        if min(r_max_at, d_max_at) <= renorm_after:
            raise UsageError(f"norm.renorm_after={renorm_after}: set norm.r_max_at and norm.d_max_at to later batches")
        self.r_max = r_max
        self.d_max = d_max
        self.renorm_after = renorm_after
        self.r_max_at = r_max_at
        self.d_max_at = d_max_at

    def is_another(self, batches: int, samples: int) -> str:
        if batches > self.renorm_after:
            return ""
        cure = "set it, norm.r_max_at and norm.d_max_at to smaller numbers"
        when = f"all of this run is within the first norm.renorm_after={self.renorm_after:,} batches"
        return f"{when}, in which batchrenorm is batchnorm: {cure}"

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        if self.track_running_stats and not self.training:
            flat = x.flatten(0, -2) if self.channel_dim == -1 else x
            return self.from_running(flat, weight, bias).reshape(x.shape)
        dims = tuple(dim for dim in range(x.ndim) if dim != self.channel_dim % x.ndim)
        if not self.track_running_stats:  # a study may take them away
            return self.from_real(x, weight, bias, real, dims)
        mean, var, count, centered = moments(x, real, dims, detach=self.detach)
        self.check_counts(count, "use a larger data.batch_size")
        r, d = self.corrections(mean.detach(), var.detach())
        self.take_in(mean, var, count)
        y = centered * (torch.rsqrt(var + self.eps) * r) + d
        return scale_and_shift(y, weight, bias, self.channel_dim)

    @torch.no_grad()
    def corrections(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Return r and d for a batch with this mean and variance, by the running statistics so far."""
        running_mean, running_var = self.running_like(mean)
        scale = torch.rsqrt(running_var + self.eps)
        batches_seen = self.num_batches_tracked.to(mean.dtype)
        r_max = 1 + (self.r_max - 1) * self.share_of(batches_seen, self.r_max_at)
        d_max = self.d_max * self.share_of(batches_seen, self.d_max_at)
        r = torch.sqrt(var + self.eps) * scale
        d = (mean - running_mean) * scale
        return r.clamp(1 / r_max, r_max), d.clamp(-d_max, d_max)

    def share_of(self, seen: Tensor, batch: int) -> Tensor:
        """Return how much of a bound is reached after so many batches: from 0 at `renorm_after` to 1 at this batch."""
        return ((seen - self.renorm_after) / (batch - self.renorm_after)).clamp(0, 1)
