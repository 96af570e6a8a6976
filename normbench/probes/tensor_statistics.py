"""Statistics of tensors, as tensors: nothing here waits for the device.

What needs only a few numbers of each tensor is computed for all at once: on a GPU small operators cost what it takes to
start them. So a statistic of what passes by has two halves, an `Observation` of each tensor and the numbers of all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Values = Float[Tensor, "..."]
Scalar = Float[Tensor, ""]
Numbers = Float[Tensor, " observations"]  # one for each observation
PERCENTS = (1, 25, 50, 75, 99)  # of the quantiles
MOST_RANKED = 65_536  # values at most whose quantiles are taken
OUTLIER = 6  # a channel sticks out if it is above so many times the median channel
TINY = torch.finfo(torch.float32).tiny

Key = TypeVar("Key", bound=Hashable)


def values_of(x: Values) -> Values:
    """Return the values of x in float32, without a history for a backward pass."""
    return x.detach().float()


def all_but(x: Tensor, dim: int) -> list[int]:
    """Return all dimensions of x but one."""
    return [d for d in range(x.ndim) if d != dim % x.ndim]


def by_shape(tensors: Mapping[Key, Tensor]) -> list[dict[Key, Tensor]]:
    """Return the tensors of each shape together, so that they can be stacked."""
    groups = defaultdict[torch.Size, dict[Key, Tensor]](dict)
    for key, tensor in tensors.items():
        groups[tensor.shape][key] = tensor
    return [*groups.values()]


# ---- statistics of what passes by


class Observation(ABC):
    """What must be read of one tensor while it is there: as little as its numbers need, in few operators.

    A subclass has a class method `read`, which makes an observation of a tensor.
    """

    @classmethod
    @abstractmethod
    def describe(cls, seen: Sequence[Self]) -> dict[str, Numbers]:
        """Return the numbers of all observations: by the word that a number has in a tag, one for each observation."""


@dataclass
class Moments(Observation):
    """Moments of the values of an activation, over all of its elements.

    Numbers: mean; std (biased); rms; max (of |x|); kurtosis (E(x−μ)⁴ / σ⁴; 3 for a Gaussian); dead (share of the
    channels that are exactly 0 at every position of the batch).

    Attributes:
        mean: μ.
        variance: E(x−μ)².
        fourth: E(x−μ)⁴.
        peaks: the largest |x| of each channel.
    """

    mean: Scalar
    variance: Scalar
    fourth: Scalar
    peaks: Float[Tensor, " channels"]

    @classmethod
    def read(cls, x: Values, channel_dim: int) -> Self:
        """Read an activation."""
        x = values_of(x)
        mean = x.mean()
        squares = (x - mean).square_()
        fourths = squares.square()
        peaks = x.abs().amax(dim=all_but(x, channel_dim))
        return cls(mean, squares.mean(), fourths.mean(), peaks)

    @classmethod
    def describe(cls, seen: Sequence[Self]) -> dict[str, Numbers]:
        moments: list[Scalar] = []
        for observation in seen:
            moments += [observation.mean, observation.variance, observation.fourth]
        mean, variance, fourth = torch.stack(moments).view(-1, 3).unbind(1)
        mean_square = variance + mean.square()
        largest, dead = by_rows(largest_and_dead, [observation.peaks for observation in seen])
        return {
            "mean": mean,
            "std": variance.sqrt(),
            "rms": mean_square.sqrt(),
            "max": largest,
            "kurtosis": fourth / variance.square(),
            "dead": dead,
        }


def largest_and_dead(peaks: Float[Tensor, "activations channels"]) -> tuple[Numbers, Numbers]:
    """Return each row's largest value, and the share of its values that are 0."""
    dead = (peaks == 0).float().mean(dim=1)
    return peaks.amax(dim=1), dead


@dataclass
class Tails(Observation):
    """How far values and channels of an activation stick out.

    Numbers: q01, q25, q50, q75, q99 (quantiles of at most 65,536 values from all channels, the nearest one);
    outlier_ratio (largest root mean square of a channel over the (lower) median channel's, of those that are not 0
    throughout); outliers (share of the channels where that is above 6).

    Attributes:
        quantiles: those of PERCENTS.
        mean_squares: of each channel.
    """

    quantiles: list[Scalar]
    mean_squares: Float[Tensor, " channels"]

    @classmethod
    def read(cls, x: Values, channel_dim: int) -> Self:
        """Read an activation."""
        x = values_of(x)
        step = math.ceil(x.numel() / MOST_RANKED)
        while math.gcd(step, x[0].numel()) > 1:  # else it would fall on some channels only
            step += 1
        ranked = x.flatten()[::step].sort().values
        last = ranked.numel() - 1
        quantiles = []
        for percent in PERCENTS:
            place = round(percent / 100 * last)
            quantiles.append(ranked[place])
        mean_squares = x.square().mean(dim=all_but(x, channel_dim))
        return cls(quantiles, mean_squares)

    @classmethod
    def describe(cls, seen: Sequence[Self]) -> dict[str, Numbers]:
        every_quantile: list[Scalar] = []
        for observation in seen:
            every_quantile += observation.quantiles
        quantiles = torch.stack(every_quantile).view(-1, len(PERCENTS))
        ratio, outliers = by_rows(ratio_and_outliers, [observation.mean_squares for observation in seen])
        numbers = {}
        for percent, values in zip(PERCENTS, quantiles.unbind(1), strict=True):
            numbers[f"q{percent:02d}"] = values
        numbers["outlier_ratio"] = ratio
        numbers["outliers"] = outliers
        return numbers


def ratio_and_outliers(mean_squares: Float[Tensor, "activations channels"]) -> tuple[Numbers, Numbers]:
    """Return each row's largest root over its median root, of those that are not 0, and the share of outliers."""
    channels = mean_squares.sqrt()
    ordered = channels.sort(dim=1).values
    zeros = (ordered == 0).sum(dim=1, keepdim=True)
    # `nanmedian` and a mask would wait for the device
    middle = zeros + (ordered.shape[1] - zeros - 1) // 2
    median = ordered.gather(1, middle)
    ratio = channels / median
    outliers = (ratio > OUTLIER).float().mean(dim=1)
    return ratio.amax(dim=1), outliers


@dataclass
class RootMeanSquare(Observation):
    """The root of the mean square of all elements. Number: rms."""

    mean_square: Scalar

    @classmethod
    def read(cls, x: Values) -> Self:
        """Read an activation."""
        return cls(mean_square(x))

    @classmethod
    def describe(cls, seen: Sequence[Self]) -> dict[str, Numbers]:
        squares = torch.stack([observation.mean_square for observation in seen])
        return {"rms": squares.sqrt()}


@dataclass
class Saturated(Observation):
    """How much of the output of a bounded norm is at its bound, which the norm says. Number: saturated."""

    share: Scalar

    @classmethod
    def describe(cls, seen: Sequence[Self]) -> dict[str, Numbers]:
        return {"saturated": torch.stack([observation.share for observation in seen])}


@dataclass
class RunningGap(Observation):
    """How far a batch is from the running statistics of a norm, whose standard deviation is √(running variance + ε).

    Numbers: mean_gap (root mean square over channels of (batch mean − running mean) / running std); std_ratio (mean of
    batch std / running std).

    Attributes:
        channels: batch mean, batch variance, running mean, running variance + ε.
    """

    channels: Float[Tensor, "4 channels"]

    @classmethod
    def read(cls, x: Values, channel_dim: int, running_mean: Tensor, running_variance: Tensor) -> Self:
        """Read what enters a norm, and copy its running statistics, which the norm is about to change."""
        x = values_of(x)
        variance, mean = torch.var_mean(x, dim=all_but(x, channel_dim), correction=0)
        return cls(torch.stack((mean, variance, running_mean, running_variance)))

    @classmethod
    def describe(cls, seen: Sequence[Self]) -> dict[str, Numbers]:
        mean_gap, std_ratio = by_rows(gap_and_ratio, [observation.channels for observation in seen])
        return {"mean_gap": mean_gap, "std_ratio": std_ratio}


def gap_and_ratio(seen: Float[Tensor, "norms 4 channels"]) -> tuple[Numbers, Numbers]:
    """Return `mean_gap` and `std_ratio` of norms of one width."""
    mean, variance, running_mean, running_variance = seen.unbind(dim=1)
    running_std = running_variance.sqrt()
    gaps = (mean - running_mean) / running_std
    ratios = variance.sqrt() / running_std
    return gaps.square().mean(dim=1).sqrt(), ratios.mean(dim=1)


def by_rows(function: Callable[[Tensor], tuple[Numbers, Numbers]], parts: Sequence[Tensor]) -> tuple[Numbers, Numbers]:
    """Return the two numbers of each part that a function gives for each row; it gets parts of one shape as rows."""
    pairs = {}
    for alike in by_shape(dict(enumerate(parts))):
        rows = torch.stack([*alike.values()])
        numbers_of_rows = torch.stack(function(rows))
        for index, pair in zip(alike, numbers_of_rows.unbind(1), strict=True):
            pairs[index] = pair
    in_order = [pairs[index] for index in range(len(parts))]
    first, second = torch.stack(in_order, dim=1)
    return first, second


# ---- statistics of one tensor


def mean_square(x: Values) -> Scalar:
    """Return the mean square of all elements."""
    return values_of(x).square().mean()


def rms(x: Values) -> Scalar:
    """Return the root of the mean square of all elements."""
    return mean_square(x).sqrt()


def second_moment(x: Values, channel_dim: int) -> Float[Tensor, "features features"]:
    """Return the mean of x xᵀ over all positions, in float64 where the device has it: ranks need small values too."""
    precise = torch.float32 if x.device.type == "mps" else torch.float64
    x = x.detach().to(precise)
    rows = x.movedim(channel_dim, -1).flatten(0, -2)
    return rows.T @ rows / rows.shape[0]


def effective_rank(moment: Float[Tensor, "features features"]) -> float:
    """Return exp of the entropy of the singular values, as shares of their sum (Roy & Vetterli 2007, §2).

    The singular values are those of the rows whose second moment is given. The rank is between 1, where all rows lie on
    a line, and the number of features.
    """
    if not moment.isfinite().all():
        return float("nan")
    squares = torch.linalg.eigvalsh(moment).clamp_min(0)
    singular = squares.sqrt()
    shares = singular / singular.sum()
    entropy_of_shares = torch.special.entr(shares).sum()
    return float(entropy_of_shares.exp())


def token_similarity(x: Float[Tensor, "batch ..."], channel_dim: int) -> Scalar:
    """Return the mean cosine between two different positions (tokens, pixels) of a sample, over all pairs and samples.

    A sample has at least two positions; the cosine with a position that is all 0 is 0.
    """
    rows = values_of(x).movedim(channel_dim, -1).flatten(1, -2)
    lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    rows = rows / lengths.clamp_min(TINY)
    count = rows.shape[1]
    # Σ over i ≠ j of uᵢ·uⱼ is |Σu|² − Σ|u|²
    all_pairs = rows.sum(1).square().sum(-1)
    with_itself = rows.square().sum((-1, -2))
    cosines = (all_pairs - with_itself) / (count * (count - 1))
    return cosines.mean()


def entropy(logits: Float[Tensor, "... choices"]) -> Scalar:
    """Return the mean entropy of softmax(logits), in nats."""
    weights = logits.softmax(dim=-1)
    entropies = torch.special.entr(weights).sum(dim=-1)
    return entropies.mean()


def histogram(x: Values, bins: int = 64) -> tuple[Int64[Tensor, " bins"], Float[Tensor, "2"]]:
    """Count x in equal bins from its lowest to its highest value; return the counts, and these two values."""
    x = values_of(x).flatten()
    low, high = x.aminmax()
    width = ((high - low) / bins).clamp_min(TINY)
    index = ((x - low) / width).long().clamp_(0, bins - 1)
    counts = torch.zeros(bins, device=x.device, dtype=torch.int64)
    counts.scatter_add_(0, index, torch.ones_like(index))
    return counts, torch.stack((low, high))


# ---- statistics of weights and gradients, which are many tensors


def total_norm(tensors: list[Tensor]) -> Scalar:
    """Return the Euclidean norm of all elements of all tensors."""
    return total_norms([tensors])[0]


def total_norms(groups: Sequence[Sequence[Tensor]]) -> list[Scalar]:
    """Return the Euclidean norm of each group, of all elements of all of its tensors."""
    every_tensor, sizes = list[Tensor](), list[int]()
    for group in groups:
        every_tensor += group
        sizes.append(len(group))
    norms = torch.stack(torch._foreach_norm(every_tensor))
    norms_of_group = list(norms.split(sizes))
    return list(torch._foreach_norm(norms_of_group))


def gradient_noise(gradients: Iterable[Sequence[Tensor]], size: int) -> tuple[Float[Tensor, " tensors"], Scalar]:
    """Return the variance of one example's gradient, tensor by tensor, and the squared norm of the true gradient.

    Both are without bias: with the variance s² between n micro-batches S = size·s² and |G|² = |mean|² − s²/n, which is
    McCandlish et al. 2018, appendix A.1, with B_small = size and B_big = n·size. Their noise scale is the sum of the
    first over the second.

    Args:
        gradients: of two or more micro-batches, the mean over the examples of each.
        size: examples in each.
    """
    means: list[Tensor] = []
    deviations: list[Tensor] = []
    for number, sample in enumerate(gradients, 1):  # Welford 1962: a difference of sums would lose small variances
        if number == 1:
            means = [torch.zeros_like(tensor) for tensor in sample]
        moved = torch._foreach_sub([*sample], means)
        squares = torch.stack(torch._foreach_norm(moved)).square()
        deviations.append((1 - 1 / number) * squares)
        torch._foreach_add_(means, moved, alpha=1 / number)
    variances = torch.stack(deviations).sum(0) / (number - 1)
    squared_gradient = total_norm(means).square() - variances.sum() / number
    return size * variances, squared_gradient
