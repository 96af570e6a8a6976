"""Batch normalization over parts of the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from normbench.errors import UsageError
from normbench.norms.batchnorm import BatchNorm
from normbench.settings import Setting
from normbench.types import NormFacts


class GhostBatchNorm(BatchNorm):
    """Standardizes each feature over blocks of the batch, as if each were a batch, and over time or space.

    y = γ(x−μ)/√(σ²+ε)+β as in BatchNorm, in training with μ and σ² of a block of `ghost` samples, one after another.
    Where these do not divide the batch, blocks are larger, but of fewer than 2·`ghost` samples; a smaller batch is one
    block. Each block moves the running statistics in turn, so that a batch counts as several there. All else is
    BatchNorm's.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where a block has a single value for each feature; under a mask such a block is normalized to β.
    Source: Hoffer, Hubara & Soudry 2017, algorithm 1.
    """

    facts = replace(BatchNorm.facts, statistics_over="blocks of the batch and time or space, for each feature")
    used_in = "its authors' ResNet-44 and other networks of CIFAR and ImageNet, with large batches"
    recorded = (*BatchNorm.recorded, "ghost")

    def __init__(
        self,
        num_features: int,
        *,
        ghost: Annotated[int, Setting("samples of the batch that share statistics", low=1, high=10**6)] = 32,
        **settings: Any,
    ) -> None:
        super().__init__(num_features, **settings)
        if self.sync:
            raise UsageError("norm.sync=true makes larger blocks and norm.ghost smaller ones: leave one of them out")
        self.ghost = ghost

    @classmethod
    def facts_for(cls, *, per_position: bool = False, **options: Any) -> NormFacts:
        facts = super().facts_for(per_position=per_position, **options)
        if not per_position:
            return facts
        return replace(facts, statistics_over="blocks of the batch, for each feature and position")

    def is_another(self, batches: int, samples: int) -> str:
        if samples >= 2 * self.ghost:
            return ""
        cure = "set a larger data.batch_size or a smaller norm.ghost"
        why = f"batches of {samples} are fewer than two blocks of norm.ghost={self.ghost}"
        return f"{why}, so that ghostbatchnorm is batchnorm: {cure}"

    def check_counts(self, counts: Tensor, cure: str) -> None:
        """Refuse nothing: the texts of a block may have ended while those of another go on."""

    def masks_quickly(self, x: Tensor) -> bool:
        return False

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        blocks = x.shape[0] // self.ghost
        if blocks < 2 or (self.track_running_stats and not self.training):
            return super().normalize(x, weight, bias, real)
        reals: Any = [None] * blocks if real is None else real.tensor_split(blocks)
        normalized = []
        for block, block_real in zip(x.tensor_split(blocks), reals, strict=True):
            normalized.append(super().normalize(block, weight, bias, block_real))
        return torch.cat(normalized)
