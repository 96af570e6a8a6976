"""Statistics of tensors, as tensors: nothing here waits for the device.

What needs only a few numbers of each tensor is computed for all at once: on a GPU small operators cost what it takes to
start them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Values = Float[Tensor, "..."]
Scalar = Float[Tensor, ""]
Numbers = Float[Tensor, " seen"]  # one of each
SHARES = (1, 25, 50, 75, 99)  # quantiles, in percent
MOST_RANKED = 65_536  # values whose quantiles are taken
TINY = torch.finfo(torch.float32).tiny


class Activation(NamedTuple):
    """What must be read of one activation while it is there; `moments` makes numbers of it.

    mean: of all values. second, fourth: mean power of what they are without it. peaks: largest |x| of each channel.
    """

    mean: Scalar
    second: Scalar
    fourth: Scalar
    peaks: Float[Tensor, " channels"]


def values_of(x: Values) -> Values:
    """Return the values of x in float32, without a history for a backward pass."""
    return x.detach().float()


def activation(x: Values, channel_dim: int) -> Activation:
    """Read an activation, in as few operators as its size allows."""
    x = values_of(x)
    mean = x.mean()
    squares = (x - mean).square_()
    fourths = squares.square()
    peaks = x.abs().amax(dim=all_but(x, channel_dim))
    return Activation(mean, squares.mean(), fourths.mean(), peaks)


def moments(seen: Sequence[Activation]) -> dict[str, Numbers]:
    """Return what describes the values of activations, each over all of its elements.

    mean, std (biased), rms, max (of |x|), kurtosis (E(x−μ)⁴ / σ⁴; 3 for a Gaussian) and dead (share of the channels
    that are exactly 0 at every position of the batch).
    """
    numbers: list[Scalar] = []
    for one in seen:
        numbers += [one.mean, one.second, one.fourth]
    mean, variance, fourth = torch.stack(numbers).view(-1, 3).unbind(1)
    largest, dead = rowwise(largest_and_dead, [one.peaks for one in seen])
    return {
        "mean": mean,
        "std": variance.sqrt(),
        "rms": (variance + mean.square()).sqrt(),
        "max": largest,
        "kurtosis": fourth / variance.square(),
        "dead": dead,
    }


def largest_and_dead(peaks: Float[Tensor, "activations channels"]) -> Float[Tensor, "2 activations"]:
    """Return each row's largest value, and the share of its values that are 0."""
    dead = (peaks == 0).float().mean(dim=1)
    return torch.stack((peaks.amax(dim=1), dead))


def rms(x: Values) -> Scalar:
    """Return √ of the mean square of all elements."""
    return mean_square(x).sqrt()


def mean_square(x: Values) -> Scalar:
    """Return the mean square of all elements."""
    return values_of(x).square().mean()


class Tail(NamedTuple):
    """What must be read of one activation while it is there; `tails` makes numbers of it.

    quantiles: those of SHARES. channels: mean square of each.
    """

    quantiles: list[Scalar]
    channels: Float[Tensor, " channels"]


def tail(x: Values, channel_dim: int) -> Tail:
    """Read an activation's tails."""
    x = values_of(x)
    step = math.ceil(x.numel() / MOST_RANKED)
    while math.gcd(step, x[0].numel()) > 1:  # else it would fall on some channels only
        step += 1
    ranked = x.flatten()[::step].sort().values
    last = ranked.numel() - 1
    quantiles = [ranked[round(share / 100 * last)] for share in SHARES]
    channels = x.square().mean(dim=all_but(x, channel_dim))
    return Tail(quantiles, channels)


def tails(seen: Sequence[Tail]) -> dict[str, Numbers]:
    """Return quantiles of the values of activations, and how far channels stick out.

    q01, q25, q50, q75, q99: of at most 65,536 values from all channels, the nearest one. outlier_ratio: largest
    root mean square of a channel over the (lower) median channel's, of those that are not 0 throughout; outliers:
    share of channels where that is above 6.
    """
    every_quantile: list[Scalar] = []
    for one in seen:
        every_quantile += one.quantiles
    quantiles = torch.stack(every_quantile).view(-1, len(SHARES))
    ratio, outliers = rowwise(outlying, [one.channels for one in seen])
    numbers = {}
    for share, values in zip(SHARES, quantiles.unbind(1), strict=True):
        numbers[f"q{share:02d}"] = values
    numbers["outlier_ratio"] = ratio
    numbers["outliers"] = outliers
    return numbers


def outlying(squares: Float[Tensor, "activations channels"]) -> Float[Tensor, "2 activations"]:
    """Return each row's largest root over its median root, of those that are not 0, and the share above 6 times it."""
    channels = squares.sqrt()
    ordered = channels.sort(dim=1).values
    zeros = (ordered == 0).sum(dim=1, keepdim=True)
    # `nanmedian` and a mask would wait for the device
    middle = zeros + (ordered.shape[1] - zeros - 1) // 2
    ratio = channels / ordered.gather(1, middle)
    share = (ratio > 6).float().mean(dim=1)
    return torch.stack((ratio.amax(dim=1), share))


def gaps(seen: Sequence[Float[Tensor, "4 channels"]]) -> dict[str, Numbers]:
    """Return how far batches are from the running statistics of their norms.

    seen: of each its mean and variance, the running mean, and the running variance + ε. mean_gap: root mean square over
    channels of (batch mean − running mean) / running std; std_ratio: mean of batch std / running std.
    """
    mean_gap, std_ratio = rowwise(gap, seen)
    return {"mean_gap": mean_gap, "std_ratio": std_ratio}


def gap(seen: Float[Tensor, "norms 4 channels"]) -> Float[Tensor, "2 norms"]:
    """Return `gaps` of norms of one width."""
    mean, variance, running_mean, running_variance = seen.unbind(dim=1)
    running_std = running_variance.sqrt()
    squares = ((mean - running_mean) / running_std).square()
    mean_gap = squares.mean(dim=1).sqrt()
    std_ratio = (variance.sqrt() / running_std).mean(dim=1)
    return torch.stack((mean_gap, std_ratio))


def rowwise(function: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Return what a function of rows gives for each part; parts of one shape are its rows together.

    It gives several numbers for each row: (numbers, rows), as is what is returned.
    """
    places_by_shape = defaultdict[torch.Size, list[int]](list)
    for place, part in enumerate(parts):
        places_by_shape[part.shape].append(place)
    columns = {}
    for places in places_by_shape.values():
        rows = torch.stack([parts[place] for place in places])
        for place, column in zip(places, function(rows).unbind(1), strict=True):
            columns[place] = column
    return torch.stack([columns[place] for place in range(len(parts))], dim=1)


def all_but(x: Tensor, dim: int) -> list[int]:
    """Return all dimensions of x but one."""
    return [d for d in range(x.ndim) if d != dim % x.ndim]


def second_moment(x: Values, channel_dim: int) -> Float[Tensor, "features features"]:
    """Return the mean of x xᵀ over all positions, in float64 where there is one: ranks need its smallest values too."""
    precise = torch.float32 if x.device.type == "mps" else torch.float64
    x = x.detach().to(precise)
    rows = x.movedim(channel_dim, -1).flatten(0, -2)
    return rows.T @ rows / rows.shape[0]


def effective_rank(moment: Float[Tensor, "features features"]) -> float:
    """Return exp of the entropy of the singular values, as shares of their sum (Roy & Vetterli 2007, §2).

    They are those of the rows whose second moment is given. From 1 (all rows on a line) to the number of features.
    """
    if not moment.isfinite().all():
        return float("nan")
    squares = torch.linalg.eigvalsh(moment).clamp_min(0)
    singular = squares.sqrt()
    shares = singular / singular.sum()
    entropy = torch.special.entr(shares).sum()
    return float(entropy.exp())


def token_similarity(x: Float[Tensor, "batch ..."], channel_dim: int) -> Scalar:
    """Return the mean cosine between two different positions (tokens, pixels) of a sample, over all pairs and samples.

    There are at least two; the cosine with one that is all 0 is 0.
    """
    rows = values_of(x).movedim(channel_dim, -1).flatten(1, -2)
    lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    rows = rows / lengths.clamp_min(TINY)
    count = rows.shape[1]
    # Σ over i ≠ j of uᵢ·uⱼ is |Σu|² − Σ|u|²
    all_pairs = rows.sum(1).square().sum(-1)
    with_itself = rows.square().sum((-1, -2))
    pairs = all_pairs - with_itself
    return (pairs / (count * (count - 1))).mean()


def entropy(logits: Float[Tensor, "... choices"]) -> Scalar:
    """Return the mean entropy of softmax(logits), in nats."""
    weights = logits.softmax(dim=-1)
    entropies = torch.special.entr(weights).sum(dim=-1)
    return entropies.mean()


def total_norm(tensors: list[Tensor]) -> Scalar:
    """Return the Euclidean norm of all elements of all tensors."""
    return total_norms([tensors])[0]


def total_norms(groups: Sequence[Sequence[Tensor]]) -> list[Scalar]:
    """Return the Euclidean norm of each group, of all elements of all of its tensors."""
    every_tensor = [tensor for group in groups for tensor in group]
    norms = torch.stack(torch._foreach_norm(every_tensor))
    sizes = [len(group) for group in groups]
    return list(torch._foreach_norm(list(norms.split(sizes))))


def gradient_noise(gradients: Iterable[Sequence[Tensor]], size: int) -> tuple[Float[Tensor, " tensors"], Scalar]:
    """Return the variance of one example's gradient, tensor by tensor, and the squared norm of the true gradient.

    gradients: of two or more micro-batches of `size` examples, the mean over these. Both are without bias: with the
    variance s² between n micro-batches S = size·s² and |G|² = |mean|² − s²/n, which is McCandlish et al. 2018, appendix
    A.1, with B_small = size and B_big = n·size. Their noise scale is the sum of the first over the second.
    """
    means: list[Tensor] = []
    deviations: list[Tensor] = []
    for number, sample in enumerate(gradients, 1):  # Welford 1962: a difference of sums would lose small variances
        means = means or [torch.zeros_like(tensor) for tensor in sample]
        moved = torch._foreach_sub([*sample], means)
        squares = torch.stack(torch._foreach_norm(moved)).square()
        deviations.append((1 - 1 / number) * squares)
        torch._foreach_add_(means, moved, alpha=1 / number)
    variances = torch.stack(deviations).sum(0) / (number - 1)
    squared_gradient = total_norm(means).square() - variances.sum() / number
    return size * variances, squared_gradient


def histogram(x: Values, bins: int = 64) -> tuple[Int64[Tensor, " bins"], Float[Tensor, "2"]]:
    """Count x in equal bins between its extremes; return the counts, and the extremes."""
    x = values_of(x).flatten()
    low, high = x.aminmax()
    width = ((high - low) / bins).clamp_min(TINY)
    index = ((x - low) / width).long().clamp_(0, bins - 1)
    counts = torch.zeros(bins, device=x.device, dtype=torch.int64)
    counts.scatter_add_(0, index, torch.ones_like(index))
    return counts, torch.stack((low, high))
