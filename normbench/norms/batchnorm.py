"""Batch normalization."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from jaxtyping import Num
from torch import Tensor
from torch.nn import functional as F

from normbench.errors import UsageError
from normbench.masks import Counts, counts_of, has_others
from normbench.norms.common import Eps, RunningNorm, scale_and_shift, standardize
from normbench.norms.kernels import MaskedBatchNormFunction
from normbench.settings import Setting
from normbench.types import NormFacts, Site


class BatchNorm(RunningNorm):
    """Standardizes each feature over the batch, and over time or space where the input has them.

    y = γ(x−μ)/√(σ²+ε)+β. In training μ and σ² (biased) come from the batch; in evaluation they are the running mean and
    the running unbiased variance, kept in training as new = (1−m)·old + m·batch with m = `momentum`, or, with
    `momentum=None`, as the average over all batches. With `track_running_stats=False` they always come from the batch.

    Padding counts in no statistic and is 0 in the output; with `masked=False` it counts as if it were text.
    `per_position=True` takes statistics over the batch for each position of a sequence (γ and β are shared), in a
    recurrent cell for each time step; in evaluation, positions past the longest that training has seen use the last
    one's. `sync=True` takes them over the batches of all processes that train together; without it the running
    statistics that count are the first process's. Evaluation never waits for other processes.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where the batch has a single value for each feature (with a mask or the like on the CPU alone).
    Source: Ioffe & Szegedy 2015, algorithms 1 and 2; the moving average is torch.nn.BatchNorm1d's; each position:
    Cooijmans et al. 2017, section 3.
    """

    facts = NormFacts(
        statistics_over="batch and time or space, for each feature",
        centers=True,
        crosses_samples=True,
        sees_future="training",
    )
    used_in = "ResNet, Inception v2 and later, DenseNet, MobileNet, EfficientNet"

    recorded = (*RunningNorm.recorded, "per_position", "sync")

    def __init__(
        self,
        num_features: int,
        *,
        eps: Eps = 1e-5,
        per_position: Annotated[bool, Setting("statistics for each position of a sequence, over the batch")] = False,
        sync: Annotated[bool, Setting("a batch's statistics over all processes, not over each one's part")] = False,
        site: Site | None = None,
        **settings: Any,
    ) -> None:
        self.operator = "batch_norm" if eps else None  # torch's refuses an eps of 0 in training
        if per_position:
            length = site.length if site and settings.get("channel_dim", -1) == -1 else None
            if length is None:
                cure = "leave it out, or use a model of sequences that are seen at once"
                raise UsageError(f"norm.per_position=true finds no positions in this model: {cure}")
            self.positions = (length,)
        super().__init__(num_features, eps=eps, site=site, **settings)
        self.per_position = per_position
        self.sync = sync

    def choose_for(self, device: torch.device) -> None:
        """Choose what runs on a device: off the CPU torch's operator keeps the running statistics as well.

        On the CPU they are moved by operators of their own, whose bits earlier runs have. A mask is taken into account
        by the formula there, and on CUDA, where each operator costs a launch, in few operators.
        """
        super().choose_for(device)
        self.keeps_buffers = self.fused and device.type != "cpu"
        self.masks_in_few = self.fused and device.type == "cuda"

    @classmethod
    def facts_for(cls, *, per_position: bool = False, **options: Any) -> NormFacts:
        facts = super().facts_for(**options)
        if not per_position:
            return facts
        return replace(facts, statistics_over="batch, for each feature and position", sees_future="never")

    def forward(
        self, x: Num[Tensor, "..."], mask: Tensor | None = None, position: int | None = None
    ) -> Num[Tensor, "..."]:
        """Return x normalized; with `position` x is at that position of a sequence alone, (batch, features)."""
        if position is None:
            return super().forward(x, mask)
        self.first_position = position
        mask = None if mask is None else mask.unsqueeze(1)
        y: Tensor = super().forward(x.unsqueeze(1), mask)
        self.first_position = 0
        return y.squeeze(1)

    def compute(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or not self.masks_quickly(x):
            return super().compute(x, mask)
        counts = counts_of(mask)
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = self.gain_in(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        y, mean, var = MaskedBatchNormFunction.apply(x.flatten(0, -2), weight, bias, counts, self.eps)
        if self.track_running_stats:
            self.move_running(mean, var * counts.bessel, counts)
        return y.view(x.shape).to(x.dtype)

    def masks_quickly(self, x: Tensor) -> bool:
        """Tell whether a mask takes few operators: in training, over a whole batch of this process alone."""
        if not (self.masks_in_few and self.masked and self.training):
            return False
        if self.per_position or self.freeze_after or self.channel_dim != -1:
            return False
        if x.numel() <= self.num_features or (self.sync and has_others()):
            return False
        return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())

    @torch.no_grad()
    def move_running(self, mean: Tensor, var: Tensor, counts: Counts) -> None:
        """Move the running statistics towards a batch's, unless those are of one value."""
        tracked = self.num_batches_tracked.add_(counts.known)
        dtype = self.running_mean.dtype
        if self.momentum is None:
            weight = counts.known.to(dtype) / tracked.clamp_min(1)
        else:
            weight = counts.momentum_if_known(self.momentum, dtype)
        self.running_mean.lerp_(mean.to(dtype), weight)
        self.running_var.lerp_(var.to(dtype), weight)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        if self.per_position:
            return self.at_positions(x, weight, bias, real)
        flat = x.flatten(0, -2) if self.channel_dim == -1 else x
        if self.track_running_stats and not self.training:
            return self.from_running(flat, weight, bias).reshape(x.shape)
        if real is not None or self.freeze_after or (self.sync and has_others()):
            dims = tuple(dim for dim in range(x.ndim) if dim != self.channel_dim % x.ndim)
            return self.from_real(x, weight, bias, real, dims)
        self.check_count(x.numel() // self.num_features, "use a larger data.batch_size")
        return self.from_batch(flat, weight, bias).reshape(x.shape)

    def from_batch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return the output from the statistics of a whole batch, x `(batch, features, ...)`; move the running ones."""
        if self.keeps_buffers and self.track_running_stats and self.momentum and self.running_mean.dtype == x.dtype:
            self.num_batches_tracked.add_(1)
            running = self.running_mean, self.running_var
            return F.batch_norm(x, *running, weight, bias, training=True, momentum=self.momentum, eps=self.eps)
        if self.fused:
            # with a momentum of 1 torch's moving averages are the batch's own statistics
            mean = x.new_zeros(self.num_features)
            var = x.new_zeros(self.num_features)
            y = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=1.0, eps=self.eps)
        else:
            dims = (0, *range(2, x.ndim))
            var, mean = torch.var_mean(x.detach(), dims)
            y = scale_and_shift(standardize(x, dims, self.eps, self.detach), weight, bias, 1)
        if self.track_running_stats:
            self.update_running(mean, var)
        return y

    def at_positions(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        """Normalize each position `(batch, time, features)` by statistics of its own."""
        if x.ndim != 3:
            raise UsageError("norm.per_position=true needs input with time, (batch, time, features): leave it out here")
        if self.track_running_stats and not self.training:
            mean, var = self.running_like(x)
            return scale_and_shift((x - mean) * torch.rsqrt(var + self.eps), weight, bias, -1)
        if real is None:
            real = x.new_ones(*x.shape[:2], 1)
        if not (self.sync and has_others()):
            return self.from_real(x, weight, bias, real, (0,))
        length = x.shape[1]
        longest = self.positions[0] - self.first_position
        padding = (0, 0, 0, longest - length)  # other processes may have longer texts
        y = self.from_real(F.pad(x, padding), weight, bias, F.pad(real, padding), (0,))
        return y[:, :length]
