"""Power normalization."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any

import torch
from torch import Tensor

from normbench.errors import UsageError
from normbench.norms.common import Affine, AffineNorm, Masked, refuse, scale_and_shift
from normbench.norms.kernels import apply_power, copy_if_last
from normbench.settings import Setting
from normbench.types import NormFacts


class PowerNorm(AffineNorm):
    """Divides each position by its root mean square, then each feature by a running one, with a gradient of its own.

    z = x̂/√(ψ²+ε) and y = γz+β, with x̂ = x/√(ms(x)+ε) over the features of a position, or over each of `groups` of them.
    With v the mean of x̂² over the batch, for each feature, ψ² is v in the first `warmup_batches` training batches,
    after them the running ψ² before this batch, and in evaluation the running one. That moves as ψ² ← α·ψ²+(1−α)·v
    with α = `decay`; in the first batches but the last it takes v into a plain mean over all batches before that.

    ψ is a constant in the backward pass, and the gradient g at z becomes (g−(1−α')·ν·z)/√(v+ε) at x̂, where ν starts at
    0, α' is `gradient_decay` and ν ← ν+mean((g−(1−α')·ν·z)·z), the mean over the batch, for each feature.

    Padding counts in no statistic and is 0 in the output; with `masked=False` it counts as if it were text.

    Shapes: `(batch, [time,] features)`, or `(batch, channels, height, width)` with channel_dim=1.
    Raises UsageError where the batch has a single value for each feature (with a mask or the like on the CPU alone).
    Source: Shen, Yao, Gholami, Mahoney & Keutzer 2020, in the form of their code, which also counts padding in the mean
    for ν: `fairseq/modules/norms/mask_powernorm.py`@9ea6226. The defaults are those of its class. Its translators have
    as many groups as attention has heads, and as many first batches as the learning rate warms up for
    (`norm_select.py:19`, `transformer_layer.py:36`; 8,000 in `train-iwslt14.sh`): set `groups` and `warmup_batches`.
    """

    facts = NormFacts(
        statistics_over="features of one position; then batch and time or space, for each feature",
        centers=False,
        crosses_samples=True,
        sees_future="training",
        once_a_pass=True,
    )
    used_in = "its authors' Transformers for translation and language modeling"
    exact_gradient = False
    later = MappingProxyType({"warmup_batches": 0})
    recorded = ("masked", "groups", "decay", "gradient_decay", "warmup_batches")

    running_square: Tensor
    nu: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        eps: Annotated[float, Setting("added to mean squares, inside the root", low=0, high=1)] = 1e-5,
        affine: Affine = True,
        groups: Annotated[int, Setting("groups of features that are divided by their own root", low=1, high=10**6)] = 1,
        decay: Annotated[float, Setting("share that the running ψ² keeps at a batch", low=0, below=1)] = 0.9,
        gradient_decay: Annotated[float, Setting("share of ν that its correction leaves out", low=0, high=1)] = 0.9,
        warmup_batches: Annotated[int, Setting("batches until the running ψ² serves", low=0, high=10**9)] = 10_000,
        masked: Masked = True,
        **place: Any,
    ) -> None:
        super().__init__(num_features, eps, affine, bias=True, **place)
        if num_features % groups:
            raise UsageError(f"norm.groups={groups} does not divide {num_features} features: use a divisor of them")
        if self.compiled:
            refuse("compile")
        self.groups = groups
        self.decay = decay
        self.gradient_decay = gradient_decay
        self.warmup_batches = warmup_batches
        self.masked = masked
        self.register_buffer("running_square", torch.ones(num_features))
        self.register_buffer("nu", torch.zeros(num_features))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    @classmethod
    def facts_for(cls, *, masked: bool = True, **_: Any) -> NormFacts:
        return replace(cls.facts, counts_padding=not masked)

    def is_another(self, batches: int, samples: int) -> str:
        if batches > self.warmup_batches:
            return ""
        when = f"all of this run is within the first norm.warmup_batches={self.warmup_batches:,} batches"
        return f"{when}, in which powernorm takes the batch's own statistics: set it to a smaller number"

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        features_last = x.movedim(self.channel_dim, -1)
        grouped = features_last.unflatten(-1, (self.groups, -1))
        squares = self.hold_variance(grouped.square().mean(-1, keepdim=True))
        rows = (grouped * torch.rsqrt(squares + self.eps)).reshape(-1, self.num_features)
        if self.training:
            z = copy_if_last(self.from_batch(rows, real), weight, bias)
        else:
            z = rows * torch.rsqrt(self.running_square.to(x.dtype) + self.eps)
        z = z.view_as(features_last).movedim(-1, self.channel_dim)
        return scale_and_shift(z, weight, bias, self.channel_dim)

    def from_batch(self, rows: Tensor, real: Tensor | None) -> Tensor:
        """Return z of all positions (rows, features) in training; move the running ψ².

        Args:
            real: as in `normalize`.
        """
        count = torch.full_like(rows[0, 0], len(rows)) if real is None else real.sum()
        self.check_counts(count, "use a larger data.batch_size")
        count = count.clamp_min(1)
        with torch.no_grad():
            square = rows.square().sum(0) / count
            running = self.running_square.to(rows.dtype)
            batches = self.num_batches_tracked.add_(1)
            used = torch.where(batches <= self.warmup_batches, square, running)
            so_far = running + (square - running) / batches
            running = torch.where(batches < self.warmup_batches, so_far, running)
            self.running_square.copy_(running.lerp(square, 1 - self.decay))
            scale = torch.rsqrt(used + self.eps)
            gradient_scale = torch.rsqrt(square + self.eps)
        return divide(rows, scale, gradient_scale, self.nu, count, 1 - self.gradient_decay)


def divide(*inputs: Any) -> Tensor:
    """Return what `PowerFunction` makes of its inputs, also in a model that is compiled.

    torch.compile would lose track of what the backward pass makes of ν, and has to leave the function as it is.
    """
    if torch.compiler.is_compiling():
        from normbench.norms.uncompiled import apply_power as apply  # not before: it imports torch's compiler

        return apply(*inputs)
    return apply_power(*inputs)
