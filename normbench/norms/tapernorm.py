"""Root mean square normalization that tapers to a fixed scale in the course of training."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn

from normbench.masks import has_others
from normbench.norms.common import Affine, AffineNorm, AllReduce, Eps, Masked
from normbench.norms.kernels import rms_formula
from normbench.settings import Setting
from normbench.types import NormFacts


class TaperNorm(AffineNorm):
    """Is RMSNorm early in training, and tapers to a fixed scale, which sees no statistic of its input.

    y = g·γ·x/√(ms(x)+ε) + (1−g)·c·γ̃·x, with ms(x) = mean(x²) over the features at one position. g is 1 up to batch
    `taper_after` of training, then ½(1 + cos πt) with t from 0 to 1 over the next `taper_over` batches, and 0 from
    there on, where `normbench study folding` folds the norm into the linear map after it. From the next evaluation on
    the first term is left out then, and takes no time. The number c makes both
    branches as alike as they can be: c = E[‖γx‖²/√(ms(x)+ε)]/E[‖γx‖²], of averages over batches up to `taper_after`, of
    which the newest has the weight `momentum`. γ̃ starts as γ then is, and is learned from there on: it is kept as γ at
    that time, a buffer, and what has been learned since. In evaluation g is that of the last batch. A batch is one of
    `trainer.accumulate` in a step.

    The norm before the head is to stay, as it keeps the logits from growing: `norm=tapernorm norm@final=rmsnorm`, the
    paper's internal taper. Its loss on the scale of the stream, which takes the place of that norm, is not here, nor is
    its form of LayerNorm.

    Padding counts in no average and is 0 in the output; with `masked=False` it counts as if it were text.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1, where a position is a
    pixel and its features the channels.
    Source: Kanavalau, Amo Alonso & Lall 2026, by a summary of it; no code is public. When the taper begins and how long
    it takes are ours, as is `momentum`: the paper's go with the length of its runs.
    """

    facts = NormFacts(statistics_over="features of one position", centers=False, once_a_pass=True)
    used_in = "its authors' GPT-2"
    later = MappingProxyType({"taper_after": 0, "taper_over": 1})
    recorded = ("taper_after", "taper_over", "momentum", "masked")
    num_batches_tracked: Tensor
    length: Tensor
    square: Tensor
    start_weight: Tensor | None

    def __init__(
        self,
        num_features: int,
        *,
        eps: Eps = 1e-5,
        affine: Affine = True,
        taper_after: Annotated[int, Setting("batches that tapernorm is rmsnorm for", low=0, high=10**9)] = 1000,
        taper_over: Annotated[int, Setting("batches from then on to a fixed scale", low=1, high=10**9)] = 4000,
        momentum: Annotated[float, Setting("share of a batch in the averages of tapernorm", above=0, high=1)] = 0.01,
        masked: Masked = True,
        **place: Any,
    ) -> None:
        super().__init__(num_features, eps, affine, bias=False, **place)
        self.taper_after = taper_after
        self.taper_over = taper_over
        self.momentum = momentum
        self.masked = masked
        self.learned_since = nn.Parameter(torch.zeros(num_features)) if affine else None
        self.register_buffer("start_weight", torch.ones(num_features) if affine else None)
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))
        self.register_buffer("length", torch.zeros(()))
        self.register_buffer("square", torch.zeros(()))
        self.has_tapered = False  # as far as is known: RMSNorm is left out then

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and see whether the taper has ended, which no batch can ask: that waits for the device."""
        if not self.num_batches_tracked.is_meta:
            self.has_tapered = int(self.last_batch) >= self.taper_after + self.taper_over
        return super().train(mode)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self.has_tapered = False  # until a mode is set

    @classmethod
    def facts_for(cls, *, masked: bool = True, **_: Any) -> NormFacts:
        return replace(cls.facts, counts_padding=not masked)

    def is_another(self, batches: int, samples: int) -> str:
        if batches > self.taper_after + 1:
            return ""
        when = f"all of this run is within the first norm.taper_after={self.taper_after:,} batches"
        return f"{when}, in which tapernorm is rmsnorm: set it and norm.taper_over to smaller numbers"

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        x = x.movedim(self.channel_dim, -1)
        if self.has_tapered:
            return self.multiply(x, weight).movedim(-1, self.channel_dim)
        normalized = rms_formula(x, weight, self.eps, detach=self.detach != "none")
        if self.training:
            gate = self.gate_at(self.num_batches_tracked, x.dtype)
            self.take_in(x, normalized, weight, real)
        else:
            gate = self.gate_at(self.last_batch, x.dtype)
        scaled = self.scale.to(x.dtype) * x
        return (gate * normalized + (1 - gate) * scaled).movedim(-1, self.channel_dim)

    def multiply(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """Return c·γ̃·x, and count the batch. γ, which no longer counts, has a gradient of 0 as it has before."""
        if self.training:
            self.num_batches_tracked.add_(1)
        scale = self.scale.to(x.dtype)
        return x * (scale if weight is None else scale + 0 * weight)

    @property
    def last_batch(self) -> Tensor:
        """Return the number of the last batch of training, counted from 0."""
        return (self.num_batches_tracked - 1).clamp_min(0)

    @property
    def scale(self) -> Tensor:
        """Return c·γ̃."""
        c = self.length / self.square.clamp_min(torch.finfo(torch.float32).tiny)
        if self.start_weight is not None and self.learned_since is not None:
            return c * (self.start_weight + self.learned_since)
        return c if self.gain is None else c * self.gain

    @property
    def fixed_scale(self) -> Tensor | None:
        """Return what the norm multiplies by, once it is known to have tapered; None before."""
        return self.scale if self.has_tapered else None

    def gate_at(self, batch: Tensor, dtype: torch.dtype) -> Tensor:
        """Return g in a batch of training, counted from 0."""
        way = ((batch - self.taper_after).to(dtype) / self.taper_over).clamp(0, 1)
        return (1 + torch.cos(math.pi * way)) / 2

    @torch.no_grad()
    def take_in(self, x: Tensor, normalized: Tensor, weight: Tensor | None, real: Tensor | None) -> None:
        """Count a batch, and before the taper begins take in its averages and γ.

        Args:
            x: what is normalized, with its features last.
            normalized: γ·x/√(ms(x)+ε).
            weight: γ, where there is one.
            real: as `normalize` has it.
        """
        gained = x if weight is None else x * weight
        lengths = (gained * normalized).sum()  # of padding 0
        squares = gained.square().sum()
        positions = x.new_full((), x[..., 0].numel()) if real is None else real.sum()
        totals = torch.stack((lengths, squares, positions))
        if has_others():
            totals = AllReduce.apply(totals)
        means = (totals[:2] / totals[2].clamp_min(1)).to(self.length.dtype)
        calibrates = self.num_batches_tracked <= self.taper_after
        is_first = self.num_batches_tracked == 0
        for average, mean in zip((self.length, self.square), means, strict=True):
            step = torch.where(is_first, mean - average, self.momentum * (mean - average))
            average.add_(step.where(calibrates, 0))
        if self.start_weight is not None and weight is not None:
            change = weight.to(self.start_weight.dtype) - self.start_weight
            self.start_weight.add_(change.where(calibrates, 0))
        self.num_batches_tracked.add_(1)
