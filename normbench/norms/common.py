"""What the norms share: settings, parameters, precision, choice of implementation, running statistics."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from jaxtyping import Num
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from normbench.compiling import compiled
from normbench.errors import UsageError
from normbench.masks import has_others
from normbench.norms.kernels import check_compiler, check_liger
from normbench.settings import Setting
from normbench.types import Norm, NormFacts, Site, When

Eps = Annotated[float, Setting("added to the variance or mean square, inside the root", low=0, high=1)]
Affine = Annotated[bool, Setting("learned γ (and β)")]
Bias = Annotated[bool, Setting("learned β, where there is a γ")]
Gain0 = Annotated[float, Setting("start of γ, and its value without affine", low=0, high=1e6)]
ByDepth = Annotated[bool, Setting("divide gain0 by the root of the number of blocks")]
Offset = Annotated[float, Setting("γ is this plus what is stored, which decays; 1: γ decays to 1", low=-1e6, high=1e6)]
Momentum = Annotated[float | None, Setting("share of a batch in running statistics; null: cumulative", above=0, high=1)]
Tracks = Annotated[bool, Setting("evaluate with running statistics of the training batches")]
Masked = Annotated[bool, Setting("statistics of real positions alone; false: of padding too")]
Freeze = Annotated[int | None, Setting("batches until running statistics serve in training too", low=1, high=10**9)]
Recalibrate = Annotated[int, Setting("training batches to average over for an evaluation", low=0, high=10**6)]
Detach = Annotated[
    Literal["none", "mean", "variance", "both"],
    Setting("statistics that are constants in the backward pass; a mean square counts as variance"),
]
Noise = Annotated[float, Setting("size of the noise on the output in training; 0: none", low=0, high=1e3)]
Impl = Annotated[
    Literal["auto", "torch", "eager", "native", "compile", "liger"],
    Setting("what runs: the fastest, torch's operator, formula, own backward, compiled, or Liger's kernel"),
]
LACKING = {
    "torch": "torch has no operator",
    "native": "normbench has no backward of its own",
    "compile": "there is nothing to compile",
    "liger": "Liger has no kernel",
}
# What noise of the size 1 does to an output: how far it shifts and stretches a feature at most, and spreads its values.
SHIFT = 0.5
STRETCH = 0.25
SPREAD = 0.1
VERSIONS = 100  # of the compiled function: for each norm, its settings, training or not, dtype and shape


def refuse(impl: str) -> None:
    """Refuse an implementation that a norm does not have.

    Raises:
        UsageError: always.
    """
    cure = "set norm.impl to auto or eager"
    raise UsageError(f"norm.impl={impl}: {LACKING[impl]} for this norm with these settings, {cure}")


def scale_and_shift(x: Tensor, weight: Tensor | None, bias: Tensor | None, channel_dim: int) -> Tensor:
    """Return γx + β, with each of them where there is one."""
    y = x.movedim(channel_dim, -1)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.movedim(-1, channel_dim)


def hold(statistic: Tensor, kind: Literal["mean", "variance"], detach: Detach) -> Tensor:
    """Return a statistic, as a constant for the backward pass where `detach` names its kind."""
    return statistic.detach() if detach in (kind, "both") else statistic


def standardize(x: Tensor, dims: tuple[int, ...], eps: float, detach: Detach = "none") -> Tensor:
    """Return (x−μ)/√(σ²+ε), with the mean and the biased variance over `dims`; detach: see AffineNorm."""
    centered = x - hold(x.mean(dims, keepdim=True), "mean", detach)
    variance = hold(centered.square().mean(dims, keepdim=True), "variance", detach)
    return centered * torch.rsqrt(variance + eps)


class AllReduce(torch.autograd.Function):
    """The sum of a tensor over all processes; its gradient is the sum of theirs.

    torch's own differentiable collectives are deprecated or private.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summed: Tensor = AllReduce.apply(gradient)
        return summed


def moments(
    x: Tensor, real: Tensor | None, dims: tuple[int, ...], sync: bool = False, detach: Detach = "none"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean, biased variance and count over `dims`, which are kept with size 1, and x less the mean.

    A mean over nothing is 0. Nothing here waits for the device.

    Args:
        x: what is normalized, which must be finite.
        real: 1 or 0, as many axes as x; where x does not count, x less the mean is 0. None: all counts.
        dims: that share a statistic.
        sync: over all processes, whose counts nₖ may differ: n = Σnₖ, μ = Σnₖμₖ/n, σ² = Σnₖ(σ²ₖ+(μₖ−μ)²)/n.
        detach: see AffineNorm.
    """
    counted = x.new_ones([1] * x.ndim) if real is None else real
    repeats = math.prod([x.shape[dim] // counted.shape[dim] for dim in dims])  # torch.compile takes no generator
    total = x.sum(dims, keepdim=True)
    count = repeats * counted.sum(dims, keepdim=True)
    if sync:
        joined = torch.cat((total.flatten(), count.flatten()))
        totals, counts = AllReduce.apply(joined).split((total.numel(), count.numel()))
        total = totals.view_as(total)
        count = counts.view_as(count)
    n = count.clamp_min(1)
    mean = hold(total / n, "mean", detach)
    centered = x - mean
    if real is not None:
        centered.mul_(real)
    squares = centered.square().sum(dims, keepdim=True)
    if sync:
        squares = AllReduce.apply(squares)
    return mean, hold(squares / n, "variance", detach), count, centered


class AffineNorm(Norm, ABC):
    """A norm with γ (`weight`) and β (`bias`), whose subclasses write `normalize` and need not think of precision.

    γ starts at `gain0`, and stays there where it is not learned (`affine=False`); with `gain0_by_depth` that is
    gain0/√L in a stack of L blocks. `weight` is γ less `offset`, so that a decay pulls γ there. `forward` hands
    `normalize` all of it in float32, or in the input's precision if that is higher, and casts last. The keywords are
    what every norm takes beside its own settings, which hands them on as `place`.

    Attributes:
        operator: of torch.nn.functional, which computes the same faster; None where there is none, also with some
            settings.
        fused: whether it is used.
        kernels: functions that compute the same, `native` and `liger`, with these settings.
        masked: whether padding counts in no statistic. Then whatever stands there, NaN too, is taken for 0, has no
            gradient, and is 0 in the output.
        detach: which statistics of the input are constants in the backward pass, which is then the gradient of the
            formula with these held where they are: DetachNorm of Xu, Sun, Zhang, Zhao & Lin 2019, of whatever norm. A
            mean square or a length counts as a variance. The forward pass is the same.
        noise: in training each output y becomes s·y+m, as `perturb` draws s and m anew in each pass.
    """

    operator: str | None = None
    kernels: Mapping[str, Callable[..., Tensor]] = MappingProxyType({})
    masked: bool = False
    fixed_weight: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float | None,
        affine: bool,
        bias: bool,
        *,
        channel_dim: int = -1,
        site: Site | None = None,
        impl: Impl = "auto",
        detach: Detach = "none",
        noise: Noise = 0.0,
        gain0: Gain0 = 1.0,
        gain0_by_depth: ByDepth = False,
        offset: Offset = 0.0,
    ) -> None:
        super().__init__()
        self.noise = noise
        self.detach = detach
        if detach != "none":
            self.check_detach()
            self.operator = None
            self.kernels = {}
            self.exact_gradient = False
        if impl == "torch" and self.operator is None:
            refuse(impl)
        if impl in ("native", "liger") and impl not in self.kernels:
            refuse(impl)
        if impl == "compile":
            check_compiler()
        if impl == "liger":
            check_liger()
        self.num_features = num_features
        self.channel_dim = channel_dim
        self.where = f" at {site.name}" if site else ""
        self.eps: Any = eps  # a number wherever the formula has one
        self.impl = impl
        self.choose_for(torch.empty(0).device)
        blocks = site.stack_depth if gain0_by_depth and site else 1
        self.gain0 = gain0 / math.sqrt(blocks)
        self.offset = offset
        start = torch.full((num_features,), float(self.gain0))
        self.weight = nn.Parameter(start - offset) if affine else None
        fixed = start if self.gain0 != 1 and not affine else None
        self.register_buffer("fixed_weight", fixed, persistent=False)
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine and bias else None

    @property
    def gain(self) -> Tensor | None:
        """Return γ, learned or not; None where it is 1."""
        if self.weight is None:
            return self.fixed_weight
        return self.gain_in(torch.promote_types(self.weight.dtype, torch.float32))

    def gain_in(self, dtype: torch.dtype) -> Tensor | None:
        """Return γ in a number format, float32 or wider, in which its offset is added; None where it is 1."""
        if self.weight is None:
            return None if self.fixed_weight is None else self.fixed_weight.to(dtype)
        stored = self.weight.to(dtype)
        return stored + self.offset if self.offset else stored

    def settings(self) -> dict[str, Any]:
        affine = {"affine": self.weight is not None, "bias": self.bias is not None}
        newer: dict[str, Any] = {}  # of which older versions say nothing
        if self.gain0 != 1:
            newer["gain0"] = self.gain0
        if self.offset:
            newer["offset"] = self.offset
        if self.detach != "none":
            newer["detach"] = self.detach
        if self.noise:
            newer["noise"] = self.noise
        return affine | super().settings() | newer

    def check_detach(self) -> None:
        """Refuse to detach statistics that the norm does not take.

        Raises:
            UsageError: it takes none of this kind.
        """
        name = type(self).__name__.lower()
        if self.facts.statistics_over == "none":
            raise UsageError(f"norm.detach={self.detach}: {name} takes no statistics, leave it out")
        if self.detach == "mean" and not self.facts.centers:
            raise UsageError(f"norm.detach=mean: {name} subtracts no mean, set it to variance or leave it out")

    def hold_mean(self, mean: Tensor) -> Tensor:
        """Return a mean of the input, as a constant for the backward pass if `detach` says so."""
        return hold(mean, "mean", self.detach)

    def hold_variance(self, statistic: Tensor) -> Tensor:
        """Return a variance, mean square or length of the input, as a constant likewise."""
        return hold(statistic, "variance", self.detach)

    def choose_for(self, device: torch.device) -> None:
        """Choose what runs on a device: as the norm is built, and again when it moves."""
        impl: str = self.impl
        if impl == "auto":
            impl = self.fastest_on(device)
        self.fused = impl == "torch"
        self.compiled = impl == "compile"
        self.chosen = self.kernels.get(impl)
        names = {"torch": f"torch.nn.functional.{self.operator}", "compile": "torch.compile", "liger": "liger_kernel"}
        self.implementation = names.get(impl, impl)

    def fastest_on(self, device: torch.device) -> str:
        """Return the implementation that `auto` is on a device; on a GPU torch's operators are fused both ways."""
        if "native" in self.kernels and device.type == "cpu":
            return "native"
        return "torch" if self.operator else "eager"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to another device, by torch's own way there, and choose again."""
        moved = super()._apply(fn, recurse)
        tensors = [*self.parameters(recurse=False), *self.buffers(recurse=False)]
        example = tensors[0] if tensors else fn(torch.empty(1))
        self.choose_for(example.device)
        return moved

    @property
    def kernel(self) -> Callable[..., Tensor] | None:
        """Return the chosen function that computes the formula; None for itself, as within a compiled model."""
        return None if torch.compiler.is_compiling() else self.chosen

    def forward(self, x: Num[Tensor, "..."], mask: Tensor | None = None) -> Num[Tensor, "..."]:
        if self.compiled and not torch.compiler.is_compiling():
            y = compiled_formula()(self, x, mask)
        else:
            y = self.compute(x, mask)
        return self.perturb(y, mask) if self.noise and self.training else y

    def perturb(self, y: Tensor, mask: Tensor | None) -> Tensor:
        """Return s·y+m, with s and m random, of a mean and a deviation that are random themselves.

        Each feature has a mean μ ~ U(−0.5, 0.5)·`noise` and a scale σ = 1 + U(0, 0.25)·`noise` of its own, and each
        value m ~ μ + U(−0.1, 0.1)·`noise` and s ~ σ + N(0, 0.1²)·`noise`, all from torch's random numbers, as dropout.
        Where the norm keeps padding at 0, it stays so. In the manner of Santurkar, Tsipras, Ilyas & Madry 2018, section
        2.1: noise of a mean that is not 0 and a variance that is not 1, which changes from step to step.
        """
        of_feature = [1] * y.ndim
        of_feature[self.channel_dim] = y.shape[self.channel_dim]
        device = y.device
        mean = SHIFT * (2 * torch.rand(of_feature, device=device) - 1)
        stretch = STRETCH * torch.rand(of_feature, device=device)
        shift = mean + SPREAD * (2 * torch.rand_like(y, dtype=torch.float32) - 1)
        scale = stretch + SPREAD * torch.randn_like(y, dtype=torch.float32)
        noisy = y + self.noise * (scale * y + shift)
        if mask is not None and self.masked:
            noisy = noisy * mask.unsqueeze(self.channel_dim)
        return noisy.to(y.dtype)

    def compute(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the output, in the input's precision."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = self.gain_in(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        if mask is None or not self.masked:
            y = self.normalize(x.to(dtype), weight, bias, None)  # without a name, so that it is gone before the cast
            return y.to(x.dtype)
        is_real = mask.unsqueeze(self.channel_dim)
        cleaned = x.to(dtype).masked_fill(~is_real, 0)
        real = is_real.to(dtype)
        y = self.normalize(cleaned, weight, bias, real) * real
        return y.to(x.dtype)

    def check_count(self, count: int, cure: str) -> None:
        """Refuse a statistic over one value, which would always normalize to 0, or to its sign."""
        if count < 2:
            norm = f"{type(self).__name__.lower()}{self.where}"
            amount = "1 value" if count else "no real value"
            raise UsageError(f"{norm} has {amount} for a statistic, and needs at least 2: {cure}")

    def check_counts(self, counts: Tensor, cure: str) -> None:
        """Refuse statistics none of which is over two values; on a GPU, which would have to be waited for, none is."""
        if counts.device.type == "cpu" and not torch.compiler.is_compiling():
            counts = torch.func.debug_unwrap(counts)  # under vmap all seeds at once: no single number can be read
            self.check_count(int(counts.max()), cure)

    @abstractmethod
    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None) -> Tensor:
        """Compute the formula, on arguments of one dtype: float32 or wider.

        Args:
            x: what enters; 0 where it is padding.
            weight, bias: γ and β, where there are.
            real: the shape of x with one feature, 1 where positions count, 0 where x is padding; None: all count.
        """


@cache
def compiled_formula() -> Callable[..., Tensor]:
    """Return `AffineNorm.compute` compiled: once for all norms with the same settings, and for each kind of input."""
    torch._dynamo.config.recompile_limit = max(VERSIONS, torch._dynamo.config.recompile_limit)
    return compiled(AffineNorm.compute, fullgraph=True)


class RunningNorm(AffineNorm):
    """A norm that can keep running statistics in training, for use in evaluation.

    A statistic over a single value has no unbiased variance and leaves the running ones alone.

    Args:
        momentum: weight of the newest batch in an exponential moving average; None for the plain average over all
            batches.
        track_running_stats: whether there are running statistics; else the buffers are None.
        masked: see AffineNorm.
        freeze_after: after so many training batches (of which a step has `trainer.accumulate`) running statistics stay
            as they are, and normalize in training too.
        recalibrate: over so many training batches running statistics are averaged for each evaluation; training goes on
            with its own.
        place: what AffineNorm takes beside.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    positions: tuple[int, ...] = ()  # how many have statistics of their own, if each has
    first_position = 0  # of what is normalized
    sync = False
    recorded: ClassVar[tuple[str, ...]] = ("momentum", "track_running_stats", "masked", "freeze_after", "recalibrate")

    def __init__(
        self,
        num_features: int,
        *,
        eps: Eps = 1e-5,
        affine: Affine = True,
        momentum: Momentum = 0.1,
        track_running_stats: Tracks = True,
        masked: Masked = True,
        freeze_after: Freeze = None,
        recalibrate: Recalibrate = 0,
        **place: Any,
    ) -> None:
        super().__init__(num_features, eps, affine, bias=True, **place)
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        self.masked = masked
        self.freeze_after = freeze_after
        self.recalibrate = recalibrate
        if not track_running_stats and (freeze_after or recalibrate):
            what = "norm.freeze_after" if freeze_after else "norm.recalibrate"
            raise UsageError(f"{what} is of running statistics: set norm.track_running_stats=true, or leave it out")
        shape = (*self.positions, num_features)
        self.make_buffer("running_mean", torch.zeros(shape))
        self.make_buffer("running_var", torch.ones(shape))
        self.make_buffer("num_batches_tracked", torch.zeros(self.positions, dtype=torch.int64))

    def make_buffer(self, name: str, start: Tensor) -> None:
        """Make a buffer for running statistics; None without these."""
        self.register_buffer(name, start if self.track_running_stats else None)

    @classmethod
    def facts_for(cls, *, masked: bool = True, track_running_stats: bool | None = None, **_: Any) -> NormFacts:
        facts = replace(cls.facts, counts_padding=not masked)
        if track_running_stats is None:  # the class's default
            return facts
        sees_future: When = "training" if track_running_stats else "always"
        return replace(facts, sees_future=sees_future)

    def from_running(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return γ(x−μ)/√(σ²+ε)+β with the running statistics; x `(batch, features, ...)`."""
        mean = self.running_mean.to(x.dtype)
        var = self.running_var.to(x.dtype)
        if self.fused:
            return F.batch_norm(x, mean, var, weight, bias, eps=self.eps)
        rows = x.movedim(1, -1)
        y = (rows - mean) * torch.rsqrt(var + self.eps)
        return scale_and_shift(y, weight, bias, -1).movedim(-1, 1)

    def from_real(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, real: Tensor | None, dims: tuple[int, ...]
    ) -> Tensor:
        """Return the same with the statistics of what is real in a batch, which in training the running ones take in.

        Args:
            x, weight, bias, real: see `normalize`.
            dims: that share a statistic.
        """
        sync = self.sync and self.training and has_others()
        mean, var, count, centered = moments(x, real, dims, sync, self.detach)
        self.check_counts(count, "use larger batches or longer texts")
        if self.freeze_after:
            tracked = self.num_batches_tracked
            if self.positions:
                tracked = tracked[self.first_position : self.first_position + mean.shape[1]]
            moves = tracked.max() < self.freeze_after
            self.take_in(mean, var, count, moves)
            old_mean, old_var = self.running_like(x)
            mean = mean.where(moves, old_mean)
            var = var.where(moves, old_var)
            centered = x - mean
        elif self.track_running_stats:
            self.take_in(mean, var, count)
        scale = scale_and_shift(torch.rsqrt(var + self.eps), weight, None, self.channel_dim)
        return scale_and_shift(centered * scale, None, bias, self.channel_dim)

    def running_like(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return running mean and variance in a shape that goes with x; of a position never seen, the last one's."""
        mean = self.running_mean.to(x.dtype)
        var = self.running_var.to(x.dtype)
        if self.positions:
            last = (self.num_batches_tracked > 0).sum() - 1
            places = self.first_position + torch.arange(x.shape[1], device=x.device)
            places = places.minimum(last).clamp_min(0)
            return mean[places], var[places]
        if self.channel_dim == 1:
            shape = (-1, *[1] * (x.ndim - 2))
            return mean.view(shape), var.view(shape)
        return mean, var

    @torch.no_grad()
    def take_in(self, mean: Tensor, var: Tensor, count: Tensor, wanted: Tensor | None = None) -> None:
        """Update running statistics with the average of a batch's, where they are over 2 values or more.

        Args:
            mean, var, count: as `moments` gives them; `var` is made unbiased here, times n/(n−1).
            wanted: whether at all, where that is not sure.
        """
        positions = (mean.shape[1],) if self.positions else ()
        mean = mean.movedim(self.channel_dim, -1).reshape(-1, *positions, self.num_features)
        var = var.movedim(self.channel_dim, -1).reshape(-1, *positions, self.num_features)
        count = count.reshape(-1, *positions)
        samples = len(mean)  # that have statistics of their own
        known = (count > 1).expand(samples, *positions)
        if samples == 1:  # nothing to average
            unbiased = count / (count - 1).clamp_min(1)
            mean = mean[0]
            var = (var * unbiased.unsqueeze(-1))[0]
            known = known[0]
        else:
            part = known / known.sum(0).clamp_min(1)
            unbiased = part * count / (count - 1).clamp_min(1)
            mean = (mean * part.unsqueeze(-1)).sum(0)
            var = (var * unbiased.unsqueeze(-1)).sum(0)
            known = known.any(0)
        if wanted is not None:
            known = known & wanted
        self.update_running(mean, var, known)

    @torch.no_grad()
    def update_running(self, mean: Tensor, var: Tensor, known: Tensor | None = None) -> None:
        """Take in mean and unbiased variance of one batch, `([positions,] features)`, of the known positions."""
        places = slice(self.first_position, self.first_position + len(mean)) if self.positions else ...
        tracked = self.num_batches_tracked[places].add_(1 if known is None else known)
        for running, batch in ((self.running_mean[places], mean), (self.running_var[places], var)):
            step = batch - running
            step = step / tracked.clamp_min(1).unsqueeze(-1) if self.momentum is None else step * self.momentum
            if known is not None:
                step = step.where(known.unsqueeze(-1), 0)
            running.add_(step)
