"""Batch normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normbench.norms.common import Eps, RunningNorm, scale_and_shift, standardize
from normbench.types import NormFacts


class BatchNorm(RunningNorm):
    """Standardizes each feature over the batch, and over time or space where the input has them.

    y = γ(x−μ)/√(σ²+ε)+β. In training μ and σ² (biased) come from the batch; in evaluation they are the running mean and
    the running unbiased variance, kept in training as new = (1−m)·old + m·batch with m = `momentum`, or, with
    `momentum=None`, as the average over all batches. With `track_running_stats=False` they always come from the batch.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where the batch has a single value for each feature.
    Source: Ioffe & Szegedy 2015, algorithms 1 and 2; the moving average is torch.nn.BatchNorm1d's.
    """

    facts = NormFacts(
        statistics_over="batch and time or space, for each feature",
        centers=True,
        crosses_samples=True,
        sees_future="training",
    )
    used_in = "ResNet, Inception v2 and later, DenseNet, MobileNet, EfficientNet"

    def __init__(self, num_features: int, *, eps: Eps = 1e-5, **settings: Any) -> None:
        self.operator = "batch_norm" if eps else None  # torch's refuses an eps of 0 in training
        super().__init__(num_features, eps=eps, **settings)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, mask: Tensor | None) -> Tensor:
        flat = x.flatten(0, -2) if self.channel_dim == -1 else x
        if self.track_running_stats and not self.training:
            return self.from_running(flat, weight, bias).reshape(x.shape)
        self.check_count(x.numel() // self.num_features, "use larger batches")
        if self.fused:
            # with a momentum of 1 torch's moving averages are the batch's own statistics
            mean, var = x.new_zeros(self.num_features), x.new_zeros(self.num_features)
            y = F.batch_norm(flat, mean, var, weight, bias, training=True, momentum=1.0, eps=self.eps)
        else:
            dims = (0, *range(2, flat.ndim))
            var, mean = torch.var_mean(flat.detach(), dims)
            y = scale_and_shift(standardize(flat, dims, self.eps), weight, bias, 1)
        if self.track_running_stats:
            self.update_running(mean, var)
        return y.reshape(x.shape)
